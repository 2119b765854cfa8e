"""Who goes first among those that wait: keys, those who are late anyway, the starved, and age."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.ordering import due_s, place
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Band, Pool, Prediction
from tests.policies.given import World, endpoint, request, settings

BAND = Band(name="standard", rank=2, queue_timeout_s=6000.0, max_queued=5000, slo_ttft_s=4.0)
NO_PROMISE = Band(name="standard", rank=2, queue_timeout_s=6000.0, max_queued=5000)
URGENT = Band(name="interactive", rank=1, queue_timeout_s=6000.0, max_queued=5000, slo_ttft_s=1.0)
SPEED = 1000.0


def ticket_of(
    name: str = "r",
    *,
    at: float = 0.0,
    tokens: int = 100,
    band: Band = BAND,
    answer: float = 0.0,
    prefix: tuple[int, ...] = (),
    ordering: str = "by_length",
    order: int = 1,
) -> Ticket:
    queue = PoolQueue(Pool(name="main", model="llama"), 10.0)
    queue.services[False].margin = 1.0
    ticket = Ticket(request(name, at=at, tokens=tokens - 1, prefix=prefix), queue, order, band)
    ticket.output = Prediction(p25=answer, p50=answer, p90=answer, p99=answer, mean=answer, held=answer)
    ticket.due_s = due_s(band, at, tokens)
    place(ticket, ordering, Load(endpoint("x", speed=SPEED, step_tokens=1)))
    return ticket


@pytest.mark.parametrize(
    ("band", "tokens", "due"),
    [(BAND, 100, 14.0), (BAND, 2048, 14.0), (BAND, 6048, 15.0), (NO_PROMISE, 6048, inf)],
)
def test_a_first_token_is_due_later_for_a_long_prompt(band: Band, tokens: int, due: float) -> None:
    assert due_s(band, 10.0, tokens) == due


@pytest.mark.parametrize("ordering", ["fcfs", "edf", "by_length"])
def test_when_a_prefill_has_to_begin_is_known_in_every_order(ordering: str) -> None:
    ticket = ticket_of(at=10.0, tokens=1000, ordering=ordering)
    assert ticket.begin_s == 13.0
    assert ticket.lost_s == (inf if ordering == "fcfs" else 17.0)  # its promise too late


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"at": 0.0}, {"at": 0.2}),  # sooner due
        ({"tokens": 400}, {"tokens": 100}),  # equally due, but takes 0.3 s more
        ({"at": 0.04, "tokens": 110}, {"at": 0.01, "answer": 200.0}),  # like urgency: short before long
        ({"band": NO_PROMISE, "tokens": 100, "at": 1.9}, {"band": NO_PROMISE, "tokens": 200}),
        ({"band": NO_PROMISE, "tokens": 200}, {"band": NO_PROMISE, "tokens": 100, "at": 2.1}),
    ],
)
def test_by_length_urgent_before_idle_and_of_like_urgency_short_before_long(
    first: dict[str, object], second: dict[str, object]
) -> None:
    assert ticket_of(**first).key < ticket_of(**second).key  # type: ignore[arg-type]


def test_in_one_bucket_equal_prefixes_are_together() -> None:
    heads = [tuple(range(at, at + 8)) for at in (100, 200)]
    tickets = [
        ticket_of(f"{number}", tokens=100 + number % 3, prefix=(*heads[number % 2], number), order=number)
        for number in range(12)
    ]
    tickets.sort(key=lambda ticket: ticket.key)
    groups = [int(ticket.request.id) % 2 for ticket in tickets]
    assert groups == sorted(groups, reverse=groups[0] == 1)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50_000)), min_size=2, max_size=20))
def test_edf_is_by_when_the_prefill_has_to_begin_and_fcfs_by_arrival(arrivals: list[tuple[float, int]]) -> None:
    made = [
        [
            ticket_of(at=at, tokens=tokens, ordering=ordering, order=number)
            for number, (at, tokens) in enumerate(arrivals)
        ]
        for ordering in ("edf", "fcfs")
    ]
    edf, fcfs = (sorted(tickets, key=lambda ticket: ticket.key) for tickets in made)
    assert [ticket.begin_s for ticket in edf] == sorted(ticket.begin_s for ticket in edf)
    assert [ticket.order for ticket in fcfs] == list(range(len(arrivals)))


def served(world: World, first: str, at: float, every_s: float, count: int) -> list[str]:
    """Who goes when the one place of `x` becomes free every so often."""
    names = [first]
    for _ in range(count):
        told = world.finish(names[-1], at)
        dispatched = [text[: text.index(">")] for text in told if ">" in text]
        names += dispatched
        at += every_s
        if not dispatched:
            break
    return names[1:]


def world_of(*bands: Band, ordering: str = "by_length") -> World:
    return World(
        endpoint("x", seqs=1, prefill=100_000, speed=SPEED, step_tokens=1),
        settings=settings(bands=bands, ordering=ordering),
    )


def test_whoever_can_no_longer_be_in_time_stands_behind_those_who_can() -> None:
    world = world_of(BAND)
    world.arrive("a", 0.0)
    world.arrive("late", 0.0)
    world.arrive("new", 7.5)
    assert served(world, "a", 7.8, 0.1, 2) == ["late", "new"]  # until 7.85 it pushes ahead
    world = world_of(BAND)
    world.arrive("a", 0.0)
    world.arrive("late", 0.0)
    world.arrive("new", 7.5)
    assert served(world, "a", 7.91, 0.1, 2) == ["new", "late"]


def test_the_late_are_served_in_the_order_they_came() -> None:
    world = world_of(BAND)
    world.arrive("a", 0.0)
    for number, tokens in enumerate((900, 100, 500)):
        world.arrive(f"q{number}", 0.01 * number, tokens=tokens)
    assert served(world, "a", 50.0, 0.1, 3) == ["q0", "q1", "q2"]


def test_every_fourth_dispatch_is_for_the_starved() -> None:
    world = world_of(BAND)
    world.arrive("a", 0.0)
    for number in range(3):
        world.arrive(f"old{number}", 0.0)
    for number in range(12):
        world.arrive(f"new{number}", 19.0 + number / 1000)
    order = served(world, "a", 20.0, 0.01, 15)
    assert [name[:3] for name in order] == ["new", "new", "new", "old"] * 3 + ["new"] * 3


def test_a_late_one_is_not_starved_before_twice_its_promise() -> None:
    band = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=99, slo_ttft_s=30.0, age_after_s=999.0)
    world = world_of(band)
    world.arrive("a", 0.0)
    world.arrive("old", 0.0, tokens=25_000, deadline_s=1e6)  # lost at about 46 s, starved at 60
    for number in range(6):
        world.arrive(f"new{number}", 58.0)
    assert served(world, "a", 59.0, 0.01, 6)[-1] != "old"
    assert served(world, "new5", 60.1, 0.01, 1) == ["old"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ordering", ["by_length", "edf"])
def test_nobody_waits_longer_than_the_bound(seed: int, ordering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """scheduling.md 6: wait <= threshold + 4 x t x (starved ahead + 1), at 1.5 times what can be served."""
    monkeypatch.setattr("policies.placing.is_dropped", lambda ticket, now: False)  # it would drop most of them first
    random, t, threshold_s = Random(seed), 0.1, 8.0
    world = world_of(BAND, ordering=ordering)
    world.arrive("r0", 0.0)
    arrived, left = {"r0": 0.0}, {"r0": 0.0}
    running, next_arrival = "r0", 0.0
    for step in range(20, 500):
        now = step * t
        while next_arrival < now:
            name = f"r{len(arrived)}"
            arrived[name] = next_arrival
            world.arrive(name, next_arrival, tokens=random.choice([1, 50, 400, 3000]), deadline_s=1e6)
            next_arrival += random.expovariate(1.5 / t)
        [told] = world.finish(running, now)
        running = told[: told.index(">")]
        left[running] = now
    waits = {name: left[name] - arrived[name] for name in left}
    for name, wait_s in waits.items():
        starved_s = arrived[name] + threshold_s
        ahead = sum(arrived[other] < arrived[name] and at >= starved_s for other, at in left.items())
        assert wait_s <= threshold_s + 4 * t * (ahead + 1) + t, name
    assert max(waits.values()) > threshold_s


def test_a_change_of_a_bands_promise_leaves_those_who_wait_where_they_stand() -> None:
    world = world_of(BAND, URGENT)
    world.arrive("a", 0.0)
    world.arrive("q1", 1.0)
    world.change(settings(bands=(NO_PROMISE, URGENT), ordering="by_length"), 2.0)
    world.arrive("q2", 3.0)
    assert served(world, "a", 4.0, 0.1, 2) == ["q1", "q2"]
