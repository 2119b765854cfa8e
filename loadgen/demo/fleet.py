"""The two things a demo can send load to: four simulated engines alone, or the same behind a gateway.

Engines and gateway run as processes of the installed `forebay` command, as a user would run them; this module writes
their command lines and the gateway's configuration, and waits until a real answer has come through.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import yaml

from loadgen.demo.processes import DemoError, Processes, free_ports, is_free

MODEL = "llama-70b"
ENGINES = 4
_GROUPS = 2  # processes that carry them: one each for the two cores this should run on
PROFILE = "llama70b-fp8-h200-tp2"
_BUDGET, _SEQS, _CONTEXT = 2048, 256, 32768
_START_S = 60.0
_FOREBAY = (sys.executable, "-m", "gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where the gateway listens on loopback."""

    data: int
    admin: int

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.data}"


async def start_engines(processes: Processes, seed: int) -> list[str]:
    """Start four fresh engines; their base URLs once all are healthy."""
    urls: list[str] = []
    for group in range(_GROUPS):
        count = ENGINES // _GROUPS
        port = free_ports(count)
        urls += [f"http://127.0.0.1:{port + offset}" for offset in range(count)]
        processes.start(f"engines-{group}", engine_argv(port, count, seed + group))
    async with aiohttp.ClientSession() as session:
        for url in urls:
            await processes.until(f"the engine at {url}", partial(_is_200, session, f"{url}/health"), _START_S)
    return urls


async def start_gateway(processes: Processes, folder: Path, listeners: Listeners, engines: list[str]) -> None:
    """Start the gateway over `engines` and wait until each of them is in use."""
    config = folder / "forebay.yaml"
    config.write_text(yaml.safe_dump(gateway_config(listeners, engines), sort_keys=False), "utf-8")
    processes.start("gateway", (*_FOREBAY, "serve", "--config", str(config)))
    metrics = f"http://127.0.0.1:{listeners.admin}/metrics"
    async with aiohttp.ClientSession() as session:
        await processes.until("the gateway", partial(_all_up, session, metrics), _START_S)


def choose_listeners(port: int) -> Listeners:
    """`port` for clients (0: any free one), and a free one for operators; DemoError when `port` is taken."""
    if port and not is_free(port):
        raise DemoError(
            f"Port {port} is in use. Leave --port out and a free one is taken, or name another: "
            f"forebay demo --port {port + 1 if port < 65535 else 8080}",
            status=2,
        )
    data = port or free_ports(1)
    admin = free_ports(1)
    return Listeners(data=data, admin=admin if admin != data else free_ports(1))


def engine_argv(port: int, count: int, seed: int) -> tuple[str, ...]:
    """The command line of one process with `count` engines from `port` on: fleet `ref4-cap512` of loadgen.md 3.2."""
    flags = {
        "profile": PROFILE,
        "port": port,
        "count": count,
        "seed": seed,
        "max-num-batched-tokens": _BUDGET,
        "max-num-seqs": _SEQS,
        "max-model-len": _CONTEXT,
        "long-prefill-token-threshold": 512,
        "watermark": 0.02,
        "served-model-name": MODEL,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return (*_FOREBAY, "engine", *words, "--allow-markers", "--enable-prompt-tokens-details")


def gateway_config(listeners: Listeners, engines: list[str]) -> dict[str, object]:
    """What stands in forebay.yaml: bounds of the engines, three classes, a quick drain."""
    return {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": listeners.data},
        "admin": {"host": "127.0.0.1", "port": listeners.admin},
        "models": {MODEL: {"context_tokens": _CONTEXT}},
        "pools": {"main": {"model": MODEL}},
        "endpoints": [
            {
                "name": f"engine-{number}",
                "url": url,
                "engine": "vllm",
                "pools": ["main"],
                "max_seqs": _SEQS,
                "max_prefill_tokens": _BUDGET,
            }
            for number, url in enumerate(engines)
        ],
        "classes": {
            "interactive": {"slo": {"ttft_ms": 400, "itl_ms": 100}},
            "standard": {"slo": {"ttft_ms": 400, "itl_ms": 100}},
            "batch": {"queue_timeout_s": 120},
        },
        "admission": {"drain_lag_s": 0, "drain_grace_s": 5},
    }


async def _is_200(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _all_up(session: aiohttp.ClientSession, metrics: str) -> bool:
    try:
        async with session.get(metrics) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError):
        return False
    up = [line for line in text.splitlines() if line.startswith("forebay_endpoint_up{") and line.endswith(" 1")]
    return len(up) >= ENGINES
