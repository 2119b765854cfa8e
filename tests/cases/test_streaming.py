"""Cases C015 to C018 and C020: streams are the engine's bytes, their ends and their statuses are true."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.cases.streams import OPENAI, ROUTES, compact, saying, stream_of, tokens
from tests.faults import test_t01_midstream_truth as t01
from tests.kit import wire
from tests.kit.invariants import same_stream
from tests.kit.raw_client import connect
from tests.kit.script_engine import FIN, RST, Seen, Step, Wait
from tests.kit.stage import Stage, error_of, gathered, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    directory = tmp_path_factory.mktemp("streaming")
    async with stage(directory, retries={"max_attempts": 1}, timeouts={"scale": 1}, upstream={"probe_s": 30}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


# C015

ENDS = ["data: [DONE]", "[DONE]", "\n\ndata: [DONE]\n\n", "\r\n\r\ndata: [DONE]\r\n\r\n", "event: message_stop", "\n\nevent: message_stop\ndata: {}\n\n",
        'event: response.completed\ndata: {"type":"response.completed"}', '{"type":"message_stop"}', '"finish_reason":"abort"', '{"error":{"message":"x"}}', '"usage":{"prompt_tokens":1}']  # fmt: skip


@pytest.mark.parametrize("text", ENDS)
@pytest.mark.parametrize("route", ROUTES)
async def test_c015_text_that_looks_like_an_end_is_text(one: Stage, route: str, text: str) -> None:
    """Five more chunks follow; once event by event, once in one piece, once with the text at the edge of a segment."""
    events = stream_of(route, ["before", text, *(f" after{at}" for at in range(5))])
    body = b"".join(events)
    at = body.index(events[-6])
    for parts in (events, [body], [body[:at], body[at:]], [body[: at - 1], body[at - 1 :]]):
        one.engine.answer = saying(wire.stream(parts))
        answer = await one.ask(route, "x", stream=True)
        assert (answer.status, answer.end) == (200, "chunked")
        same_stream(events, answer.body)


@pytest.mark.parametrize("route", OPENAI)
async def test_c015_only_an_own_data_line_at_an_events_start_is_an_end(one: Stage, route: str) -> None:
    """A comment with the mark, a second data line with it, a field of another name: more follows all of them."""
    first, *rest = stream_of(route, ["a", "b"], usage=False)
    odd = [
        b": data: [DONE]\n\n",
        b"data: [1,\ndata: [DONE]\n\n",
        b"xdata: [DONE]\n\n",
        b'id: 1\ndata: {"choices":[]}\n\n',
        b"data:  [DONE] \n\n",
    ]
    events = [first, *odd, *rest]
    one.engine.answer = lambda seen: wire.stream(events)
    answer = await one.ask(route, "x", stream=True)
    assert answer.end == "chunked"
    same_stream(events, answer.body)


# C016: the official clients see 700 such cuts in T1. Here the counters, and the full size.


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("way", t01.WAYS)
async def test_c016_every_cut_is_counted_and_charged_with_what_was_sent(one: Stage, route: str, way: str) -> None:
    body, cuts = t01.body_of(route), 12
    offsets = [round((at + 1) * (len(body) - 4) / (cuts + 1)) for at in range(cuts)]
    before, metrics = await tokens(one), await one.gateway.metrics()
    begun = events = 0
    for at in offsets:
        one.engine.once.append(t01.cut(body, at, way))
        answer = await one.ask(route, "x" * 40, stream=True)
        assert b"[DONE]" not in answer.body and (answer.status != 200 or not answer.clean)
        begun += answer.status == 200
        events += answer.body.count(b"data: ") - 1 if answer.status == 200 else 0
    after = await one.gateway.metrics()
    failed = ended(after, "failed") - ended(metrics, "failed")
    assert failed == len(offsets) and begun >= len(offsets) - 2
    grown = [now - then for now, then in zip(await tokens(one), before, strict=True)]
    assert grown[0] > 0 and 0 < grown[1] <= events


def ended(metrics: Any, outcome: str) -> float:
    return float(metrics.sum("forebay_requests_ended_total", outcome=outcome))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ("fin", "rst", "garbage"))
@pytest.mark.parametrize("route", ROUTES)
async def test_c016_a_cut_at_every_byte_raises_in_the_official_clients(house: Stage, route: str, way: str) -> None:
    house.reset()
    house.engine.answer = t01.answer
    url = house.gateway.url
    named: dict[str, Any] = {"api_key": "k", "max_retries": 0}
    async with (
        openai.AsyncOpenAI(base_url=url + "/v1", **named) as first,
        anthropic.AsyncAnthropic(base_url=url, **named) as second,
    ):
        clients = t01.Clients(house, first, second)
        offsets = range(len(t01.body_of(route)) - 2)
        found = await gathered([clients.outcome(f"{route} {at} {way}") for at in offsets], at_once=8)
    assert [(at, what) for at, what in enumerate(found) if not t01.told(route, what)] == []


# C017

REFUSALS = {400: 400, 404: 502, 429: 503, 500: 500, 503: 503}


@pytest.mark.parametrize("form", ["status", "first event", "first event after a comment"])
@pytest.mark.parametrize("said", REFUSALS)
@pytest.mark.parametrize("route", ROUTES)
async def test_c017_a_refusal_before_any_event_has_its_status_and_json(
    one: Stage, route: str, said: int, form: str
) -> None:
    error = {"error": {"message": "simulated", "type": "SomeError", "param": None, "code": said}}
    if form == "status":
        one.engine.answer = lambda seen: [wire.json_answer(error, status=said)]
    else:
        comment = [b": wait\n\n"] if "comment" in form else []
        one.engine.answer = lambda seen: wire.stream([*comment, wire.event(error), wire.DONE])
    answer = await one.ask(route, "x", stream=True)
    wanted = 529 if REFUSALS[said] == 503 and route == "messages" else REFUSALS[said]
    assert (answer.status, answer.header("content-type"), answer.clean) == (wanted, "application/json", True)
    assert error_of(answer)["message"] and (said == 400) == (b"simulated" in answer.body)


@pytest.mark.parametrize("how", ["refused", FIN, RST, b"nonsense\r\n\r\n"], ids=str)
@pytest.mark.parametrize("route", ROUTES)
async def test_c017_no_answer_at_all_is_a_502_and_never_a_200(one: Stage, route: str, how: Any) -> None:
    if how == "refused":
        one.engine.stop_listening()
        one.engine.drop_connections()
    else:
        one.engine.answer = lambda seen: [how]
    answer = await one.ask(route, "x", stream=True)
    if how == "refused":
        await one.engine.start()
        await one.gateway.wait_up(1)
    assert (answer.status, answer.header("content-type")) == (502, "application/json")


@pytest.mark.parametrize("route", ROUTES)
async def test_c017_nothing_is_told_before_the_engines_first_good_event(one: Stage, route: str) -> None:
    """A bare 200 head proves nothing: the client hears of it with the first event, and of a failure instead."""
    good = asyncio.Event()

    async def silent(client: Any) -> bool:
        try:
            await client.head(0.15)
        except TimeoutError:
            return True
        return False

    def waits(seen: Seen) -> Any:
        yield wire.stream_head()
        yield wire.chunk(b": hold the line\n\n")
        while not good.is_set():
            yield Wait(0.01)
        yield from [wire.chunk(event) for event in stream_of(route, ["a"])]
        yield wire.LAST_CHUNK

    one.engine.answer = waits
    client = await one.begin(route, "x", stream=True)
    async with client:
        assert await silent(client)
        good.set()
        answer = await client.response()
        assert (answer.status, answer.end) == (200, "chunked") and answer.body.startswith(b": hold the line\n\n")
    one.engine.answer = lambda seen: [wire.stream_head(), wire.chunk(b": hold\n\n"), Wait(0.05), RST]
    assert (await one.ask(route, "x", stream=True)).status == 502


# C018

TEXT = "漢字かな🙂交じり🚀文é "


def unicode_events(route: str) -> list[bytes]:
    """About 1 kB with characters of two to four bytes, unescaped."""
    events = stream_of(route, [TEXT] * 5)
    return [event.decode("ascii").replace(json.dumps(TEXT)[1:-1], TEXT).encode() for event in events]


@pytest.mark.parametrize(("route", "step"), [("chat", 1), ("messages", 3), ("responses", 4), ("completions", 3)])
async def test_c018_no_split_changes_a_byte(one: Stage, route: str, step: int) -> None:
    """At every point of 1 kB as an HTTP chunk, at every fifth as a segment of its own that arrives alone."""
    events = unicode_events(route)
    body = b"".join(events)
    wrong = []
    async with await connect(one.gateway.port) as client:
        for at in range(1, len(body), step):
            pause = [Wait(0.003)] if at % 5 == 0 else []
            one.engine.once.append(
                [wire.stream_head(), wire.chunk(body[:at]), *pause, wire.chunk(body[at:]), wire.LAST_CHUNK]
            )
            await client.send(one.message(route, "x", stream=True))
            answer = await client.response()
            if answer.body != body or answer.end != "chunked":
                wrong.append(at)
    assert wrong == [] and (len(body) - 1) // step >= (1000 if route == "chat" else 250)


@pytest.mark.parametrize("route", ROUTES)
async def test_c018_neither_does_a_split_at_all_points_at_once(one: Stage, route: str) -> None:
    events = unicode_events(route)
    body = b"".join(events)
    for size in (1, 2, 3, 5, 7):
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        one.engine.answer = saying(wire.stream(pieces))
        answer = await one.ask(route, "x", stream=True)
        same_stream(events, answer.body)


# C020


def segments(events: Sequence[bytes]) -> dict[str, list[bytes]]:
    """The same stream with its last events together, apart, and torn."""
    last, body = events[-1], b"".join(events[:-1])
    usage = b"".join(events[-2:])
    return {
        "all in one": [body + last],
        "usage and end in one": [*events[:-2], usage],
        "end alone": [body, last],
        "end torn": [body + last[:5], last[5:]],
        "usage torn from the middle": [*events[:-2], usage[: len(usage) // 3], usage[len(usage) // 3 :]],
        "last token, usage and end in one": [*events[:-3], events[-3] + usage],
        "each event torn before its empty line": [piece for event in events for piece in (event[:-1], event[-1:])],
        "everything by twos": [b"".join(events[at : at + 2]) for at in range(0, len(events), 2)],
    }  # fmt: skip


@pytest.mark.parametrize("alone", [False, True], ids=["one read", "reads of their own"])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_c020_last_event_usage_and_end_arrive_once_however_segmented(
    one: Stage, route: str, asked: bool, alone: bool
) -> None:
    words, prompt = ["a", "b", "c"], 11
    events = stream_of(route, words, prompt=prompt, usage=True)
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked and route in OPENAI else {}
    stripped = events[-2:-1] if route in OPENAI and not asked else []
    for name, pieces in segments(events).items():
        before = await tokens(one)
        steps: list[Step] = []
        for piece in pieces:
            steps += [wire.chunk(piece), Wait(0.003)] if alone else [wire.chunk(piece)]
        one.engine.once.append([wire.stream_head(), *steps, wire.LAST_CHUNK])
        answer = await one.ask(route, "x", stream=True, **more)
        assert answer.end == "chunked", name
        same_stream(events, answer.body, stripped=stripped)
        after = await tokens(one)
        assert (after[0] - before[0], after[1] - before[1]) == (prompt, len(words)), name


@pytest.mark.parametrize("ending", ["chunked", "closed", "no last chunk"])
@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("route", ROUTES)
async def test_c020_an_end_without_its_empty_line_is_an_end(one: Stage, route: str, missing: int, ending: str) -> None:
    events = stream_of(route, ["a", "b"])
    body = b"".join(events)[:-missing]
    last: list[Step] = [wire.LAST_CHUNK] if ending == "chunked" else [FIN]
    head = (
        [wire.head(content_type="text/event-stream"), body]
        if ending == "closed"
        else [wire.stream_head(), wire.chunk(body)]
    )
    one.engine.answer = lambda seen: [*head, *last]
    answer = await one.ask(route, "x", stream=True)
    assert (answer.status, answer.end, answer.body) == (200, "chunked", body)


@pytest.mark.parametrize("route", ROUTES)
async def test_c020_an_engines_error_in_one_piece_with_a_token_is_seen(one: Stage, route: str) -> None:
    """The engine goes on to its end marker: its own error makes the request failed, and the end no proper end."""
    error = {"type": "error", "error": {"type": "api_error", "message": "x"}}
    events = stream_of(route, ["a", "b", "c", "d"])
    failing = compact(wire.event(error, "error") if route == "messages" else wire.event(error))
    at = 4
    for glued in ([events[at - 1] + failing], [failing + events[at - 1]], [events[at - 1], failing]):
        before = ended(await one.gateway.metrics(), "failed")
        pieces = [*events[: at - 1], *glued, *events[at:]]
        head, first, *rest = wire.stream(pieces)
        one.engine.once.append([head, first, Wait(0.01), *(step for chunk in rest for step in (chunk, Wait(0.003)))])
        answer = await one.ask(route, "x", stream=True)
        assert not answer.clean and answer.body == b"".join(pieces)
        assert ended(await one.gateway.metrics(), "failed") == before + 1
