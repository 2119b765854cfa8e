"""What is charged where an engine tells no usage: the estimate and the tokens seen, whatever else its stream holds (tenancy.md 3.3)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cases.streams import compact
from tests.cases.test_quotas import SALT, TEN, acme, ask, used
from tests.kit import wire
from tests.kit.processes import until_async
from tests.kit.script_engine import RST, Step, Wait
from tests.kit.stage import Stage, stage
from tests.kit.tenants import bearer

WORDS = ["five ", 'said "choices" ', 'data: {"x.delta"} ', "content_block_delta ", "here"]
MANY = {"tpm": 1_000_000, "otpm": 1_000_000, "rpm": 10_000}


def silent(route: str, words: Sequence[str] = WORDS) -> list[bytes]:
    """A good stream in which nothing tells usage."""
    return [compact(_without_usage(event)) for event in wire.events(route, words, with_usage=False)]


def _without_usage(event: bytes) -> bytes:
    lines = [_line(line) for line in event.split(b"\n")]
    return b"\n".join(lines)


def _line(line: bytes) -> bytes:
    if not line.startswith(b"data: {"):
        return line
    return b"data: " + json.dumps(_pruned(json.loads(line.removeprefix(b"data: ")))).encode()


def _pruned(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _pruned(each) for name, each in value.items() if name != "usage"}


PACKED = {
    "each by itself": lambda events: [step for each in events for step in (wire.chunk(each), Wait(0.005))],
    "each a chunk of one read": lambda events: [b"".join(map(wire.chunk, events))],
    "the first by itself": lambda events: [wire.chunk(events[0]), Wait(0.02), b"".join(map(wire.chunk, events[1:]))],
    "two in each chunk": lambda events: [
        step for at in range(0, len(events), 2) for step in (wire.chunk(b"".join(events[at : at + 2])), Wait(0.005))
    ],
}


async def settled(made: Stage, route: str) -> tuple[float, int]:
    """What a stream of that route costs beside its prompt, and what the log says of its answer."""
    before, lines = await used(made, "otpm"), len(made.gateway.access())
    assert (await made.ask(route, "hi", stream=True, extra=[bearer("acme")], max_tokens=30)).status == 200

    async def logged() -> bool:
        return len(made.gateway.access()) > lines

    await until_async(logged, 5.0, "no line")
    return await used(made, "otpm") - before, made.gateway.access()[-1]["output_tokens"]


@pytest.mark.parametrize("route", wire.ROUTES)
async def test_no_end_marker_and_no_empty_chunk_counts_as_a_token(tmp_path: Path, route: str) -> None:
    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        for name, packed in PACKED.items():
            steps: list[Step] = [wire.stream_head(), *packed(silent(route)), wire.LAST_CHUNK]
            made.engine.answer = lambda seen, steps=steps: steps  # type: ignore[misc]
            assert await settled(made, route) == (len(WORDS), len(WORDS)), name
        made.engine.answer = lambda seen: wire.stream(silent(route, [""] if route == "completions" else []))
        assert await settled(made, route) == (1, 1)  # never less
        assert (await made.gateway.metrics()).sum("forebay_usage_missing_total") == len(PACKED) + 1


async def test_who_is_cut_off_pays_for_the_tokens_and_not_for_what_stood_around_them(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        begun = [wire.chunk(event) for event in silent("chat")[:4]]  # the first one names the role
        made.engine.answer = lambda seen: [wire.stream_head(), *begun, Wait(0.05), RST]
        answer = await made.ask("chat", "hi", stream=True, extra=[bearer("acme")], max_tokens=30)
        assert b"error" in answer.body

        async def logged() -> bool:
            return bool(made.gateway.access())

        await until_async(logged, 5.0, "no line")
        (line,) = made.gateway.access()
        assert line["output_tokens"] == 3
        assert await used(made, "otpm") == 3


async def test_what_generates_nothing_is_charged_for_its_prompt_alone(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[acme(limits=MANY)], isolation=SALT) as made, made.holding():
        told = {name: value for name, value in wire.body("embeddings", "x").items() if name != "usage"}
        made.engine.answer = lambda seen: [wire.json_answer(told)]
        assert (await ask(made, route="embeddings", input=TEN)).status == 200
        assert await used(made, "tpm") == 10
