"""What engines publish of their KV caches: on real sockets, from scripts and from the simulated engine."""

import asyncio
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq

from gateway import tasks
from gateway.config import ConfigErrors, kinds, read
from gateway.endpoints.kv_events import KvEvents
from gateway.endpoints.kv_feed import MESSAGE_BYTES, Feed, Source
from loadgen.engine_server.kv_events import KvEventsConfig
from tests.gateway.test_config import GOOD
from tests.kit.processes import free_ports
from tests.loadgen.simulated import chat, simulated, talk, until

encode = msgspec.msgpack.encode
CLEARED = {"type": "AllBlocksCleared"}


def stored(blocks: int, **more: Any) -> dict[str, Any]:
    """As vLLM has it."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(blocks)),
        "parent_block_hash": None,
        "token_ids": list(range(blocks * 16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        **more,
    }


def removed(blocks: int, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [b"\0" * 32] * blocks, "medium": "GPU", **more}


def message(seq: int, *events: Any, at_s: float | None = None) -> list[bytes]:
    """As one that is made now."""
    return [b"kv", struct.pack(">Q", seq), encode([time.time() if at_s is None else at_s, events, None])]


def one_feed(**fields: Any) -> Feed:
    return Feed(name="x", endpoint="x", url="", **fields)


# ---- one feed


@pytest.mark.parametrize(
    ("events", "counts", "tokens"),
    [
        ([stored(3), stored(1)], {"stored": 2}, (64, 0)),
        ([stored(3), removed(2)], {"stored": 1, "removed": 1}, (48, 32)),
        ([removed(2)], {"removed": 1}, (0, 0)),  # of how many tokens a block is, nobody has said yet
        ([stored(3), CLEARED, stored(1)], {"stored": 2, "cleared": 1}, (16, 0)),
        ([stored(3, medium="CPU"), stored(3, group_idx=1), stored(1, group_idx=0)], {"stored": 3}, (16, 0)),
        ([stored(1, ownership={"new": 1}), {"type": "Pinned", "x": 1}], {"stored": 1, "other": 1}, (16, 0)),
        ([["BlockStored", [1, 2], None, [7] * 32, 16, None]], {"stored": 1}, (32, 0)),
        ([["BlockStored", [1], 0, [7] * 16, 16, None, "GPU", "lora", {}]], {"stored": 1}, (16, 0)),
        ([stored(1), ["BlockRemoved", [1]], ["AllBlocksCleared"]], {"stored": 1, "removed": 1, "cleared": 1}, (0, 0)),
        ([stored(1, block_size=-1), ["BlockStored", [1], 0, [], 1 << 40]], {"invalid": 2}, (0, 0)),
        ([["Pinned"], [], {}, 5, stored(0)], {"other": 1, "invalid": 3, "stored": 1}, (0, 0)),
    ],
)
def test_events_of_every_form_are_counted_and_those_of_the_gpus_first_group_summed_up(
    events: list[Any], counts: dict[str, int], tokens: tuple[int, int]
) -> None:
    feed = one_feed()
    assert feed.take(message(0, *events)) is ("cleared" in counts)
    assert (dict(feed.counts), (feed.stored, feed.removed)) == (counts, tokens)


@pytest.mark.parametrize(
    ("numbers", "gaps", "restarts"),
    [([7, 8, 9], 0, 0), ([0, 1, 5, 6, 9], 2, 0), ([5, 6, 0, 1], 0, 1), ([5, 3, 4], 0, 1), ([5, 5], 0, 1)],
)
def test_a_gap_is_counted_and_a_sequence_that_begins_again_is_an_empty_cache(
    numbers: list[int], gaps: int, restarts: int
) -> None:
    feed = one_feed()
    emptied = [feed.take(message(number, stored(1))) for number in numbers]
    assert (feed.gaps, sum(emptied), feed.counts["restarted"]) == (gaps, restarts, restarts)


def test_a_message_that_comes_again_or_late_is_passed_over() -> None:
    feed = one_feed()
    for seq, at_s in ((4, 10.0), (6, 12.0), (5, 11.0), (6, 12.0), (7, 13.0)):
        assert not feed.take(message(seq, stored(1), at_s=at_s))
    assert (feed.stored, feed.counts, feed.gaps, feed.seq) == (48, {"stored": 3, "late": 2}, 1, 7)


@pytest.mark.parametrize("frames", [[], [b""], [b"", b"", b""], [b"", b"", b"\xc1"], [b"", b"", encode([1, 2])]])
def test_what_is_no_message_changes_nothing(frames: list[bytes]) -> None:
    feed = one_feed(seq=4)
    assert not feed.take(frames)
    assert (feed.counts, feed.seq) == ({"invalid": 1}, 4)


# ---- the configuration


def test_an_endpoint_with_a_feed_is_refused_with_its_place_where_pyzmq_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = GOOD.replace("pools: [p]}", 'pools: [p], kv_events: "tcp://[::1]:5557"}', 1)
    assert read(text, "f.yaml", {}).config.endpoints[0].kv_events == "tcp://[::1]:5557"
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    with pytest.raises(ConfigErrors) as caught:
        read(text, "f.yaml", {})
    words = "endpoints[0].kv_events: needs pyzmq, which is not installed: pip install 'forebay[kv-events]'"
    assert [str(error) for error in caught.value.errors] == [f"f.yaml:9:68: {words}"]


def test_who_has_no_feed_does_not_load_pyzmq() -> None:
    code = "import sys, gateway.app, loadgen.engine_server.command; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- sockets


class Listening:
    """Feeds that are listened to, and what was told of them."""

    def __init__(self, *urls: str, **more: Any) -> None:
        sources = (Source(endpoint=f"e{at}", url=url, **more) for at, url in enumerate(urls))
        self.events = KvEvents(sources, scale=0.02)
        self.told: list[tuple[Any, ...]] = []
        self.events.on_cleared = lambda name: self.told.append((name,))
        self.events.on_turned = lambda *turned: self.told.append(turned)

    @property
    def feed(self) -> Feed:
        return next(self.events.feeds())

    def sum(self, at: int) -> int:
        """Tokens stored (1) or removed (2)."""
        return sum(each[at] for each in self.told if len(each) == 3)


@asynccontextmanager
async def listening(*urls: str, **more: Any) -> AsyncIterator[Listening]:
    before = tasks.running()
    made = Listening(*urls, **more)
    made.events.start()
    try:
        yield made
    finally:
        await made.events.close()
        await asyncio.sleep(0)
        assert tasks.running() == before


@asynccontextmanager
async def publishing(port: int) -> AsyncIterator[Callable[[list[bytes]], None]]:
    """A socket that publishes there, from now on until it is closed."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.PUB)
        socket.bind(f"tcp://127.0.0.1:{port}")
        yield socket.send_multipart
    finally:
        context.destroy(linger=0)


async def heard(send: Callable[[list[bytes]], None], feed: Feed, first: int) -> int:
    """Send until the subscriber hears it; the next number."""
    number, seen = first, sum(feed.counts.values())

    def arrived() -> bool:
        nonlocal number
        send(message(number, {"type": "Hello"}))
        number += 1
        return sum(feed.counts.values()) > seen

    await until(arrived)
    return number


async def test_a_restarted_engine_is_heard_again_and_its_cache_is_empty() -> None:
    [port] = free_ports(1)
    async with listening(f"tcp://127.0.0.1:{port}") as made:
        async with publishing(port) as send:
            number = await heard(send, made.feed, 100)
            send(message(number, stored(4), stored(2)))
            send(message(number + 1, removed(1)))
            await until(lambda: made.sum(2))
            assert made.told[-1][0] == "e0" and (made.sum(1), made.sum(2)) == (96, 16)
            send(message(number + 2, CLEARED))
            await until(lambda: ("e0",) in made.told)
        made.told.clear()
        async with publishing(port) as send:
            number = await heard(send, made.feed, 0)
            await until(lambda: made.feed.seq == number - 1)
            made.events.down("e0")
            send(message(0, stored(1)))
            await until(lambda: made.sum(1))
            assert (made.told.count(("e0",)), made.feed.counts["restarted"], made.feed.gaps) == (1, 1, 0)


async def test_a_flood_leaves_the_loop_its_turns_and_one_too_large_is_not_taken() -> None:
    [port] = free_ports(1)
    async with listening(f"tcp://127.0.0.1:{port}") as made, publishing(port) as send:
        number = await heard(send, made.feed, 0)
        for at in range(200):
            send(message(number + at, stored(64)))
        turns = 0
        while made.feed.counts["stored"] < 200:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 100
        send([b"", struct.pack(">Q", 0), b"\0" * (MESSAGE_BYTES + 1)])
        await heard(send, made.feed, number + 1000)
        assert (made.feed.counts["invalid"], made.feed.counts["restarted"]) == (0, 0)


async def test_without_a_feed_there_is_nothing_to_start() -> None:
    async with listening() as made:
        assert list(made.events.feeds()) == []


async def test_each_rank_is_heard_at_its_port_and_counts_for_its_endpoint() -> None:
    ports = free_ports(2)
    async with (
        listening(f"tcp://127.0.0.1:{ports[0]}", ranks=2) as made,
        publishing(ports[0]) as first,
        publishing(ports[1]) as second,
    ):
        zero, one = made.events.feeds()
        numbers = await heard(first, zero, 50), await heard(second, one, 7)
        first(message(numbers[0], stored(2)))
        second(message(numbers[1], stored(1), CLEARED, stored(3)))
        await until(lambda: made.sum(1) == 80)
        assert {each[0] for each in made.told} == {"e0"}
        assert made.told.count(("e0",)) == 1 and zero.gaps == one.gaps == 0
        made.events.down("e0")
        assert (zero.seq, one.seq) == (None, None)


# ---- what was lost


class Asked:
    """An engine whose cache is listened to, and asked until its prompts fill it."""

    def __init__(self, made: Listening, engine: Any) -> None:
        self.made, self.engine, self.asked = made, engine, 0

    async def prompt(self, *faults: str, tokens: int = 400) -> None:
        """Ask one more under these faults."""
        self.engine.faults.replace(faults)
        self.asked += 1
        body = chat(f"{self.asked:04} " + "word " * tokens, max_tokens=2)
        assert (await talk(self.engine.port, body)).status == 200
        self.engine.faults.replace([one for one in faults if one == "no_replay"])

    def whole(self) -> bool:
        """Whether all that the cache took in and gave back was heard."""
        feed, kv = self.made.feed, self.engine.model.scheduler.kv
        return (self.made.sum(1) + feed.stored) - (self.made.sum(2) + feed.removed) == kv.cached * 16


@asynccontextmanager
async def asked_again(**config: Any) -> AsyncIterator[Asked]:
    ports = free_ports(2)
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    events = KvEventsConfig(enable_kv_cache_events=True, endpoint=urls[0], replay_endpoint=urls[1], **config)
    async with listening(urls[0], replay_url=urls[1]) as made, simulated(kv_events=events) as engine:
        asked = Asked(made, engine)
        async with asyncio.timeout(5):
            while made.feed.seq is None:
                await asked.prompt()
        engine.reset_prefix_cache()
        await until(lambda: ("e0",) in made.told)
        made.told.clear()
        yield asked


@pytest.mark.parametrize(
    ("fault", "gaps", "late"), [("drop:count=3", 1, 1), ("reorder:count=1", 1, 2), ("duplicate:count=1", 0, 1)]
)
async def test_what_was_lost_or_mixed_up_on_the_way_is_told_again_and_counts_once(
    fault: str, gaps: int, late: int
) -> None:
    async with asked_again() as asked:
        await asked.prompt(fault)
        await asked.prompt()
        await until(asked.whole)
        feed = asked.made.feed
        await until(lambda: feed.counts["late"] >= late)
        assert (feed.gaps, feed.replays) == (gaps, {"whole": gaps} if gaps else {})
        assert ("e0",) not in asked.made.told
        assert feed.counts["restarted"] == feed.counts["invalid"] == 0


@pytest.mark.parametrize("faults", [("gap:5,count=1",), ("drop:count=1", "no_replay")])
async def test_what_nobody_can_tell_again_is_an_empty_cache(faults: tuple[str, ...]) -> None:
    async with asked_again() as asked:
        await asked.prompt(*faults)
        await asked.prompt(*faults[1:])
        await until(lambda: asked.made.feed.replays["lost"] == 1)
        assert asked.made.told.count(("e0",)) == 1
        feed, heard = asked.made.feed, asked.made.feed.counts["stored"]
        await asked.prompt()
        await until(lambda: feed.counts["stored"] > heard)
        assert feed.gaps == 1 and feed.counts["restarted"] == 0


async def test_what_is_older_than_the_engine_remembers_is_an_empty_cache() -> None:
    async with asked_again(buffer_steps=2) as asked:
        for _ in range(4):
            await asked.prompt("drop")
        await asked.prompt()
        await until(lambda: asked.made.feed.replays["lost"] == 1)
        assert asked.made.told.count(("e0",)) == 1


async def test_a_sequence_that_begins_again_is_an_empty_cache_without_asking() -> None:
    async with asked_again() as asked:
        await asked.prompt()
        await until(asked.whole)
        await asked.prompt("seq_restart:count=1")
        await until(lambda: ("e0",) in asked.made.told)
        assert asked.made.feed.counts["restarted"] == 1 and not asked.made.feed.replays


async def test_the_simulated_engine_publishes_what_its_cache_does() -> None:
    [port] = free_ports(1)
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://127.0.0.1:{port}", topic="kv")
    async with listening(f"tcp://127.0.0.1:{port}") as made, simulated(kv_events=config) as engine:
        number = 0

        async def ask() -> None:
            nonlocal number
            number += 1
            assert (await talk(engine.port, chat(f"{number:04} " + "word " * 400, max_tokens=8))).status == 200

        async with asyncio.timeout(5):
            while not made.sum(1):
                await ask()
        before = made.sum(1)
        await ask()
        await until(lambda: made.sum(1) - before >= 496)  # of about 505 tokens of prompt and answer, whole blocks
        assert made.feed.counts["invalid"] == made.feed.counts["other"] == made.feed.gaps == 0
        assert engine.reset_prefix_cache()
        await until(lambda: ("e0",) in made.told)
        assert engine.model.scheduler.kv.cached == 0
