"""Case C066 over sockets: prompts of token ids are told apart. The rest of their kind is test_affinity.py."""

import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from tests.kit.stage import Stage, gathered, stage

pytestmark = pytest.mark.timeout(90)


def served_by(made: Stage) -> dict[str, list[int]]:
    """Prompt -> the engines that saw it, by number."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, engine in enumerate(made.engines):
        for seen in engine.seen:
            found[str(seen.json["prompt"])].append(number)
    return found


# C066


async def test_c066_prompts_of_token_ids_are_told_apart_and_come_back_to_where_they_were(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=4) as made, made.holding():
        prompts = [[at, *range(1, 256)] for at in range(1000)]
        jobs = [made.ask("completions", "", prompt=ids) for ids in prompts]
        assert {answer.status for answer in await gathered(jobs, at_once=16)} == {200}
        counts = [len(engine.seen) for engine in made.engines]
        assert max(counts) <= 1.25 * statistics.mean(counts)
        again = prompts[::10]
        for ids in again:
            await made.ask("completions", "", prompt=ids)
        found = served_by(made)
        assert len(found) == 1000
        same = sum(len(set(found[str(ids)])) == 1 for ids in again)
        assert same >= 0.95 * len(again)
