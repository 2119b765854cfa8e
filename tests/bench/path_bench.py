"""What one request costs on its way through the gateway, without sockets: everything but the system calls.

A client connection and its engine connection are fed by hand, their transports only count. The figure is the least of
many rounds, so that a busy machine disturbs it little. `--profile` prints where the time goes, `--count` how many
bytecodes and calls a request takes and in which files: these do not depend on the machine at all.

`--tenants 1000` puts so many tenants with ten keys each and every kind of limit beside the configuration. What a request has used of
them has drained when its answer is there; with `--in-use` none of it drains in time, as under a load near the limit: how far each is used is
worked out for each answer. `--open 8`: so many other requests of the same tenant are in progress meanwhile.

Usage: python tests/bench/path_bench.py [--profile | --count] [--only NAME] [--requests 2000] [--tenants N [--in-use]] [--open N]
"""

import argparse
import asyncio
import cProfile
import hashlib
import os
import pathlib
import pstats
import socket
import sys
import tempfile
import time
from collections import Counter
from types import FrameType
from typing import Any

import uvloop

from gateway.app import Gateway
from gateway.config import load_document
from gateway.http.client import ClientConnection
from gateway.http.upstream import UpstreamConnection
from policies.events import SettingsChanged

CONFIG = pathlib.Path(__file__).with_name("compare.yaml")
KEY = "sk-bench-0123456789abcdef"
TENANT = """version: 1
id: tenant-{number}
weight: 2
models: [{{name: m, aliases: [gpt], limits: {{rpm: 1000000, tpm: 900000000, max_concurrency: 900}}}}]
limits: {{rpm: 1000000, tpm: 900000000, itpm: 900000000, otpm: 900000000, tpd: 900000000000, max_concurrency: 900}}
budgets: [{{id: month, amount: 50000000000, period: month}}]
keys:
"""
BURST = "limits: {burst_s: 600, rpm: 60000, tpm: 60000000, itpm"
ANSWER_BODY = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"' + b"hello " * 100 + b'"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":100,"total_tokens":200}}'
)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER_BODY) + ANSWER_BODY
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = (
    b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":64,"total_tokens":164}}\n\ndata: [DONE]\n\n'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Wire:
    """A transport that takes everything at once."""

    def __init__(self) -> None:
        self.written = 0
        self.writes = 0
        self.socket, self._other_end = socket.socketpair()

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self.writes += 1

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else self.socket

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    close = abort


def request(size: int, stream: bool) -> bytes:
    extra = ',"stream":true,"stream_options":{"include_usage":true},"seed":0' if stream else ""
    text = ("word " * (size // 5))[: size - 160]
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":128{extra}}}'.encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n" % (KEY.encode(), len(body))
    ) + body


def with_tenants(count: int, folder: pathlib.Path, *, in_use: bool = False) -> pathlib.Path:
    """The configuration with so many tenants; `KEY` is the last one's. `in_use`: its limits drain slowly and hold much."""
    config = folder / "forebay.yaml"
    config.write_text(CONFIG.read_text() + 'isolation: {salt_secret: "0123456789abcdef0123456789abcdef"}\n')
    (folder / "tenants.d").mkdir()
    for number in range(count):
        keys = [f"other-{number}-{key}-0123456789" for key in range(9)]
        keys.append(KEY if number == count - 1 else f"last-{number}-0123456789")
        lines = (
            f'  - {{id: k{number:06}x{at:04}, sha256: "{hashlib.sha256(key.encode()).hexdigest()}", limits: {{rpm: 900000}}}}\n'
            for at, key in enumerate(keys)
        )
        tenant = TENANT.format(number=number) + "".join(lines)
        if in_use:
            tenant = tenant.replace("rpm: 1000000", "rpm: 60000").replace("rpm: 900000", "rpm: 54000")
            tenant = tenant.replace("pm: 900000000", "pm: 60000000").replace(
                "limits: {rpm: 60000, tpm: 60000000, itpm", BURST
            )
        (folder / "tenants.d" / f"tenant-{number}.yaml").write_text(tenant)
    return config


class Count:
    """A tracer: bytecodes by file, and calls."""

    def __init__(self) -> None:
        self.bytecodes: Counter[str] = Counter()
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> "Count":
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.calls += 1
        elif event == "opcode":
            self.bytecodes[frame.f_code.co_filename] += 1
        return self

    def show(self, requests: int) -> None:
        print(f"  {self.bytecodes.total() // requests} bytecodes in {self.calls // requests} calls", file=sys.stderr)
        for name, count in self.bytecodes.most_common(25):
            print(f"  {count // requests:7} {os.path.relpath(name)}", file=sys.stderr)


class Path:
    """A gateway whose two ends are fed by hand."""

    def __init__(self, config: pathlib.Path = CONFIG, in_progress: int = 0) -> None:
        self.gateway = Gateway(load_document(config, os.environ))
        gateway = self.gateway
        gateway._dispatcher.handle(SettingsChanged(settings=gateway._began.settings))
        gateway._roster._up("a")
        self.pool = gateway._backends.by_name["a"].connections
        self.pool.idle_s = 1e9
        for _ in range(in_progress):
            self._connect()[0].data_received(request(2048, True))
        self.client, self.engine = self._connect()

    def _connect(self) -> tuple[ClientConnection, UpstreamConnection]:
        """A client's connection, and one to the engine for its next request."""
        client = ClientConnection(self.gateway._shared)
        client.connection_made(Wire())  # type: ignore[arg-type]
        engine = UpstreamConnection(self.pool)
        engine.connection_made(Wire())  # type: ignore[arg-type]
        self.pool.release(engine)
        return client, engine

    async def count(self, message: bytes, answers: list[bytes]) -> Count:
        """What ten requests execute in the two read callbacks."""
        counting = Count()
        for _ in range(10):
            for give, data in [(self.client, message), *((self.engine, answer) for answer in answers)]:
                sys.settrace(counting)
                give.data_received(data)
                await asyncio.sleep(0)  # what was to be written is
                sys.settrace(None)
        return counting

    async def run(self, message: bytes, answers: list[bytes], count: int) -> float:
        """Seconds per request, the least of all rounds of 50."""
        best = 1e9
        for _ in range(max(1, count // 50)):
            began = time.perf_counter()
            for _ in range(50):
                self.client.data_received(message)
                await asyncio.sleep(0)
                for answer in answers:
                    self.engine.data_received(answer)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            best = min(best, (time.perf_counter() - began) / 50)
        return best


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG
        if options.tenants:
            config = with_tenants(options.tenants, pathlib.Path(folder), in_use=options.in_use)
        path = Path(config, options.open)
    streamed = [STREAM_HEAD + chunk(EVENT), *[chunk(EVENT)] * 99, chunk(LAST) + b"0\r\n\r\n"]
    burst = [STREAM_HEAD + chunk(EVENT), chunk(EVENT) * 63 + chunk(LAST) + b"0\r\n\r\n"]
    work = {
        "request 2 KiB": (request(2048, False), [ANSWER]),
        "prompt 64 KiB": (request(65536, False), [ANSWER]),
        "stream, 64 tokens in a burst": (request(2048, True), burst),
        "stream, 100 reads of a token": (request(2048, True), streamed),
    }
    profiler = cProfile.Profile() if options.profile else None
    for name, (message, answers) in work.items():
        if options.only and options.only not in name:
            continue
        await path.run(message, answers, 100)
        if options.count:
            print(name, file=sys.stderr)
            (await path.count(message, answers)).show(10)
            continue
        if profiler:
            profiler.enable()
        seconds = await path.run(message, answers, options.requests // (10 if "100" in name else 1))
        if profiler:
            profiler.disable()
        print(f"{name:32} {seconds * 1e6:8.1f} us per request", file=sys.stderr)
    if profiler:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(60)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--count", action="store_true")
    arguments.add_argument("--requests", type=int, default=4000)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--tenants", type=int, default=0)
    arguments.add_argument("--in-use", action="store_true")
    arguments.add_argument("--open", type=int, default=0)
    uvloop.run(main(arguments.parse_args()))
