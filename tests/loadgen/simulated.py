"""One simulated engine inside a test's own loop, on a real socket, and a bare client for it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.server import SimulatedEngine
from loadgen.sim.profile import EngineSettings

FAST = "llama8b-fp8-h200"  # 4 ms a decode


@asynccontextmanager
async def simulated(settings: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[SimulatedEngine]:
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 8192, **(settings or {})}
    options = {"profile": FAST, "port": 0, "markers": True, "shows_cached": True, **options}
    engine = SimulatedEngine(EngineOptions(settings=EngineSettings(**flags), **options), 0)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        await until(lambda: not engine.listening.connections)


@asynccontextmanager
async def sglang(settings: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[SimulatedEngine]:
    """The same in SGLang's dialect."""
    async with simulated({"variant": "sglang", **(settings or {})}, dialect="sglang", **options) as engine:
        yield engine


async def until(true: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("not in time")
        await asyncio.sleep(0.005)


def chat(text: str = "hello", **fields: Any) -> bytes:
    """A chat request as bytes."""
    body = {"model": "llama-8b", "messages": [{"role": "user", "content": text}], **fields}
    return post("/v1/chat/completions", json.dumps(body).encode())


def post(path: str, body: bytes, headers: str = "content-type: application/json\r\n") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: t\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: t\r\n\r\n".encode()


class Wire:
    """What came back on one connection, and how it ended: `fin`, `reset`, or `open` after `seconds` of silence."""

    def __init__(self) -> None:
        self.data = b""
        self.end = ""
        self.times: list[float] = []

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0]

    @property
    def raw(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def body(self) -> bytes:
        """The body with chunks joined, as far as they are whole; anything else stays."""
        if b"transfer-encoding: chunked" not in self.head:
            return self.raw
        rest, body = self.raw, b""
        while rest:
            size, found, after = rest.partition(b"\r\n")
            if not found or int(size, 16) == 0 or len(after) < int(size, 16) + 2:
                break
            body += after[: int(size, 16)]
            rest = after[int(size, 16) + 2 :]
        return body

    @property
    def events(self) -> list[Any]:
        """The JSON of each data line, `[DONE]` as text."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]

    @property
    def complete(self) -> bool:
        return self.raw.endswith(b"0\r\n\r\n") or b"content-length: %d" % len(self.raw) in self.head


async def talk(port: int, data: bytes, seconds: float = 0.25) -> Wire:
    """Send bytes; read until the answer is complete, the connection ends, or nothing comes for `seconds`."""
    wire = Wire()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        while not (wire.data and wire.complete):
            more = await asyncio.wait_for(reader.read(65536), seconds)
            wire.times.append(time.monotonic())
            if not more:
                wire.end = "fin"
                return wire
            wire.data += more
        wire.end = "open"
    except TimeoutError:
        wire.end = "open"
    except ConnectionResetError:
        wire.end = "reset"
    finally:
        writer.close()
    return wire


async def refused(port: int) -> bool:
    """Nobody listens there."""
    probe = socket.socket()
    probe.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))
    except ConnectionRefusedError:
        return True
    finally:
        probe.close()
    return False


async def page(engine: SimulatedEngine) -> dict[str, float]:
    """What /metrics says, without buckets; labels are left out."""
    text = (await talk(engine.port, get("/metrics"))).body.decode()
    families = text_string_to_metric_families(text)
    return {one.name: one.value for family in families for one in family.samples if not one.name.endswith("_bucket")}
