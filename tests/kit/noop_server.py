"""A server that does nothing and costs next to nothing: `python -m tests.kit.noop_server PORT WAIT_S PAUSE_S`.

Every POST gets the same short stream `WAIT_S` after its body has come, of which nothing is kept; its words come `PAUSE_S`
apart. What a load client reports beyond that is the client's own doing. A process of its own: it must not share the
client's loop, nor read prompts as an engine does, which takes milliseconds for a long one.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvloop

from tests.kit import wire
from tests.kit.processes import Child, free_ports, python, until_async

WORDS = ("the ", "cat ", "ran ", "off ")
HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)")


class _Connection(asyncio.Protocol):
    """`steps`, the first `wait_s` after the request, come `pause_s` apart."""

    def __init__(self, steps: Sequence[bytes], wait_s: float, pause_s: float) -> None:
        self._steps = steps
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head += data
            head, found, body = self._head.partition(HEAD_END)
            if not found:
                return
            self._head = b""
            length = _LENGTH.search(head)
            self._missing = int(length[1]) if length else 0
            data = body
        self._missing -= len(data)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        if not self._pause_s and not self._wait_s:
            self._write(b"".join(self._steps))
            return
        loop = asyncio.get_running_loop()
        begun = loop.time() + self._wait_s
        steps = self._steps if self._pause_s else [b"".join(self._steps)]
        for number, step in enumerate(steps):
            loop.call_at(begun + number * self._pause_s, self._write, step)

    def _write(self, step: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(step)


async def serve(port: int, wait_s: float, pause_s: float) -> None:
    """Until the process ends."""
    head, role, *words, stop, usage, done, last = wire.stream(wire.events("chat", WORDS))
    steps = (head + role + words[0], *words[1:-1], words[-1] + stop + usage + done + last)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(steps, wait_s, pause_s), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


@asynccontextmanager
async def noop_server(directory: Path, *, wait_s: float = 0.0, pause_s: float = 0.0) -> AsyncIterator[str]:
    """Its URL, while it runs."""
    port = free_ports(1)[0]
    child = Child(
        python("-m", "tests.kit.noop_server", str(port), str(wait_s), str(pause_s)), directory, f"noop-{port}"
    )

    async def listens() -> bool:
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
            return True
        return False

    try:
        await until_async(listens, 20, "it does not listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
