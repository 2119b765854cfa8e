"""A real redis-server of its own for a test, on a unix socket; it ends with the test."""

import shutil
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import pytest

from tests.kit.processes import Child, free_ports, until_async

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class RedisServer:
    """`async with RedisServer(tmp_path) as redis`. `url` is for clients. Nothing is written to disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory, self._options = directory, options
        self._short = TemporaryDirectory(prefix="fb-redis-")  # a socket's path may have 107 bytes only
        self.path = str(Path(self._short.name) / "s")
        self.url = f"unix://{self.path}"
        (self.port,) = free_ports(1)
        self.child: Child | None = None

    async def start(self) -> None:
        """Run it, with nothing in it."""
        fixed = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--unixsocket",
            self.path,
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self.child = Child(["redis-server", *fixed, *self._options], self._directory, "redis")
        await until_async(self._answers, 10.0, "redis-server does not answer")

    async def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(1.0)
                one.connect(self.path)
                one.sendall(b"PING\r\n")
                return one.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def process(self) -> Child:
        if self.child is None:
            raise RuntimeError("it was not started")
        return self.child

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child is not None:
            self.child.kill()
        self._short.cleanup()
