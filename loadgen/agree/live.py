"""The live side: engines and gateway as processes on this machine, the load of `forebay bench`, and whether to believe it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console

from loadgen import tasks
from loadgen.agree.case import Case
from loadgen.agree.journal import Told, told
from loadgen.agree.outcome import Came, output_tokens
from loadgen.bench.basis import plan
from loadgen.bench.keys import Keys
from loadgen.bench.lengths import Sizes
from loadgen.bench.options import BenchOptions
from loadgen.bench.preflight import Ready
from loadgen.bench.run import Course, measured
from loadgen.bench.stop import Stop
from loadgen.client import Target
from loadgen.live import serving
from loadgen.live.processes import LiveError, Processes, free_ports
from loadgen.live.serving import FOREBAY, Listeners
from loadgen.report.document import Report
from loadgen.report.folder import read_run
from loadgen.report.parts import State
from loadgen.sim.fleet import Flags, Group

# What a fleet's flags are called where they are not called as vLLM calls them; None: no engine can be given it.
OF_VLLM = dict.fromkeys(
    ("cap_when_alone", "chunked_prefill_size", "max_prefill_tokens", "enable_mixed_chunk", "schedule_conservativeness")
)
OF_SGLANG = {
    "max_num_seqs": "max-running-requests",
    "max_model_len": "context-length",
    "max_num_queued_reqs": "max-queued-requests",
    **dict.fromkeys(("cap_when_alone", "max_num_queued_tokens")),
}


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


async def run(case: Case, name: str, folder: Path, screen: Console) -> Ran:
    """One run with fresh processes, which leave their files in `folder`. LiveError when one does not start, or ends."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        listeners = serving.listeners()
        engines = await _start(case, listeners, processes, folder)
        async with aiohttp.ClientSession() as session:
            course = _course(case, listeners, engines, screen, session)
            load = measured(course, plan(case.scenario, case.drawn), folder, name)
            report, _ = await processes.while_alive(tasks.start(load, f"load of {name}"))
        states = await _asked(engines)
    finally:
        await processes.stop()
    journal = told(folder / "journal.jsonl")
    samples = read_run(folder).samples
    came = Came(
        report=case.report(samples),
        output_tokens=output_tokens(samples),
        sent=journal.sent,
        steps=sum(state.steps for state in states),
        preemptions=sum(state.preemptions for state in states),
    )
    return Ran(came=came, told=journal, faults=faults(report))


def faults(report: Report) -> dict[str, str]:
    """The rules that a run broke, and how. Cells that are too small (V8) are shown and not judged here."""
    return {
        rule.id: f"{rule.words}: {rule.value:g}, limit {rule.limit:g}"
        for rule in report.validity.rules
        if rule.state is not State.OK and rule.id != "V8"
    }


def _course(
    case: Case, listeners: Listeners, engines: Sequence[Engine], screen: Console, session: aiohttp.ClientSession
) -> Course:
    """As `forebay bench` does it, without its preflight: the simulator knows of no request but the schedule's."""
    admin = f"http://127.0.0.1:{listeners.admin}"
    options = BenchOptions(
        urls=(listeners.url,),
        scrape=(admin, *(engine.url for engine in engines)),
        length_control="marker",
        html=False,
    )
    target = Target(url=listeners.url, model=case.model)
    ready = Ready(
        targets=dict.fromkeys(set(case.tenants), (target,)),
        control="marker",
        sizes=Sizes(),
        context_tokens=None,
        warnings=(),
    )
    return Course(
        options=options, keys=Keys({}, {}), ready=ready, screen=screen, stop=Stop(lambda text: None), session=session
    )


async def _start(case: Case, listeners: Listeners, processes: Processes, folder: Path) -> list[Engine]:
    engines: list[Engine] = []
    for group in case.fleet.engines:
        port = free_ports(2 * group.count)
        control = port + group.count
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
    set_here = {name: value for name, value in given.items() if value != usual[name] and name != "variant"}
    set_here |= {"max_model_len": group.flags.max_model_len}  # the engine's own default is the profile's
    sglang = group.flags.variant == "sglang"
    called = OF_SGLANG if sglang else OF_VLLM
    foreign = sorted(name for name in set_here if name in called and called[name] is None)
    if foreign:
        raise LiveError(f"forebay engine takes no {foreign[0]}: engines {group.name} cannot run live", status=2)
    switches = _sglang_switches(set_here) if sglang else _vllm_switches(set_here)
    values = {"profile": group.profile, "port": port, "count": group.count, "control-port": control}
    values |= {called.get(name) or name.replace("_", "-"): value for name, value in set_here.items()}
    return (*FOREBAY, "engine", *serving.flags(values), "--allow-markers", *switches)


def _vllm_switches(flags: dict[str, Any]) -> tuple[str, ...]:
    """Those that take no value; they are taken out of `flags`."""
    cached = flags.pop("enable_prefix_caching", True)
    return ("--enable-prompt-tokens-details", *(() if cached else ("--no-enable-prefix-caching",)))


def _sglang_switches(flags: dict[str, Any]) -> tuple[str, ...]:
    wanted = {
        "--disable-radix-cache": not flags.pop("enable_prefix_caching", True),
        "--enable-mixed-chunk": flags.pop("enable_mixed_chunk", False),
        "--enable-priority-scheduling": flags.pop("scheduling_policy", "fcfs") == "priority",
    }
    always = ("--dialect", "sglang", "--enable-cache-report", "--enable-metrics")
    return (*always, *(name for name, on in wanted.items() if on))


def gateway_config(case: Case, listeners: Listeners, engines: list[Engine], journal: Path) -> dict[str, Any]:
    """The whole forebay.yaml."""
    contexts = [known.context_tokens for known in case.endpoints()]
    variants = [group.flags.variant for group in case.fleet.engines for _ in range(group.count)]
    return {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": listeners.data},
        "admin": {"host": "127.0.0.1", "port": listeners.admin},
        "models": {case.model: {"context_tokens": max(contexts)}},
        "endpoints": [
            {
                "name": known.name,
                "url": engine.url,
                "engine": variant,
                "pools": list(known.pools),
                "max_seqs": known.max_seqs,
                "max_prefill_tokens": known.max_prefill_tokens,
                "long_lanes": known.long_lanes,
                "long_prefill_cap": known.long_prefill_cap,
            }
            for known, engine, variant in zip(case.endpoints(), engines, variants, strict=True)
        ],
        "admission": {"drain_lag_s": 0, "drain_grace_s": 2},
        "telemetry": {"journal": str(journal.resolve()), "log_level": "warning"},
        **case.config(),
    }


async def _asked(engines: list[Engine]) -> list[_State]:
    states = []
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for engine in engines:
            async with session.get(f"{engine.control}/state") as answer:
                states.append(msgspec.json.decode(await answer.read(), type=_State))
    return states
