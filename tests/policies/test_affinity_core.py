"""Prefixes, sessions and load, weighed in the core: who gets a prompt, who is passed over, who is waited for."""

from dataclasses import replace

import pytest

from policies.decisions import Dispatch
from policies.events import CacheCleared, CacheTurned, Cancelled, Finished, Outcome
from policies.scoring import FEW_SEQS, OTHERS, SLACK_SEQS, bounded, cost
from policies.state.ledger import Load
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Affinity, Band, Limits, Pool, Tenant
from tests.policies.given import BANDS, World, endpoint, request, settings, told

AFFINITY = Affinity()
STANDARD = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=5000, slo_ttft_s=8.0)


def chain(family: int, blocks: int = 28) -> tuple[int, ...]:
    """28 blocks are 16 KiB or 4,096 tokens; each further one 1,024 tokens."""
    return tuple(range(family * 1000 + 1, family * 1000 + 1 + blocks))


def world(
    names: str = "xy",
    *,
    band: Band = STANDARD,
    affinity: Affinity | None = AFFINITY,
    **more: int,
) -> World:
    facts: dict[str, int] = {"prefill": 2048, **more}
    return World(
        *(endpoint(name, speed=1000.0, **facts) for name in names),
        settings=settings(
            bands=(band,),
            ordering="by_length",
            affinity=affinity,
            pools=(Pool(name="main", model="llama", lanes="off"),),
        ),
    )


def warm(made: World, family: int, at: float = 0.0, *, tokens: int = 4200, name: str = "") -> str:
    """Let one prompt through; where it went."""
    name = name or f"warm{family}"
    [answer] = made.arrive(name, at, tokens=tokens, prefix=chain(family))
    made.first_token(name, at)
    made.finish(name, at)
    return answer[answer.index(">") + 1 :]


# ---- the score


@pytest.mark.parametrize(
    ("cached_at", "cached", "sequences", "tokens"),
    [
        ("", 0, 3, 300 + 199),
        ("x", 150, 3, 300 + 49),
        ("y", 150, 3, 300 + 199 + OTHERS * 150),
        ("y", 150, 0, 300 + 199),
    ],
    ids=["nobody has it", "it is here", "it is elsewhere and others wait", "it is elsewhere and nobody waits"],
)
def test_the_score_is_time_to_compute_and_to_compute_again_times_how_full_the_batch_would_be(
    cached_at: str, cached: int, sequences: int, tokens: int
) -> None:
    load = Load(endpoint("x", seqs=10, speed=500.0))
    load.prefill_tokens, load.sequences, load.foreign = 300, sequences, 1.0
    ticket = Ticket(request("r", tokens=199), PoolQueue(Pool(name="main", model="llama"), 10.0), 1, STANDARD)
    if cached_at:
        ticket.take_hint(cached_at, cached)
    assert cost(load, ticket) == pytest.approx((tokens + 1) / 500.0 * (sequences + 1 + FEW_SEQS) / (10 + FEW_SEQS))


def test_a_prompt_goes_where_its_beginning_was_sent() -> None:
    made = world("xyz")
    place = warm(made, 1)
    for number in range(20):
        why = made.why(f"r{number}", 1.0 + number, tokens=4200, prefix=chain(1))
        assert (why.cached_tokens, why.prefill_tokens) == (4096, 0)
        assert made.load(place)[0] == 1
        made.finish(f"r{number}", 1.5 + number)


def test_an_answer_that_took_long_keeps_its_prompt_young() -> None:
    made = world("x", affinity=Affinity(ttl_s=20.0))
    made.arrive("long", 0.0, tokens=4200, prefix=chain(1))
    made.first_token("long", 1.0)
    made.finish("long", 15.0)
    assert made.why("again", 30.0, tokens=4200, prefix=chain(1)).cached_tokens == 4096


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
def test_what_others_have_had_computed_pushes_a_prompt_out_of_the_cache(ends: str) -> None:
    made = world("x", kv_tokens=20_000, prefill=100_000)
    warm(made, 1)
    for number in range(12):  # 50,000 tokens in twelve seconds: the cache turns over in half of the minute that follows
        made.arrive(f"r{number}", 1.0 + number, tokens=4200, prefix=chain(10 + number))
        if ends == "completed":
            made.finish(f"r{number}", 1.5 + number)
        else:
            made.cancel(f"r{number}", 1.5 + number)
    belief = made.core._books.prefixes._slots["x"].belief  # type: ignore[union-attr]
    assert belief.lifetime_s(13.0) == pytest.approx(20_000 / (50_400 / 60), rel=0.2)


def test_without_affinity_prefixes_mean_nothing() -> None:
    made = world("xyz", affinity=None)
    places = {warm(made, 1, float(at), name=f"r{at}") for at in range(40)}
    assert places == set("xyz")


def test_a_warm_endpoint_that_is_too_busy_is_left_for_a_cold_one_which_is_warm_then() -> None:
    made = world("xy", seqs=100, prefill=100_000)
    place = warm(made, 1)
    used = [made.arrive(f"r{number}", 1.0, tokens=4200, prefix=chain(1))[0][-1] for number in range(40)]
    assert used[0] == place
    assert set(used) == set("xy")
    assert max(used.count("x"), used.count("y")) <= 26 + SLACK_SEQS


def test_a_burst_finds_its_leader_before_that_has_answered() -> None:
    made = world("xy", seqs=100, prefill=100_000)
    [other] = made.arrive("other", tokens=20_000)
    [leader] = made.arrive("r0", tokens=4200, prefix=chain(1))
    assert leader[-1] != other[-1]
    assert made.why("r1", tokens=4200, prefix=chain(1)).cached_tokens == 4096
    assert made.load(leader[-1]) == (2, 4304)


def test_on_an_idle_fleet_the_second_of_a_burst_is_cold_rather_than_behind_its_leader() -> None:
    made = world("xy", seqs=100, prefill=100_000)
    [leader] = made.arrive("r0", tokens=4200, prefix=chain(1))
    [second] = made.arrive("r1", tokens=4200, prefix=chain(1))
    assert leader[-1] != second[-1]


def test_where_others_would_wait_for_it_nothing_is_computed_again_until_that_is_four_times_as_soon() -> None:
    made = world("xy", seqs=100, prefill=100_000)
    [leader] = made.arrive("r0", tokens=8200, prefix=chain(1))
    [other] = made.arrive("runs", tokens=100)
    assert leader[-1] != other[-1]
    assert (
        made.arrive("r1", tokens=4200, prefix=chain(1))[0][-1] == leader[-1]
    )  # 8,304 tokens there, 4,300 at the other
    assert made.arrive("r2", tokens=12_000, prefix=chain(1))[0][-1] == leader[-1]  # 16,208 and 12,100
    assert made.arrive("r3", tokens=4200, prefix=chain(1))[0][-1] == other[-1]  # 16,312 and 4,300


def test_what_two_have_is_worth_a_third_copy() -> None:
    made = world("xyz", seqs=100, prefill=100_000)
    [leader] = made.arrive("r0", tokens=8200, prefix=chain(1))
    [second] = made.arrive("r1", tokens=6000, prefix=chain(1))
    [other] = made.arrive("runs", tokens=100)
    assert len({leader[-1], second[-1], other[-1]}) == 3
    assert (
        made.arrive("r2", tokens=4200, prefix=chain(1))[0][-1] == other[-1]
    )  # 4,300 tokens there, 6,104 at the second


def test_what_came_back_from_an_endpoint_is_not_believed_to_be_there() -> None:
    made = world("xy")
    made.arrive("a", tokens=4200, prefix=chain(1))
    [again] = made.bounce("a", 0.1)
    made.finish("a", 0.2, attempt=2)
    assert made.why("b", 1.0, tokens=4200, prefix=chain(1)).cached_tokens == 4096
    assert made.load(again[2])[0] == 1


def test_an_engine_that_reports_no_hits_is_believed_less_and_less() -> None:
    made = world("x")
    seen = []
    for number in range(60):
        seen.append(made.why(f"r{number}", float(number), tokens=4200, prefix=chain(1)).cached_tokens)
        made.first_token(f"r{number}", number + 0.1)
        made.finish_of(f"r{number}", number + 0.2, cached=0, output=10)
    assert seen[1] == 4096
    assert seen[59] < 400
    assert seen[1:] == sorted(seen[1:], reverse=True)


# ---- bounded load


def loads_of(*sequences: int) -> list[Load]:
    made = [Load(endpoint(f"e{at}", seqs=100)) for at in range(len(sequences))]
    for load, count in zip(made, sequences, strict=True):
        load.sequences = count
    return made


class Known(Ticket):
    """A ticket of which endpoints have so many tokens cached."""

    __slots__ = ()

    def __init__(self, cached: dict[str, int], tokens: int = 10_000) -> None:
        super().__init__(request("r", tokens=tokens), PoolQueue(Pool(name="main", model="llama"), 10.0), 1, BANDS[1])
        self.cached = {"elsewhere": 1, **cached}


@pytest.mark.parametrize(
    ("sequences", "cached", "left"),
    [
        ((9, 10, 10, 10), {}, "0123"),  # 1.25 x 40 / 4 = 12.5: 13 may be reached
        ((12, 9, 9, 9), {"e0": 9000}, "0123"),
        ((13, 9, 9, 8), {"e0": 8000}, "123"),
        ((13, 9, 9, 8), {"e0": 8192}, "1230"),  # a great gain justifies twice the mean
        ((19, 7, 7, 6), {"e0": 8192}, "1230"),
        ((20, 7, 6, 6), {"e0": 8192}, "123"),
        ((19, 7, 7, 6), {"e0": 9000, "e1": 900}, "123"),  # against the best of the others
        ((0, 0, 0, 0), {"e0": 9000}, "0123"),
        ((1, 0, 0, 0), {"e0": 9000}, "123"),
        ((1, 1, 0, 0), {"e0": 9000}, "23" + "0"),
        ((2, 0, 0, 0), {"e0": 9000}, "123"),
    ],
)
def test_an_endpoint_with_more_than_its_share_is_passed_over(
    sequences: tuple[int, ...], cached: dict[str, int], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.scoring.SLACK_SEQS", 0)
    loads = loads_of(*sequences)
    assert "".join(load.name[1] for load in bounded(loads, loads, Known(cached), 1.25)) == left


def test_nobody_is_passed_over_when_all_are_or_when_no_prefix_pulls() -> None:
    loads = loads_of(50, 60, 0, 0)
    assert bounded(loads[:2], loads, Known({}), 1.25) == loads[:2]
    ticket = Known({})
    ticket.cached = {}
    assert bounded(loads, loads, ticket, 1.25) == loads


def test_affinity_never_overrides_a_bound() -> None:
    made = world("xy", seqs=2)
    place = warm(made, 1)
    other = "y" if place == "x" else "x"
    for number in range(2):
        assert made.arrive(f"r{number}", 1.0, tokens=4097, prefix=chain(1)) == [f"r{number}>{place}"]
        made.first_token(f"r{number}", 1.0)
    assert made.arrive("r2", 1.0, tokens=4097, prefix=chain(1)) == [f"r2>{other}"]


# ---- waiting for a warm engine

SAVED_S = 8.192  # 8,192 cached tokens at 1,000 a second


def busy_for(made: World, tokens: int) -> str:
    """Warm one endpoint for family 1 with 8,192 tokens, and give it so much else to compute."""
    [answer] = made.arrive("warm", tokens=8200, prefix=chain(1, 32))
    made.first_token("warm", 0.0)
    made.finish("warm", 0.0)
    place = answer[-1]
    assert made.arrive("busy", 1.0, tokens=8192 + tokens, prefix=chain(1, 32)) == [f"busy>{place}"]
    return place


def test_a_request_waits_for_a_warm_engine_that_is_busy_for_less_than_it_saves() -> None:
    made = world()
    place = busy_for(made, 2100)
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32)) == []
    assert made.first_token("busy", 1.7) == [f"a>{place}"]


@pytest.mark.parametrize(
    ("slo", "held_s"),
    [(10.0, 5.0), (40.0, SAVED_S), (0.0, SAVED_S), (4.0, None)],
    ids=["half of its time", "what it saves", "no promise", "too little"],
)
def test_it_waits_for_half_of_its_time_and_for_what_it_saves_at_most(slo: float, held_s: float | None) -> None:
    band = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=5000, slo_ttft_s=slo, ttft_per_token_s=0.0)
    made = world(band=band)
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    told = made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    if held_s is None:  # it would take 2.1 s
        assert told == [f"a>{other}"]
        return
    assert told == []
    assert made.tick(1.0 + held_s - 0.01) == []
    assert made.core.next_wakeup() == pytest.approx(1.0 + held_s)
    assert made.tick(1.001 + held_s) == [f"a>{other}"]


def test_a_small_gain_is_not_waited_for() -> None:
    made = world()
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=2048, prefix=chain(1, 19)) == [f"a>{other}"]  # 1.79 s of prefill, for 2.1


def test_it_waits_once() -> None:
    made = world()
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    for number in range(8):  # until the other is full too
        made.arrive(f"o{number}", 1.1, tokens=256)
    assert made.tick(1.001 + SAVED_S) in ([], [f"a>{other}"])
    ticket = made.core._books.tickets["a"]
    assert ticket.only == ""
    made.first_token("busy", 1.1 + SAVED_S)
    assert ticket.attempt is not None


def test_one_that_waits_keeps_that_endpoint_only() -> None:
    made = world(
        band=Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=9, ttft_per_token_s=0.0, slo_ttft_s=8.0)
    )
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    assert made.arrive("b", 1.1, tokens=2048) == [f"b>{other}"]
    assert made.arrive("c", 1.2, tokens=100) == []
    assert made.first_token("busy", 1.3) == [f"a>{place}", f"c>{place}"]


def test_a_more_urgent_one_goes_before_it_where_it_has_room() -> None:
    critical = Band(name="critical", rank=0, queue_timeout_s=600.0, max_queued=5000, slo_ttft_s=8.0)
    pools = (Pool(name="main", model="llama", lanes="off"),)
    made = world()
    made.change(settings(bands=(critical, STANDARD), ordering="by_length", affinity=AFFINITY, pools=pools), 0.0)
    place = busy_for(made, 2100)  # it may have half as much again
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32)) == []
    assert made.arrive("b", 1.0, tokens=4000) == [f"b>{other}"]
    assert made.arrive("c", 1.3, tokens=100, band="critical") == [f"c>{place}"]


def test_nor_does_it_keep_that_while_it_has_no_slot() -> None:
    made = world()
    pools = (Pool(name="main", model="llama", lanes="off"), Pool(name="second", model="qwen", lanes="off"))
    now = settings(bands=(STANDARD,), ordering="by_length", affinity=AFFINITY, pools=pools)
    made.change(replace(now, tenants={"acme": Tenant(id="acme", limits=Limits(max_concurrency=1))}), 0.0)
    made.up(endpoint("z", pools=("second",)))
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32), tenant="acme") == []
    assert made.arrive("b", 1.0, tokens=2048) == [f"b>{other}"]
    assert made.arrive("c", 1.1, model="qwen", tenant="acme") == ["c>z"]
    assert made.first_token("busy", 1.2) == []
    assert made.arrive("d", 1.3, tokens=100) == [f"d>{place}"]


def test_an_endpoint_without_a_place_for_it_is_not_waited_for() -> None:
    """When a prefill ends can be said; when a sequence ends, nobody knows."""
    made = world(seqs=1)
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32)) == [f"a>{other}"]


def test_a_full_queue_makes_nobody_wait_for_a_warm_engine() -> None:
    made = world(band=Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=1, slo_ttft_s=8.0))
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32)) == []
    assert made.arrive("b", 1.0, tokens=8400, prefix=chain(1, 32)) == [f"b>{other}"]


def test_those_who_wait_for_a_warm_engine_stand_in_the_order_of_everybody() -> None:
    made = world("xy", seqs=20)
    place = busy_for(made, 2100)
    made.arrive("later", 1.0, tokens=9000, prefix=chain(1, 32))
    made.arrive("sooner", 1.0, tokens=8400, prefix=chain(1, 32))
    tickets = made.core._books.tickets
    assert len(tickets["later"].key) == len(tickets["sooner"].key) == 4
    first = min(("later", "sooner"), key=lambda name: tickets[name].key)
    assert made.first_token("busy", 1.5)[0] == f"{first}>{place}"


def test_when_the_engine_that_is_waited_for_goes_the_wait_is_over() -> None:
    made = world()
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    assert made.down(place, 1.1) == [f"a>{other}"]


def test_so_it_is_when_that_engine_is_another_pools_now() -> None:
    made = world()
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    assert made.up(endpoint(place, pools=("elsewhere",), speed=1000.0), 1.1) == [f"a>{other}"]


def test_one_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    made = world()
    busy_for(made, 2100)
    made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32))
    assert made.cancel("a", 1.2) == []
    assert made.core.totals().queued == 0


# ---- sessions


def test_a_session_goes_back_to_where_it_was_when_the_index_has_forgotten() -> None:
    made = world("wxyz", affinity=Affinity(ttl_s=10.0))
    [first] = made.arrive("a", tokens=3000, prefix=chain(1, 22), session="s")
    made.finish("a", 1.0)
    why = made.why("b", 100.0, tokens=3500, prefix=chain(1, 24), session="s")
    assert why.cached_tokens == 3000
    assert made.load(first[-1])[0] == 1


def test_a_session_that_has_waited_still_goes_back_to_where_it_was() -> None:
    made = world("xy", affinity=Affinity(ttl_s=10.0), seqs=2)
    [first] = made.arrive("a", tokens=3000, prefix=chain(1, 22), session="s")
    made.finish("a", 1.0)
    [one], [other] = made.arrive("b", 100.0, tokens=10), made.arrive("c", 100.0, tokens=10)
    assert one[-1] != other[-1]
    made.first_token("b" if other[-1] == first[-1] else "c", 100.0)  # the other engine has nothing to compute
    made.arrive("pair", 100.0, tokens=9000, sequences=2)
    assert made.arrive("next", 100.0, tokens=3500, prefix=chain(1, 24), session="s") == []
    [decision] = made.happen(Cancelled(request_id="pair"), 101.0)
    assert isinstance(decision, Dispatch)
    assert (decision.endpoint, decision.why.cached_tokens) == (first[-1], 3000)


def test_a_session_is_no_pin() -> None:
    made = world("xy", seqs=1)
    [first] = made.arrive("a", tokens=3000, session="s")
    [second] = made.arrive("b", 1.0, tokens=3500, session="s")
    assert first[-1] != second[-1]


def test_sessions_of_two_tenants_are_two() -> None:
    made = world("wxyz")
    made.arrive("a", tokens=3000, session="s", tenant="t1")
    made.finish("a", 1.0)
    assert made.why("b", 2.0, tokens=3500, session="s", tenant="t2").cached_tokens == 0


# ---- endpoints that go, settings that change


def test_an_endpoint_that_goes_has_forgotten_everything_when_it_is_back() -> None:
    made = world("x")
    warm(made, 1)
    made.down("x", 1.0)
    made.up(endpoint("x", speed=1000.0), 2.0)
    assert made.why("a", 3.0, tokens=4200, prefix=chain(1), session="s").cached_tokens == 0


@pytest.mark.parametrize(
    ("changed", "known"),
    [(Affinity(ttl_s=900.0), 4096), (Affinity(max_load_ratio=2.0), 4096), (Affinity(block_tokens=32), 0), (None, 0)],
)
def test_a_reload_keeps_what_is_known_while_blocks_stay_the_same(changed: Affinity | None, known: int) -> None:
    made = world("xy")
    warm(made, 1)
    made.change(settings(bands=(STANDARD,), affinity=changed), 1.0)
    assert made.why("a", 2.0, tokens=4200, prefix=chain(1)).cached_tokens == known


def test_affinity_may_be_switched_off_while_requests_that_have_a_match_wait() -> None:
    made = world("xy", seqs=1)
    warm(made, 1)
    for number in range(4):
        made.arrive(f"r{number}", 1.0, tokens=4200, prefix=chain(1))
    flying = [name for name, ticket in made.core._books.tickets.items() if ticket.attempt is not None]
    made.change(settings(bands=(STANDARD,), affinity=None), 1.5)
    assert len([answer for name in flying for answer in made.finish(name, 2.0)]) == 2


def test_a_borrowed_endpoint_serves_a_warm_prompt_when_its_own_are_gone() -> None:
    pools = (
        Pool(name="main", model="llama", max_total_tokens=8000, borrow=("long",), lanes="off"),
        Pool(name="long", model="llama", lanes="off"),
    )
    made = World(
        endpoint("x", speed=1000.0, seqs=1),
        *(endpoint(name, speed=1000.0, pools=("long",)) for name in "yz"),
        settings=settings(pools=pools, bands=(STANDARD,), affinity=Affinity()),
    )
    for number in range(2):
        made.arrive(f"l{number}", tokens=9000)  # so much that they are not lent
    made.arrive("a", tokens=300, prefix=chain(1, 4))
    assert made.arrive("q", 0.1, tokens=3000, prefix=chain(1, 22)) == []
    made.down("x", 0.2)
    assert made.first_token("l0", 0.3) in (["q>y"], ["q>z"])


# ---- what an engine says of its cache


def test_an_engine_that_lost_its_cache_is_cold_for_prompts_and_for_sessions() -> None:
    made = world("xy")
    where = warm(made, 1)
    assert made.why("again", 1.0, tokens=4200, prefix=chain(1), session="s").cached_tokens == 4096
    made.happen(CacheCleared(endpoint="z"), 2.0)
    made.happen(CacheCleared(endpoint=where), 2.0)
    made.finish("again", 2.0)
    assert made.core._books.sessions.find("default", "s", 2.0) is None
    assert made.why("cold", 3.0, tokens=4200, prefix=chain(1)).cached_tokens == 0


def test_a_cache_that_turns_over_faster_than_was_thought_is_forgotten_sooner() -> None:
    for stored, cached in [(0, 4096), (600_000, 0)]:
        made = world("x", kv_tokens=100_000)
        warm(made, 1)
        made.happen(CacheTurned(endpoint="x", stored_tokens=stored, removed_tokens=0), 1.0)
        assert made.why("again", 30.0, tokens=4200, prefix=chain(1)).cached_tokens == cached


def test_nobody_waits_for_an_engine_that_has_lost_what_was_worth_waiting_for() -> None:
    made = world()
    place = busy_for(made, 2100)
    other = "y" if place == "x" else "x"
    assert made.arrive("a", 1.0, tokens=8400, prefix=chain(1, 32)) == []
    assert told(made.happen(CacheCleared(endpoint=other), 1.1)) == []
    assert told(made.happen(CacheCleared(endpoint=place), 1.2)) == [f"a>{other}"]


def test_a_prompt_that_is_shorter_than_it_looked_is_never_less_than_nothing() -> None:
    """The index goes by the driver's estimate, the core by what it has learned: here a fifth of it."""
    made = world()
    for number in range(200):
        made.arrive(f"w{number}", tokens=2048, prefix=chain(1, 19), text_bytes=8192)
        made.first_token(f"w{number}", 0.0)
        done = Finished(
            request_id=f"w{number}", attempt=1, outcome=Outcome.COMPLETED, prompt_tokens=1100, output_tokens=3
        )
        made.happen(done, 0.0)
    made.arrive("again", 1.0, tokens=2048, prefix=chain(1, 19), text_bytes=8192)
    assert sum(view.prefill_tokens for view in made.core.endpoints()) == 1
