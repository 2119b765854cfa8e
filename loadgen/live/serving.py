"""Engines and a gateway as processes of the `forebay` command, as a user would run them, and waiting until they serve."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import yaml

from loadgen.live.processes import Processes, free_ports

FOREBAY = (sys.executable, "-m", "gateway")
START_S = 60.0  # from the start of a process to its first good answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where a gateway listens on loopback."""

    data: int
    admin: int

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.data}"


def listeners(port: int = 0) -> Listeners:
    """`port` for clients (0: any free one), and a free one for operators."""
    first = free_ports(2)
    data = port or first
    return Listeners(data=data, admin=first + 1 if data == first else first)


def flags(values: Mapping[str, object]) -> tuple[str, ...]:
    """Options of a command line, by name."""
    return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


async def until_healthy(processes: Processes, urls: Sequence[str]) -> None:
    """Wait until every engine answers. LiveError when one does not come up."""
    async with aiohttp.ClientSession() as session:
        for url in urls:
            await processes.until(f"the engine at {url}", partial(_is_200, session, f"{url}/health"), START_S)


async def start_gateway(
    processes: Processes, folder: Path, listeners: Listeners, config: Mapping[str, object], endpoints: int
) -> None:
    """Start a gateway with `config` and wait until all its `endpoints` are in use. LiveError when they do not."""
    file = folder / "forebay.yaml"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False), "utf-8")
    processes.start("gateway", (*FOREBAY, "serve", "--config", str(file)))
    metrics = f"http://127.0.0.1:{listeners.admin}/metrics"
    async with aiohttp.ClientSession() as session:
        await processes.until("the gateway", partial(_all_up, session, metrics, endpoints), START_S)


async def _is_200(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _all_up(session: aiohttp.ClientSession, metrics: str, endpoints: int) -> bool:
    try:
        async with session.get(metrics) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError):
        return False
    up = [line for line in text.splitlines() if line.startswith("forebay_endpoint_up{") and line.endswith(" 1")]
    return len(up) >= endpoints
