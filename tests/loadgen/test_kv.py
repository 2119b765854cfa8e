"""Blocks, references, the prefix table and eviction."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine_server.kv_events import ToldCache, blocks
from loadgen.sim.kv import InvariantError, KvCache


def filled(kv: KvCache, hashes: list[int]) -> list[int]:
    blocks = kv.take(len(hashes))
    for block, text in zip(blocks, hashes, strict=True):
        kv.publish(block, text)
    return blocks


def test_a_released_block_keeps_its_text_until_it_is_taken() -> None:
    kv = KvCache(4)
    blocks = filled(kv, [1, 2])
    kv.release(blocks)
    assert kv.free == 4
    assert kv.match([1, 2, 3], 10) == blocks
    kv.take(4)  # two untouched ones first, then these
    assert kv.match([1, 2], 10) == []


def test_untouched_blocks_go_before_idle_ones() -> None:
    kv = KvCache(4)
    kv.release(filled(kv, [1, 2]))
    kv.take(2)
    assert len(kv.match([1, 2], 10)) == 2


def test_the_head_of_a_prompt_outlives_its_tail() -> None:
    kv = KvCache(3)
    kv.release(filled(kv, [1, 2, 3]))
    kv.take(1)
    assert len(kv.match([1, 2, 3], 10)) == 2
    kv.take(1)
    assert len(kv.match([1, 2, 3], 10)) == 1


def test_the_longest_idle_text_is_evicted_first() -> None:
    kv = KvCache(4)
    old, young = filled(kv, [1, 2]), filled(kv, [3, 4])
    kv.release(old)
    kv.release(young)
    kv.claim(old)  # used again
    kv.release(old)
    kv.take(2)
    assert len(kv.match([1, 2], 10)) == 2
    assert kv.match([3, 4], 10) == []


def test_equal_blocks_are_not_merged() -> None:
    kv = KvCache(4)
    first, second = filled(kv, [1]), filled(kv, [1])
    assert kv.referenced == 2
    assert kv.match([1], 1) == first
    kv.release(first)
    kv.release(second)
    kv.take(3)  # two untouched ones and the first
    assert kv.match([1], 1) == second


def test_a_match_stops_at_the_first_gap_and_at_its_limit() -> None:
    kv = KvCache(8)
    filled(kv, [1, 2, 4])
    assert len(kv.match([1, 2, 3, 4], 10)) == 2
    assert len(kv.match([1, 2, 4], 1)) == 1


def test_a_claimed_block_is_shared_and_freed_by_its_last_holder() -> None:
    kv = KvCache(2)
    blocks = filled(kv, [1])
    kv.claim(blocks)
    kv.release(blocks)
    assert (kv.referenced, kv.free) == (1, 1)
    kv.release(blocks)
    assert (kv.referenced, kv.free) == (0, 2)


def test_a_broken_count_is_noticed() -> None:
    kv = KvCache(4)
    kv.take(2)
    kv._referenced = 1
    with pytest.raises(InvariantError):
        kv.check()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=60))
def test_blocks_are_conserved_whatever_is_done(actions: list[tuple[int, int]]) -> None:
    kv = KvCache(12)
    held: list[list[int]] = []
    for kind, number in actions:
        texts = list(range(number))
        if kind == 0 and number <= kv.free:
            held.append(filled(kv, texts))
        elif kind == 1 and held:
            kv.release(held.pop(number % len(held)))
        elif kind == 2:
            found = kv.match(texts, number)
            kv.claim(found)
            held.append(found)
        kv.check()
    assert kv.referenced == len({block for blocks in held for block in blocks})


def test_a_cleared_cache_finds_nothing_and_is_not_cleared_while_a_block_is_held() -> None:
    kv = KvCache(4)
    blocks = filled(kv, [1, 2])
    assert not kv.clear()
    assert kv.match([1, 2], 9) == blocks
    kv.release(blocks)
    assert kv.clear()
    assert (kv.match([1, 2], 9), kv.cached, kv.free) == ([], 0, 4)
    kv.check()
    filled(kv, [3, 4, 5, 6])
    kv.check()


def test_a_told_cache_writes_down_what_is_stored_and_removed_with_its_tokens() -> None:
    kv = ToldCache(2, 2)
    first, second = blocks(b"\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4tail", [10, 20], 2)
    held = filled(kv, [first, second])
    stored = {"type": "BlockStored", "block_size": 2, "lora_id": None, "medium": "GPU"}
    chain = {"block_hashes": [10, 20], "parent_block_hash": None, "token_ids": [1, 2, 3, 4]}
    assert kv.take_events() == [stored | chain]
    kv.release(held)
    kv.take(1)
    assert kv.take_events() == [{"type": "BlockRemoved", "block_hashes": [20], "medium": "GPU"}]
    kv.publish(held[1], second)
    assert kv.take_events() == [stored | {"block_hashes": [20], "parent_block_hash": 10, "token_ids": [3, 4]}]
