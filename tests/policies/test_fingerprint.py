"""A chain is equal as far as two prompts are equal, however their text is cut; blocks and bytes agree."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from policies.fingerprint import block_at, chain, chain_of_ids, depth_bytes, head, seed

SEED = seed("acme", "llama")
TEXT = bytes(range(256)) * 256  # 64 KiB


@pytest.mark.parametrize(
    ("text_bytes", "blocks"),
    [
        *((0, 0), (255, 0), (256, 1), (511, 1), (4_096, 16)),
        *((5_119, 16), (5_120, 17), (16_384, 28), (20_479, 28), (20_480, 29), (131_072, 56)),
    ],
)
def test_only_full_blocks_are_hashed_and_later_ones_are_four_and_sixteen_times_as_large(
    text_bytes: int, blocks: int
) -> None:
    assert len(chain([bytes(text_bytes)], 64, SEED)) == block_at(text_bytes, 64) == blocks


def test_nothing_beyond_512_kib_is_hashed() -> None:
    most = chain([bytes(512 * 1024)], 64, SEED)
    assert chain([bytes(512 * 1024), b"more" * 1000], 64, SEED) == most
    assert len(most) == 16 + 12 + 124


def test_each_hash_is_seeded_with_the_one_before() -> None:
    first = xxh3_64_intdigest(TEXT[:256], SEED)
    assert chain([TEXT[:512]], 64, SEED) == (first, xxh3_64_intdigest(TEXT[256:512], first))


@given(st.binary(max_size=6000), st.lists(st.integers(0, 6000), max_size=8), st.sampled_from([16, 64, 100]))
def test_how_the_text_is_cut_does_not_matter(text: bytes, cuts: list[int], block_tokens: int) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    assert chain(parts, block_tokens, SEED) == chain([text], block_tokens, SEED)
    assert head(parts, SEED) == head([text], SEED)


@given(st.binary(max_size=3000), st.binary(max_size=3000))
def test_two_chains_are_equal_exactly_as_far_as_their_full_blocks_are(one: bytes, other: bytes) -> None:
    one, other = b"s" * 1000 + one, b"s" * 1000 + other
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    pairs = list(zip(chain([one], 16, SEED), chain([other], 16, SEED), strict=False))
    assert [a == b for a, b in pairs] == [at < same // 64 for at in range(len(pairs))]


@given(st.integers(16, 512), st.integers(0, 700), st.integers(0, 3000))
def test_blocks_and_bytes_are_inverse(block_tokens: int, blocks: int, more: int) -> None:
    covered = depth_bytes(blocks, block_tokens)
    assert block_at(covered, block_tokens) == blocks
    rest = min(more, depth_bytes(blocks + 1, block_tokens) - covered - 1)
    assert block_at(covered + rest, block_tokens) == blocks


@pytest.mark.parametrize("block_tokens", [16, 64, 100, 512])
def test_a_chain_covers_what_its_length_says(block_tokens: int) -> None:
    for text_bytes in (0, 4_095, 5_000, 5_120, 16_383, 16_385, 16_800, 20_000, 20_480, 65_536):
        assert len(chain([TEXT[:text_bytes]], block_tokens, SEED)) == block_at(text_bytes, block_tokens)


def test_domains_models_and_adapters_have_nothing_in_common() -> None:
    seeds = [
        seed("acme", "llama"),
        seed("beta", "llama"),
        seed("acme", "qwen"),
        seed("acme", "llama", "legal"),
        seed("acmellama", ""),
        seed("acme", "", "llama"),
        seed("acme4:x", "llama"),
    ]
    chains = [chain([TEXT], 64, each) for each in seeds]
    assert len({block for each in chains for block in each}) == sum(map(len, chains))


def test_token_ids_are_hashed_themselves() -> None:
    ids = list(range(1000))
    assert chain_of_ids(ids, 64, SEED) == chain([struct.pack("<1000I", *ids)], 64, SEED)
    assert len(chain_of_ids(ids, 64, SEED)) == 15
    assert len(chain_of_ids(range(200_000), 64, SEED)) == 16 + 12 + 124
    assert chain_of_ids([], 64, SEED) == ()


@pytest.mark.parametrize("bad", [-1, 2**32, "7", None, 1.5])
def test_what_is_no_token_id_is_a_value_error(bad: object) -> None:
    with pytest.raises(ValueError, match="token ids"):
        chain_of_ids([1, bad], 64, SEED)  # type: ignore[list-item]


def test_a_head_is_the_first_4_kib_of_what_stands_before_the_conversation() -> None:
    assert head([], SEED) == head([b""], SEED) == 0
    assert head([b"tools", b"system"], SEED) == xxh3_64_intdigest(b"toolssystem", SEED)
    assert head([TEXT[:4096], b"anything"], SEED) == head([TEXT[:4096]], SEED) != head([TEXT[:4095]], SEED)
    assert head([b"system"], SEED) != head([b"system"], seed("beta", "llama"))
