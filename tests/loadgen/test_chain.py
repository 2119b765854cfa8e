"""Chains of recipes: equal heads give equal hashes, and agree with the engine's own hashes of the written text."""

from random import Random

import pytest

from loadgen.engine_server import tokens
from loadgen.workload import chain as chains
from loadgen.workload.chain import HEAD_BLOCKS, chain, rendered
from loadgen.workload.prompts import Block, Prose, grouped, prompt_tokens


def block(number: int, size: int, namespace: str = "t") -> Block:
    return Block(namespace=namespace, id=number, tokens=size)


def system(number: int, size: int) -> Block:
    return Block(namespace="t", id=number, tokens=size, role="system")


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Leading hashes that are equal."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def text_of(blocks: list[Block]) -> bytes:
    prose = Prose("salt")
    parts = [(role, "".join(prose.text(one) for one in group)) for role, group in grouped(blocks)]
    return tokens.render(b"", parts)


def test_a_hash_stands_at_each_full_block_of_the_prompt() -> None:
    said = [system(0, 100), block(1, 50)]
    assert len(chain(rendered(said), 16)) == prompt_tokens(said) // 16


@pytest.mark.parametrize("seed", range(20))
def test_recipes_share_as_many_hashes_as_their_texts_do(seed: int) -> None:
    random = Random(seed)
    head = [block(random.randrange(5), random.choice([7, 16, 40, 64])) for _ in range(random.randrange(1, 6))]
    one = [*head, block(100, random.randrange(1, 90))]
    other = [*head, block(random.choice([100, 200]), random.randrange(1, 90))]
    first = random.choice([[], [system(9, random.choice([15, 31, 64]))]])
    by_recipe = [chain(rendered([*first, *said]), 16) for said in (one, other)]
    by_text = [tuple(tokens.chain(text_of([*first, *said]), b"", 16)) for said in (one, other)]
    assert [len(found) for found in by_recipe] == [len(found) for found in by_text]
    assert shared(*by_recipe) == shared(*by_text)


def test_a_coarser_chain_is_a_part_of_the_finer_one() -> None:
    recipe = rendered([system(0, 801), *(block(number, 33) for number in range(80))])
    assert chain(recipe, 64) == chain(recipe, 16)[3::4]


def test_a_kept_head_changes_nothing() -> None:
    said = [block(number, 20) for number in range(3 * HEAD_BLOCKS)]
    whole = chain(rendered(said), 16)
    chains._heads.clear()
    for count in (1, HEAD_BLOCKS, HEAD_BLOCKS + 5, 3 * HEAD_BLOCKS):
        chain(rendered(said[:count]), 16)
    assert chain(rendered(said), 16) == whole


def test_kept_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "KEPT_HEADS", 3)
    chains._heads.clear()
    for number in range(10):
        chain([block(number, 16)] * HEAD_BLOCKS, 16)
    assert len(chains._heads) == 3


def test_order_and_place_count() -> None:
    ab, ba = chain([block(1, 32), block(2, 32)], 16), chain([block(2, 32), block(1, 32)], 16)
    assert not set(ab) & set(ba)


def test_prompts_of_different_salt_share_nothing() -> None:
    said = [block(1, 64), block(2, 64)]
    chains = [chain(rendered([system(0, 64), *said], salt), 16) for salt in ("", "a", "b", "a")]
    assert chains[1] == chains[3]
    assert not set(chains[0]) & set(chains[1])
    assert not set(chains[1]) & set(chains[2])
    assert len({len(found) for found in chains}) == 1
