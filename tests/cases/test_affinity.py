"""Cases C063 to C071: warm where possible, spread where needed, bounded, consistent.

Here as far as the index, heads and sessions show them by themselves: C066, C067, C068, C070, C071.
"""

import os
import subprocess
import sys
from random import Random

import pytest

from policies.fingerprint import chain_of_ids, head, seed
from policies.state.heads import Heads
from policies.state.prefixes import Prefixes
from policies.state.sessions import Sessions, Turn
from policies.types import Affinity
from tests.kit.sockets import rss_bytes
from tests.policies.prompts import asked, audit, fresh

FLEET = ("engine-0", "engine-1", "engine-2", "engine-3")
MIB = 1024 * 1024


# C066


def test_c066_prompts_of_token_ids_have_keys_of_their_own_and_spread() -> None:
    random, heads, start = Random(66), Heads(64), seed("acme", "llama")
    prompts = [[random.randrange(128_000) for _ in range(4_200)] for _ in range(1_000)]
    keys = [heads.of(asked(chain_of_ids(ids, 64, start))) for ids in prompts]
    assert len(set(keys)) == 1_000
    places = [heads.cold(key, FLEET)[0] for key in keys]
    assert max(places.count(name) for name in FLEET) <= 1.25 * 250
    again = [Heads(64).cold(heads.of(asked(chain_of_ids(ids, 64, start))), FLEET)[0] for ids in prompts]
    assert again == places


# C067


@pytest.mark.parametrize(
    "prompts", [50_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_c067_memory_is_flat_however_many_prompts_there_are(prompts: int) -> None:
    """8 KB each: 32 blocks; an eighth of them are enough to fill the index."""
    index_bytes = min(256 * MIB, prompts * 32 * 320 // 8)
    index, random = Prefixes(Affinity(index_bytes=index_bytes)), Random(67)
    for name in FLEET:
        index.up(name, 0)
    started, samples = rss_bytes(os.getpid()), list[int]()
    for at in range(prompts):
        index.insert(FLEET[at % 4], asked(fresh(random, 32), tenant=f"tenant-{at % 7}"), at / 1000)
        if at % (prompts // 50) == 0:
            assert index.used_bytes <= index_bytes
            samples.append(rss_bytes(os.getpid()))
    audit(index)
    assert max(samples) - started <= index_bytes + 4 * MIB
    assert max(samples[-25:]) <= max(samples[:25]) + index_bytes // 10


def test_c067_engines_that_go_leave_nothing_behind_and_come_back_cold() -> None:
    index, random = Prefixes(Affinity()), Random(67)
    names = [f"engine-{at}" for at in range(50)]
    stays = asked(fresh(random, 32))
    index.up("stays", 0)
    index.insert("stays", stays, 0.0)
    baseline = index.used_bytes
    for turn in range(20):
        prompts = [asked((*stays.prefix[:8], *fresh(random, 24))) for _ in names]
        for name, one in zip(names, prompts, strict=True):
            index.up(name, 0)
            assert index.match(one, float(turn)).cached(name) == 0
            index.insert(name, one, float(turn))
            assert index.match(one, float(turn)).cached(name) > 0
        for name in names:
            index.down(name)
        assert index.match(prompts[0], float(turn)).holders == ("stays",)
        while index.sweep(500):
            pass
        assert index.used_bytes == baseline
        assert len(index._free_bits) == 50
    assert index.match(stays, 20.0).cached("stays") == 2048
    audit(index)


# C068


def test_c068_a_flood_of_sessions_fills_only_its_own_table() -> None:
    sessions = Sessions()
    for at in range(10):
        sessions.keep("beta", f"s-{at}", Turn(endpoint="x", prompt_tokens=100, at_s=0.0))
    for at in range(200_000):
        sessions.keep("acme", f"s-{at}", Turn(endpoint="y", prompt_tokens=100, at_s=at / 1000))
    assert [len(table) for table in sessions._tables.values()] == [10, 10_000]
    assert all(sessions.find("beta", f"s-{at}", 200.0) for at in range(10))


# C070

RANKING = """
from policies.fingerprint import head, seed
from policies.state.heads import Heads
heads, names = Heads(64), {"engine-0", "engine-1", "engine-2", "engine-3"}
start = seed("acme", "llama")
print([heads.cold(head([b"prompt %d" % at], start), list(names)) for at in range(500)])
"""


def test_c070_two_replicas_choose_alike_without_talking() -> None:
    heads, start = Heads(64), seed("acme", "llama")
    here = [heads.cold(head([b"prompt %d" % at], start), FLEET) for at in range(500)]
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", RANKING],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.strip() == str(here)


# C071


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_c071_engines_with_more_or_less_cache_than_configured_are_predicted_truly(factor: float) -> None:
    """Engines keep the last prompts that fit, the index believes in `kv_tokens`; reports close the gap."""
    random, kv_tokens = Random(71), 64 * 400
    index = Prefixes(Affinity(kv_tiers=max(1.0, factor)))
    index.up("x", kv_tokens)
    engine: dict[tuple[int, ...], None] = {}
    prompts = [fresh(random, 10) for _ in range(300)]
    predicted = reported = 0
    for at in range(6_000):
        one = asked(prompts[int(min(299.0, random.expovariate(1 / 60)))])
        found, had = index.match(one, at / 10), 640 if one.prefix in engine else 0
        if at > 3_000:
            predicted += found.cached("x")
            reported += had
        index.reported("x", found.tokens("x"), had)
        index.insert("x", one, at / 10)
        engine.pop(one.prefix, None)
        engine[one.prefix] = None
        if len(engine) * 640 > kv_tokens * factor:
            del engine[next(iter(engine))]
    assert abs(predicted - reported) <= 0.2 * reported
