"""Cases C063 to C071: warm where possible, spread where needed, bounded, consistent.

Against the core and its index. Left out of C070: that two replicas choose alike for a cold prefix (each draws for
itself, docs/adr/0008-no-ranking-of-heads.md); of C071: the gauge, and the trace at full length.
"""

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

import pytest

from policies.fingerprint import chain_of_ids, seed
from policies.state.prefixes import Prefixes
from policies.state.sessions import Sessions, Turn
from policies.types import Affinity, Band, Endpoint, Pool
from tests.kit.sockets import rss_bytes
from tests.policies.given import World, endpoint, settings
from tests.policies.prompts import asked, audit, fresh

FLEET = ("engine-0", "engine-1", "engine-2", "engine-3")
MIB = 1024 * 1024
BAND = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=5000, slo_ttft_s=4.0)
POOL = Pool(name="main", model="llama", lanes="off")


def world(*endpoints: Endpoint, seed: int = 7) -> World:
    made = endpoints or tuple(endpoint(name, seqs=64, prefill=2048, speed=8000.0) for name in FLEET)
    set_so = settings(pools=(POOL,), bands=(BAND,), affinity=Affinity(), ordering="by_length", seed=seed)
    return World(*made, settings=set_so)


def place_of(answer: list[str]) -> str:
    """Where the last of these dispatches goes."""
    return answer[-1].partition(">")[2]


def through(made: World, name: str, at: float, chain: tuple[int, ...], **more: object) -> str:
    """One request from its arrival to its end; where it went."""
    place = place_of(made.arrive(name, at, tokens=64 * len(chain) + 40, prefix=chain, **more))
    made.first_token(name, at + 0.01)
    made.finish(name, at + 0.02)
    return place


# C063


def test_c063_a_prompt_that_matches_nothing_goes_to_the_least_loaded() -> None:
    random, (few, many) = Random(63), FLEET[:2]
    made = world(endpoint(few, seqs=64, prefill=100_000, speed=8000.0))
    for number in range(20):
        made.arrive(f"busy-{number}", 0.0, tokens=10)
        made.first_token(f"busy-{number}", 0.0)
    made.up(endpoint(many, seqs=64, prefill=100_000, speed=8000.0), 1.0)
    for number in range(150):  # each adds to the larger index
        assert through(made, f"miss-{number}", 1.0 + number, fresh(random, 40)) == many


# C064


def test_c064_extra_load_on_one_engine_costs_the_others_no_conversation() -> None:
    random, made = Random(64), world()
    chats: dict[str, tuple[str, tuple[int, ...]]] = {}
    for number in range(32):
        chain = fresh(random, 40)
        chats[f"chat-{number}"] = (through(made, f"start-{number}", 0.0, chain), chain)
    loaded = FLEET[0]
    chain = next(chain for place, chain in chats.values() if place == loaded)
    extra = [made.arrive(f"extra-{number}", 1.0, tokens=40 * 64 + 1, prefix=chain) for number in range(10)]
    assert sum(place_of(answer) == loaded for answer in extra) >= 8
    stayed = [
        through(made, f"next-{name}", 2.0, chain) == place for name, (place, chain) in chats.items() if place != loaded
    ]
    assert sum(stayed) >= 0.95 * len(stayed)


# C065


def test_c065_no_session_is_pinned_to_an_engine_that_is_full() -> None:
    """200 sessions of which a fourth ask 2.5 times as often; each answer takes half a second."""
    random, made = Random(65), world()
    chains = {f"s{number}": fresh(random, 30) for number in range(200)}
    last: dict[str, str] = {}
    moves = asked_for = 0
    names = list(chains) + [name for name in list(chains)[:50] for _ in range(2)]
    running: list[str] = []
    for number in range(3000):
        session, at = names[int(random.random() * len(names))], number / 100
        place = place_of(made.arrive(f"r{number}", at, tokens=1960, prefix=chains[session], session=session))
        made.first_token(f"r{number}", at)
        running.append(f"r{number}")
        if len(running) > 50:
            made.finish(running.pop(0), at)
        if session in last:
            asked_for += 1
            moves += last[session] != place
        last[session] = place
        counts = [view.sequences for view in made.core.endpoints()]
        assert max(counts) <= 1.25 * sum(counts) / 4 + 10
    assert moves < 0.05 * asked_for


# C066


def test_c066_prompts_of_token_ids_have_keys_of_their_own_and_spread() -> None:
    random, start, made = Random(66), seed("acme", "llama"), world()
    prompts = [[random.randrange(128_000) for _ in range(1_100)] for _ in range(400)]
    chains = [chain_of_ids(ids, 64, start) for ids in prompts]
    assert len({chain[0] for chain in chains}) == 400
    places = [through(made, f"r{number}", float(number), chain) for number, chain in enumerate(chains)]
    assert max(Counter(places).values()) <= 1.25 * 100
    again = [through(made, f"again-{number}", 400.0 + number, chain) for number, chain in enumerate(chains)]
    assert again == places


# C067


@pytest.mark.parametrize(
    "prompts", [50_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_c067_memory_is_flat_however_many_prompts_there_are(prompts: int) -> None:
    """8 KB each: 32 blocks; an eighth of them are enough to fill the index. In a process of its own, which has freed nothing."""
    index_bytes = min(256 * MIB, prompts * 32 * 320 // 8)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        started, samples = alone.submit(filled, prompts, index_bytes).result()
    assert max(samples) - started <= index_bytes + 4 * MIB
    assert max(samples[-25:]) <= max(samples[:25]) + index_bytes // 10


def filled(prompts: int, index_bytes: int) -> tuple[int, list[int]]:
    """Resident bytes before, and at fifty moments while so many prompts go through an index."""
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
    return started, samples


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
    assert index.match(stays, 20.0).cached("stays") == 8192
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


def test_c068_a_flood_of_sessions_moves_nobody_elses() -> None:
    made = world()
    mine = {f"s-{at}": through(made, f"b{at}", 0.0, (), session=f"s-{at}", tenant="beta") for at in range(10)}
    for at in range(2_000):
        through(made, f"f{at}", 1.0 + at / 1000, (), session=f"f-{at}", tenant="acme")
    assert made.core.totals().rejected == 0
    for name in mine:
        turn = made.core._books.sessions.find("beta", name, 4.0)
        assert turn is not None and turn.endpoint == mine[name]


# C069


def test_c069_turns_of_a_chat_stay_where_the_former_turn_was() -> None:
    """50 chats at once, ten turns, an empty index; each turn is the former one, an answer and a question more."""
    random, made = Random(69), world(*(endpoint(name, seqs=64, prefill=8192, speed=8000.0) for name in FLEET))
    chats = {number: fresh(random, 8) for number in range(50)}
    last: dict[int, str] = {}
    stayed = turns = cached = known = 0
    for turn in range(10):
        for chat, chain in chats.items():
            at = 10.0 * turn + chat / 10
            why = made.why(f"c{chat}-{turn}", at, tokens=64 * len(chain) + 40, prefix=chain)
            [place] = [
                ticket.attempt.load.name
                for name, ticket in made.core._books.tickets.items()
                if name == f"c{chat}-{turn}" and ticket.attempt is not None
            ]
            if turn:
                turns += 1
                stayed += last[chat] == place
                cached += why.cached_tokens
                known += 64 * (len(chain) - 4)
            last[chat] = place
            made.first_token(f"c{chat}-{turn}", at)
            made.finish(f"c{chat - 20}-{turn}", at)
            chats[chat] = (*chain, *fresh(random, 4))
        for chat in chats:
            made.finish(f"c{chat}-{turn}", 10.0 * turn + 9)
    assert stayed >= 0.95 * turns
    assert cached >= 0.9 * known


# C070

CHOICES = """
from random import Random
from tests.cases.test_affinity import fresh, through, world
random, made = Random(70), world()
print([through(made, f"r{number}", float(number), fresh(random, 30)) for number in range(100)])
"""


def test_c070_a_replica_that_starts_again_chooses_as_before_in_any_process() -> None:
    random, made = Random(70), world()
    here = [through(made, f"r{number}", float(number), fresh(random, 30)) for number in range(100)]
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", CHOICES],
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
