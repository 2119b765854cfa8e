"""Heads: what is one, how hot it is, and on which endpoints it belongs, whoever ranks them."""

from random import Random

import pytest

from policies.state.heads import Heads
from tests.policies.prompts import asked, fresh

RANDOM = Random(7)
FLEET = tuple(f"engine-{at}" for at in range(8))


def test_a_head_is_the_chain_at_4096_tokens_or_what_stands_before_the_conversation() -> None:
    heads, prefix = Heads(64), fresh(RANDOM, 70)
    assert heads.of(asked(prefix, head=5)) == prefix[63]
    assert heads.of(asked(prefix[:64], head=5)) == prefix[63]
    assert heads.of(asked(prefix[:63], head=5)) == 5
    assert heads.of(asked(prefix[:63])) == 0


@pytest.mark.parametrize(
    ("hot", "of", "endpoints", "carriers"),
    [
        (300, 1024, 8, 1),  # 0.29
        (308, 1024, 8, 4),  # 0.301 x 8 x 1.25 = 3.01
        (614, 1024, 8, 6),
        (1024, 1024, 8, 8),
        (614, 1024, 1, 1),
        (614, 1024, 256, 192),
        (30, 30, 8, 1),  # too early to tell: counted of 128
        (100, 200, 8, 5),
    ],
)
def test_a_hot_head_is_carried_by_a_quarter_more_than_its_share(
    hot: int, of: int, endpoints: int, carriers: int
) -> None:
    heads = Heads(64)
    for at in range(of):
        heads.dispatched(7 if at < hot else 1000 + at)
    fleet = [f"engine-{at}" for at in range(endpoints)]
    assert len(heads.carriers(7, fleet)) == carriers
    assert heads.carriers(7, fleet)[0] == heads.cold(7, fleet)[0]


def test_only_the_last_1024_dispatches_count() -> None:
    heads = Heads(64)
    for _ in range(2000):
        heads.dispatched(7)
    for at in range(512):
        heads.dispatched(1000 + at)
    assert heads.share(7) == 0.5
    for at in range(512):
        heads.dispatched(5000 + at)
    assert heads.share(7) == 0.0
    assert len(heads._counts) == 1024


def test_no_head_has_no_place() -> None:
    heads = Heads(64)
    for _ in range(1024):
        heads.dispatched(0)
    assert (heads.carriers(0, FLEET), heads.cold(0, FLEET), heads.share(0)) == ((), (), 0.0)


def test_heads_spread_evenly_and_a_change_of_the_fleet_moves_only_its_own() -> None:
    heads, keys = Heads(64), fresh(RANDOM, 2000)
    before = {key: heads.cold(key, FLEET) for key in keys}
    firsts = [sum(pair[0] == name for pair in before.values()) for name in FLEET]
    assert max(firsts) < 1.25 * 2000 / 8
    after = {key: heads.cold(key, FLEET[:-1]) for key in keys}
    for key, pair in before.items():
        if FLEET[-1] not in pair:
            assert after[key] == pair


def test_the_order_of_the_list_does_not_matter_nor_does_a_fleet_of_one() -> None:
    heads = Heads(64)
    assert heads.cold(9, FLEET) == heads.cold(9, FLEET[::-1]) == Heads(64).cold(9, FLEET[::-1])
    assert heads.cold(9, ("only",)) == ("only",)
    assert heads.cold(9, ()) == ()


def test_rankings_are_remembered_for_a_bounded_number_of_heads() -> None:
    heads = Heads(64)
    for key in fresh(RANDOM, 3000):
        heads.cold(key, FLEET)
        heads.cold(7, FLEET)
    assert len(heads._ranked) == 1024
    assert {7, key} <= heads._ranked.keys()
