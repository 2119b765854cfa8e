"""The live side: engines, gateway and client as processes and loops on this machine, and whether to believe them."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console

from loadgen.agree.case import Case
from loadgen.agree.journal import Told, told
from loadgen.agree.outcome import Came, output_tokens
from loadgen.live import serving
from loadgen.live.load import Load, Place, send
from loadgen.live.processes import LiveError, Processes, free_ports
from loadgen.live.serving import FOREBAY, Listeners
from loadgen.report.record import Sample
from loadgen.report.stats import quantile
from loadgen.sim.fleet import Flags, Group

SEND_LAG_MS = 10.0  # loadgen.md 8.2, V1: that, or this share of the least TTFT limit
SEND_LAG_SHARE = 0.05
EMIT_LAG_MS = 5.0  # V9
NOT_ENGINE_FLAGS = (
    *("variant", "cap_when_alone", "chunked_prefill_size", "max_prefill_tokens"),
    *("enable_mixed_chunk", "schedule_conservativeness"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A live run. `faults`: which limits of loadgen.md 8.2 it broke, and how, by their number there."""

    came: Came
    told: Told
    faults: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine as a process serves it."""

    name: str
    url: str
    control: str


class _State(msgspec.Struct):
    steps: int
    preemptions: int


class _Lag(msgspec.Struct):
    p99_ms: float


async def run(case: Case, name: str, folder: Path, screen: Console) -> Ran:
    """One run with fresh processes, which leave their files in `folder`. LiveError when one does not start, or ends."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        listeners = serving.listeners()
        engines = await _start(case, listeners, processes, folder)
        samples = await send(
            _load(case), Place(name=name, urls=[listeners.url], processes=processes, folder=folder), screen
        )
        states, lags = await _asked(engines)
    finally:
        await processes.stop()
    journal = told(folder / "journal.jsonl")
    tokens = output_tokens(samples)
    came = Came(
        report=case.report(samples),
        output_tokens=tokens,
        sent=journal.sent,
        steps=sum(state.steps for state in states),
        preemptions=sum(state.preemptions for state in states),
    )
    return Ran(came=came, told=journal, faults=dict(_faults(case, samples, lags)))


def _load(case: Case) -> Load:
    return Load(
        schedule=case.schedule,
        model=case.model,
        classes=case.priorities,
        slo=case.scenario.slo,
        salt=secrets.token_hex(8),
    )


async def _start(case: Case, listeners: Listeners, processes: Processes, folder: Path) -> list[Engine]:
    engines: list[Engine] = []
    for group in case.fleet.engines:
        port, control = free_ports(group.count), free_ports(group.count)
        processes.start(f"engines-{group.name}", engine_argv(group, port, control))
        engines += (
            Engine(
                name=f"{group.name}{number}",
                url=f"http://127.0.0.1:{port + number}",
                control=f"http://127.0.0.1:{control + number}",
            )
            for number in range(group.count)
        )
    await serving.until_healthy(processes, [engine.url for engine in engines])
    config = gateway_config(case, listeners, engines, folder / "journal.jsonl")
    await serving.start_gateway(processes, folder, listeners, config, len(engines))
    return engines


def engine_argv(group: Group, port: int, control: int) -> tuple[str, ...]:
    """The command line of one process with all engines of a group. LiveError for flags that it cannot be given."""
    given, usual = msgspec.structs.asdict(group.flags), msgspec.structs.asdict(Flags())
    set_here = {name: value for name, value in given.items() if value != usual[name]}
    foreign = sorted(set(set_here) & set(NOT_ENGINE_FLAGS))
    if foreign:
        raise LiveError(f"forebay engine takes no {foreign[0]}: engines {group.name} cannot run live", status=2)
    switches = () if group.flags.enable_prefix_caching else ("--no-enable-prefix-caching",)
    set_here.pop("enable_prefix_caching", None)
    values = {"profile": group.profile, "port": port, "count": group.count, "control-port": control}
    values |= {"max-model-len": group.flags.max_model_len}  # the engine's own default is the profile's
    values |= {name.replace("_", "-"): value for name, value in set_here.items()}
    markers = ("--allow-markers", "--enable-prompt-tokens-details")
    return (*FOREBAY, "engine", *serving.flags(values), *markers, *switches)


def gateway_config(case: Case, listeners: Listeners, engines: list[Engine], journal: Path) -> dict[str, Any]:
    """The whole forebay.yaml."""
    contexts = [known.context_tokens for known in case.endpoints()]
    return {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": listeners.data},
        "admin": {"host": "127.0.0.1", "port": listeners.admin},
        "models": {case.model: {"context_tokens": max(contexts)}},
        "endpoints": [
            {
                "name": known.name,
                "url": engine.url,
                "pools": list(known.pools),
                "max_seqs": known.max_seqs,
                "max_prefill_tokens": known.max_prefill_tokens,
                "long_lanes": known.long_lanes,
                "long_prefill_cap": known.long_prefill_cap,
            }
            for known, engine in zip(case.endpoints(), engines, strict=True)
        ],
        "admission": {"drain_lag_s": 0, "drain_grace_s": 2},
        "telemetry": {"journal": str(journal.resolve()), "log_level": "warning"},
        **case.config(),
    }


async def _asked(engines: list[Engine]) -> tuple[list[_State], list[_Lag]]:
    states, lags = [], []
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for engine in engines:
            async with session.get(f"{engine.control}/state") as answer:
                states.append(msgspec.json.decode(await answer.read(), type=_State))
            async with session.get(f"{engine.control}/lag") as answer:
                lags.append(msgspec.json.decode(await answer.read(), type=_Lag))
    return states, lags


def _faults(case: Case, samples: list[Sample], lags: list[_Lag]) -> Iterator[tuple[str, str]]:
    least_ms = min(case.scenario.goal(tenant, "").ttft.base_ms for tenant in set(case.tenants))
    limit_ms = min(SEND_LAG_MS, SEND_LAG_SHARE * least_ms)
    late_ms = quantile((one.lag_ms for one in samples), 0.99).value or 0.0
    if late_ms > limit_ms:
        yield "V1", f"requests went out late: p99 {late_ms:.1f} ms, limit {limit_ms:g}"
    emit_ms = max(lag.p99_ms for lag in lags)
    if emit_ms > EMIT_LAG_MS:
        yield "V9", f"engines gave tokens out late: p99 {emit_ms:.1f} ms, limit {EMIT_LAG_MS:g}"
