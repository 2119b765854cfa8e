"""The admin listener over real sockets: routes, roles, bad requests, and scrapes that do not disturb."""

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin import Phase, listen, make_app
from gateway.admin.access import Access
from gateway.admin.operations import Configured, Failure, Reloaded
from gateway.config import ConfigError, read
from gateway.endpoints.directory import Standing
from gateway.endpoints.exposition import Load
from gateway.endpoints.scrape import Facts, Report
from gateway.telemetry import families
from gateway.telemetry.histogram import LAG_BOUNDS, Histogram
from gateway.telemetry.lag import PERIOD_S, LagSampler
from gateway.telemetry.metrics import Metrics
from policies.state.views import EndpointView, FlowView, Totals

OPERATE, READ = "operate-secret-é", "read-secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class AToken:
    id: str
    sha256: str
    role: str


def a_token(name: str, secret: str, role: str) -> AToken:
    return AToken(id=name, sha256=hashlib.sha256(secret.encode()).hexdigest(), role=role)


FILE = """\
version: 1
models: {m: {context_tokens: 4096}}
pools: {p: {model: m}}
endpoints: [{name: e0, url: "http://10.0.0.1:8000", pools: [p], api_key: "${KEY}"}]
listen: {host: 127.0.0.1}
"""
WRONG = ConfigError(file="f.yaml", line=3, column=9, path="pools.p", message="no endpoint belongs to this pool")
TOKENS = (a_token("ops", OPERATE, "operate"), a_token("grafana", READ, "read"))


@dataclass(slots=True)
class SomeOperations:
    """A gateway with one endpoint up, one down, and one queue."""

    now: Phase = "serving"
    drains: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=lambda: Metrics(models=["llama"], version="1"))
    fails: bool = False

    outcome: Reloaded = field(default_factory=lambda: Reloaded(checksum="c0ffee", changed=("endpoints.s0",)))
    reloads: list[str] = field(default_factory=list)

    def phase(self) -> Phase:
        return self.now

    async def reload(self, by: str) -> Reloaded:
        self.reloads.append(by)
        return self.outcome

    def configured(self) -> Configured:
        config = read(FILE, "f.yaml", {"KEY": "hidden"}).config
        failure = Failure(1_700_000_000.0, self.outcome.errors) if self.outcome.errors else None
        return Configured(config, "c0ffee", 1_700_000_000.5, failure)

    def totals(self) -> Totals:
        if self.fails:
            raise RuntimeError("10.0.0.11 is secret")
        return Totals(received=9, completed=3, rejected=1, expired=1, cancelled=1, failed=1, queued=1, inflight=1)

    def queues(self) -> list[FlowView]:
        view = FlowView(pool="short", tenant="default", band="batch", queued=1, queued_bytes=500, oldest_s=0.5)
        return [view]

    def endpoints(self) -> list[EndpointView]:
        bounds = {"max_seqs": 64, "max_prefill_tokens": 8192, "kv_tokens": 90, "prefill_tokens_per_s": 8000.0}
        return [EndpointView(name="s0", up=True, sequences=1, prefill_tokens=70, **bounds)]  # type: ignore[arg-type]

    def standings(self) -> list[tuple[str, Standing]]:
        return [("s0", Standing(up=True, probes_good=4)), ("s1", Standing(failures=7, cause="not connected"))]

    def reports(self) -> list[Report]:
        known = Report(
            name="s0",
            has_metrics=True,
            stale=False,
            load=Load(running=3, waiting=1, kv_usage=0.25, kv_tokens=534_000, block_tokens=16),
            load_age_s=0.4,
            facts=Facts(context_tokens=131_072, kv_tokens=534_000, block_tokens=16),
            counts={"good": 9, "failed": 0, "invalid": 0},
        )
        return [known, replace(known, name="s1", load=None, facts=Facts(), stale=True)]

    def explain(self, request_id: str) -> dict[str, object] | None:
        return {"request": {"id": request_id}, "steps": []} if request_id == "known" else None

    def start_drain(self, by: str) -> None:
        self.drains.append(by)
        self.now = "draining"

    def render_metrics(self) -> Iterator[bytes]:
        return self.metrics.chunks()


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        assert self.headers["content-type"].startswith("application/json")
        made: dict[str, object] = json.loads(self.body)
        return made


class Admin:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.port = port
        self.session = session

    async def ask(
        self, path: str, token: str | None = None, method: str = "GET", headers: dict[str, str] | None = None
    ) -> Answer:
        authorization = {"authorization": f"Bearer {token}"} if token is not None else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, headers={**authorization, **(headers or {})}) as answer:
            lower = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, lower, await answer.read())

    async def raw(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def serving(
    operations: SomeOperations, tokens: tuple[AToken, ...] = TOKENS, *, metrics_auth: bool = False
) -> AsyncIterator[Admin]:
    app = make_app(operations, Access(tokens, metrics_auth=metrics_auth), version="1.2.3")
    listener = await listen(app, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            yield Admin(listener.port, session)
    finally:
        await listener.close()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_health_checks_need_no_token_and_tell_nothing(path: str) -> None:
    async with serving(SomeOperations()) as admin:
        answer = await admin.ask(path)
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.headers["server"] == "forebay"


@pytest.mark.parametrize(
    ("phase", "livez", "readyz"), [("starting", 200, 503), ("serving", 200, 200), ("draining", 200, 503)]
)
async def test_ready_means_serving_and_alive_means_answering(phase: Phase, livez: int, readyz: int) -> None:
    async with serving(SomeOperations(phase)) as admin:
        assert (await admin.ask("/livez")).status == livez
        assert (await admin.ask("/readyz")).status == readyz


async def test_health_shows_phase_counts_and_every_endpoint() -> None:
    async with serving(SomeOperations()) as admin:
        body = (await admin.ask("/health", READ)).json()
    assert isinstance(body.pop("uptime_s"), float)
    assert body == {
        "phase": "serving", "version": "1.2.3",
        "requests": {
            "received": 9, "completed": 3, "rejected": 1, "expired": 1, "cancelled": 1, "failed": 1, "queued": 1,
            "inflight": 1,
        },
        "endpoints": [
            {
                "name": "s0", "up": True, "suspected": False, "failures": 0, "cause": "",
                "outstanding": {"sequences": 1, "max_seqs": 64, "prefill_tokens": 70, "max_prefill_tokens": 8192},
                "engine": {
                    "context_tokens": 131_072, "kv_tokens": 534_000, "block_tokens": 16, "stale": False,
                    "running": 3, "waiting": 1, "kv_usage": 0.25, "age_s": 0.4,
                },
            },
            {
                "name": "s1", "up": False, "suspected": False, "failures": 7, "cause": "not connected",
                "outstanding": None,
                "engine": {
                    "context_tokens": None, "kv_tokens": None, "block_tokens": None, "stale": True,
                    "running": None, "waiting": None, "kv_usage": None, "age_s": None,
                },
            },
        ],
    }  # fmt: skip


async def test_queues_show_flows_endpoints_and_sums() -> None:
    async with serving(SomeOperations()) as admin:
        body = (await admin.ask("/admin/v1/queues", READ)).json()
    (flow,) = body.pop("flows")  # type: ignore[misc]
    assert flow.pop("oldest_s") > 0
    assert flow == {"pool": "short", "tenant": "default", "class": "batch", "queued": 1, "queued_bytes": 500}
    endpoint = {"name": "s0", "up": True, "sequences": 1, "max_seqs": 64, "prefill_tokens": 70}
    assert body == {"queued": 1, "queued_bytes": 500, "endpoints": [{**endpoint, "max_prefill_tokens": 8192}]}


async def test_a_request_is_explained_by_its_id_to_whoever_may_read() -> None:
    async with serving(SomeOperations()) as admin:
        assert (await admin.ask("/admin/v1/explain/known")).status == 401
        found = await admin.ask("/admin/v1/explain/known", READ)
        assert found.json() == {"request": {"id": "known"}, "steps": []}
        for name in ("other", "a%20b", "a" * 300):
            missing = await admin.ask(f"/admin/v1/explain/{name}", READ)
            assert missing.status == 404
            assert missing.json()["error"]["code"] == "unknown_request"  # type: ignore[index]
            assert name.encode() not in missing.body
        assert (await admin.ask("/admin/v1/explain/", READ)).json()["error"]["code"] == "not_found"  # type: ignore[index]
        assert (await admin.ask("/admin/v1/explain/known", READ, "POST")).status == 405


async def test_a_drain_is_asked_for_once_or_more_and_names_who_did() -> None:
    operations = SomeOperations()
    async with serving(operations) as admin:
        first = await admin.ask("/admin/v1/drain", OPERATE, "POST")
        second = await admin.ask("/admin/v1/drain", OPERATE, "POST")
        assert (await admin.ask("/readyz")).status == 503
    assert (first.status, first.json()) == (202, {"phase": "draining"})
    assert second.status == 202
    assert operations.drains == ["ops", "ops"]


@pytest.mark.parametrize(
    ("method", "path", "nobody", "read", "operate"),
    [
        ("GET", "/livez", 200, 200, 200),
        ("GET", "/readyz", 200, 200, 200),
        ("GET", "/metrics", 200, 200, 200),
        ("GET", "/health", 401, 200, 200),
        ("GET", "/admin/v1/queues", 401, 200, 200),
        ("GET", "/admin/v1/config", 401, 200, 200),
        ("POST", "/admin/v1/reload", 401, 403, 200),
        ("POST", "/admin/v1/drain", 401, 403, 202),
    ],
)
async def test_each_path_asks_for_its_role(method: str, path: str, nobody: int, read: int, operate: int) -> None:
    async with serving(SomeOperations()) as admin:
        tokens = (None, READ, OPERATE)
        statuses = [(await admin.ask(path, token, method)).status for token in tokens]
    assert statuses == [nobody, read, operate]


async def test_metrics_ask_for_a_token_when_told_to() -> None:
    async with serving(SomeOperations(), metrics_auth=True) as admin:
        assert (await admin.ask("/metrics")).status == 401
        assert (await admin.ask("/metrics", READ)).status == 200


BAD_CREDENTIALS = [
    None, "Bearer", "Bearer ", "Bearer wrong", "Bearer  ", "Basic b3BzOng=", READ, f"Basic {READ}", f"Bearer x{READ}",
    f"Bearer {READ}x", f"Bearer {READ.upper()}", f"Bearer {TOKENS[0].sha256}", "Bearer ' OR 1=1 --%s\x00"[:-1],
    "Bearer \udcff\udcfe", "Bearer " + "a" * 8000,
]  # fmt: skip


async def test_every_bad_credential_gets_the_same_answer() -> None:
    operations = SomeOperations()
    answers = set()
    async with serving(operations) as admin:
        for credential in BAD_CREDENTIALS:
            line = f"authorization: {credential}\r\n".encode("utf-8", "surrogateescape") if credential else b""
            request = b"POST /admin/v1/drain HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + line + b"\r\n"
            head, body = (await admin.raw(request)).split(b"\r\n\r\n", 1)
            lines = sorted(line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:"))
            answers.add((tuple(lines), body))
    assert len(answers) == 1
    ((lines, body),) = answers
    assert b"HTTP/1.1 401 Unauthorized" in lines
    assert any(line.lower().startswith(b"www-authenticate: bearer") for line in lines)
    assert json.loads(body)["error"]["code"] == "unauthorized"
    assert operations.drains == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_may_be_written_in_any_case(scheme: str) -> None:
    async with serving(SomeOperations()) as admin:
        answer = await admin.ask("/health", headers={"authorization": f"{scheme} {READ}"})
    assert answer.status == 200


async def test_without_tokens_a_local_caller_may_do_everything() -> None:
    operations = SomeOperations()
    async with serving(operations, ()) as admin:
        assert (await admin.ask("/health")).status == 200
        assert (await admin.ask("/admin/v1/queues")).status == 200
        assert (await admin.ask("/admin/v1/drain", method="POST")).status == 202
    assert operations.drains == ["local"]


@pytest.mark.parametrize(
    ("headers", "with_tokens", "without"),
    [
        ({"origin": "http://evil.example"}, 403, 403),
        ({"origin": "null"}, 403, 403),
        ({"origin": "http://evil.example", "host": "evil.example"}, 202, 403),  # DNS rebinding; a token stops it too
        ({"host": "evil.example:9090"}, 202, 403),
        ({"host": "127.0.0.1.evil.example"}, 202, 403),
        ({"host": "[::1]:9090"}, 202, 202),
        ({"host": "localhost:9090"}, 202, 202),
        ({"origin": "http://localhost:9090", "host": "localhost:9090"}, 202, 202),
        ({"host": "10.0.0.5"}, 202, 202),
        ({"host": "[::1"}, 202, 403),
    ],
)
async def test_a_web_page_elsewhere_cannot_drain_the_gateway(
    headers: dict[str, str], with_tokens: int, without: int
) -> None:
    statuses = []
    for tokens, token in ((TOKENS, OPERATE), ((), None)):
        async with serving(SomeOperations(), tokens) as admin:
            statuses.append((await admin.ask("/admin/v1/drain", token, "POST", headers)).status)
    assert statuses == [with_tokens, without]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/admin/v1/../../etc/passwd", 404, "not_found"),
        ("GET", "/admin/v1/%2e%2e/livez", 404, "not_found"),
        ("GET", "/v1/models", 404, "not_found"),
        ("GET", "/metrics/", 404, "not_found"),
        ("GET", "//livez", 404, "not_found"),
        ("POST", "/livez", 405, "method"),
        ("GET", "/admin/v1/drain", 405, "method"),
        ("DELETE", "/admin/v1/queues", 405, "method"),
        ("OPTIONS", "/admin/v1/drain", 405, "method"),
    ],
)
async def test_a_wrong_path_or_method_gets_json(method: str, path: str, status: int, code: str) -> None:
    async with serving(SomeOperations()) as admin:
        data = await admin.raw(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, body = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == code
    assert (b"allow:" in head.lower()) is (status == 405)


async def test_a_failure_inside_is_told_to_the_loop_and_not_to_the_caller() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    async with serving(SomeOperations(fails=True)) as admin:
        answer = await admin.ask("/health", READ)
        assert (await admin.ask("/livez")).status == 200
    assert answer.status == 500
    assert answer.json()["error"]["code"] == "internal"  # type: ignore[index]
    assert b"10.0.0.11" not in answer.body
    assert [str(error) for error in told] == ["10.0.0.11 is secret"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(200)) + b"\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
    ids=["tls hello", "long header", "long target", "many headers", "two lengths"],
)
async def test_a_bad_message_is_refused_without_a_log_line_and_the_listener_lives_on(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(SomeOperations()) as admin:
        answer = await admin.raw(data)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        assert (await admin.ask("/livez")).status == 200
    assert caplog.records == []


async def test_a_large_body_is_not_read() -> None:
    async with serving(SomeOperations()) as admin:
        request = (
            b"POST /admin/v1/drain HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 10000000000\r\n\r\n"
        )
        answer = await admin.raw(request)
    assert answer.startswith(b"HTTP/1.1 401")


async def test_a_port_in_use_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="address already in use"):
        await listen(make_app(SomeOperations(), Access(())), "127.0.0.1", taken.getsockname()[1])


async def test_a_scrape_is_prometheus_text() -> None:
    async with serving(SomeOperations()) as admin:
        answer = await admin.ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert "forebay_attempts" in names


@pytest.mark.serial
async def test_scrapes_of_ten_thousand_series_at_10_hz_do_not_hold_up_the_loop() -> None:
    operations = SomeOperations()
    names = [(f"pool-{number}", "default", "standard") for number in range(10_000)]
    operations.metrics.watch(families.QUEUE_REQUESTS, lambda: [(name, 1) for name in names])
    lags: list[float] = []
    sampler = LagSampler(lags.append)
    async with serving(operations) as admin:
        for _ in range(20):
            answer = await admin.ask("/metrics")
            assert answer.body.count(b"forebay_queue_requests{") == 10_000
            await asyncio.sleep(0.1)
    sampler.cancel()
    lags.sort()
    assert len(lags) > 20
    assert lags[len(lags) // 2] < 0.02


async def test_the_lag_sampler_sees_a_blocked_loop() -> None:
    histogram = Histogram(LAG_BOUNDS)
    sampler = LagSampler(histogram.observe)
    await asyncio.sleep(PERIOD_S * 2.5)
    time.sleep(0.3)  # the very thing it is there to see
    await asyncio.sleep(PERIOD_S * 2.5)
    sampler.cancel()
    counts, total = histogram.state()
    slow = sum(count for bound, count in zip((*LAG_BOUNDS, float("inf")), counts, strict=True) if bound > 0.2)
    assert slow == 1
    assert sum(counts) >= 3
    assert total > 0.2


async def test_a_reload_tells_what_it_has_changed() -> None:
    operations = SomeOperations()
    async with serving(operations) as admin:
        answer = await admin.ask("/admin/v1/reload", OPERATE, "POST")
    assert (answer.status, answer.json()) == (200, {"checksum": "c0ffee", "changed": ["endpoints.s0"]})
    assert operations.reloads == ["ops"]


async def test_a_reload_of_wrong_files_tells_everything_that_is_wrong_and_where() -> None:
    operations = SomeOperations(outcome=Reloaded(checksum="c0ffee", errors=(WRONG,)))
    async with serving(operations) as admin:
        answer = await admin.ask("/admin/v1/reload", OPERATE, "POST")
        told = (await admin.ask("/admin/v1/config", READ)).json()
    error = {"file": "f.yaml", "line": 3, "column": 9, "path": "pools.p", "message": "no endpoint belongs to this pool"}
    assert (answer.status, answer.json()) == (422, {"errors": [error]})
    assert told["last_failure"] == {"at": "2023-11-14T22:13:20.000Z", "errors": [error]}


@pytest.mark.parametrize("phase", ["starting", "draining"])
async def test_nothing_is_reloaded_before_and_after_serving(phase: Phase) -> None:
    operations = SomeOperations(now=phase)
    async with serving(operations) as admin:
        answer = await admin.ask("/admin/v1/reload", OPERATE, "POST")
    assert (answer.status, answer.json()["error"]["code"]) == (409, "not_serving")  # type: ignore[index]
    assert operations.reloads == []


async def test_the_configuration_in_force_is_told_without_secrets() -> None:
    async with serving(SomeOperations()) as admin:
        answer = await admin.ask("/admin/v1/config", READ)
    told = answer.json()
    config = told["config"]
    assert (told["checksum"], told["loaded_at"], told["last_failure"]) == ("c0ffee", "2023-11-14T22:13:20.500Z", None)
    assert config["endpoints"][0]["api_key"] == config["isolation"]["salt_secret"] == "***"  # type: ignore[index]
    assert config["classes"]["batch"]["queue_timeout_s"] == 300.0  # type: ignore[index]
    assert config["tenants"] is None  # type: ignore[index]
    assert b"hidden" not in answer.body
