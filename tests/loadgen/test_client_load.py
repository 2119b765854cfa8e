"""The load client under load: requests go out on time, conversations follow answers, bounds are kept, memory is bounded."""

import asyncio
import errno
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec
import pytest

from loadgen.client import OTHERS, Client, ClientOptions, Target
from loadgen.client.agenda import AHEAD_REQUESTS, Agenda, Answers, Item, Writer
from loadgen.client.route import Pools, Routes, routes_to
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, Prose
from tests.kit import wire
from tests.kit.processes import until
from tests.kit.script_engine import HANG, ScriptEngine, Step, Wait
from tests.loadgen.sending import Seen, client, conversation, planned, schedule, sent, steady, turns, users

PROSE = Prose("salt")
Script = Iterable[Step]


def taking(seconds: float) -> Any:
    """An engine that gives its first token after `seconds`, and all others with it."""
    head, *chunks = wire.stream(wire.events("chat", ["the ", "cat "]))
    return lambda seen: [Wait(seconds), head, *chunks]


# ---- open loop


async def test_requests_go_out_on_time_whatever_the_server_does() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: [HANG]) as engine:
        run = asyncio.create_task(client(schedule(*steady(100, 50)), [engine.url], watched).run(PROSE))
        await until(lambda: len(watched.sent_ids) == 50, 5, "not all went out")
        assert watched.ended_as == {}
        run.cancel()
        await asyncio.wait({run})


def queued(free: list[float], now: float, service_s: float) -> float:
    """How long a request that comes now is under way, in a line for places that are free at those times."""
    place = free.index(min(free))
    free[place] = max(now, free[place]) + service_s
    return free[place] - now


async def test_c105_waiting_for_the_server_is_latency_from_the_intended_time() -> None:
    """40/s into 4 places of 190 ms: what a client that waits for its own permit reports as 196 ms."""
    rate, service_s = 40.0, 0.19
    planned_free, free = [0.0] * 4, [0.0] * 4
    expected = [queued(planned_free, number / rate, service_s) * 1000 for number in range(44)]
    answer = wire.stream(wire.events("chat", ["the ", "cat "]))
    async with ScriptEngine(lambda seen: [Wait(queued(free, time.monotonic(), service_s)), *answer]) as engine:
        samples = await sent([engine.url], *steady(rate, 44))
    offered = fmean(one.e2e_ms for one in samples)
    assert {one.outcome for one in samples} == {Outcome.OK}
    assert fmean(expected) > 600 and fmean(expected) * 0.97 <= offered <= fmean(expected) * 1.5
    assert all(one.sent_s >= one.sched_s for one in samples)


async def test_what_the_client_was_late_is_in_the_latency() -> None:
    async with ScriptEngine(taking(0.0)) as engine:
        running = client(schedule(*steady(50, 40)), [engine.url])
        run = asyncio.create_task(running.run(PROSE))
        await until(lambda: running.now_s() > 0, 2, "not begun")
        time.sleep(0.4)  # this loop, and so the client, does nothing meanwhile
        samples = await run
    late = max(samples, key=lambda one: one.lag_ms)
    assert late.lag_ms > 150 and late.ttft_ms is not None
    assert late.ttft_ms > late.lag_ms > 0  # service latency is the shorter one
    assert running.health.loop_lag_p99_ms > 100 and running.health.send_lag_p99_ms > 150


async def test_the_first_gaps_are_those_of_the_schedule() -> None:
    times = [0.01 * number + 0.004 * (number % 3) for number in range(100)]
    async with ScriptEngine(taking(0.0)) as engine:
        samples = await sent([engine.url], *(planned(number, t) for number, t in enumerate(times)))
    gaps = [later.sent_s - earlier.sent_s for earlier, later in pairwise(samples)]
    wanted = [later - earlier for earlier, later in pairwise(times)]
    assert median(abs(gap - want) for gap, want in zip(gaps, wanted, strict=True)) < 0.01
    assert all(one.sent_s >= one.sched_s for one in samples)


async def test_100_and_300_requests_have_the_same_median() -> None:
    async with ScriptEngine(taking(0.4)) as engine:
        short = await sent([engine.url], *steady(200, 100))
        long = await sent([engine.url], *steady(200, 300))
    first, second = (median(one.ttft_ms or 0 for one in samples) for samples in (short, long))
    assert second == pytest.approx(first, abs=80)


# ---- conversations


async def test_c111_45_users_never_have_more_than_45_requests_open() -> None:
    watched = Seen()
    async with ScriptEngine(taking(0.03)) as engine:
        samples = await client(schedule(*users(45, 6, 0.05)), [engine.url], watched).run(PROSE)
        assert engine.peak <= 45
    assert watched.peak <= 45 and len(samples) == 45 * 6
    assert {one.outcome for one in samples} == {Outcome.OK}


async def test_users_of_a_closed_loop_go_on_without_a_conversation() -> None:
    requests = [planned(0), planned(1, 0.05, after=0, think_s=0.05), planned(2, 0.1, after=1, think_s=0.05)]
    async with ScriptEngine(taking(0.05)) as engine:
        samples = await sent([engine.url], *requests)
    assert [one.id for one in samples] == [0, 1, 2]
    assert all(later.sched_s > earlier.end_s for earlier, later in pairwise(samples))


async def test_a_turn_comes_when_its_user_has_thought_after_the_end_of_the_answer() -> None:
    async with ScriptEngine(taking(0.1)) as engine:
        samples = await client(schedule(*conversation(0, 4, 0.15, 0)), [engine.url]).run(PROSE)
    assert [one.turn for one in samples] == [0, 1, 2, 3]
    for earlier, later in pairwise(samples):
        assert later.sched_s == pytest.approx(earlier.end_s + 0.15, abs=1e-6)
        assert later.sent_s >= later.sched_s
    assert [one.session for one in samples] == ["u0"] * 4


@pytest.mark.serial
@pytest.mark.parametrize(("think_s", "count"), [(0.4, 6), (0.8, 4)])
async def test_c108_192_conversations_are_all_alive_and_in_flight_follows_think_time(
    think_s: float, count: int
) -> None:
    watched = Seen()
    async with ScriptEngine(taking(0.2)) as engine:
        samples = await client(schedule(*users(192, count, think_s)), [engine.url], watched).run(PROSE)
    by_session = Counter(one.session for one in samples)
    assert by_session == {f"u{user}": count for user in range(192)}
    waits = [one.sched_s - before.end_s for before, one in turns(samples)]
    assert min(waits) == pytest.approx(think_s, abs=1e-6) and max(waits) == pytest.approx(think_s, abs=1e-6)
    all_begun = max(one.sched_s for one in samples if one.turn == 0)
    first_over = min(one.end_s for one in samples if one.turn == count - 1)
    answer_s = fmean(one.end_s - one.sched_s for one in samples)
    rounds = int((first_over - all_begun) / (answer_s + think_s))
    assert rounds >= 1, "for a whole round of asking and thinking all 192 are alive"
    over = all_begun + rounds * (answer_s + think_s)
    spans = [min(one.end_s, over) - max(one.sched_s, all_begun) for one in samples]
    in_flight = sum(span for span in spans if span > 0) / (over - all_begun)
    assert in_flight == pytest.approx(192 * answer_s / (answer_s + think_s), rel=0.05)


async def test_a_conversation_goes_on_after_an_answer_that_failed() -> None:
    async with ScriptEngine(taking(0.0)) as engine:
        engine.once = [[wire.json_answer({}, status=429)], [HANG]]
        requests = conversation(0, 3, 0.1, 0)
        samples = await client(schedule(*requests), [engine.url], timeout_s=1.0).run(PROSE)
    assert [one.outcome for one in samples] == [Outcome.REJECTED_QUOTA, Outcome.TIMEOUT, Outcome.OK]


async def test_a_turn_beyond_the_end_of_the_run_is_not_sent_and_measured_is_when_it_really_came() -> None:
    requests = conversation(0, 9, 0.05, 0)
    plan = Schedule(name="test", seed=1, window_start_s=0.1, window_end_s=0.5, requests=tuple(requests))
    async with ScriptEngine(taking(0.1)) as engine:
        samples = await client(plan, [engine.url]).run(PROSE)
    assert 2 <= len(samples) < 9 and all(one.sched_s < 0.5 for one in samples)
    assert [one.measured for one in samples[1:]] == [one.sched_s >= 0.1 for one in samples[1:]]


async def test_answers_that_are_said_again_are_those_that_came() -> None:
    head = Block(namespace="own", id=0, tokens=20)
    answer = Block(namespace="answer/u0", id=0, tokens=8, role="assistant")
    first = planned(0, session="u0", blocks=(head,))
    second = planned(1, 0.05, session="u0", turn=1, after=0, think_s=0.05, blocks=(head, answer, head))
    async with ScriptEngine(taking(0.0)) as engine:
        await sent([engine.url], first, second, length_control="none")
        said = engine.seen[1].json["messages"]
    assert said[1] == {"role": "assistant", "content": "the cat "}


# ---- bounds


async def test_a_request_that_meets_the_cap_is_dropped_and_never_delayed() -> None:
    watched = Seen()
    async with ScriptEngine(taking(0.5)) as engine:
        plan = schedule(*steady(100, 12))
        samples = await client(plan, [engine.url], watched, max_open=5).run(PROSE)
        assert len(engine.seen) == 5
    assert [one.outcome for one in samples] == [Outcome.OK] * 5 + [Outcome.DROPPED] * 7
    assert [one.sent_s for one in samples[5:]] == [0.0] * 7 and len(watched.ended_as) == 12


async def test_stop_sends_nothing_more_and_lets_what_is_open_go_on() -> None:
    watched = Seen()
    async with ScriptEngine(lambda seen: taking(0.3)(seen) if len(engine.seen) % 2 else [HANG]) as engine:
        running = client(schedule(*steady(100, 500)), [engine.url], watched)
        run = asyncio.create_task(running.run(PROSE))
        await until(lambda: len(watched.sent_ids) >= 10, 5, "nothing goes out")
        running.stop(grace_s=1.0)
        samples = await asyncio.wait_for(run, 3)
    assert 10 <= len(samples) < 60
    assert set(watched.ended_as.values()) == {Outcome.OK, Outcome.UNFINISHED}
    assert len(watched.ended_as) == len(samples)


async def test_what_is_open_when_the_drain_is_over_is_unfinished() -> None:
    async with ScriptEngine(lambda seen: [wire.stream_head(), HANG]) as engine:
        (got,) = await client(schedule(planned(0), window_s=0.5), [engine.url], drain_s=0.5).run(PROSE)
        await until(lambda: bool(engine.aborted()), 2, "the connection is still open")
    assert (got.outcome, got.status) == (Outcome.UNFINISHED, 200)


async def test_what_this_machine_refuses_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    async def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop, "create_connection", refused)
    running = client(schedule(planned(0), planned(1)), ["http://127.0.0.1:9"])
    samples = await running.run(PROSE)
    assert {one.outcome for one in samples} == {Outcome.ERROR_CONNECT}
    assert running.health.local_failures == {"EMFILE": 2}


class Held(Seen):
    """A watcher that keeps what has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[Sample] = []

    def ended(self, sample: Sample) -> None:
        super().ended(sample)
        self.samples.append(sample)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_client_that_keeps_nothing_gives_its_watcher_all_and_holds_none_of_it(workers: int) -> None:
    watched = Held()
    async with ScriptEngine(lambda seen: [wire.json_answer(wire.body("chat", "hi"))]) as engine:
        plan, options = schedule(*steady(100, 20)), ClientOptions(lead_s=0.05, max_open=15, workers=workers)
        running = Client(plan, {OTHERS: [Target(url=engine.url, model="m")]}, options, watched, keep=False)
        assert await running.run(PROSE) == []
    assert sorted(one.id for one in watched.samples) == list(range(20)) == sorted(watched.ended_as)
    gc.collect()
    alone = Held()
    alone.samples.append(msgspec.structs.replace(watched.samples[0]))
    assert {references(watched, place) for place in range(20)} == {references(alone, 0)}


def references(watched: Held, place: int) -> int:
    return sys.getrefcount(watched.samples[place])


async def test_a_hundred_thousand_answers_that_came_whole_fit_into_42_mb_with_all_they_hold() -> None:
    async with ScriptEngine(lambda seen: [wire.json_answer(wire.body("chat", "hi"))]) as engine:
        (one,) = await sent([engine.url], planned(0, stream=False))
    assert one.outcome is Outcome.OK and len(one.reads) == 1
    own = [one, one.reads, *{id(t): t for t in (one.sent_s, one.head_s, one.byte_s, one.end_s, one.reads[0])}.values()]
    assert sum(map(sys.getsizeof, own)) <= 420


async def test_each_tenant_goes_to_its_own_targets_with_its_own_key() -> None:
    async with ScriptEngine(taking(0.0)) as a, ScriptEngine(taking(0.0)) as b:
        targets = {
            "docs": [Target(url=a.url, model="large", key="k-docs")],
            OTHERS: [Target(url=b.url, model="small", key="k-rest")],
        }
        requests = [planned(0, tenant="docs"), planned(1, tenant="chat"), planned(2, tenant="else")]
        await Client(schedule(*requests), targets, ClientOptions(lead_s=0.01), Seen()).run(PROSE)
        assert [(seen.header("authorization"), seen.json["model"]) for seen in a.seen] == [("Bearer k-docs", "large")]
        assert [(seen.header("authorization"), seen.json["model"]) for seen in b.seen] == [
            ("Bearer k-rest", "small")
        ] * 2


# ---- a little ahead


class Written(Writer):
    """Counts what was written out."""

    count = 0

    def item(self, t: float, planned: Planned) -> Item:
        self.count += 1
        return super().item(t, planned)


def writer() -> Written:
    pools = Pools(1.0)
    routes = Routes({OTHERS: routes_to([Target(url="http://127.0.0.1:9", model="m")], pools, "none")})
    return Written(routes, PROSE, Answers({}))


def test_prompts_are_written_out_at_most_two_seconds_and_256_requests_ahead() -> None:
    made = writer()
    agenda = Agenda([planned(number, number / 1000) for number in range(5000)], 10.0, frozenset(), made)
    while agenda.write(0.0, 0.01):
        pass
    assert made.count == AHEAD_REQUESTS
    slow = writer()
    agenda = Agenda([planned(number, number / 10) for number in range(5000)], 1000.0, frozenset(), slow)
    while agenda.write(0.0, 0.01):
        pass
    assert slow.count == 21 and agenda.wake_s() == 0.0
    assert agenda.due(0.05) is not None and agenda.due(0.05) is None


def test_prompts_are_written_out_to_64_mib_at_most() -> None:
    large = (Block(namespace="own", id=0, tokens=2_000_000),)
    made = writer()
    agenda = Agenda([planned(number, number / 1000, blocks=large) for number in range(50)], 1.0, frozenset(), made)
    while agenda.write(0.0, 10.0):
        pass
    assert made.count == 9  # of 8 MB each, the first beyond the bound included


def test_what_is_late_is_due_at_once_and_in_order() -> None:
    agenda = Agenda([planned(number, number / 1000) for number in range(2000)], 10.0, frozenset(), writer())
    ids = [item.planned.id for item in iter(lambda: agenda.due(5.0), None)]
    assert ids == list(range(2000)) and agenda.empty
