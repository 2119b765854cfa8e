"""The baselines keep the rules they were published with."""

from collections import Counter
from random import Random

import pytest

from loadgen.sim.router import EngineFacts, Job, Router, Seen
from loadgen.sim.routers import make, names
from loadgen.sim.routers.cache_aware import CacheAware, Tuning
from loadgen.sim.routers.counting import least
from loadgen.sim.routers.memory import PrefixMemory

FACTS = EngineFacts(kv_tokens=534_000, max_seqs=256, step_tokens=2048, prefill_tokens_per_s=12_000)
BLOCK = 16


def router(name: str, engines: int = 4, seed: int = 7, facts: EngineFacts = FACTS) -> Router:
    return make(name, [facts] * engines, seed)


def job(number: int, head: str = "", tokens: int = 160, head_tokens: int | None = None) -> Job:
    """A prompt of `tokens`; the first `head_tokens` (default: all) are those of every job with that `head`."""
    full = tokens // BLOCK
    shared = full if head_tokens is None else head_tokens // BLOCK
    names = [f"{head or number}/{i}" if i < shared else f"{head}/{number}/{i}" for i in range(full)]
    stable = [Random(name).getrandbits(64) for name in names]
    return Job(
        id=f"j{number}",
        tenant="t",
        priority="standard",
        arrived_s=0.0,
        prompt_tokens=tokens,
        max_tokens=100,
        hashes=tuple(stable),
    )


def seen(waiting: int = 0, tokens: int = 0, kv: float = 0.0) -> Seen:
    return Seen(running=0, waiting=waiting, waiting_tokens=tokens, kv_usage=kv)


def placed(one: Router, jobs: list[Job], now: float = 0.0) -> list[int]:
    return [one.place(each, now) for each in jobs]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("engines", [1, 3])
def test_every_router_names_an_engine_and_forgets_what_ended(name: str, engines: int) -> None:
    one = router(name, engines)
    for number in range(60):
        here = job(number, head="ab"[number % 2], tokens=100 * number + 5)
        engine = one.place(here, number)
        assert 0 <= engine < engines
        one.observed(engine, seen(1, 10, 0.5), number)
        if number % 3:
            one.first_token(here, engine, number)
        one.finished(here, engine, number)
    assert one.outstanding == [0] * engines  # type: ignore[attr-defined]
    assert getattr(one, "prefill", [0] * engines) == [0] * engines


@pytest.mark.parametrize("name", names())
def test_equal_seeds_give_equal_places(name: str) -> None:
    jobs = [job(number, head=str(number % 5), tokens=640, head_tokens=320) for number in range(200)]
    assert placed(router(name), jobs) == placed(router(name), jobs)


def test_there_is_no_router_of_another_name_and_none_without_engines() -> None:
    with pytest.raises(ValueError, match="no router is called fastest; there are random"):
        router("fastest")
    with pytest.raises(ValueError, match="no engines"):
        router("random", engines=0)


def test_random_takes_all_engines_alike() -> None:
    counts = Counter(placed(router("random"), [job(n) for n in range(4000)]))
    assert all(900 < counts[engine] < 1100 for engine in range(4))


def test_round_robin_goes_around_whatever_ends() -> None:
    one = router("round_robin", 3)
    first = job(0)
    assert one.place(first, 0) == 0
    one.finished(first, 0, 1)
    assert placed(one, [job(n) for n in range(1, 7)]) == [1, 2, 0, 1, 2, 0]


def test_least_requests_takes_the_emptiest() -> None:
    one = router("least_requests", 3)
    jobs = [job(n) for n in range(6)]
    engines = placed(one, jobs)
    assert Counter(engines) == {0: 2, 1: 2, 2: 2}
    one.finished(jobs[2], engines[2], 1)
    assert one.place(job(9), 1) == engines[2]


def test_ties_go_to_any_of_the_tied() -> None:
    assert {least([3, 1, 1, 2], Random(seed)) for seed in range(30)} == {1, 2}


def test_two_choices_never_take_the_fullest_of_the_drawn() -> None:
    one = router("p2c", 2)
    assert Counter(placed(one, [job(n) for n in range(100)])) == {0: 50, 1: 50}
    many = Counter(placed(router("p2c", 8), [job(n) for n in range(800)]))
    assert max(many.values()) - min(many.values()) < 12  # random: about 60


# ---- sgl_cache_aware


def test_cache_aware_goes_to_the_holder_above_the_threshold_and_to_the_smallest_tree_below() -> None:
    one = router("sgl_cache_aware", 2)
    assert one.place(job(0, "a", 3200), 0) == 0
    assert one.place(job(1, "b", 1600), 0) == 1
    assert one.place(job(2, "a", 9600, head_tokens=3200), 0) == 0  # a third matches
    assert one.place(job(3, "a", 16000, head_tokens=3200), 0) == 1  # a fifth
    assert one.place(job(4, "c", 160), 0) == 0  # 600 blocks against 1,100


def test_in_smg_the_one_with_the_fewest_requests_takes_what_matches_nowhere() -> None:
    one = router("smg_cache_aware", 2)
    assert one.place(job(0, "a", 320), 0) == 0
    assert one.place(job(1, "b", 320), 0) == 1
    assert one.place(job(2, "a", 960, head_tokens=320), 0) == 0  # a third matches
    assert one.place(job(3, "b", 1600, head_tokens=320), 0) == 1  # a fifth: the emptiest, by chance the holder
    assert one.place(job(4, "a", 1600, head_tokens=320), 0) == 0  # both have two: the first
    assert one.place(job(5, "a", 1600, head_tokens=320), 0) == 1


def test_exactly_the_threshold_is_no_match() -> None:
    one = CacheAware(2, Tuning(threshold=0.5, gap=64, ratio=1.5, evict_s=120, tree_blocks=1000))
    assert one.place(job(0, "a", 320), 0) == 0
    assert one.place(job(1, "a", 640, head_tokens=320), 0) == 1
    assert one.place(job(2, "a", 624, head_tokens=320), 0) in (0, 1)


def test_cache_aware_gives_up_affinity_when_the_load_is_uneven_in_both_senses() -> None:
    one = router("sgl_cache_aware", 2)
    assert placed(one, [job(n, "a") for n in range(65)]) == [0] * 65  # 65 - 0 > 64 only now
    assert one.place(job(90, "a"), 0) == 1
    loaded = router("smg_cache_aware", 2)
    loaded.outstanding = [290, 200]  # type: ignore[attr-defined]
    loaded.place(job(0, "b"), 0)
    loaded.outstanding = [200, 290]  # type: ignore[attr-defined]
    assert loaded.place(job(1, "b"), 0) == 1  # 90 more, but not half as much again


def test_the_last_to_use_a_prefix_is_its_holder() -> None:
    one = router("sgl_cache_aware", 2)
    one.place(job(0, "a"), 0.0)
    one.outstanding = [100, 0]  # type: ignore[attr-defined]
    assert one.place(job(1, "a"), 1.0) == 1
    one.outstanding = [0, 0]  # type: ignore[attr-defined]
    assert one.place(job(2, "a"), 2.0) == 1


def test_trees_are_cut_from_their_oldest_leaves_at_the_interval_only() -> None:
    one = CacheAware(2, Tuning(threshold=0.5, gap=64, ratio=1.5, evict_s=30, tree_blocks=10, by_tree=False))
    one.place(job(0, "a", 160), 0)
    assert one.place(job(1, "b", 160), 1) == 1
    one.place(job(2, "c", 160), 2)
    one.outstanding = [0, 5]  # type: ignore[attr-defined]
    assert one.place(job(3, "b", 160), 29) == 1  # still known
    one.outstanding = [5, 0]  # type: ignore[attr-defined]
    assert one.place(job(4, "a", 160), 31) == 1  # forgotten: c was used after it


# ---- llmd_weighted


def test_the_weighted_router_adds_queue_kv_and_prefix() -> None:
    one = router("llmd_weighted", 2)
    first = one.place(job(0, "a", 6400), 0)
    other = 1 - first
    one.observed(first, seen(waiting=5), 0.05)
    one.observed(other, seen(waiting=0), 0.05)
    assert one.place(job(1, "a", 6400), 0.1) == first  # 3 against 2
    one.observed(first, seen(waiting=5, kv=0.6), 0.15)
    assert one.place(job(2, "a", 6400), 0.2) == other  # 3 + 0.8 against 2 + 2
    assert one.poll_s == 0.05


def test_the_queue_score_is_relative_to_the_range() -> None:
    for waiting in (1, 500):
        one = router("llmd_weighted", 3)
        for engine, queue in enumerate((waiting, 0, waiting)):
            one.observed(engine, seen(waiting=queue), 0)
        assert one.place(job(0, tokens=30), 0) == 1


def test_a_prefix_counts_by_its_share_of_the_prompt() -> None:
    one = router("llmd_weighted", 2)
    first = one.place(job(0, "a", 640), 0)
    one.observed(first, seen(waiting=1), 0)
    one.observed(1 - first, seen(waiting=0), 0)
    assert one.place(job(1, "a", 1280, head_tokens=640), 0) == 1 - first  # 1.5 against 2
    one.observed(1 - first, seen(waiting=1), 0)
    assert one.place(job(2, "b", 640), 0) in (0, 1)


def test_the_weighted_router_forgets_beyond_its_lru() -> None:
    memory = PrefixMemory(20)
    old, new = job(0, "a", 160), job(1, "b", 240)
    memory.remember(old.hashes, 0)
    memory.remember(new.hashes, 1)
    assert memory.known(new.hashes) == 15
    assert memory.known(old.hashes) == 5  # its tail went first
    assert len(memory) == 20


# ---- chwbl


def test_equal_heads_hash_to_one_engine_until_its_load_is_a_quarter_above_the_mean() -> None:
    one = router("chwbl", 4)
    engines = placed(one, [job(n, "a", 320, head_tokens=160) for n in range(40)])
    home = engines[0]
    load = [0] * 4
    for engine in engines:
        bound = 1.25 * (sum(load) + 1) / 4
        assert load[engine] + 1 <= bound or (engine == home and min(load) + 1 > bound) or not any(load)
        load[engine] += 1
    assert load[home] == max(load) == 12


def test_the_short_key_sees_only_the_first_block_and_the_long_key_the_first_4096_bytes() -> None:
    alone = {"chwbl": set(), "chwbl_4k": set()}
    for name, engines in alone.items():
        for number in range(40):
            engines.add(router(name, 4).place(job(number, "a", 2048, head_tokens=512), 0))
    assert len(alone["chwbl"]) == 1
    assert len(alone["chwbl_4k"]) == 4
    ends = {router("chwbl_4k", 4).place(job(number, "a", 2048, head_tokens=1024), 0) for number in range(40)}
    assert len(ends) == 1


def test_the_ring_is_about_fair_and_loses_little_when_an_engine_goes() -> None:
    jobs = [job(n) for n in range(600)]
    four = [router("chwbl", 4).place(each, 0) for each in jobs]
    three = [router("chwbl", 3).place(each, 0) for each in jobs]
    assert all(90 < count < 220 for count in Counter(four).values())
    assert all(a == b for a, b in zip(four, three, strict=True) if a < 3)


def test_a_prompt_shorter_than_a_block_goes_by_its_id() -> None:
    assert len({router("chwbl", 4).place(job(n, "a", 9), 0) for n in range(40)}) == 4


# ---- smg_least_load


def test_least_load_counts_requests_until_it_has_looked() -> None:
    one = router("smg_least_load", 2)
    assert placed(one, [job(0, tokens=9000), job(1), job(2), job(3)]) == [0, 1, 0, 1]
    assert (one.poll_s, router("smg_least_load_100ms").poll_s) == (10.0, 0.1)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (seen(tokens=4000), seen(tokens=3000), 1),
        (seen(tokens=4000), seen(tokens=3000, kv=0.9), 0),  # 2.0 s against 1.5 + 1.35
        (seen(kv=0.5), seen(tokens=400), 0),  # 0.15 against 0.2
        (seen(kv=1.0), seen(tokens=200_000), 1),  # 150 s against 100
        (seen(), seen(), 0),
    ],
)
def test_least_load_adds_the_time_to_drain_and_the_pressure(first: Seen, second: Seen, chosen: int) -> None:
    one = router("smg_least_load", 2)
    one.observed(0, first, 0)
    one.observed(1, second, 0)
    assert one.place(job(0), 0) == chosen


def test_least_load_counts_what_it_sent_since_the_look() -> None:
    one = router("smg_least_load", 2)
    one.observed(0, seen(), 0)
    one.observed(1, seen(tokens=1000), 0)
    assert placed(one, [job(0, tokens=600), job(1, tokens=600), job(2, tokens=600)]) == [0, 0, 1]
    one.observed(0, seen(tokens=100), 10)
    assert one.place(job(3), 10) == 0


def test_over_http_least_load_takes_every_request_for_1024_tokens() -> None:
    one = router("smg_least_load_http", 2)
    one.observed(0, seen(tokens=9000), 0)
    one.observed(1, seen(kv=0.5), 0)
    assert placed(one, [job(0, tokens=9000), job(1), job(2)]) == [0, 1, 0]


# ---- least_prefill, lmetric


def test_least_prefill_counts_prompt_tokens_until_the_first_token() -> None:
    one = router("least_prefill", 2)
    long, short = job(0, tokens=9000), job(1, tokens=100)
    far, near = placed(one, [long, short])
    assert far != near
    assert one.place(job(2, tokens=5000), 0) == near
    assert one.place(job(3, tokens=5000), 0) == near
    one.first_token(long, far, 1)
    assert one.place(job(4), 1) == far


def test_least_prefill_takes_fewer_requests_on_a_tie() -> None:
    one = router("least_prefill", 2)
    first = job(0)
    engine = one.place(first, 0)
    one.first_token(first, engine, 1)
    assert one.place(job(1), 1) == 1 - engine


def test_lmetric_weighs_what_is_cached_against_the_batch() -> None:
    one = router("lmetric", 2)
    first = job(0, "a", 1600)
    home = one.place(first, 0)
    one.first_token(first, home, 1)
    # here: (0 + 1600 - 99 * 16 + 1) x 2 = 34, there: 1601
    assert one.place(job(1, "a", 1600), 1) == home
    # here: (16 + 1600 + 1) x 3, there: 1601 x 1
    assert one.place(job(2, "b", 1600), 1) == 1 - home


def test_lmetric_knows_no_more_than_fits_the_engine() -> None:
    small = EngineFacts(kv_tokens=1600, max_seqs=1, step_tokens=1, prefill_tokens_per_s=1)
    one = router("lmetric", 1, facts=small)
    placed(one, [job(0, "a", 1600), job(1, "b", 1600)])
    memory = one._memories[0]  # type: ignore[attr-defined]
    assert memory.known(job(2, "a", 1600).hashes) == 0
    assert memory.known(job(3, "b", 1600).hashes) == 100
