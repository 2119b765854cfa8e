"""What the engine's KV cache does, published over ZMQ as vLLM does it (`--kv-events-config`).

Messages are [topic, sequence from 0, msgpack [time, events, rank]], one for each step in which something happened. The
cache of the model is one that writes down what it does; a block's hash knows its tokens. An engine without this flag
has neither. There is no replay: whoever was not connected has missed it.
"""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from struct import unpack
from typing import TYPE_CHECKING, Any

import msgspec

from loadgen.engine_server import tokens
from loadgen.sim.kv import KvCache

if TYPE_CHECKING:
    import zmq

MEDIUM = "GPU"


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `KVEventsConfig`, with its defaults. Engine N of a process publishes N ports further up."""

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    topic: str = ""
    hwm: int = 100_000
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000  # of the replay: without effect
    max_queue_size: int = 100_000  # of vLLM's own thread: without effect

    def at(self, index: int) -> str:
        """Where engine `index` publishes."""
        host, _, port = self.endpoint.rpartition(":")
        return f"{host}:{int(port) + index}"


def read(text: str) -> KvEventsConfig | None:
    """The value of the flag; None: nothing is published. Raises ValueError."""
    try:
        config = msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"--kv-events-config: {error}") from error
    if not config.enable_kv_cache_events or config.publisher == "null":
        return None
    if config.publisher != "zmq":
        raise ValueError(f"--kv-events-config: publisher {config.publisher!r} is not one of zmq, null")
    if config.replay_endpoint is not None:
        raise ValueError("--kv-events-config: the simulated engine has no replay_endpoint")
    if not config.endpoint.startswith("tcp://") or not config.endpoint.rpartition(":")[2].isdigit():
        raise ValueError(f"--kv-events-config: endpoint {config.endpoint!r} is not like tcp://*:5557")
    if find_spec("zmq") is None:
        raise ValueError("--kv-events-config needs pyzmq: pip install 'forebay[kv-events]'")
    return config


class Block(int):
    """The hash of a full block that also knows its tokens and the block before it."""

    parent: int | None
    token_ids: Sequence[int]


def blocks(text: bytes, hashes: Sequence[int], block_tokens: int) -> list[int]:
    """`hashes`, the chain of `text`, as blocks that can be told of."""
    size = block_tokens * tokens.TOKEN_BYTES
    made: list[int] = []
    parent: int | None = None
    for at, link in enumerate(hashes):
        block = Block(link)
        block.parent, parent = parent, link
        block.token_ids = unpack(f">{block_tokens}I", text[at * size : (at + 1) * size])
        made.append(block)
    return made


class ToldCache(KvCache):
    """The model's cache, which writes down what is stored and removed until somebody takes it."""

    def __init__(self, total: int, block_tokens: int) -> None:
        super().__init__(total)
        self._block_tokens = block_tokens
        self._events: list[dict[str, Any]] = []

    def publish(self, block: int, text: int) -> None:
        super().publish(block, text)
        if not isinstance(text, Block):
            return
        last = self._events[-1] if self._events else {}
        if last.get("type") == "BlockStored" and last["block_hashes"][-1] == text.parent:
            last["block_hashes"].append(int(text))
            last["token_ids"].extend(text.token_ids)
        else:
            self._events.append(self._stored(text))

    def clear(self) -> bool:
        cleared = super().clear()
        if cleared:
            self._events.append({"type": "AllBlocksCleared"})
        return cleared

    def take_events(self) -> list[dict[str, Any]]:
        """What happened since the last time."""
        taken, self._events = self._events, []
        return taken

    def _stored(self, block: Block) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": [int(block)],
            "parent_block_hash": block.parent,
            "token_ids": list(block.token_ids),
            "block_size": self._block_tokens,
            "lora_id": None,
            "medium": MEDIUM,
        }

    def _forget(self, block: int) -> None:
        text = self._hashes[block]
        if text is not None:
            self._events.append({"type": "BlockRemoved", "block_hashes": [int(text)], "medium": MEDIUM})
        super()._forget(block)


class Publisher:
    """The PUB socket of one engine. Nobody is waited for: what a slow listener has no room for is lost to it."""

    def __init__(self, config: KvEventsConfig, index: int, cache: ToldCache) -> None:
        self._cache = cache
        self._address = config.at(index)
        self._topic, self._hwm = config.topic.encode(), config.hwm
        self._seq = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def open(self) -> None:
        """Bind. Raises ValueError where it cannot."""
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, self._hwm)
        try:
            self._socket.bind(self._address)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"--kv-events-config: {self._address}: {error.strerror}") from error

    def flush(self) -> None:
        """Send what happened since the last time, if anything did."""
        events = self._cache.take_events()
        if events and self._context is not None:
            payload = msgspec.msgpack.encode([time.time(), events, None])
            self._socket.send_multipart([self._topic, self._seq.to_bytes(8, "big"), payload])
            self._seq += 1

    def close(self) -> None:
        """Stop publishing."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
