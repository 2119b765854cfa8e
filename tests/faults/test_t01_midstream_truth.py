"""T1: a stream cut anywhere, in any way, is never a success for the official clients (faults.md 4; C016).

Every answer here is cut before its end marker is whole. The client must raise an error of its own types with a code of
ours, never a `JSONDecodeError` and never nothing; on the wire there is no proper end.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.raw_client import exchange
from tests.kit.script_engine import FIN, RST, Seen, Step
from tests.kit.sizes import patience, sized
from tests.kit.stage import Stage, gathered, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(patience(120, 1200))]

WORDS = [f" word{at}" for at in range(7)]
CODES = {"backend_stream_interrupted", "backend_bad_stream", "backend_unavailable", "backend_protocol_error"}
WAYS = ("fin", "rst", "half_chunk", "garbage", "clean_end")
DIALECTS = ("chat", "completions", "responses", "messages")
CUTS = sized(35, 400)  # per dialect and way: 700 in all, at night every byte of the shorter streams


def body_of(dialect: str) -> bytes:
    return b"".join(wire.events(dialect, WORDS))


def cut(body: bytes, at: int, way: str) -> list[Step]:
    """What an engine sends when its stream breaks after `at` bytes of body."""
    part = [wire.chunk(body[:at])] if at else []
    if way == "half_chunk":
        return [wire.stream_head(), b"%x\r\n" % len(body) + body[:at], FIN]
    if way == "garbage":
        return [wire.stream_head(), *part, b"ZZ\r\nthis is no chunk\r\n"]
    if way == "clean_end":
        return [wire.stream_head(), *part, wire.LAST_CHUNK]
    return [wire.stream_head(), *part, FIN if way == "fin" else RST]


def answer(seen: Seen) -> list[Step]:
    """The prompt says where and how to cut: `dialect at way`."""
    dialect, at, way = wire.prompt_of(seen.json).split()
    return cut(body_of(dialect), int(at), way)


@dataclass(slots=True)
class Clients:
    """Both official clients on one gateway, without retries: a retry would hide what is tested."""

    stage: Stage
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    async def outcome(self, prompt: str) -> str:
        """The code of the error that the client of that dialect raised, or what it took for a success."""
        try:
            return "success: " + repr(await self._read(prompt.split()[0], prompt))
        except openai.APIError as error:
            return str(error.code)
        except anthropic.APIError as error:
            return str(error.body["type"]) if isinstance(error.body, dict) else repr(error)

    async def _read(self, dialect: str, prompt: str) -> list[object]:
        said = [{"role": "user", "content": prompt}]
        made: Any
        if dialect == "chat":
            made = await self.openai.chat.completions.create(model="m", messages=said, stream=True)  # type: ignore[call-overload]
        elif dialect == "completions":
            made = await self.openai.completions.create(model="m", prompt=prompt, stream=True)
        elif dialect == "responses":
            made = await self.openai.responses.create(model="m", input=prompt, stream=True)
        else:
            made = await self.anthropic.messages.create(model="m", max_tokens=9, messages=said, stream=True)  # type: ignore[call-overload]
        return [one async for one in made]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(stage(tmp_path_factory.mktemp("t01"), retries={"max_attempts": 1}))
        made.engine.answer = answer
        url = made.gateway.url
        options: dict[str, Any] = {"api_key": "k", "max_retries": 0, "default_headers": {"connection": "close"}}
        one = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url + "/v1", **options))
        two = await stack.enter_async_context(anthropic.AsyncAnthropic(base_url=url, **options))
        yield Clients(made, one, two)


def cuts(dialect: str, way: str) -> list[int]:
    """Evenly over the stream, at other bytes for each way; the last one leaves the end marker unfinished by a byte."""
    last = len(body_of(dialect)) - 3
    offset = WAYS.index(way)
    return sorted({min(last, offset + round(at * last / (CUTS - 1))) for at in range(CUTS)})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_cut_stream_raises_in_the_official_client(clients: Clients, dialect: str, way: str) -> None:
    prompts = [f"{dialect} {at} {way}" for at in cuts(dialect, way)]
    found = await gathered([clients.outcome(prompt) for prompt in prompts], at_once=8)
    lies = [(prompt, what) for prompt, what in zip(prompts, found, strict=True) if not told(dialect, what)]
    assert lies == []
    assert len(found) >= 30


def told(dialect: str, what: str) -> bool:
    return what == "error" if dialect == "messages" else what in CODES


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_cut_stream_is_whole_events_then_one_frame_then_no_end(
    clients: Clients, dialect: str, way: str
) -> None:
    async with clients.stage.holding():
        for at in [*cuts(dialect, way)[::5], cuts(dialect, way)[-1]]:
            message = clients.stage.message(dialect, f"{dialect} {at} {way}", stream=True)
            check(await exchange(clients.stage.gateway.port, message), wire.events(dialect, WORDS), at)


def check(response: Response, events: list[bytes], at: int) -> None:
    whole = [event for event, end in zip(events, accumulate(map(len, events)), strict=True) if end <= at]
    if not whole:
        assert response.status in (502, 503) and response.clean
        return
    sent = b"".join(event for event in whole if b'"choices":[]' not in event)
    assert (response.status, response.end) == (200, "cut_fin")
    assert response.body.startswith(sent)
    frame = response.body[len(sent) :]
    assert frame.count(b"data: ") == 1 and b'"error"' in frame and frame.endswith(b"\n\n")
    assert b"[DONE]" not in frame and b"finish_reason" not in frame


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_uncut_stream_is_a_success_for_the_same_client(clients: Clients, dialect: str) -> None:
    async with clients.stage.holding():
        clients.stage.engine.once.append(wire.stream(wire.events(dialect, WORDS)))
        assert (await clients.outcome(f"{dialect} whole stream")).startswith("success")


async def test_every_cut_was_counted_as_a_failure(clients: Clients) -> None:
    """What a request became is what its client was told: completed only where the stream was whole."""
    async with clients.stage.holding() as invariants:
        assert invariants.before is not None
        await clients.outcome("chat 300 fin")
        clients.stage.engine.once.append(wire.stream(wire.events("chat", WORDS)))
        await clients.outcome("chat whole stream")
        before = invariants.before.by("forebay_requests_ended_total", "outcome")
        after = (await clients.stage.gateway.metrics()).by("forebay_requests_ended_total", "outcome")
        grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
        assert grown == {"failed": 1, "completed": 1}
