"""What engines publish of their KV caches over ZMQ (vLLM's and SGLang's `--kv-events-config`).

Events carry token ids and the engine's own hashes, our index is over bytes: they name none of our blocks. They tell how
many tokens entered and left a cache, summed up once a second, and when a cache is empty: at once.

A message is [topic, sequence, batch]. A sequence that begins again is a new process: its cache is empty. Events that were
lost are counted and not asked for again. One message of an endpoint in a turn of the loop; ids are skipped, not read.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from gateway import tasks
from gateway.endpoints.watches import Watches

if TYPE_CHECKING:
    from zmq.asyncio import Context, Socket

REPORT_S = 1.0
SILENT_S = 60.0  # [o]: then the connection is made anew, for ZMQ gives up on a peer that breaks its protocol
MESSAGE_BYTES = 1024 * 1024  # [o]: the blocks of 200,000 tokens; whoever sends more has broken the protocol
RECONNECT_MS, RECONNECT_MOST_MS = 100, 5_000
HEARTBEAT_MS, DEAD_MS = 10_000, 30_000
KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_MAP_BITS = (0x80, 0xDE, 0xDF)  # the first byte of a map in msgpack; the first of them with up to 15 fields
BlockTokens = Annotated[int, msgspec.Meta(ge=0, le=65_536)]


class _Event(msgspec.Struct):
    """An event as a map with its `type` (vLLM)."""

    type: str
    block_hashes: list[msgspec.Raw] = []
    block_size: BlockTokens = 0
    medium: str | None = None
    group_idx: int | None = None


class _Positional(msgspec.Struct, array_like=True):
    """An event as an array (SGLang, vLLM before 0.12); of a `BlockRemoved` the third is the medium."""

    type: str
    block_hashes: list[msgspec.Raw] = []
    parent: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    block_size: BlockTokens = 0
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: str | None = None
    group_idx: ClassVar[None] = None  # what comes behind the medium is passed over


class _Batch(msgspec.Struct, array_like=True):
    at_s: float
    events: list[msgspec.Raw]


_batch = msgspec.msgpack.Decoder(_Batch).decode
_event = msgspec.msgpack.Decoder(_Event).decode
_positional = msgspec.msgpack.Decoder(_Positional).decode


@dataclass(slots=True, kw_only=True)
class Feed:
    """What one endpoint has published. `counts` by kind of event; `stored` and `removed`: tokens not yet reported."""

    name: str
    url: str
    counts: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    seq: int | None = None  # of the last message; None: whatever comes next follows
    block_tokens: int = 0
    stored: int = 0
    removed: int = 0

    def take(self, frames: list[bytes]) -> bool:
        """One message. Whether the cache is empty since, as far as what it held before is concerned."""
        try:
            _topic, number, payload = frames
            seq, batch = int.from_bytes(number, "big"), _batch(payload)
        except (ValueError, msgspec.MsgspecError):
            self.counts["invalid"] += 1
            return False
        emptied = self._follow(seq)
        for raw in batch.events:
            emptied = self._take_event(raw) or emptied
        return emptied

    def _follow(self, seq: int) -> bool:
        last, self.seq = self.seq, seq
        if last is not None and seq > last + 1:
            self.gaps += 1
        if last is None or seq > last:
            return False
        self.counts["restarted"] += 1
        self._forget()
        return True

    def _take_event(self, raw: msgspec.Raw) -> bool:
        try:
            event = _read(raw)
        except (ValueError, msgspec.MsgspecError):
            self.counts["invalid"] += 1
            return False
        kind = KINDS.get(event.type, "other")
        self.counts[kind] += 1
        if kind == "cleared":
            self._forget()
        elif event.medium in (None, "GPU") and not event.group_idx:  # the other groups hold the same tokens again
            self._count(kind, event)
        return kind == "cleared"

    def _count(self, kind: str, event: _Event | _Positional) -> None:
        if kind == "stored":
            self.block_tokens = event.block_size
            self.stored += len(event.block_hashes) * event.block_size
        elif kind == "removed":
            self.removed += len(event.block_hashes) * self.block_tokens

    def _forget(self) -> None:
        self.stored = self.removed = 0


class KvEvents:
    """Listens to all feeds from `start` to `close`. `on_cleared(name)`, `on_turned(name, stored tokens, removed tokens)`."""

    def __init__(self, urls: Iterable[tuple[str, str]], *, scale: float = 1.0) -> None:
        """`urls`: the name of each endpoint that has a feed, and where it is. `scale` multiplies the times (tests)."""
        self.on_cleared: Callable[[str], None] = lambda name: None
        self.on_turned: Callable[[str, int, int], None] = lambda name, stored, removed: None
        self._feeds = {name: Feed(name=name, url=url) for name, url in urls}
        self._report_s, self._silent_s = REPORT_S * scale, SILENT_S * scale
        self._context: Context | None = None
        self._watches = Watches(self._listen, "kv events")
        self._reporting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen. Needs a running loop; without any feed it does nothing, and pyzmq is not needed."""
        if self._feeds and self._context is None:
            import zmq.asyncio

            self._context = zmq.asyncio.Context()
            self._reporting = tasks.start(self._report(), "kv events")
        self._watches.change(self._feeds.values())

    def change(self, urls: Iterable[tuple[str, str]]) -> None:
        """Listen to these from now on."""
        known = self._feeds
        self._feeds = {
            name: known[name] if name in known and known[name].url == url else Feed(name=name, url=url)
            for name, url in urls
        }
        self.start()

    async def close(self) -> None:
        """Stop listening."""
        await self._watches.close()
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def down(self, name: str) -> None:
        """This endpoint is gone, and forgotten already: what it says when it is back is a beginning."""
        if name in self._feeds:
            self._feeds[name].seq = None

    def feeds(self) -> Iterator[Feed]:
        """What was heard from each."""
        yield from self._feeds.values()

    async def _listen(self, feed: Feed) -> None:
        while self._context is not None:
            socket = _subscribe(self._context, feed.url)
            try:
                await self._take(feed, socket)
            except TimeoutError:
                pass  # it may be a connection that is none any more: made anew
            finally:
                socket.close()

    async def _take(self, feed: Feed, socket: "Socket") -> None:
        """Take what comes until nothing comes for too long."""
        while True:
            async with asyncio.timeout(self._silent_s):
                frames = await socket.recv_multipart()
            if feed.take(frames):
                self.on_cleared(feed.name)
            await asyncio.sleep(0)  # a receive of what is there already does not wait

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_s)
            for feed in self._feeds.values():
                stored, removed = feed.stored, feed.removed
                if stored or removed:
                    feed.stored = feed.removed = 0
                    self.on_turned(feed.name, stored, removed)


def _read(raw: msgspec.Raw) -> _Event | _Positional:
    first = memoryview(raw)[0]
    return _event(raw) if first & 0xF0 == _MAP_BITS[0] or first in _MAP_BITS else _positional(raw)


def _subscribe(context: "Context", url: str) -> "Socket":
    """A socket that connects, now and after every loss, until it is closed."""
    import zmq

    socket = context.socket(zmq.SUB)
    for option, value in (
        (zmq.IPV6, 1),
        (zmq.LINGER, 0),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, DEAD_MS),
    ):
        socket.setsockopt(option, value)
    socket.subscribe(b"")
    socket.connect(url)
    return socket
