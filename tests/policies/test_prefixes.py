"""The index against a plain model of it, its bounds and its books; who must give when it is full."""

import math
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.fingerprint import block_at, chain, depth_bytes
from policies.state.prefixes import Prefixes
from policies.types import Affinity
from tests.policies.prompts import asked, audit, blocks_of, fresh

RANDOM = Random(7)
ENDPOINTS = ("x", "y", "z")
BLOCK = 320  # counted bytes of a block


def index(*endpoints: str, kv_tokens: int = 0, **affinity: float) -> Prefixes:
    made = Prefixes(Affinity(**affinity))  # type: ignore[arg-type]
    for endpoint in endpoints or ENDPOINTS:
        made.up(endpoint, kv_tokens)
    return made


def blocks(made: Prefixes, prefix: tuple[int, ...], endpoint: str, now: float = 0.0) -> int:
    return block_at(made.match(asked(prefix), now).tokens(endpoint) * 4, 64)


def prompt(words: str) -> tuple[int, ...]:
    """A chain with a block for each letter; equal beginnings are equal blocks."""
    return chain([letter.encode() * 256 for letter in words], 64, 1)


# Against a model

WORDS = st.text("ab", min_size=1, max_size=7)
OPERATION = st.one_of(
    st.tuples(st.sampled_from(["insert", "insert", "confirm", "remove"]), st.sampled_from(ENDPOINTS), WORDS),
    st.tuples(st.sampled_from(["up", "down"]), st.sampled_from(ENDPOINTS), st.just("")),
)


class Model:
    """Each endpoint's words with how many requests brought each of their beginnings."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {name: {} for name in ENDPOINTS}
        self.sent: dict[tuple[str, str], None] = {}

    def do(self, operation: str, endpoint: str, word: str) -> bool:
        """False: that cannot happen, no such request is there."""
        held = self.held.get(endpoint)
        if operation in ("confirm", "remove") and (endpoint, word) not in self.sent:
            return False
        if operation == "up":
            self.held.setdefault(endpoint, {})
        elif operation == "down":
            self.held.pop(endpoint, None)
            self.sent = {sent: None for sent in self.sent if sent[0] != endpoint}
        elif held is not None and operation == "insert":
            for end in range(1, len(word) + 1):
                held[word[:end]] = held.get(word[:end], 0) + 1
            self.sent[endpoint, word] = None
        elif held is not None and operation == "remove":
            del self.sent[endpoint, word]
            end = self.depth(endpoint, word)
            extended = any(other.startswith(word[:end]) and len(other) > end for other in held)
            while not extended and end and held[word[:end]] == 1:
                del held[word[:end]]
                end -= 1
        return True

    def depth(self, endpoint: str, word: str) -> int:
        held = self.held.get(endpoint, {})
        return next((end for end in range(len(word)) if word[: end + 1] not in held), len(word))


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=40), st.lists(WORDS, min_size=1, max_size=5))
def test_it_knows_what_a_plain_model_knows(operations: list[tuple[str, str, str]], questions: list[str]) -> None:
    made, model = index(), Model()
    for at, (operation, endpoint, word) in enumerate(operations):
        if not model.do(operation, endpoint, word):
            continue
        match operation:
            case "up":
                made.up(endpoint, 0)
            case "down":
                made.down(endpoint)
            case _:
                arguments = (float(at),) if operation != "remove" else ()
                getattr(made, operation)(endpoint, asked(prompt(word)), *arguments)
    audit(made)
    for word in questions:
        found = made.match(asked(prompt(word)), 50.0)
        depths = {name: model.depth(name, word) for name in ENDPOINTS}
        assert {name: found.tokens(name) for name in ENDPOINTS} == {name: at * 64 for name, at in depths.items()}
        assert sorted(found.holders) == [name for name in ENDPOINTS if depths[name]]
        assert [depths[name] for name in found.holders] == sorted(
            (depths[name] for name in found.holders), reverse=True
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WORDS, st.integers(0, 40)), max_size=30), WORDS)
def test_what_was_not_used_for_the_ttl_is_unknown(asks: list[tuple[str, int]], question: str) -> None:
    made, last, now = index(ttl_s=100.0), dict[str, float](), 0.0
    for word, later_s in asks:
        now += later_s
        made.insert("x", asked(prompt(word)), now)
        last |= {word[:end]: now for end in range(1, len(word) + 1)}
    now += 30
    audit(made)
    known = [end for end in range(1, len(question) + 1) if last.get(question[:end], -1e9) >= now - 100.0]
    assert blocks(made, prompt(question), "x", now) == len(known)


TENANTS = st.sampled_from(["acme", "beta", "gamma"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ENDPOINTS), WORDS, TENANTS, st.integers(0, 9)), max_size=80),
    st.integers(0, 20),
    st.integers(8_000, 40_000),
)
def test_bounds_hold_and_what_is_held_is_whole_from_the_start(
    asks: list[tuple[str, str, str, int]], kv_blocks: int, index_bytes: int
) -> None:
    made = index(kv_tokens=64 * kv_blocks, index_bytes=index_bytes)
    words = dict[str, None]()
    for at, (endpoint, word, tenant, what) in enumerate(asks):
        words[word] = None  # tenants of one isolation group share their beginnings
        made.insert(endpoint, asked(prompt(word), tenant=tenant), float(at))
        if what == 0:
            made.down(endpoint)
            made.up(endpoint, 64 * kv_blocks)
        elif what == 1:
            made.remove(endpoint, asked(prompt(word)))
        elif what == 2:
            made.confirm(endpoint, asked(prompt(next(iter(words)))), float(at))
        elif what == 3:
            made.remove(endpoint, asked(prompt(next(iter(words)))))
        audit(made)
    for slot in made._slots.values():
        for prefix in map(prompt, words):
            held = [block in slot.holdings._runs for block in prefix]
            assert held == sorted(held, reverse=True)


# Depth


def test_depth_is_counted_in_tokens_of_this_prompt() -> None:
    made, prefix = index(), fresh(RANDOM, 70)
    made.insert("x", asked(prefix), 0.0)
    assert made.match(asked(prefix, tokens=100_000), 1.0).tokens("x") == (16 + 12 * 4 + 42 * 16) * 64
    assert made.match(asked(prefix, tokens=100_000, text_bytes=300_000), 1.0).tokens("x") == depth_bytes(70, 64) // 3


def test_at_least_one_token_is_left_to_compute() -> None:
    made, prefix = index(), fresh(RANDOM, 4)
    made.insert("x", asked(prefix), 0.0)
    assert made.match(asked(prefix, tokens=256), 1.0).cached("x") == 255
    assert made.match(asked(prefix, tokens=0), 1.0).cached("x") == 0


def test_a_prompt_without_a_full_block_is_nowhere() -> None:
    made = index()
    made.insert("x", asked(()), 0.0)
    made.confirm("x", asked(()), 0.0)
    made.remove("x", asked(()))
    found = made.match(asked(()), 0.0)
    assert (found.holders, found.cached("x"), made.used_bytes) == ((), 0, 0)


def test_unknown_endpoints_hold_nothing_and_break_nothing() -> None:
    made, one = index(), asked(fresh(RANDOM, 4))
    made.insert("nobody", one, 0.0)
    made.confirm("nobody", one, 0.0)
    made.remove("nobody", one)
    made.reported("nobody", 10, 10)
    made.used("nobody", 10, 0.0)
    made.down("nobody")
    made.insert("x", one, 0.0)
    assert made.match(one, 0.0).cached("nobody") == 0


def test_of_many_equal_holders_each_has_its_turn_and_all_answer() -> None:
    names = [f"engine-{at}" for at in range(64)]
    made, one = index(*names), asked(fresh(RANDOM, 10))
    for name in names:
        made.insert(name, one, 0.0)
    seen = dict[str, int]()
    for _ in range(64):
        found = made.match(one, 1.0)
        first = found.holders
        assert len(first) == 8
        assert all(found.cached(name) == 640 for name in names)
        for name in first:
            seen[name] = seen.get(name, 0) + 1
    assert set(seen.values()) == {8}


def test_the_most_that_anybody_has_is_known_without_asking_all_even_what_came_after_the_match() -> None:
    names = [f"engine-{at}" for at in range(64)]
    made, words = index(*names), fresh(RANDOM, 30)
    for name in names:
        made.insert(name, asked(words[:10]), 0.0)
    found = made.match(asked(words), 1.0)
    assert found.most_tokens() == 640
    other = next(name for name in names if name not in found.holders)
    made.insert(other, asked(words[:20]), 1.0)
    assert found.most_tokens() == 2048
    assert found.tokens(other) == 2048


# Life of an entry


def test_a_burst_finds_its_leader_and_a_bounce_takes_back_only_its_own() -> None:
    made = index()
    leader, follower = asked(prompt("ssssaaaa")), asked(prompt("ssssbb"))
    made.insert("x", leader, 0.0)
    assert blocks(made, follower.prefix, "x") == 4
    made.insert("x", follower, 0.1)
    made.remove("x", leader)
    assert (blocks(made, leader.prefix, "x"), blocks(made, follower.prefix, "x")) == (4, 6)
    made.remove("x", follower)
    assert blocks(made, follower.prefix, "x") == 4  # two came for it; which of them still may have it is not known
    audit(made)


def test_a_bounce_does_not_take_back_what_another_brought_meanwhile() -> None:
    made, short, long = index("x", kv_tokens=64 * 8), asked(prompt("aaaa")), asked(prompt("aaaabb"))
    made.insert("x", short, 0.0)
    made.insert("x", asked(prompt("bbbbbbbb")), 1.0)
    made.insert("x", long, 2.0)
    made.confirm("x", short, 3.0)
    made.remove("x", short)
    assert blocks(made, long.prefix, "x") == 6
    audit(made)


def test_what_gone_endpoints_had_is_swept_away_by_the_requests_that_follow() -> None:
    made = index("x", "y")
    for at in range(20):
        made.insert("x", asked(fresh(RANDOM, 32)), float(at))
    made.down("x")
    one = asked(prompt("aaaa"))
    for at in range(12):
        made.insert("y", one, 20.0 + at)
    assert made.used_bytes < 3_000
    assert made._free_bits == [1]
    audit(made)


def test_the_end_of_a_request_makes_its_prompt_young_but_not_seen_again() -> None:
    made, one = index(ttl_s=100.0), asked(prompt("aaaa"))
    made.insert("x", one, 0.0)
    made.confirm("x", one, 90.0)
    assert blocks(made, one.prefix, "x", 180.0) == 4
    made.remove("x", one)
    assert blocks(made, one.prefix, "x", 180.0) == 0


def test_nothing_is_believed_longer_than_the_cache_takes_to_turn_over() -> None:
    made, one = index(kv_tokens=64_000), asked(prompt("aaaa"))
    for second in range(600):
        made.used("x", 640, float(second))  # 100 s
    made.insert("x", one, 600.0)
    assert (blocks(made, one.prefix, "x", 695.0), blocks(made, one.prefix, "y", 695.0)) == (4, 0)
    made.used("x", 640 * 95, 695.0)
    assert blocks(made, one.prefix, "x", 705.0) == 0
    assert blocks(made, one.prefix, "x", 1000.0) == 4  # nothing came meanwhile: the cache did not turn over
    assert blocks(made, one.prefix, "x", 600.0 + 1801.0) == 0


def test_quiet_tenants_make_room_when_their_time_is_over() -> None:
    made = index("x", ttl_s=10.0)
    for at in range(50):
        made.insert("x", asked(fresh(RANDOM, 4), tenant=f"tenant-{at}"), 0.0)
    for at in range(60):
        made.insert("x", asked(fresh(RANDOM, 4)), 20.0 + at / 100)
    assert sum(blocks_of(made, "x", f"tenant-{at}") for at in range(50)) == 0
    audit(made)


# Who gives


def held(made: Prefixes, *words: str) -> list[int]:
    return [made._slots["x"].holdings.depth(prompt(word)) for word in words]


def test_the_oldest_goes_first_and_from_its_end() -> None:
    made = index("x", kv_tokens=64 * 10)
    made.insert("x", asked(prompt("aaaa")), 0.0)
    made.insert("x", asked(prompt("bbbb")), 1.0)
    made.insert("x", asked(prompt("ccc")), 2.0)
    assert held(made, "aaaa", "bbbb", "ccc") == [3, 4, 3]
    made.insert("x", asked(prompt("dddd")), 3.0)
    assert held(made, "aaaa", "bbbb", "ccc", "dddd") == [0, 3, 3, 4]


def test_what_was_seen_again_ages_four_times_more_slowly() -> None:
    made = index("x", kv_tokens=64 * 10)
    for at in (0.0, 1.0):
        made.insert("x", asked(prompt("aaaa")), at)
    for at, letter in enumerate("bcdefgh"):
        made.insert("x", asked(prompt(letter * 3)), 2.0 + at)
        assert held(made, "aaaa", letter * 3) == [4, 3]
    made.insert("x", asked(prompt("iii")), 10.0)  # aaaa was not used for 9 s, ggg for 3 s
    assert held(made, "aaaa", "ggg", "hhh", "iii") == [4, 0, 3, 3]
    made.insert("x", asked(prompt("jjj")), 10.1)  # 9.1 s and 2.1 s
    assert held(made, "aaaa", "hhh", "iii", "jjj") == [1, 3, 3, 3]


def test_the_beginning_that_others_use_outlives_their_ends() -> None:
    made = index("x", kv_tokens=64 * 12)
    for at in range(50):
        made.insert("x", asked((*prompt("ssss"), *fresh(RANDOM, 3))), float(at))
    assert held(made, "ssss") == [4]
    audit(made)


def test_a_prompt_larger_than_the_bound_is_held_as_far_as_it_fits() -> None:
    made = index("x", kv_tokens=64 * 10)
    for _ in range(2):
        made.insert("x", asked(prompt("a" * 30)), 0.0)
        assert held(made, "a" * 30) == [10]
    made.insert("x", asked(prompt("b" * 30)), 1.0)
    assert held(made, "a" * 30, "b" * 30) == [0, 10]


def test_who_has_the_most_blocks_pays_for_more_of_them_but_not_with_the_beginning_of_the_same_prompt() -> None:
    made = index("x", kv_tokens=64 * 10)
    made.insert("x", asked(prompt("bbb"), tenant="beta"), 0.0)
    made.insert("x", asked(prompt("ccc"), tenant="gamma"), 1.0)
    for word in ("aaaa", "aaaaaaaa"):
        made.insert("x", asked(prompt(word), tenant="acme"), 2.0)
        audit(made)
    assert held(made, "aaaaaaaa", "bbb", "ccc") == [4, 3, 3]


def test_a_flood_of_one_tenant_leaves_the_others_theirs() -> None:
    made = index("x", kv_tokens=64 * 300)
    mine = [fresh(RANDOM, 8) for _ in range(10)]
    for at, prefix in enumerate(mine):
        made.insert("x", asked(prefix, tenant="beta"), float(at))
    for at in range(2000):
        made.insert("x", asked(fresh(RANDOM, 8), tenant="acme"), 100.0 + at / 100)
    assert [made._slots["x"].holdings.depth(prefix) for prefix in mine] == [8] * 10
    assert blocks_of(made, "x", "acme") > 200


def test_full_tenants_end_with_equal_parts() -> None:
    made = index("x", kv_tokens=64 * 300)
    for at in range(3000):
        tenant = "acme" if at % 10 else "beta"  # nine prompts to one
        made.insert("x", asked(fresh(RANDOM, 8), tenant=tenant), at / 100)
    parts = [blocks_of(made, "x", tenant) for tenant in ("acme", "beta")]
    assert min(parts) >= 130 and sum(parts) <= 300


def test_a_flood_among_many_tenants_is_found_too() -> None:
    made = index("x", kv_tokens=64 * 2000)
    names = [f"tenant-{at}" for at in range(100)]
    for at, name in enumerate(names):
        made.insert("x", asked(fresh(RANDOM, 8), tenant=name), float(at))
    for at in range(3000):
        made.insert("x", asked(fresh(RANDOM, 8), tenant="flood"), 100.0 + at / 100)
    assert sum(blocks_of(made, "x", name) for name in names) >= 0.95 * 800
    audit(made)


def test_endpoints_that_join_get_their_part() -> None:
    made = index("x", index_bytes=200_000)
    for at in range(200):
        made.insert("x", asked(fresh(RANDOM, 8)), float(at))
    made.up("y", 0)
    for at in range(200):
        made.insert("y", asked(fresh(RANDOM, 8)), 200.0 + at)
        assert made.used_bytes <= 200_000
    parts = [slot.holdings.used_bytes for slot in made._slots.values()]
    assert min(parts) > 85_000
    audit(made)


def test_other_bounds_hold_from_then_on_and_what_fits_stays() -> None:
    made, mine = index("x", ttl_s=1000.0), asked(prompt("aaaa"))
    for at in range(200):
        made.insert("x", asked(fresh(RANDOM, 8)), float(at))
    made.insert("x", mine, 200.0)
    made.bound(Affinity(index_bytes=100_000, ttl_s=500.0))
    assert blocks(made, mine.prefix, "x", 600.0) == 4
    assert blocks(made, mine.prefix, "x", 701.0) == 0
    for at in range(40):
        made.insert("x", asked(fresh(RANDOM, 8)), 300.0 + at)
    audit(made)


# Trust


def test_predictions_follow_what_the_engine_reports() -> None:
    made, one = index(), asked(prompt("a" * 10))
    made.insert("x", one, 0.0)
    assert made.match(one, 0.0).cached("x") == 640
    for _ in range(100):
        made.reported("x", 640, 480)
    found = made.match(one, 0.0)
    assert found.tokens("x") == 640
    assert found.cached("x") == pytest.approx(480, abs=5)
    made.reported("x", 0, 0)
    assert made.match(one, 0.0).cached("x") == found.cached("x")
    made.insert("y", one, 0.0)
    made.reported("y", 640, 10_000)
    assert made.match(one, 0.0).cached("y") == 640


def test_an_engine_that_keeps_forgetting_is_believed_to_be_smaller_until_it_does_not() -> None:
    made = index("x", kv_tokens=64 * 100)
    belief = made._slots["x"].belief
    for _ in range(13 + 49):
        made.reported("x", 640, 0)
    assert (belief.kept, belief.trust < 0.5) == (1.0, True)
    made.reported("x", 640, 0)
    assert (belief.kept, belief.text_bytes) == (0.5, 64 * 50 * 4)
    for at in range(100):
        made.insert("x", asked(fresh(RANDOM, 10)), float(at))
    assert len(made._slots["x"].holdings._runs) <= 50
    for _ in range(1000):
        made.reported("x", 640, 0)
    assert belief.kept == 1 / 64
    for _ in range(1000):
        made.reported("x", 640, 640)
    assert belief.kept == 1.0


def test_an_engine_that_tells_how_fast_its_cache_turns_over_is_believed_while_it_does() -> None:
    made = index("x", kv_tokens=6_000)
    belief = made._slots["x"].belief
    made.used("x", 600, 0.0)  # ten a second, over the window of a minute
    assert belief.lifetime_s(0.0) == pytest.approx(600)
    made.turned("x", 5_400, 0, 0.0)
    made.used("x", 100_000, 30.0)
    assert belief.lifetime_s(0.0) == pytest.approx(60)
    made.turned("x", 0, 6_000, 0.0)
    assert belief.lifetime_s(0.0) == pytest.approx(30)
    made.used("x", 6_000, 60.0)
    assert belief.lifetime_s(60.0) == pytest.approx(6_000 / (200 / math.e + 100))
    made.turned("nobody", 1, 1, 60.0)


def test_a_cleared_cache_holds_nothing_and_fills_again() -> None:
    made, one = index("x", "y", kv_tokens=64 * 100), asked(prompt("a" * 10))
    made.insert("x", one, 0.0)
    made.insert("y", one, 0.0)
    made.reported("x", 640, 0)
    made.cleared("x")
    made.cleared("nobody")
    found = made.match(one, 1.0)
    assert (found.tokens("x"), found.tokens("y"), found.holders) == (0, 640, ("y",))
    made.insert("x", one, 1.0)
    assert made.match(one, 1.0).cached("x") == 640
    made.sweep(1000)
    audit(made)


# Memory


@pytest.mark.parametrize(
    ("endpoints", "run", "tenants"), [(1, 1, 1), (1, 4, 1), (4, 28, 1), (4, 28, 3), (4, 3, 1500), (64, 5, 50)]
)
def test_counted_bytes_cover_what_python_takes(endpoints: int, run: int, tenants: int) -> None:
    made = index(*(f"engine-{at}" for at in range(endpoints)), index_bytes=1_400_000)
    names = [f"tenant-{at}" for at in range(tenants)]
    tracemalloc.start()
    try:
        worst = 0.0
        for at in range(8_000 // run):
            made.insert(f"engine-{at % endpoints}", asked(fresh(RANDOM, run), tenant=names[at % tenants]), at / 1000)
            if made.used_bytes > 500_000 and at % 100 == 0:
                worst = max(worst, tracemalloc.get_traced_memory()[0] / made.used_bytes)
    finally:
        tracemalloc.stop()
    assert 0.4 < worst < 1.0
