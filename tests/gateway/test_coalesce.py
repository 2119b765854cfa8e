"""Streams that come in many small reads: the loop rests, and what comes meanwhile is read at once."""

import asyncio
from pathlib import Path

import pytest

from gateway.http import coalesce
from tests.kit import wire
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import stage

REST_S = 0.01
EVENTS = 400


def one_by_one(seen: Seen) -> list[Step]:
    """A token each millisecond or so: ten within a rest."""
    steps = wire.stream(wire.events("chat", [f" word{number:04}" for number in range(EVENTS)]))
    return [step for written in steps for step in (written, Wait(0.001))]


async def test_a_hot_stream_arrives_whole_in_a_few_larger_pieces(tmp_path: Path) -> None:
    async with stage(tmp_path, upstream={"coalesce_s": REST_S}) as each:
        each.engine.answer = one_by_one
        client = await each.begin("chat", "many small reads", stream=True)
        response = await client.response()
        client.close()
        assert response.clean
        assert response.body.count(b" word") == EVENTS
        assert response.body.endswith(b"data: [DONE]\n\n")
        assert len(client.pieces) < EVENTS / 3


def test_no_read_is_hot_where_the_configuration_says_never() -> None:
    made = coalesce.Coalescer()
    made.change(0.001)
    assert made.hot_s == 0.002
    made.change(0.0)
    assert made.hot_s == 0.0  # no two reads come within less


@pytest.mark.parametrize(
    ("took_s", "worked_s", "rests"),
    [(0.001, 0.0001, [REST_S]), (0.02, 0.0099, [REST_S]), (0.02, 0.0101, []), (0.0002, 0.0002, [])],
)
async def test_a_loop_rests_unless_it_is_busy_and_once_for_all_reads_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, took_s: float, worked_s: float, rests: list[float]
) -> None:
    rested: list[float] = []
    clocks = {"now": 100.0, "worked": 5.0}
    monkeypatch.setattr(coalesce, "monotonic", lambda: clocks["now"])
    monkeypatch.setattr(coalesce, "thread_time", lambda: clocks["worked"])
    monkeypatch.setattr(coalesce, "sleep", rested.append)
    made = coalesce.Coalescer()
    made.change(REST_S)
    made.hot()
    await asyncio.sleep(0)
    rested.clear()
    clocks["now"] += took_s
    clocks["worked"] += worked_s
    for _ in range(3):
        made.hot()
    assert rested == []  # what this turn has read is written first
    await asyncio.sleep(0)
    assert rested == rests
