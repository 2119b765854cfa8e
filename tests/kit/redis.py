"""Real redis-servers of a test's own, one on a unix socket or three as a cluster; they end with the test."""

import shutil
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import pytest
from redis.asyncio import Redis

from tests.kit.processes import Child, free_ports, until_async

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class RedisServer:
    """`async with RedisServer(tmp_path) as redis`. `url` is for clients. Nothing is written to disk."""

    def __init__(self, directory: Path, *options: str, port: int = 0) -> None:
        self._directory, self._options = directory, options
        self._short = TemporaryDirectory(prefix="fb-redis-")  # a socket's path may have 107 bytes only
        self.path = str(Path(self._short.name) / "s")
        self.url = f"unix://{self.path}"
        self.port = port or free_ports(1)[0]
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
        self.child = Child(["redis-server", *fixed, *self._options], self._directory, f"redis{self.port}")
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


SLOTS = 16_384


class RedisNodes:
    """`async with RedisNodes(tmp_path) as cluster`: a Redis Cluster of three nodes, each with a third of the slots."""

    def __init__(self, directory: Path) -> None:
        self.ports = free_ports(3)
        buses = free_ports(3)
        options = [["--cluster-enabled", "yes", "--dir", str(directory / str(port))] for port in self.ports]
        self._servers = [
            RedisServer(directory, *extra, "--cluster-port", str(bus), port=port)
            for port, bus, extra in zip(self.ports, buses, options, strict=True)
        ]
        for port in self.ports:
            (directory / str(port)).mkdir()
        self._buses = buses
        self.clients: list[Redis] = []

    @property
    def url(self) -> str:
        """Of one of them."""
        return f"redis://127.0.0.1:{self.ports[0]}"

    def node_of(self, slot: int) -> int:
        """The number of the node that has it at first."""
        return min(2, slot // (SLOTS // 3))

    async def __aenter__(self) -> Self:
        for server in self._servers:
            await server.start()
        self.clients = [Redis(port=port) for port in self.ports]
        for at, client in enumerate(self.clients):
            first, end = at * (SLOTS // 3), (at + 1) * (SLOTS // 3) if at < 2 else SLOTS
            await client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
            for port, bus in zip(self.ports, self._buses, strict=True):
                await client.execute_command("CLUSTER MEET", "127.0.0.1", port, bus)
        await until_async(self._whole, 20.0, "the nodes are no cluster")
        return self

    async def _whole(self) -> bool:
        told = [await client.execute_command("CLUSTER INFO") for client in self.clients]
        return all(each["cluster_state"] == "ok" for each in told)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            await client.aclose()
        for server in self._servers:
            await server.__aexit__(kind, error, trace)
