"""A gateway as an operator runs it: a process of its own, its configuration in a file, its answers on sockets.

All its timers run at a tenth (`timeouts.scale`) unless a test says otherwise. It must end quietly: a traceback, an
exception nobody retrieved or an unclosed transport in its log fails the test that ran it.
"""

import hashlib
import json
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.kit.http_reader import Response
from tests.kit.processes import Child, free_ports, python, until_async
from tests.kit.raw_client import exchange

ADMIN_TOKEN = "kit-admin-token"
NOISE = (
    b"Traceback (most recent call last)",
    b"exception was never retrieved",
    b"was never awaited",
    b"Exception in callback",
    b"Exception ignored",
    b"ResourceWarning",
    b"unclosed",
    b"Fatal error on transport",
    b"InvariantError",
    b'"internal error"',  # what the event log says instead of a traceback
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the process is run. `env` also takes PYTHONASYNCIODEBUG; `files` is `ulimit -n`; `core` a CPU number."""

    optimize: bool = False
    files: int = 0
    core: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 20.0
    workers: int = 1


def config(
    urls: Sequence[str], *, endpoint: Mapping[str, Any] | None = None, own_models: bool = False, **changes: Any
) -> dict[str, Any]:
    """A small fleet over `urls`: model `m`, and `emb` for the prefill routes.

    With `own_models` each endpoint serves a model of its own instead, `m0`, `m1` and so on. `endpoint` is merged into
    every endpoint, `changes` into the whole, section by section.
    """
    names = [[f"m{at}"] if own_models else ["m", "emb"] for at in range(len(urls))]
    kinds = {name: "embedding" if name == "emb" else "chat" for group in names for name in group}
    made: dict[str, Any] = {
        "version": 1,
        "listen": {"host": "127.0.0.1"},
        "admin": {
            "host": "127.0.0.1",
            "tokens": [{"id": "kit", "sha256": hashlib.sha256(ADMIN_TOKEN.encode()).hexdigest(), "role": "operate"}],
        },
        "models": {name: {"context_tokens": 131072, "kind": kind} for name, kind in kinds.items()},
        "pools": {_pool(name): {"model": name} for name in kinds},
        "endpoints": [
            {"name": f"e{at}", "url": url, "engine": "vllm", "pools": list(map(_pool, names[at])), **(endpoint or {})}
            for at, url in enumerate(urls)
        ],
        "upstream": {"probe_s": 30, "scrape_s": 30},
        "admission": {"drain_lag_s": 0},
        "timeouts": {"scale": 0.1, "connect_s": 5},  # a tenth of the usual second is too short for a busy machine
    }
    return merged(made, changes)


def _pool(model: str) -> str:
    return "main" if model == "m" else model


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key, anything else replaced; None removes a key."""
    made = dict(base)
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(made.get(key), Mapping):
            made[key] = merged(made[key], value)
        else:
            made[key] = value
    return made


class Metrics:
    """One scrape, by name and labels. That its text is Prometheus' is tested elsewhere; here it is read often, and fast."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: Samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                found = SAMPLE.fullmatch(line)
                assert found, line
                name, labels, value = found.groups()
                self.samples[name, _labels(labels or "")] = float(value)

    def sum(self, name: str, **labels: str) -> float:
        """Sum over every series of that name that has these labels; 0.0 when there is none."""
        wanted = set(labels.items())
        return sum(value for (found, have), value in self.samples.items() if found == name and wanted <= set(have))

    def by(self, name: str, label: str) -> dict[str, float]:
        made: dict[str, float] = {}
        for (found, have), value in self.samples.items():
            if found == name:
                key = dict(have).get(label, "")
                made[key] = made.get(key, 0.0) + value
        return made

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


@lru_cache(100_000)
def _labels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(map(_label, LABEL.finditer(text))))


def _label(found: re.Match[str]) -> tuple[str, str]:
    """Its name and value."""
    name, value = found.groups()
    return name, re.sub(r"\\.", lambda escaped: ESCAPED[escaped[0]], value) if "\\" in value else value


class Gateway:
    """`async with Gateway(config([...]), tmp_path) as gateway`. `.port` is the data listener.

    `tenants`: the files of `tenants.d`, as `tests.kit.tenants.tenant` makes them. None: there is no such folder.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        directory: Path,
        *,
        launch: Launch | None = None,
        name: str = "gateway",
        tenants: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.tenants = tenants
        self.port, self.admin_port = free_ports(2)
        self.settings = merged(
            settings,
            {
                "listen": {"port": settings.get("listen", {}).get("port", self.port)},
                "admin": {"port": settings.get("admin", {}).get("port", self.admin_port)},
            },
        )
        self.port, self.admin_port = self.settings["listen"]["port"], self.settings["admin"]["port"]
        self.directory, self.name = directory, name
        self.launch = launch or Launch()
        self.file = directory / f"{name}.yaml"
        self.child: Child | None = None
        self._access_at = 0
        self._access: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    async def start(self, *, up: int | None = None) -> None:
        """Start it and wait until it is ready and `up` endpoints (all of them by default) may be used."""
        self.write()
        env = {"PYTHONWARNINGS": "always::ResourceWarning", "NO_COLOR": "1", **self.launch.env}
        argv = python(
            "-m",
            "gateway",
            "serve",
            "--config",
            str(self.file),
            *(["--workers", str(self.launch.workers)] if self.launch.workers > 1 else []),
            optimize=self.launch.optimize,
            files=self.launch.files,
            core=self.launch.core,
        )
        self.child = Child(argv, self.directory, self.name, env)
        try:
            await until_async(self._ready, self.launch.ready_s, "the gateway is not ready")
            await self.wait_workers()
            await self.wait_up(len(self.settings["endpoints"]) if up is None else up)
        except BaseException as error:
            self.child.kill()
            error.add_note(f"stderr: {self.stderr()[-2000:]!r}\nstdout: {self.child.out.read_bytes()[-1000:]!r}")
            raise

    def write(self) -> None:
        """Its files: forebay.yaml, and one for each tenant. Each is whole at every moment: another replica may read it."""
        self._write(self.file, self.settings)
        if self.tenants is not None:
            folder = self.directory / "tenants.d"
            folder.mkdir(exist_ok=True)
            for tenant in self.tenants:
                self._write(folder / f"{tenant['id']}.yaml", tenant)

    def _write(self, file: Path, content: Mapping[str, Any]) -> None:
        new = self.directory / f"{self.name}.new"
        new.write_text(yaml.safe_dump(content, sort_keys=False))
        new.replace(file)

    async def _ready(self) -> bool:
        assert self.child is not None
        if self.child.exited:
            raise RuntimeError(f"the gateway ended with status {self.child.process.returncode}")
        try:
            return (await self.get("/readyz", port=self.admin_port)).status == 200
        except OSError:
            return False

    async def wait_workers(self, timeout_s: float = 20.0) -> None:
        """Until all of them serve."""

        async def enough() -> bool:
            return (await self.metrics()).sum("forebay_workers") == self.launch.workers

        await until_async(enough, timeout_s, f"{self.launch.workers} workers do not serve")

    async def wait_up(self, count: int, timeout_s: float = 10.0) -> None:
        async def enough() -> bool:
            return (await self.metrics()).sum("forebay_endpoint_up") == count

        await until_async(enough, timeout_s, f"{count} endpoints are not up")

    async def get(self, path: str, *, port: int = 0, token: str = "", method: str = "GET") -> Response:
        """One request on a connection of its own, so that nothing of ours stays open in the gateway."""
        auth = f"authorization: Bearer {token}\r\n" if token else ""
        message = f"{method} {path} HTTP/1.1\r\nhost: kit\r\n{auth}content-length: 0\r\nconnection: close\r\n\r\n"
        if method == "GET":
            message = message.replace("content-length: 0\r\n", "")
        return await exchange(port or self.port, message.encode())

    async def admin(self, path: str, *, method: str = "GET") -> Any:
        """The JSON of an admin route."""
        answer = await self.get(path, port=self.admin_port, token=ADMIN_TOKEN, method=method)
        if not 200 <= answer.status < 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body!r}")
        return json.loads(answer.body) if answer.body else None

    async def metrics(self) -> Metrics:
        answer = await self.get("/metrics", port=self.admin_port)
        return Metrics(answer.body.decode())

    def access(self) -> list[dict[str, Any]]:
        """The access lines so far, one per request."""
        assert self.child is not None
        data = self.child.out.read_bytes()
        whole = data.rfind(b"\n") + 1
        for line in data[self._access_at : whole].split(b"\n"):
            if line.startswith(b"{"):
                entry = json.loads(line)
                if "outcome" in entry or "status" in entry:
                    self._access.append(entry)
        self._access_at = whole
        return self._access

    def stderr(self) -> bytes:
        assert self.child is not None
        return self.child.err.read_bytes()

    def output(self) -> bytes:
        """Everything the process has written anywhere."""
        assert self.child is not None
        return self.child.out.read_bytes() + self.child.err.read_bytes()

    def noise(self) -> list[str]:
        """What must never be in its log (C9), with some context."""
        text = self.output()
        return [
            text[max(0, text.find(mark) - 200) : text.find(mark) + 1500].decode(errors="replace")
            for mark in NOISE
            if mark in text
        ]

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.signal(number)

    async def stop(self, timeout_s: float = 15.0) -> int:
        """SIGTERM; its exit status."""
        assert self.child is not None
        began = time.monotonic()
        status = await self.child.stop(timeout_s)
        if time.monotonic() - began >= timeout_s:
            raise TimeoutError(f"the gateway did not end {timeout_s} s after SIGTERM")
        return status

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        status = await self.stop()
        if kind is None:
            noise = self.noise()
            if noise:
                raise AssertionError("the gateway's log is not quiet (C9):\n" + "\n---\n".join(noise))
            if status not in (0, -9):
                raise AssertionError(f"the gateway ended with status {status}: {self.stderr()[-1500:]!r}")


def outcomes(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many access lines there are per outcome."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[str(line.get("outcome", ""))] = counts.get(str(line.get("outcome", "")), 0) + 1
    return counts
