"""Streams that come in many small reads: the loop rests, and what comes meanwhile is read at once."""

import asyncio
from pathlib import Path

import pytest

from gateway.http import coalesce
from gateway.http.outbox import Outbox
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


@pytest.mark.parametrize(
    ("rest_s", "took_s", "worked_s", "rests"),
    [
        (REST_S, 0.001, 0.0001, [REST_S]),
        (REST_S, 0.0199, 0.0158, [REST_S]),
        (REST_S, 0.0201, 0.0001, []),  # they do not follow each other that soon
        (REST_S, 0.0199, 0.0161, []),  # busy
        (REST_S, 0.0002, 0.0002, []),
        (0.0, 0.0, 0.0, []),  # never
    ],
)
async def test_a_loop_rests_after_reads_that_follow_each_other_unless_it_is_busy(
    monkeypatch: pytest.MonkeyPatch, rest_s: float, took_s: float, worked_s: float, rests: list[float]
) -> None:
    rested: list[float] = []
    clocks = {"now": 100.0, "worked": 5.0}
    monkeypatch.setattr(coalesce, "monotonic", lambda: clocks["now"])
    monkeypatch.setattr(coalesce, "thread_time", lambda: clocks["worked"])
    monkeypatch.setattr(coalesce, "sleep", rested.append)
    made = coalesce.Coalescer(Outbox())
    made.change(rest_s)
    last_s = made.read(made.read(0.0))
    await asyncio.sleep(0)
    rested.clear()
    clocks["now"] += took_s
    clocks["worked"] += worked_s
    assert [made.read(last_s) for _ in range(3)] == [clocks["now"]] * 3
    assert rested == []  # what this turn has read is written first
    await asyncio.sleep(0)
    assert rested == rests
