"""What engines tell of their KV caches: messages as they come, and what was heard of each rank of an endpoint.

A message is [topic, sequence, batch]. A sequence that begins again later is a new process: its cache is empty. One that
comes again is passed over. Ids are skipped, not read.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import msgspec

MESSAGE_BYTES = 1024 * 1024  # [o]: the blocks of 200,000 tokens; whoever sends more has broken the protocol
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an endpoint publishes, and where it is asked again (None: nowhere). Of `ranks` the first; the ports of the
    others follow."""

    endpoint: str
    url: str
    replay_url: str | None = None
    ranks: int = 1

    def feeds(self) -> Iterator["Feed"]:
        """One for each rank."""
        for rank in range(self.ranks):
            replay_url = self.replay_url and moved(self.replay_url, rank)
            name = f"{self.endpoint}/{rank}" if rank else self.endpoint
            yield Feed(name=name, endpoint=self.endpoint, url=moved(self.url, rank), replay_url=replay_url)


@dataclass(slots=True, kw_only=True)
class Feed:
    """What one rank of an endpoint has published. `counts` by kind of event; `stored` and `removed`: tokens not yet
    reported; `replays` by how they ended."""

    name: str
    endpoint: str
    url: str
    replay_url: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    replays: Counter[str] = field(default_factory=Counter)
    seq: int | None = None  # of the last message; None: whatever comes next follows
    at_s: float = 0.0  # by the engine's clock
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
        if self.seq is not None and seq <= self.seq and batch.at_s <= self.at_s:
            self.counts["late"] += 1
            return False
        emptied = self._follow(seq)
        self.at_s = batch.at_s
        for raw in batch.events:
            emptied = self._take_event(raw) or emptied
        return emptied

    def lacks(self, frames: list[bytes]) -> range:
        """The numbers between the last message and this one."""
        if self.seq is None or len(frames) != 3:
            return range(0)
        return range(self.seq + 1, int.from_bytes(frames[1], "big"))

    def forget(self) -> None:
        """Nothing is known of its cache any more; whatever comes next follows."""
        self.seq = None
        self._forget()

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


def moved(url: str, ports: int) -> str:
    """The same host, so many ports further up."""
    host, _, port = url.rpartition(":")
    return f"{host}:{int(port) + ports}"


def _read(raw: msgspec.Raw) -> _Event | _Positional:
    first = memoryview(raw)[0]
    return _event(raw) if first & 0xF0 == _MAP_BITS[0] or first in _MAP_BITS else _positional(raw)
