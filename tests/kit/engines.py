"""Simulated engines as processes: `forebay engine` with a control listener, through which faults are set."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.processes import Child, free_ports, python, until_async
from tests.kit.raw_client import exchange


class Engine:
    """One `forebay engine`. `async with Engine(tmp_path, "e0")`; `.url` serves, `.control` steers."""

    def __init__(self, directory: Path, name: str = "engine", *, arguments: Sequence[str] = ()) -> None:
        self.port, self.control_port = free_ports(2)
        self.directory, self.name = directory, name
        self.arguments = list(arguments)
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    async def start(self, timeout_s: float = 20.0) -> None:
        argv = python(
            "-m", "gateway", "engine", "--port", str(self.port), "--control-port", str(self.control_port), *self.arguments
        )  # fmt: skip
        self.child = Child(argv, self.directory, self.name)
        try:
            await until_async(self._healthy, timeout_s, f"engine {self.name} is not healthy")
        except BaseException as error:
            self.child.kill()
            error.add_note(f"stderr: {self.child.err.read_bytes()[-2000:]!r}")
            raise

    async def _healthy(self) -> bool:
        assert self.child is not None
        if self.child.exited:
            raise RuntimeError(f"engine {self.name} ended with status {self.child.process.returncode}")
        try:
            return (await exchange(self.port, _message("GET", "/health"))).status == 200
        except OSError:
            return False

    async def control(self, method: str, path: str, value: Any = None) -> Any:
        """One call to the control listener; JSON in, JSON out."""
        answer = await exchange(self.control_port, _message(method, path, value))
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body!r}")
        return _parsed(answer.body)

    async def log(self) -> list[dict[str, Any]]:
        """What this engine saw, one entry per request."""
        found = await self.control("GET", "/log")
        return list(found)

    async def reset(self) -> None:
        await self.control("POST", "/reset")

    async def stop(self) -> None:
        if self.child is not None:
            await self.child.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()


def _message(method: str, path: str, value: Any = None) -> bytes:
    body = b"" if value is None else json.dumps(value).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: kit\r\nconnection: close\r\n"
    if body:
        head += "content-type: application/json\r\n"
    if body or method in ("POST", "PUT"):
        head += f"content-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _parsed(body: bytes) -> Any:
    """JSON, or one JSON value per line."""
    text = body.strip()
    if not text:
        return []
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line]
