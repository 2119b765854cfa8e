"""The two things a demo can send load to: four simulated engines alone, or the same behind a gateway.

Engines and gateway run as processes of the installed `forebay` command, as a user would run them; this module writes
their command lines and the gateway's configuration, and waits until a real answer has come through.
"""

from pathlib import Path

from loadgen.live import serving
from loadgen.live.processes import LiveError, Processes, free_ports, is_free
from loadgen.live.serving import FOREBAY, Listeners, until_healthy

MODEL = "llama-70b"
ENGINES = 4
_GROUPS = 2  # processes that carry them: one each for the two cores this should run on
PROFILE = "llama70b-fp8-h200-tp2"
_BUDGET, _CAP, _SEQS, _CONTEXT = 2048, 512, 256, 32768


async def start_engines(processes: Processes, seed: int) -> list[str]:
    """Start four fresh engines; their base URLs once all are healthy."""
    urls: list[str] = []
    for group in range(_GROUPS):
        count = ENGINES // _GROUPS
        port = free_ports(count)
        urls += [f"http://127.0.0.1:{port + offset}" for offset in range(count)]
        processes.start(f"engines-{group}", engine_argv(port, count, seed + group))
    await until_healthy(processes, urls)
    return urls


async def start_gateway(processes: Processes, folder: Path, listeners: Listeners, engines: list[str]) -> None:
    """Start the gateway over `engines` and wait until each of them is in use."""
    await serving.start_gateway(processes, folder, listeners, gateway_config(listeners, engines), ENGINES)


def choose_listeners(port: int) -> Listeners:
    """`port` for clients (0: any free one), and a free one for operators; LiveError when `port` is taken."""
    if port and not is_free(port):
        raise LiveError(
            f"Port {port} is in use. Leave --port out and a free one is taken, or name another: "
            f"forebay demo --port {port + 1 if port < 65535 else 8080}",
            status=2,
        )
    return serving.listeners(port)


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
        "long-prefill-token-threshold": _CAP,
        "watermark": 0.02,
        "served-model-name": MODEL,
    }
    return (*FOREBAY, "engine", *serving.flags(flags), "--allow-markers", "--enable-prompt-tokens-details")


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
                "long_prefill_cap": _CAP,
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
