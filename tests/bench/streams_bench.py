"""2,000 concurrent streams at one chunk a second: do all complete, are probes quick, what does an idle stream weigh? (C012)

    .venv/bin/python tests/bench/streams_bench.py [--streams 2000] [--seconds 20] [--json FILE]

A gateway as an operator runs it, with access log and metrics; engine and clients are this process, protocols only.
The case itself has streams of 60 s: `--seconds 60`.
"""

import argparse
import asyncio
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.kit.gateway import Gateway, Launch, config
from tests.kit.sockets import cpu_s, rss_bytes

ANSWER_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"tell me slowly"}]}'
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)
PROBE = b"GET /livez HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN = chunk(b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n')  # fmt: skip
END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass(slots=True)
class Stage:
    """What engine and clients see."""

    chunks: int
    open: set["EngineSide"] = field(default_factory=set)
    peak: int = 0
    completed: int = 0
    broken: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, good: bool, of: int) -> None:
        self.completed += good
        self.broken += not good
        if self.completed + self.broken == of:
            self.ended.set()


class EngineSide(asyncio.Protocol):
    """One connection of the engine: a head at once, then a chunk whenever the beat comes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.left = 0
        self.asked = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.stage.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self.asked += data
        if self.asked.startswith(b"GET"):
            self.asked = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        elif self.asked.endswith(b"}"):
            self.asked, self.left = b"", self.stage.chunks
            self.transport.write(ANSWER_HEAD)
            self.stage.open.add(self)
            self.stage.peak = max(self.stage.peak, len(self.stage.open))

    def beat(self) -> None:
        self.left -= 1
        if self.left >= 0:
            self.transport.write(TOKEN)
            return
        self.stage.open.discard(self)
        self.transport.write(END)


class ClientSide(asyncio.Protocol):
    """One client: asks, and looks only for the end."""

    def __init__(self, stage: Stage, of: int) -> None:
        self.stage, self.of = stage, of
        self.tail = b""
        self.good = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(ASK)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-len(END) :]
        if self.tail == END:
            self.good = True
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.stage.end(self.good, self.of)


async def beats(stage: Stage) -> None:
    """One chunk a second for every open stream, spread over the second."""
    slices = 50
    while True:
        streams = list(stage.open)
        for at in range(slices):
            began = time.monotonic()
            for one in streams[at::slices]:
                one.beat()
            await asyncio.sleep(max(0.0, began + 1 / slices - time.monotonic()))
        await asyncio.sleep(0)


async def probe(port: int, every_s: float, took: list[float]) -> None:
    while True:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PROBE)
        answer = await reader.read()
        writer.close()
        took.append(time.monotonic() - began if b" 200 " in answer[:20] else math.inf)
        await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


async def opened(stage: Stage, port: int, streams: int) -> None:
    """All clients connected and asking, a hundred at a time."""
    loop = asyncio.get_running_loop()
    for start in range(0, streams, 100):
        batch = range(start, min(start + 100, streams))
        await asyncio.gather(
            *(loop.create_connection(lambda: ClientSide(stage, streams), "127.0.0.1", port) for _ in batch)
        )


async def measure(streams: int, seconds: int, directory: Path) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    stage = Stage(chunks=seconds)
    engine = await loop.create_server(lambda: EngineSide(stage), "127.0.0.1", 0, backlog=4096)
    url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    endpoint = {"max_seqs": min(4096, 2 * streams), "max_prefill_tokens": 1_000_000}  # a class has nine tenths of it
    settings = config([url], endpoint=endpoint, timeouts={"scale": 1}, upstream={"probe_s": 1})
    async with Gateway(settings, directory, launch=Launch(core=0)) as gateway:
        await asyncio.sleep(0.5)
        empty_rss, took = rss_bytes(gateway.pid), list[float]()
        tasks = [asyncio.create_task(beats(stage))]
        await opened(stage, gateway.port, streams)
        while stage.peak < streams and not stage.ended.is_set():
            await asyncio.sleep(0.05)
        tasks += [asyncio.create_task(probe(gateway.port, 0.2, took))]
        cpu, began = cpu_s(gateway.pid), time.monotonic()
        await asyncio.sleep(seconds * 0.7)
        full_rss, used = rss_bytes(gateway.pid), (cpu_s(gateway.pid) - cpu) / (time.monotonic() - began)
        await asyncio.wait_for(stage.ended.wait(), seconds + 60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    engine.close()
    return {
        "streams": streams,
        "seconds": seconds,
        "completed": stage.completed,
        "peak_at_engine": stage.peak,
        "probes": len(took),
        "probe_p99_ms": round(quantile(took, 0.99) * 1e3, 2),
        "probe_max_ms": round(max(took) * 1e3, 2),
        "rss_per_stream_kib": round((full_rss - empty_rss) / streams / 1024, 2),
        "rss_mib": round(full_rss / 2**20, 1),
        "cpu_share": round(used, 3),
        "cpu_us_per_chunk": round(used / streams * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Concurrent slow streams through a gateway.")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=20, help="chunks of each stream, one a second")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(options.streams, options.seconds, Path(directory)))
    for name, value in found.items():
        print(f"{name:20} {value:g}")
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    limits = {"probe_p99_ms": 50.0, "rss_per_stream_kib": 40.0}
    missed = [name for name, limit in limits.items() if found[name] > limit]
    if missed or not found["completed"] == found["peak_at_engine"] == options.streams:
        sys.exit(f"missed: {', '.join(missed) or 'not all streams completed at once'}")


if __name__ == "__main__":
    main()
