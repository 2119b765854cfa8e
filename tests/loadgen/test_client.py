"""The client of live runs: outcomes on real sockets, a cut anywhere is no success, and requests go out on time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp.web
import msgspec
import pytest

from loadgen.client import OTHERS, Client, ClientOptions, Target, Watcher
from loadgen.client.answer import Stream
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, Prose

Handler = Callable[[aiohttp.web.Request], Awaitable[aiohttp.web.StreamResponse]]


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(content: str | None = None, finish: str | None = None, **delta: object) -> bytes:
    said = {**({} if content is None else {"content": content}), **delta}
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": finish}]})


USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    }
)
DONE = b"data: [DONE]\n\n"
TEXT = [chunk("", role="assistant"), chunk("the "), chunk("cat "), chunk("ran ", "stop"), USAGE, DONE]
STREAM = b"".join(TEXT)


def sample() -> Sample:
    return Sample(
        id=0,
        tenant="chat",
        priority="interactive",
        measured=True,
        input_tokens=9,
        planned_output=3,
        leaves=False,
        sched_s=0,
    )


def fed(*reads: bytes) -> tuple[Outcome, Sample]:
    got = sample()
    answer = Stream("chat", got)
    for number, data in enumerate(reads):
        answer.take(number + 1.0, data)
    return answer.end(complete=True), got


# ---- one answer


def test_a_good_answer_is_stamped_at_its_token_bearing_reads() -> None:
    outcome, got = fed(*TEXT)
    assert outcome is Outcome.OK
    assert list(got.reads) == [2.0, 3.0, 4.0]  # not the role event, not usage, not the end
    assert (got.prompt_tokens, got.output_tokens, got.cached_tokens, got.token_events) == (9, 3, 4, 3)


@pytest.mark.parametrize(
    "delta", [{"reasoning": "hm "}, {"reasoning_content": "hm "}, {"tool_calls": [{"function": {"arguments": "{"}}]}]
)
def test_reasoning_and_tool_calls_bear_tokens(delta: dict[str, object]) -> None:
    _, got = fed(chunk("", role="assistant"), chunk(**delta))
    assert list(got.reads) == [2.0]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_spaces_in_the_json_do_not_matter(separators: tuple[str, str]) -> None:
    loose = b"".join(
        b"data: " + json.dumps(json.loads(one[6:]), separators=separators).encode() + b"\n\n" for one in TEXT[:-1]
    )
    outcome, got = fed(loose, DONE)
    assert (outcome, got.token_events, got.output_tokens) == (Outcome.OK, 3, 3)


def test_a_stream_cut_at_any_byte_is_never_ok() -> None:
    for cut in range(len(STREAM)):
        outcome, _ = fed(STREAM[:cut])
        assert outcome is Outcome.TRUNCATED, cut


def test_any_split_of_the_reads_gives_the_same_answer() -> None:
    for cut in range(1, len(STREAM)):
        outcome, got = fed(STREAM[:cut], STREAM[cut:])
        assert (outcome, got.token_events, got.output_tokens) == (Outcome.OK, 3, 3), cut
    outcome, got = fed(*(STREAM[i : i + 1] for i in range(len(STREAM))))
    assert (outcome, got.token_events) == (Outcome.OK, 3)


@pytest.mark.parametrize(
    ("reads", "outcome"),
    [
        ([*TEXT[:4], DONE], Outcome.OK),  # no usage: counted from the events
        ([*TEXT[:3], USAGE, DONE], Outcome.TRUNCATED),  # an end marker without a finish reason
        ([*TEXT[:5]], Outcome.TRUNCATED),  # a finish reason without an end marker
        ([*TEXT[:2], event({"error": {"message": "died", "code": "backend_stall"}})], Outcome.ERROR_STREAM),
        ([*TEXT[:2], event({"error": {"message": "died", "code": 500}}), DONE], Outcome.ERROR_STREAM),
        ([*TEXT[:3], chunk("", "abort"), USAGE, DONE], Outcome.ERROR_STREAM),
        ([*TEXT[:3], b'data: {"usage":{"prom\n\n', DONE], Outcome.ERROR_PROTOCOL),
        ([chunk('say data: [DONE] and "error"'), chunk("x", "stop"), USAGE, DONE], Outcome.OK),
        ([chunk("\n\ndata: [DONE]\n\n"), chunk('"usage":{')], Outcome.TRUNCATED),
        ([b": ping\n\n", *TEXT, b": ping\n\n"], Outcome.OK),
        ([b""], Outcome.TRUNCATED),
    ],
)
def test_what_ends_an_answer_decides_what_it_was(reads: list[bytes], outcome: Outcome) -> None:
    assert fed(*reads)[0] is outcome


def test_an_error_event_leaves_its_code() -> None:
    _, got = fed(event({"error": {"message": "m", "code": "backend_stall"}}))
    assert got.reason == "backend_stall"


# ---- on sockets


def planned(number: int, t: float = 0.0, leaves: float | None = None, output: int = 3) -> Planned:
    return Planned(
        id=number,
        t=t,
        tenant="chat",
        priority="batch",
        cls="all",
        input_tokens=32,
        output_tokens=output,
        max_tokens=64,
        cancel_after_s=leaves,
        measured=True,
        blocks=(Block(namespace="chat", id=number, tokens=30),),
    )


def schedule(*requests: Planned) -> Schedule:
    return Schedule(name="test", seed=1, window_start_s=0, window_end_s=1, requests=requests)


class Quiet:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.sent_ids: list[int] = []
        self.ended_as: dict[int, Outcome] = {}

    def sent(self, sample: Sample) -> None:
        self.sent_ids.append(sample.id)

    def ended(self, sample: Sample) -> None:
        self.ended_as[sample.id] = sample.outcome


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = aiohttp.web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def streamed(request: aiohttp.web.Request, *pieces: bytes, gap_s: float = 0.0) -> aiohttp.web.StreamResponse:
    response = aiohttp.web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": "abc"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(gap_s)
    return response


def client(plan: Schedule, urls: list[str], watcher: Watcher) -> Client:
    return Client(plan, {OTHERS: [Target(url=url, model="m") for url in urls]}, ClientOptions(), watcher)


async def sent_to(handler: Handler, *requests: Planned) -> list[Sample]:
    async with serving(handler) as url:
        return await client(schedule(*requests), [url], Quiet()).run(Prose("salt"))


def refusing(status: int, headers: dict[str, str], body: str) -> Handler:
    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        return aiohttp.web.Response(status=status, headers=headers, text=body)

    return handler


@pytest.mark.parametrize(
    ("status", "header", "body", "outcome", "reason"),
    [
        (429, "quota_tokens", "", Outcome.REJECTED_QUOTA, "quota_tokens"),
        (429, "queue_full", "", Outcome.REJECTED_CAPACITY, "queue_full"),
        (503, "overloaded", "", Outcome.REJECTED_CAPACITY, "overloaded"),
        (503, "", '{"error":{"code":503,"message":"full"}}', Outcome.REJECTED_CAPACITY, "503"),
        (529, "queue_timeout", "", Outcome.REJECTED_CAPACITY, "queue_timeout"),
        (400, "", '{"error":{"message":"too long"}}', Outcome.ERROR_STATUS, "too long"),
        (404, "", "x" * 200, Outcome.ERROR_STATUS, "x" * 80),
        (502, "backend_unavailable", "", Outcome.ERROR_STATUS, "backend_unavailable"),
    ],
)
async def test_a_refusal_is_named_by_status_and_reason(
    status: int, header: str, body: str, outcome: Outcome, reason: str
) -> None:
    headers = {"x-forebay-reason": header} if header else {}
    (got,) = await sent_to(refusing(status, headers, body), planned(0))
    assert (got.outcome, got.status, got.reason) == (outcome, status, reason)


async def test_an_answer_in_pieces_gives_all_its_times() -> None:
    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        return await streamed(request, *TEXT, gap_s=0.03)

    (got,) = await sent_to(handler, planned(0))
    assert (got.outcome, got.status, got.request_id, got.output_tokens) == (Outcome.OK, 200, "abc", 3)
    assert got.sched_s <= got.sent_s < got.head_s < got.reads[0] < got.reads[1] < got.reads[2] < got.end_s
    assert got.ttft_ms is not None and got.ttft_ms >= 30  # the role event came first and does not count


async def test_a_stream_that_breaks_is_truncated() -> None:
    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        response = await streamed(request, *TEXT[:3])
        assert request.transport is not None
        request.transport.abort()
        return response

    (got,) = await sent_to(handler, planned(0))
    assert (got.outcome, got.token_events) == (Outcome.TRUNCATED, 2)


async def test_a_server_that_closes_without_an_answer_is_a_connection_error() -> None:
    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return aiohttp.web.Response()

    (got,) = await sent_to(handler, planned(0))
    assert (got.outcome, got.status) == (Outcome.ERROR_CONNECT, 0)


async def test_nobody_listening_is_a_connection_error_with_a_reason() -> None:
    async with serving(refusing(200, {}, "")) as url:
        pass
    watcher = Quiet()
    (got,) = await client(schedule(planned(0)), [url], watcher).run(Prose("salt"))
    assert got.outcome is Outcome.ERROR_CONNECT and got.reason
    assert watcher.ended_as == {0: Outcome.ERROR_CONNECT}


async def test_a_client_leaves_when_its_patience_ends_and_the_server_sees_it() -> None:
    seen_gone = asyncio.Event()

    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        response = await streamed(request, *TEXT[:2])
        try:
            while True:
                await response.write(b": ping\n\n")
                await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.CancelledError):
            seen_gone.set()
            raise

    async with serving(handler) as url:
        (got,) = await client(schedule(planned(0, leaves=0.2)), [url], Quiet()).run(Prose("salt"))
        assert got.outcome is Outcome.CANCELLED
        assert 0.2 <= got.end_s < 1.0
        await asyncio.wait_for(seen_gone.wait(), 2)


async def test_requests_go_out_on_time_whatever_the_server_does() -> None:
    release = asyncio.Event()

    async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        await release.wait()
        return await streamed(request, *TEXT)

    requests = [planned(number, t=number * 0.01) for number in range(50)]
    async with serving(handler) as url:
        watcher = Quiet()
        run = asyncio.create_task(client(schedule(*requests), [url], watcher).run(Prose("salt")))
        async with asyncio.timeout(5):
            while len(watcher.sent_ids) < 50:
                await asyncio.sleep(0.01)
        assert watcher.ended_as == {}
        release.set()
        samples = await run
    assert [one.outcome for one in samples] == [Outcome.OK] * 50
    assert all(one.sent_s >= one.sched_s for one in samples)


async def test_urls_are_taken_in_turn_and_the_body_asks_for_what_was_planned() -> None:
    seen: list[tuple[str, dict[str, object], str]] = []

    def at(name: str) -> Handler:
        async def handler(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
            seen.append((name, msgspec.json.decode(await request.read()), request.headers["x-forebay-priority"]))
            return await streamed(request, *TEXT)

        return handler

    async with serving(at("a")) as a, serving(at("b")) as b:
        requests = [planned(number, t=number * 0.05) for number in range(4)]
        await client(schedule(*requests), [a, b], Quiet()).run(Prose("salt"))
    assert [name for name, _, _ in seen] == ["a", "b", "a", "b"]
    _, body, priority = seen[0]
    assert priority == "batch"
    assert (body["model"], body["stream"], body["stream_options"], body["max_tokens"]) == (
        "m",
        True,
        {"include_usage": True},
        64,
    )
    assert str(body["messages"]).count("[[fb out=3]]") == 1
