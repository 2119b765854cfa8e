"""Parser targets record what they parsed, and the corpora are what they say."""

from collections import Counter
from pathlib import Path

import pytest

from tests.kit import corpora, mutations, wire
from tests.kit.parsers import KINDS, ParserTarget, missing
from tests.kit.raw_client import exchange

REQUEST = wire.request("/v1/chat/completions", wire.request_body("chat", "canary"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_target_records_each_parsed_request(kind: str, tmp_path: Path) -> None:
    if missing(kind):
        pytest.skip(missing(kind))
    async with ParserTarget(kind, tmp_path) as target:
        answer = await exchange(target.port, REQUEST)
        assert answer.status == 200
        (parsed,) = target.parsed()
        assert (parsed.method, parsed.target) == ("POST", "/v1/chat/completions") and b"canary" in parsed.body


def test_the_hand_corpus_is_large_and_named_uniquely() -> None:
    names = [case.name for case in corpora.cases()]
    assert len(names) >= 150 and len(set(names)) == len(names)


def test_the_hand_corpus_has_good_cases_beside_bad_ones() -> None:
    kinds = Counter(case.reaches for case in corpora.cases())
    assert kinds[True] >= 20 and kinds[False] >= 150


def test_mutations_are_repeatable_and_mostly_spoilt() -> None:
    first, again = list(mutations.mutations(7, 500)), list(mutations.mutations(7, 500))
    assert first == again
    assert sum(data in mutations.SEEDS for data in first) < 25
    assert list(mutations.mutations(8, 500)) != first


@pytest.mark.parametrize("operator", mutations.OPERATORS, ids=lambda one: one.__name__)
def test_every_operator_changes_something_and_survives_short_input(operator: mutations.Mutator) -> None:
    import random

    r = random.Random(3)
    assert any(operator(r, data) != data for data in mutations.SEEDS)
    for data in (b"\r\n", b"a", b"\r\n\r\n"):
        operator(r, data)
