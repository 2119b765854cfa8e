"""T12: nothing but the route table reaches an engine, however it is spelled (faults.md 4; engines.md 9; C098)."""

import random
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN
from tests.kit.http_reader import ResponseReader
from tests.kit.raw_client import connect, exchange
from tests.kit.sizes import patience, sized
from tests.kit.stage import Stage, gathered, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(patience(120, 600))]

# engines.md 9: what vLLM, SGLang and TensorRT-LLM serve beside the API.
TRAPS = """
/metrics /load /version /health /ping /invocations /kv_event_sources /scale_elastic_ep /is_scaling_elastic_ep /inference/v1/generate
/inference/v1/abort_requests /v1/chat/completions/render /v1/completions/render /v1/chat/completions/derender /docs /redoc /openapi.json
/v1/load_lora_adapter /v1/unload_lora_adapter /start_profile /stop_profile /tokenizer_info /fault_tolerance/status /abort_requests
/sleep /wake_up /is_sleeping /release_kv_cache_memory /reset_prefix_cache /reset_mm_cache /reset_encoder_cache /collective_rpc
/server_info /pause /resume /is_paused /update_weights /pooling /classify /v1/classify
/flush_cache /clear_hicache_storage_backend /abort_request /set_internal_state /get_server_info /get_load /v1/loads
/update_weights_from_disk /update_weights_from_tensor /init_weights_send_group /destroy_weights_update_group /get_weights_by_name
/send_weights_to_remote_instance /release_memory_occupation /resume_memory_occupation /slow_down /open_session /close_session
/configure_logging /freeze_gc /start_expert_distribution_record /load_lora_adapter /generate /encode /v1/files /v1/batches
/perf_metrics /prometheus/metrics /kv_cache_events /v1/kv_cache_hints /steady_clock_offset /release_memory /resume_memory
/admin/v1/queues /admin/v1/drain /v1/responses/resp_1 /v1/responses/resp_1/cancel /get_model_info /health_generate
""".split()  # noqa: SIM905
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda path: path,
    "double slash": lambda path: "/" + path,
    "dot": lambda path: "/." + path,
    "dot dot": lambda path: "/v1/.." + path,
    "behind a route": lambda path: "/v1/chat/completions/.." + path,
    "behind a route and up": lambda path: "/v1/chat/completions/../../.." + path,
    "encoded dot": lambda path: "/%2e%2e" + path,
    "encoded slash": lambda path: "/v1%2f.." + path,
    "encoded letter": lambda path: path[:1] + f"%{ord(path[1]):02x}" + path[2:],
    "twice encoded": lambda path: path[:1] + f"%25{ord(path[1]):02x}" + path[2:],
    "upper case": str.upper,
    "slash behind": lambda path: path + "/",
    "suffix": lambda path: path + "/x",
    "semicolon": lambda path: path + ";a=b",
    "query": lambda path: path + "?x=1",
    "backslash": lambda path: path.replace("/", "\\"),
    "absolute": lambda path: "http://forebay" + path,
    "route as query": lambda path: path + "?/v1/chat/completions",
    "space encoded": lambda path: path + "%20",
    "NUL encoded": lambda path: path + "%00",
}
COUNT = sized(2000, 8000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("t12"), listen={"hosts": []}) as made:
        yield made


CHAT = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
GRANTED = {
    "/tokenize": b'{"model":"m","prompt":"x"}',
    "/detokenize": b'{"model":"m","tokens":[1,2]}',
    "/v1/messages/count_tokens": CHAT,
    "/rerank": b'{"model":"emb","query":"x","documents":["a"]}',
    "/v1/rerank": b'{"model":"emb","query":"x","documents":["a"]}',
    "/score?id=e1": b'{"model":"emb","text_1":"x","text_2":"y"}',
}


def request(method: str, target: str, host: bytes = b"forebay") -> bytes:
    body = b"" if method in ("GET", "HEAD") else GRANTED.get(target, CHAT)
    head = (
        f"{method} {target} HTTP/1.1\r\nhost: ".encode()
        + host
        + b"\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    return head + (b"content-length: %d\r\n" % len(body) if body else b"") + b"\r\n" + body


async def status_of(stage: Stage, data: bytes) -> int:
    response = await exchange(stage.gateway.port, data)
    return response.status


async def test_c098_no_spelling_of_an_engine_path_reaches_an_engine(one: Stage, seed: int) -> None:
    everything = [(method, name, path) for method in METHODS for name in SPELLINGS for path in TRAPS]
    chosen = random.Random(seed).sample(everything, COUNT)
    async with one.holding():
        one.reset()
        jobs = [status_of(one, request(method, SPELLINGS[name](path))) for method, name, path in chosen]
        statuses = await gathered(jobs, at_once=16)
        wrong = [(what, status) for what, status in zip(chosen, statuses, strict=True) if status not in (400, 404, 405)]
        assert wrong == []
        assert one.engine.seen == []


@pytest.mark.parametrize("method", [method for method in METHODS if method != "POST"])
async def test_a_route_under_another_method_says_which_is_right(one: Stage, method: str) -> None:
    one.reset()
    answer = await exchange(one.gateway.port, request(method, "/v1/completions"))
    assert (answer.status, answer.header("allow"), answer.header("x-forebay-reason")) == (405, "POST", "method")
    assert one.engine.seen == []


@pytest.mark.parametrize("path", ["/v1/models", "/readyz", "/v1/completions", "/nowhere"])
async def test_no_answer_to_head_has_a_body(one: Stage, path: str) -> None:
    """A proxy in front would read it as the answer to its next request."""
    async with await connect(one.gateway.port) as client:
        await client.send(f"HEAD {path} HTTP/1.1\r\nhost: forebay\r\n\r\n".encode())
        client.reader = ResponseReader(head_only=True)
        assert (await client.response()).status in (404, 405)
        await client.send(b"GET /livez HTTP/1.1\r\nhost: forebay\r\n\r\n")
        client.reader = ResponseReader()
        assert (await client.response()).body == b"ok"
        assert b"{" not in client.received


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_a_route_that_is_not_granted_is_refused(one: Stage, path: str) -> None:
    one.reset()
    async with one.holding():
        answer = await exchange(one.gateway.port, request("POST", path))
        assert (answer.status, answer.header("x-forebay-reason")) == (403, "route_forbidden")
        assert one.engine.seen == []


async def test_a_granted_route_reaches_its_constant_path(tmp_path_factory: pytest.TempPathFactory) -> None:
    allow = {"allow": {"routes": ["tokenize", "detokenize", "count_tokens"]}}
    async with stage(tmp_path_factory.mktemp("t12-granted"), tenant_defaults=allow) as granted, granted.holding():
        for path in GRANTED:
            assert await status_of(granted, request("POST", path)) == 200, path
        assert [seen.target.decode() for seen in granted.engine.seen] == [
            "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/rerank", "/v1/rerank", "/v1/score",
        ]  # fmt: skip


async def test_a_route_that_the_engine_has_not_is_our_fault_and_holds_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    allow = {"allow": {"routes": ["tokenize"]}}
    directory = tmp_path_factory.mktemp("t12-route")
    async with stage(directory, endpoint={"engine": "openai"}, tenant_defaults=allow) as made, made.holding():
        for _ in range(3):
            answer = await exchange(made.gateway.port, request("POST", "/tokenize"))
            assert (answer.status, answer.header("x-forebay-reason")) == (502, "backend_route")
        assert made.engine.seen == []


async def test_a_host_never_decides_where_a_request_goes(one: Stage, seed: int) -> None:
    r = random.Random(seed)
    letters = b"abcz09.:-_[]/@\\#?%&=;, \t\"'<>(){}|^`~*+!$\x00\x01\x0b\x7f\x80\xff"
    hosts = [bytes(r.choice(letters) for _ in range(r.randrange(0, 40))) for _ in range(480)]
    hosts += [
        one.engine.url[7:].encode(),
        b"127.0.0.1:9090",
        b"metadata.google.internal",
        b"169.254.169.254",
        b"localhost",
        b"a" * 255,
        b"a" * 256,
    ]
    async with one.holding():
        one.reset()
        statuses = await gathered(
            [status_of(one, request("POST", "/v1/chat/completions", host)) for host in hosts], at_once=16
        )
        good = [valid(host) for host in hosts]
        wrong = [
            (host, status)
            for host, status, ok in zip(hosts, statuses, good, strict=True)
            if status != (200 if ok else 400)
        ]
        assert wrong == []
        assert len(one.engine.seen) == sum(good)
        assert {seen.header("host") for seen in one.engine.seen} == {one.engine.url[7:]}


def valid(host: bytes) -> bool:
    allowed = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:_-[]"
    bare = host.strip(b" \t")
    return 1 <= len(bare) <= 255 and all(byte in allowed for byte in bare)


async def test_a_host_list_refuses_all_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with stage(tmp_path_factory.mktemp("t12-hosts"), listen={"hosts": ["forebay.example"]}) as listed:
        for host, status in (
            (b"forebay.example", 200),
            (b"FOREBAY.example", 200),
            (b"other", 421),
            (b"forebay.example.evil", 421),
        ):
            assert await status_of(listed, request("POST", "/v1/chat/completions", host)) == status, host


@pytest.mark.parametrize("token", ["", "wrong", ADMIN_TOKEN + "x", ADMIN_TOKEN[:-1], "Bearer", "*"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/admin/v1/queues"), ("POST", "/admin/v1/drain"), ("GET", "/health")]
)
async def test_the_admin_listener_asks_for_its_token(one: Stage, method: str, path: str, token: str) -> None:
    answer = await one.gateway.get(path, port=one.gateway.admin_port, token=token, method=method)
    assert answer.status == 401 and (await one.gateway.get("/readyz")).status == 200


async def test_the_admin_listener_serves_no_api_route(one: Stage) -> None:
    one.reset()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models"):
        answer = await exchange(
            one.gateway.admin_port,
            wire.request(path, wire.request_body("chat", "x"), extra=[("authorization", f"Bearer {ADMIN_TOKEN}")]),
        )
        assert answer.status in (403, 404), path
    assert one.engine.seen == []
