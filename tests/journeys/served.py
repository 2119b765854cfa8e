"""A gateway in front of one simulated engine, both as processes, and official clients that talk to it.

`Either` lets one test speak for the synchronous client and for the asynchronous one: both have the same methods.
"""

import asyncio
import base64
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.invariants import ATTEMPTS, BrokenInvariantError, holding
from tests.kit.processes import until_async
from tests.kit.script_engine import ScriptEngine, Seen, Step

KINDS = ("sync", "async")
PROFILE = "llama8b-fp8-h200"  # about 4 ms a token
ENGINE = ("--profile", PROFILE, "--served-model-name", "m", "--allow-markers", "--enable-prompt-tokens-details")
SMALL_BODY = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Served:
    """What a journey goes through. `scripted` stands for what the simulated engine cannot do: model `emb`."""

    gateway: Gateway
    engine: Engine
    scripted: ScriptEngine

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """The invariants around a test, with C2 counted in the engines' logs; no fault is left set."""
        await self.engine.control("DELETE", "/faults")
        before, seen = await self.gateway.metrics(), await self._seen()
        async with holding(self.gateway):
            yield
        after = await self.gateway.metrics()
        results = {
            key: value - before.by(ATTEMPTS, "result").get(key, 0.0)
            for key, value in after.by(ATTEMPTS, "result").items()
        }
        connected = sum(results.values()) - results.get("connect_failed", 0.0)
        came = await self._seen() - seen
        if not connected - results.get("stale_resent", 0.0) <= came <= connected:
            raise BrokenInvariantError(f"C2 engines saw {came} requests, attempts were {results}")

    async def _seen(self) -> int:
        return len(await self.engine.log()) + len(self.scripted.seen)

    async def faults(self, *specs: str) -> None:
        """Exactly these faults of the simulated engine from now on."""
        await self.engine.control("PUT", "/faults", list(specs))

    async def entry(self, canary: str) -> dict[str, Any]:
        """The engine's log of the request with that canary in its prompt, once it has ended there."""
        found: list[dict[str, Any]] = []

        async def ended() -> bool:
            found[:] = [one for one in await self.engine.log() if one["canary"] == canary and one["ended"]]
            return bool(found)

        await until_async(ended, 5, f"no request {canary} has ended at the engine")
        return found[-1]


@contextlib.asynccontextmanager
async def served(directory: Path, **changes: Any) -> AsyncIterator[Served]:
    """Gateway and engines, started and up."""
    async with Engine(directory, arguments=ENGINE) as engine, ScriptEngine(scripted_answer) as scripted:
        fleet = config([engine.url, scripted.url])
        fleet["endpoints"][0]["pools"] = ["main"]
        fleet["endpoints"][1]["pools"] = ["emb", "scripted"]
        fleet["models"]["scripted"] = {"context_tokens": 131072}
        fleet["pools"]["scripted"] = {"model": "scripted"}
        fleet["limits"] = {"body_bytes": SMALL_BODY}
        async with Gateway(fleet | changes, directory) as gateway:
            yield Served(gateway, engine, scripted)


def response_events(text: str) -> list[bytes]:
    """What a stream of `/v1/responses` consists of where the client builds the answer up from its parts."""
    whole = wire.response_object(text, 7, 2)
    item, part = whole["output"][0], whole["output"][0]["content"][0]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    half = len(text) // 2
    made: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": text[:half], "logprobs": []},
        {"type": "response.output_text.delta", **place, "delta": text[half:], "logprobs": []},
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]  # fmt: skip
    return [wire.event({**one, "sequence_number": at}, one["type"]) for at, one in enumerate(made)]


VECTOR = (0.5, -1.25, 3.0)


def scripted_answer(seen: Seen) -> list[Step]:
    """An echo; embeddings as the client asks for them by default, in base64; a stream of responses with all its events."""
    if seen.target == b"/v1/responses" and seen.json.get("stream"):
        return list(wire.stream(response_events(str(seen.json["input"]))))
    if seen.target != b"/v1/embeddings":
        return wire.echo(seen)
    value = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()
    data = [{"object": "embedding", "index": at, "embedding": value} for at, _ in enumerate(seen.json["input"])]
    return [wire.json_answer({**wire.body("embeddings", "", model="emb"), "data": data})]


@dataclass(frozen=True, slots=True)
class Either:
    """A client of one of the two kinds."""

    client: Any
    kind: str

    async def call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What that method of the client returns or raises."""
        if self.kind == "async":
            return await method(*arguments, **named)
        return await asyncio.to_thread(method, *arguments, **named)

    async def read(self, stream: Any) -> list[Any]:
        """Everything in a stream, or in a page of a list."""
        if self.kind == "async":
            return [one async for one in stream]
        return await asyncio.to_thread(list, stream)

    async def first(self, stream: Any, count: int) -> list[Any]:
        """The first `count` of a stream, which stays open."""
        if self.kind == "async":
            return [await anext(stream) for _ in range(count)]
        return await asyncio.to_thread(lambda: [next(stream) for _ in range(count)])

    async def inside(self, manager: Any, read: Callable[[Any], Any]) -> Any:
        """`read(value)` within `with manager as value`; for the asynchronous client it returns an awaitable."""
        if self.kind == "async":
            async with manager as value:
                return await read(value)

        def work() -> Any:
            with manager as value:
                return read(value)

        return await asyncio.to_thread(work)


@contextlib.asynccontextmanager
async def either(classes: Mapping[str, Any], kind: str, **options: Any) -> AsyncIterator[Either]:
    """A client of that kind, closed at the end: what it keeps open would look like a leak of the gateway."""
    client = classes[kind](**options)
    try:
        yield Either(client, kind)
    finally:
        if kind == "async":
            await client.close()
        else:
            client.close()


def said(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def words(deltas: Sequence[Any]) -> str:
    """The text of deltas, those without any left out."""
    return "".join(delta for delta in deltas if delta)
