"""Several processes of the load client: one run to whoever watches it, and none of them is left behind."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.client import ClientError
from loadgen.client.workers import Dealt
from loadgen.report.record import Outcome
from loadgen.workload.prompts import Prose
from tests.kit import wire
from tests.kit.processes import until
from tests.kit.script_engine import HANG, ScriptEngine, Wait
from tests.loadgen.sending import Seen, client, conversation, planned, schedule, steady, turns, users

PROSE = Prose("salt")


def children() -> set[int]:
    """Processes of this one that run `loadgen.client.worker`."""
    return set(_children())


def _children() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and b"loadgen.client.worker" in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue


def test_a_conversation_stays_with_one_worker_and_all_else_is_dealt_out() -> None:
    requests = sorted(
        [*steady(100, 10), *conversation(0, 3, 0.1, 20), *conversation(1, 3, 0.1, 30)], key=lambda one: one.t
    )
    hands = [list(Dealt(tuple(requests), frozenset({"chat"}), 2, number)) for number in range(2)]
    assert sorted(one.id for hand in hands for one in hand) == sorted(one.id for one in requests)
    assert {len({one.session for one in hand if one.session}) for hand in hands} == {1}
    assert all([one.t for one in hand] == sorted(one.t for one in hand) for hand in hands)


async def test_two_workers_send_one_schedule_and_what_happens_is_known_here() -> None:
    watched = Seen()
    answer = wire.stream(wire.events("chat", ["the ", "cat "]))
    async with ScriptEngine(lambda seen: [Wait(0.02), *answer]) as engine:
        plan = schedule(*users(10, 4, 0.1))
        running = client(plan, [engine.url], watched, workers=2, lead_s=0.1)
        samples = await running.run(PROSE)
    assert children() == set()
    assert {one.outcome for one in samples} == {Outcome.OK} and len(samples) == 40
    assert {one.worker for one in samples} == {0, 1} and {one.output_tokens for one in samples} == {2}
    assert all(one.worker == before.worker and one.sched_s > before.end_s for before, one in turns(samples))
    assert {sum(one.read_tokens or [1] * len(one.reads)) for one in samples} == {2}  # in one read, or in two
    assert all(one.head_s <= one.reads[0] <= one.end_s for one in samples)
    assert len(watched.sent_ids) == len(watched.ended_as) == 40
    health = running.health
    assert {point.worker for point in health.points} == {0, 1} and health.cpu_share > 0


async def test_a_cap_is_shared_out_and_a_failure_of_a_worker_keeps_its_reason() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: [HANG]) as engine:
        plan = schedule(*steady(100, 10))
        samples = await client(plan, [engine.url], watched, workers=2, max_open=4, timeout_s=1.0).run(PROSE)
    assert sorted(one.outcome.value for one in samples) == ["dropped"] * 6 + ["timeout"] * 4
    assert set(watched.ended_as) == set(range(10))


async def test_stop_reaches_the_workers() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: [HANG]) as engine:
        running = client(schedule(*steady(50, 3000)), [engine.url], watched, workers=2)
        run = asyncio.create_task(running.run(PROSE))
        await until(lambda: len(watched.sent_ids) >= 10, 20, "nothing goes out")
        running.stop(grace_s=0.2)
        samples = await asyncio.wait_for(run, 5)
    assert len(samples) < 1000 and {one.outcome for one in samples} == {Outcome.UNFINISHED}
    assert children() == set()


async def test_stop_before_the_workers_have_started_sends_nothing() -> None:
    watched = Seen()
    running = client(schedule(planned(0)), ["http://127.0.0.1:9"], watched, workers=2)
    run = asyncio.create_task(running.run(PROSE))
    await asyncio.sleep(0)
    running.stop(grace_s=1.0)
    assert await asyncio.wait_for(run, 20) == [] and watched.ended_as == {}
    assert children() == set()


async def test_a_worker_that_dies_is_an_error_that_says_so_and_the_others_end() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: [HANG]) as engine:
        run = asyncio.create_task(client(schedule(*steady(50, 3000)), [engine.url], watched, workers=2).run(PROSE))
        await until(lambda: len(watched.sent_ids) >= 4, 20, "nothing goes out")
        os.kill(min(children()), signal.SIGKILL)
        with pytest.raises(ClientError, match=r"worker \d ended with status -9"):
            await asyncio.wait_for(run, 5)
    assert children() == set()


async def test_a_cancelled_run_leaves_no_process() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: [HANG]) as engine:
        run = asyncio.create_task(
            client(schedule(planned(0), planned(1), planned(2, 30.0)), [engine.url], watched, workers=2).run(PROSE)
        )
        await until(lambda: len(watched.sent_ids) == 2, 20, "nothing goes out")
        run.cancel()
        await asyncio.wait({run}, timeout=5)
        assert run.cancelled()
    assert children() == set()
