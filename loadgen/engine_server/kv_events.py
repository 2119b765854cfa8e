"""What the engine's KV cache does, published over ZMQ as vLLM and SGLang do it (`--kv-events-config`).

Messages are [topic, sequence from 0, msgpack [time, events, rank]], one for each step in which something happened. The
cache of the model is one that writes down what it does; a block's hash knows its tokens. An engine without this flag
has neither.

Whoever has missed some asks at `replay_endpoint`: a sequence number behind an empty frame, answered with [empty, number,
payload] for each message of the last `buffer_steps` from there on, and [empty, -1, empty] at the end.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from struct import unpack
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from loadgen import tasks
from loadgen.engine_server import tokens
from loadgen.engine_server.faults import Faults
from loadgen.faults import Stage
from loadgen.sim.kv import KvCache

if TYPE_CHECKING:
    import zmq
    import zmq.asyncio

MEDIUM = "GPU"
END = (-1).to_bytes(8, "big", signed=True)
_AT_ONCE = 100  # messages of a replay in one turn of the loop


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `KVEventsConfig`, with its defaults. Engine N of a process publishes N ports further up."""

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    topic: str = ""
    hwm: int = 100_000
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    max_queue_size: int = 100_000  # of vLLM's own thread: without effect

    def at(self, index: int) -> tuple[str, str | None]:
        """Where engine `index` publishes, and where it is asked again."""
        return _moved(self.endpoint, index), self.replay_endpoint and _moved(self.replay_endpoint, index)


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
    for field, address in (("endpoint", config.endpoint), ("replay_endpoint", config.replay_endpoint)):
        if address is not None and not (address.startswith("tcp://") and address.rpartition(":")[2].isdigit()):
            raise ValueError(f"--kv-events-config: {field} {address!r} is not like tcp://*:5557")
    if find_spec("zmq") is None:
        raise ValueError("--kv-events-config needs pyzmq: pip install 'forebay[kv-events]'")
    return config


def _moved(address: str, ports: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + ports}"


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


KvBatch = Callable[[float, list[dict[str, Any]]], list[Any]]


def vllm_batch(time_s: float, events: list[dict[str, Any]]) -> list[Any]:
    """The payload of a message as vLLM makes it: time, events by the names of their fields, rank."""
    return [time_s, events, None]


class Publisher:
    """The sockets of one engine. Nobody is waited for: what a slow listener has no room for is lost to it, until it asks again."""

    def __init__(
        self, config: KvEventsConfig, index: int, cache: ToldCache, faults: Faults, batch: KvBatch = vllm_batch
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._faults = faults
        self._address, self._replay_address = config.at(index)
        self._topic, self._hwm = config.topic.encode(), config.hwm
        self._seq = 0  # of the next message
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._held: tuple[int, bytes] | None = None
        self._contexts: list[zmq.Context[Any]] = []
        self._answering: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Bind, in a running loop. Raises ValueError where it cannot."""
        import zmq
        import zmq.asyncio

        self._contexts = [zmq.Context(), zmq.asyncio.Context()]
        publishes, answers = self._contexts
        self._socket = self._bound(publishes.socket(zmq.PUB), self._address)
        if self._replay_address is not None:
            router = self._bound(answers.socket(zmq.ROUTER), self._replay_address)
            self._answering = tasks.start(self._answer(router), "kv replay")

    def flush(self) -> None:
        """Send what happened since the last time, if anything did."""
        events = self._cache.take_events()
        if not events or not self._contexts:
            return
        hit = {fault.name: fault for fault in self._faults.strike(Stage.EVENTS, {})}
        if "seq_restart" in hit:
            self._seq = 0
            self._sent.clear()
        if "gap" in hit:
            self._seq += int(hit["gap"].amount)
        message = self._seq, msgspec.msgpack.encode(self._batch(time.time(), events))
        self._seq += 1
        self._sent.append(message)
        held, self._held = self._held, message if "reorder" in hit else None
        going = [] if "drop" in hit or "reorder" in hit else [message]
        going += [message] if "duplicate" in hit else []
        for number, payload in [*going, held] if held else going:
            self._socket.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    async def close(self) -> None:
        """Stop publishing."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        self._destroy()

    def _destroy(self) -> None:
        while self._contexts:
            self._contexts.pop().destroy(linger=0)

    def _bound(self, socket: Any, address: str) -> Any:
        import zmq

        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, self._hwm)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self._destroy()
            raise ValueError(f"--kv-events-config: {address}: {error.strerror}") from error
        return socket

    async def _answer(self, router: "zmq.asyncio.Socket") -> None:
        """Send again what is asked for, to one after the other."""
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or self._faults.find("no_replay") is not None:
                continue
            asker, _, first = frames
            for at, (number, payload) in enumerate(tuple(self._sent)):
                if number >= int.from_bytes(first, "big"):
                    await router.send_multipart([asker, b"", number.to_bytes(8, "big"), payload])
                if at % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
            await router.send_multipart([asker, b"", END, b""])
