"""The load client on real sockets: outcomes, tries, connections, and what each API is asked."""

import asyncio
import base64
import itertools
import shutil
import socket
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

import pytest

from loadgen.client import APIS, Api, ClientError, Question, Target, ask, fetch
from loadgen.client.answer import Stream
from loadgen.client.exchange import Exchange
from loadgen.report.record import Outcome
from loadgen.workload.prompts import Prose
from tests.gateway.test_tls import certificate
from tests.kit import wire
from tests.kit.processes import until
from tests.kit.script_engine import FIN, HANG, RST, ScriptEngine, Seen, Step, Wait
from tests.loadgen.sending import Seen as Watched
from tests.loadgen.sending import client, conversation, nobody, planned, schedule, sent

PROSE = Prose("salt")
Steps = Iterable[Step]
WORDS = ["the ", "cat ", "ran "]


def good(seen: Seen) -> Steps:
    return wire.stream(wire.events(wire.NAMES.get(seen.target, "chat"), WORDS))


def has_ipv6() -> bool:
    try:
        with socket.socket(AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def always(*steps: Step) -> Any:
    return lambda seen: steps


# ---- outcomes


@pytest.mark.parametrize(
    ("status", "header", "body", "outcome", "reason"),
    [
        (429, "quota_tokens", "", Outcome.REJECTED_QUOTA, "quota_tokens"),
        (429, "queue_full", "", Outcome.REJECTED_CAPACITY, "queue_full"),
        (503, "overloaded", "", Outcome.REJECTED_CAPACITY, "overloaded"),
        (503, "", '{"error":{"code":503,"message":"full"}}', Outcome.REJECTED_CAPACITY, "full"),
        (529, "queue_timeout", "", Outcome.REJECTED_CAPACITY, "queue_timeout"),
        (400, "", '{"error":{"message":"too long"}}', Outcome.ERROR_STATUS, "too long"),
        (404, "", "x" * 200, Outcome.ERROR_STATUS, "x" * 80),
        (502, "backend_unavailable", "", Outcome.ERROR_STATUS, "backend_unavailable"),
        (500, "", '{"type":"error","error":{"type":"api_error","message":"m"}}', Outcome.ERROR_STATUS, "m"),
    ],
)
async def test_a_refusal_is_named_by_status_and_reason(
    status: int, header: str, body: str, outcome: Outcome, reason: str
) -> None:
    extra = [("x-forebay-reason", header)] if header else []
    async with ScriptEngine(always(wire.answer(body.encode(), status=status, extra=extra))) as engine:
        (got,) = await sent([engine.url], planned(0))
    assert (got.outcome, got.status, got.reason) == (outcome, status, reason)


async def test_an_answer_in_pieces_gives_all_its_times_and_what_the_gateway_says() -> None:
    told = [("x-forebay-request-id", "abc"), ("x-request-id", "mine"), ("x-forebay-pool", "short"),
            ("x-forebay-class", "batch"), ("x-forebay-queue-ms", "120"), ("x-forebay-attempts", "2")]  # fmt: skip
    head, *chunks = wire.stream(wire.events("chat", WORDS))
    pauses = [step for one in chunks for step in (Wait(0.02), one)]
    async with ScriptEngine(always(wire.stream_head(told), *pauses)) as engine:
        (got,) = await sent([engine.url], planned(0))
    assert (got.outcome, got.status, got.output_tokens, len(got.reads)) == (Outcome.OK, 200, 3, 3)
    assert got.sched_s <= got.sent_s < got.head_s < got.byte_s < got.reads[0] < got.reads[2] < got.end_s
    assert got.ttft_ms is not None and got.ttft_ms >= 40  # the role event came first and does not count
    assert (got.request_id, got.pool, got.attempts, got.queued_s) == ("abc", "short", 2, 0.12)
    assert got.gateway_class == "batch"
    assert head.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("steps", "outcome", "status"),
    [
        ((FIN,), Outcome.ERROR_CONNECT, 0),
        ((RST,), Outcome.ERROR_CONNECT, 0),
        ((b"HTTP/1.1 200 OK\r\ncont", FIN), Outcome.ERROR_CONNECT, 0),
        ((b"SSH-2.0-OpenSSH_9.2\r\n", HANG), Outcome.ERROR_PROTOCOL, 0),
        ((*wire.stream(wire.events("chat", WORDS))[:4], RST), Outcome.TRUNCATED, 200),
        ((*wire.stream(wire.events("chat", WORDS), end=False), FIN), Outcome.TRUNCATED, 200),
        ((*wire.stream(wire.events("chat", WORDS))[:3], b"zz\r\n", HANG), Outcome.ERROR_PROTOCOL, 200),
        ((wire.head(content_type="text/event-stream") + b"".join(wire.events("chat", WORDS)), FIN), Outcome.OK, 200),
        ((wire.head(content_type="text/event-stream") + b"".join(wire.events("chat", WORDS))[:-1], FIN),
         Outcome.TRUNCATED, 200),
        ((wire.answer(b'{"choices":[', extra=[]), HANG), Outcome.ERROR_PROTOCOL, 200),
        ((b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 2, *wire.stream(wire.events("chat", WORDS))), Outcome.OK, 200),
        ((wire.json_answer(wire.body("chat", "hi")),), Outcome.OK, 200),  # a server that does not stream
        ((wire.answer(b"".join(wire.events("chat", WORDS)), content_type="text/plain"),), Outcome.OK, 200),  # or not say so
    ],
)  # fmt: skip
async def test_how_the_connection_ends_decides_what_an_answer_was(
    steps: tuple[Step, ...], outcome: Outcome, status: int
) -> None:
    async with ScriptEngine(always(*steps)) as engine:
        (got,) = await sent([engine.url], planned(0), timeout_s=5.0)
    assert (got.outcome, got.status) == (outcome, status)
    assert outcome is Outcome.OK or got.reason or status == 200


def stream_of(api: Api, words: int) -> list[bytes]:
    return wire.stream(wire.events(api, ["the "] * words))


@pytest.mark.parametrize("api", APIS)
async def test_of_2000_answers_cut_at_every_byte_none_is_ok(api: Api) -> None:
    words = next(count for count in itertools.count(1) if len(b"".join(stream_of(api, count))) >= 2000)
    message = b"".join(stream_of(api, words))
    cuts = iter(range(len(message)))

    def cut(seen: Seen) -> Steps:
        at = next(cuts)
        return [message[:at], FIN] if at else [FIN]

    async with ScriptEngine(cut) as engine:
        requests = [planned(number, number / 1000) for number in range(len(message))]
        target = Target(url=engine.url, model="m", api=api)
        samples = await sent([target], *requests)
    assert len(samples) == len(message) >= 2000 and Counter(one.outcome for one in samples)[Outcome.OK] == 0
    assert {one.outcome for one in samples} == {Outcome.ERROR_CONNECT, Outcome.TRUNCATED}


async def test_c110_each_way_to_fail_is_counted_by_itself() -> None:
    error = wire.stream([*wire.events("chat", WORDS)[:2], wire.event({"error": {"message": "died", "code": "oom"}})])
    kinds: list[Steps] = [
        *[wire.stream(wire.events("chat", WORDS))] * 6,
        [wire.json_answer({"error": {"message": "slow down", "code": "rate"}}, status=429)],
        [wire.json_answer({"error": {"message": "full", "code": "full"}}, status=503)],
        [*wire.stream(wire.events("chat", WORDS))[:3], FIN],
        error,
    ]
    turn = iter(range(100))
    async with ScriptEngine(lambda seen: kinds[next(turn) % 10]) as engine:
        samples = await sent([engine.url], *(planned(number, number / 200) for number in range(100)))
    groups = Counter((one.outcome, one.status, one.reason) for one in samples)
    assert sorted(groups.values()) == [10, 10, 10, 10, 60]
    assert {(outcome.value, status, reason) for outcome, status, reason in groups} == {
        ("ok", 200, ""),
        ("rejected_quota", 429, "rate"),
        ("rejected_capacity", 503, "full"),
        ("truncated", 200, "the connection was closed"),
        ("error_stream", 200, "oom"),
    }


async def test_nobody_listening_is_a_connection_error_with_a_reason() -> None:
    watched = Watched()
    (got,) = await client(schedule(planned(0)), [nobody()], watched).run(PROSE)
    assert got.outcome is Outcome.ERROR_CONNECT and "refused" in got.reason.lower()
    assert watched.ended_as == {0: Outcome.ERROR_CONNECT}


async def test_a_connection_that_takes_too_long_is_an_error_of_its_own() -> None:
    async with ScriptEngine() as engine:
        engine.jam()
        (got,) = await sent([engine.url], planned(0), connect_s=0.2)
    assert (got.outcome, "no connection within 0.2 s" in got.reason) == (Outcome.ERROR_CONNECT, True)


async def test_an_answer_that_does_not_end_is_a_timeout_with_what_had_come() -> None:
    async with ScriptEngine(always(*wire.stream(wire.events("chat", WORDS))[:3], HANG)) as engine:
        (got,) = await sent([engine.url], planned(0), timeout_s=1.0)
        await until(lambda: bool(engine.aborted()), 5, "the server did not see its client leave")
    assert (got.outcome, got.status, got.token_events) == (Outcome.TIMEOUT, 200, 1)
    assert 1.0 <= got.end_s < 5.0


async def test_a_client_leaves_when_planned_the_server_sees_it_and_it_is_no_timeout() -> None:
    async with ScriptEngine(always(wire.stream_head(), HANG)) as engine:
        leaves, stays = planned(0, cancel_after_s=0.2), planned(1, cancel_after_s=90.0)
        first, second = await sent([engine.url], leaves, stays, timeout_s=1.5)
        await until(lambda: len(engine.aborted()) == 2, 5, "the server did not see its client leave")
    assert (first.outcome, second.outcome) == (Outcome.CANCELLED, Outcome.TIMEOUT)
    assert 0.2 <= first.end_s < 1.5


async def test_who_would_leave_later_than_the_answer_ends_gets_it() -> None:
    async with ScriptEngine(good) as engine:
        (got,) = await sent([engine.url], planned(0, cancel_after_s=5.0))
    assert (got.outcome, got.leaves) == (Outcome.OK, True)


async def test_stamps_are_of_the_read_whenever_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    look, order = Exchange.look, array("d")

    def slow(self: Exchange) -> None:
        order.append(time.monotonic())
        time.sleep(0.8)
        look(self)

    head, role, *rest = wire.stream(wire.events("chat", WORDS))
    async with ScriptEngine(always(head, role, *(step for one in rest for step in (Wait(0.03), one)))) as engine:
        (plain,) = await sent([engine.url], planned(0))
        monkeypatch.setattr(Exchange, "look", slow)
        (late,) = await sent([engine.url], planned(0))
    assert len(order) == 1  # at the end, not in a read
    assert late.end_s - plain.end_s < 0.7 and late.reads[2] < late.end_s
    assert max(late.gaps_ms()) < 750


async def test_parsing_that_takes_50_ms_more_changes_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time of the request is older than the first look at what it said."""
    take, looks = Stream.take, list[tuple[float, float]]()

    def slow(self: Stream, when_s: float, data: bytes) -> None:
        looks.append((time.monotonic(), when_s))
        time.sleep(0.05)
        take(self, when_s, data)

    monkeypatch.setattr(Stream, "take", slow)
    head, role, *rest = wire.stream(wire.events("chat", WORDS))
    async with ScriptEngine(always(head, role, *(step for one in rest for step in (Wait(0.03), one)))) as engine:
        running = client(schedule(planned(0)), [engine.url])
        (got,) = await running.run(PROSE)
        zero = time.monotonic() - running.now_s()
    first_look_s = looks[0][0] - zero
    assert len(looks) >= 5 and time.monotonic() - looks[0][0] >= 0.05 * len(looks)
    assert got.sent_s < got.head_s <= got.byte_s < got.reads[0] < got.reads[-1] <= got.end_s < first_look_s + 0.001
    assert set(got.reads) <= {when_s for _, when_s in looks}, "as they were stamped"


async def test_a_role_that_comes_early_is_no_first_token_and_no_pause() -> None:
    head, role, *rest = wire.stream(wire.events("chat", WORDS))
    async with ScriptEngine(always(head, role, Wait(0.3), *rest)) as engine:
        (got,) = await sent([engine.url], planned(0))
    assert got.ttft_ms is not None and got.ttfb_ms is not None
    assert got.ttfb_ms < 200 and got.ttft_ms >= 300
    assert max(got.gaps_ms(), default=0.0) < 200


# ---- connections


async def test_a_connection_is_kept_and_used_again() -> None:
    async with ScriptEngine(good) as engine:
        samples = await sent([engine.url], *conversation(0, 5, 0.01, 0))
        assert engine.connections == 1
    assert {one.outcome for one in samples} == {Outcome.OK}


async def test_of_two_addresses_the_one_that_listens_is_found_by_all_who_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(*_: Any, **__: Any) -> list[Any]:
        return [(family, None, 0, "", (host, 0)) for family, host in ((AF_INET6, "::1"), (AF_INET, "127.0.0.1"))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    async with ScriptEngine(good) as engine:
        samples = await sent([f"http://localhost:{engine.port}"], *(planned(number) for number in range(30)))
        assert {seen.header("host") for seen in engine.seen} == {f"localhost:{engine.port}"}
    assert {one.outcome for one in samples} == {Outcome.OK}


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 on loopback")
async def test_an_ipv6_address_is_a_host() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"".join(good_steps()))
        await writer.drain()
        writer.close()

    heads: list[bytes] = []
    server = await asyncio.start_server(serve, "::1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (got,) = await sent([f"http://[::1]:{port}"], planned(0))
    assert got.outcome is Outcome.OK and f"host: [::1]:{port}\r\n".encode() in heads[0]


async def test_a_kept_connection_that_was_closed_is_replaced_without_an_error() -> None:
    """The server ends it just as the second request comes: not a byte of an answer, so nothing is sent twice for real."""
    async with ScriptEngine(good) as engine:
        engine.once = [wire.stream(wire.events("chat", WORDS)), [FIN]]
        first, second = await sent([engine.url], *conversation(0, 2, 0.01, 0))
        assert (engine.connections, len(engine.seen)) == (2, 3)
    assert (first.outcome, second.outcome, second.tries) == (Outcome.OK, Outcome.OK, 1)


async def test_a_connection_that_says_too_much_or_close_is_not_used_again() -> None:
    close = wire.answer(b"{}", status=400, extra=[("connection", "close")])
    for steps in ([*good_steps(), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"], [close]):
        async with ScriptEngine(always(*steps)) as engine:
            await sent([engine.url], *conversation(0, 3, 0.01, 0))
            assert engine.connections == 3


def good_steps() -> list[bytes]:
    return wire.stream(wire.events("chat", WORDS))


async def test_retries_are_off_and_when_on_each_try_is_kept_and_latency_counts_from_the_arrival() -> None:
    full = [wire.json_answer({"error": {"code": "full"}}, status=503)]
    async with ScriptEngine(good) as engine:
        engine.once = [full, full]
        (never,) = await sent([engine.url], planned(0))
        assert (never.outcome, never.tries, never.earlier) == (Outcome.REJECTED_CAPACITY, 1, ())
        (once,) = await sent([engine.url], planned(0), retries=2)
    assert (once.outcome, once.tries, len(once.earlier)) == (Outcome.OK, 2, 1)
    assert (once.earlier[0].outcome, once.earlier[0].status) == (Outcome.REJECTED_CAPACITY, 503)
    assert once.sent_s < once.earlier[0].end_s <= once.reads[0] - 0.5
    assert once.ttft_ms is not None and once.ttft_ms >= 500


@pytest.mark.parametrize(("honour", "told_s", "least_s", "most_s"), [(True, 1, 1.0, 10), (False, 30, 0.5, 10)])
async def test_retry_after_is_honoured_only_when_asked(
    honour: bool, told_s: int, least_s: float, most_s: float
) -> None:
    later = [wire.json_answer({"error": {"code": "x"}}, status=429, extra=[("retry-after", str(told_s))])]
    async with ScriptEngine(good) as engine:
        engine.once = [later]
        (got,) = await sent([engine.url], planned(0), retries=1, honour_retry_after=honour)
    assert got.outcome is Outcome.OK
    assert least_s <= got.reads[0] - got.earlier[0].end_s < most_s


async def test_a_retry_that_would_come_after_the_timeout_is_not_made() -> None:
    async with ScriptEngine(always(wire.json_answer({}, status=503))) as engine:
        (got,) = await sent([engine.url], planned(0), retries=9, timeout_s=1.4)
    assert (got.outcome, got.tries) == (Outcome.REJECTED_CAPACITY, 2)


# ---- what is asked, of whom


async def test_urls_are_taken_in_turn_and_named() -> None:
    async with ScriptEngine(good) as a, ScriptEngine(good) as b:
        samples = await sent([a.url, b.url], *(planned(number, number * 0.01) for number in range(6)))
        assert (len(a.seen), len(b.seen)) == (3, 3)
    assert [one.endpoint for one in samples] == [a.url, b.url] * 3


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
async def test_each_api_is_asked_and_answered_streamed_or_not(api: Api, stream: bool) -> None:
    async with ScriptEngine() as engine:  # answers in the way it was asked
        target = Target(url=f"{engine.url}/v1/", model="m", api=api, key="sk-1", headers={"X-Extra": "e"})
        (got,) = await sent([target], planned(0, stream=stream, session="chat/0/1"))
        (seen,) = engine.seen
    assert (got.outcome, got.streamed, got.output_tokens) == (Outcome.OK, stream, 3)
    assert (got.ttft_ms is not None) is stream
    assert seen.target == wire.ROUTES[api]
    key = {"x-api-key": "sk-1"} if api == "messages" else {"authorization": "Bearer sk-1"}
    told = {"x-forebay-priority": "batch", "x-forebay-session": "chat.0.1", "x-extra": "e", **key}
    assert {name: seen.header(name) for name in told} == told
    assert seen.json["model"] == "m" and bool(seen.json.get("stream")) is stream
    assert "[[fb out=3]]" in wire.prompt_of(seen.json) or api == "responses"


async def test_a_path_prefix_and_a_password_of_the_url_are_used_and_never_shown() -> None:
    async with ScriptEngine(good) as engine:
        target = Target(url=f"http://me:s%40cret@127.0.0.1:{engine.port}/llm", model="m")
        (got,) = await sent([target], planned(0))
        (seen,) = engine.seen
    assert (seen.target, got.outcome) == (b"/llm/v1/chat/completions", Outcome.OK)
    assert seen.header("authorization") == f"Basic {base64.b64encode(b'me:s@cret').decode()}"
    assert "cret" not in repr(target) + target.shown + repr(got) and target.shown.endswith("/llm")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "localhost:8000"}, "^'localhost:8000' is no URL of a server: it begins with http://"),
        ({"url": "me:cret@10.0.0.1:80?key=1"}, "^'10.0.0.1:80' is no URL"),
        (
            {"url": "http://10.0.0.1/v1?key=cret"},
            r"^'http://10.0.0.1/v1' has more behind its path, which would not be sent",
        ),
        ({"url": "http://h:port"}, "cannot be read"),
        ({"url": "http://h", "api": "embeddings"}, "chat, completions, responses, messages"),
        ({"url": "http://h", "key": "a\r\nhost: b"}, "no header can carry"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_with_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError, match=words):
        Target(model="m", **fields)


async def test_a_tenant_without_a_target_is_an_error_before_anything_is_sent() -> None:
    with pytest.raises(ClientError, match="tenant chat has no target"):
        client(schedule(planned(0)), [])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
@pytest.mark.parametrize("trusted", [True, False])
async def test_https_is_spoken_to_who_proves_to_be_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    import ssl

    cert, key = certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(good_steps()))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (got,) = await sent([f"https://127.0.0.1:{port}"], planned(0))
    assert got.outcome is (Outcome.OK if trusted else Outcome.ERROR_CONNECT)
    assert trusted or "certificate" in got.reason.lower()


# ---- one by itself


@pytest.mark.parametrize("api", APIS)
async def test_one_question_is_asked_and_its_answer_kept(api: Api) -> None:
    async with ScriptEngine() as engine:
        target = Target(url=engine.url, model="m", api=api)
        reply = await ask(target, Question(text="hello", max_tokens=2, params={"ignore_eos": True}))
        (seen,) = engine.seen
    assert (reply.sample.outcome, reply.sample.prompt_tokens, reply.sample.output_tokens) == (Outcome.OK, 7, 3)
    assert b"hello" in reply.body  # the engine says it again
    assert seen.json["ignore_eos"] is True and 2 in seen.json.values()


async def test_a_page_is_fetched_and_what_goes_wrong_is_told_not_raised() -> None:
    async with ScriptEngine() as engine:
        reply = await fetch(Target(url=engine.url, model="m"), "models")
        assert (reply.sample.outcome, b'"id": "m"' in reply.body) == (Outcome.OK, True)
        engine.answer = always(wire.json_answer({"error": {"code": "no"}}, status=404))
        lost = await fetch(Target(url=engine.url, model="m"), "nowhere")
        assert (lost.sample.outcome, lost.sample.status, lost.sample.reason) == (Outcome.ERROR_STATUS, 404, "no")
    gone = await ask(Target(url=nobody(), model="m"), Question(text="x"))
    assert gone.sample.outcome is Outcome.ERROR_CONNECT
