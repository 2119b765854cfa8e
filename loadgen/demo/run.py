"""`forebay demo`: the same load twice over four simulated engines, with the gateway and without, and the difference.

Each arm has fresh engines, the same schedule and the same prompts; only what decides where a request goes, and when,
differs. The second arm takes the engines in turn, as a plain round-robin balancer would, and is spared the hop that
the gateway costs. Everything runs on this machine; what is started is stopped, whatever happens.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from loadgen.demo.arm import Arm
from loadgen.demo.fleet import MODEL, choose_listeners, start_engines, start_gateway
from loadgen.live.load import Load
from loadgen.live.processes import LiveError, Processes
from loadgen.live.progress import LAG_LIMIT_MS
from loadgen.live.signals import INTERRUPTED, cancel_on_signal
from loadgen.report.figures import counts
from loadgen.report.record import REJECTED, Outcome, Sample, Slo
from loadgen.report.run import RunReport, report
from loadgen.report.stats import quantile
from loadgen.report.table import footnotes, groups, table, verdict
from loadgen.scenario import Scenario, standard
from loadgen.schedule import Schedule, build

GATEWAY, ROUND_ROBIN = "gateway", "round robin"
MIN_SECONDS = 2.0
_PLAIN_WIDTH = 100
_FINE = (Outcome.OK, Outcome.CANCELLED, *REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line says. `seconds` of load per arm, warm-up included; `rate` requests/s in all (None: the
    scenario's); `port` of the gateway (0: any free one); `out` keeps configs, logs, schedule, one line per request."""

    seconds: float = 60.0
    json_file: Path | None = None
    out: Path | None = None
    no_compare: bool = False
    rate: float | None = None
    seed: int = 7
    port: int = 0


def run_demo(options: DemoOptions) -> int:
    """Run it and print the report. Exit status (loadgen.md 1.1): 0; 1 requests failed; 2 options; 4 start; 130."""
    screen = Console(stderr=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_interruptible(options, screen))
    except LiveError as error:
        screen.print(f"forebay demo: {error}", highlight=False, markup=False, soft_wrap=True)
        return error.status


async def _interruptible(options: DemoOptions, screen: Console) -> int:
    cancel_on_signal()
    try:
        return await _demo(options, screen)
    except asyncio.CancelledError:
        screen.print("forebay demo: interrupted; engines and gateway are stopped.", highlight=False)
        return INTERRUPTED


async def _demo(options: DemoOptions, screen: Console) -> int:
    _check(options)
    scenario = _scenario(options)
    schedule = build(scenario, options.seed)
    if not schedule.measured:
        raise LiveError("No request falls into this time at this rate: raise --seconds or --rate", status=2)
    classes = tuple(dict.fromkeys(tenant.priority for tenant in scenario.tenants))
    load = Load(schedule=schedule, model=MODEL, classes=classes, slo=scenario.slo, salt=secrets.token_hex(8))
    with _Folder(options.out) as folder:
        _announce(screen, options, scenario, schedule)
        schedule.write(folder.path / "schedule.jsonl.gz")
        arms = _arms(options, folder.path)
        samples = {arm.name: await arm.run(load, screen) for arm in arms}
        reports = {name: _report(of_arm, load) for name, of_arm in samples.items()}
        _publish(options, scenario.slo, samples, reports)
        failed = _complain(screen, samples)
        folder.keep = folder.keep or failed
    if folder.keep:
        screen.print(f"Configuration, logs and one line per request: {folder.path}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


class _Folder:
    """Where files of a run go: the user's own, or a temporary one that stays only if something went wrong."""

    def __init__(self, wanted: Path | None) -> None:
        self.path = wanted or Path(tempfile.mkdtemp(prefix="forebay-demo-"))
        self.keep = wanted is not None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LiveError(f"--out {self.path}: {error.strerror}; name a folder that can be made", status=2) from error

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.keep = self.keep or (kind is not None and issubclass(kind, Exception))
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _check(options: DemoOptions) -> None:
    if options.seconds < MIN_SECONDS:
        raise LiveError(f"--seconds: at least {MIN_SECONDS:g}; 20 gives a first impression, 60 firm figures", status=2)
    if options.rate is not None and options.rate <= 0:
        raise LiveError("--rate: more than 0 requests/s", status=2)
    if options.json_file is not None:
        _check_writable(options.json_file)
    choose_listeners(options.port)  # a busy port is said before anything starts


def _check_writable(file: Path) -> None:
    """Now, not after two minutes of load."""
    existed = file.exists()
    try:
        file.open("ab").close()
        if not existed:
            file.unlink()
    except OSError as error:
        raise LiveError(f"--json {file}: {error.strerror}; name a file that can be written", status=2) from error


def _scenario(options: DemoOptions) -> Scenario:
    scenario = standard("demo").lasting(options.seconds)
    return scenario if options.rate is None else scenario.at_rate(options.rate)


def _arms(options: DemoOptions, folder: Path) -> list[Arm]:
    async def through_gateway(processes: Processes, logs: Path) -> list[str]:
        engines = await start_engines(processes, options.seed)
        listeners = choose_listeners(options.port)
        await start_gateway(processes, logs, listeners, engines)
        return [listeners.url]

    async def directly(processes: Processes, _: Path) -> list[str]:
        return await start_engines(processes, options.seed)

    arms = [Arm(name=GATEWAY, start=through_gateway, folder=folder / "gateway")]
    if not options.no_compare:
        arms.append(Arm(name=ROUND_ROBIN, start=directly, folder=folder / "round-robin"))
    return arms


def _announce(screen: Console, options: DemoOptions, scenario: Scenario, schedule: Schedule) -> None:
    arms = "through the gateway" if options.no_compare else "through the gateway, then round robin without it"
    screen.print(
        f"Four simulated 70B engines (H200, two GPUs each), {scenario.rate:.1f} requests/s for {options.seconds:g} s "
        f"({len(schedule.requests)} requests, the first {scenario.warmup_s:g} s not counted), {arms}.",
        highlight=False,
        soft_wrap=True,
    )
    if not screen.is_terminal:
        screen.print("No terminal here: one line every 5 s. For numbers in a file: --json FILE.", soft_wrap=True)


def _report(samples: Sequence[Sample], load: Load) -> RunReport:
    return report(samples, lambda _: load.slo, load.slo, load.window_s, (load.schedule.seed, load.schedule.digest()))


def _publish(
    options: DemoOptions, slo: Slo, samples: Mapping[str, Sequence[Sample]], reports: Mapping[str, RunReport]
) -> None:
    page = Console()
    if not page.is_terminal:
        page = Console(width=_PLAIN_WIDTH)
    page.print(table(reports))
    page.print()
    for note in footnotes(slo, reports):
        page.print(note, highlight=False)
    if ROUND_ROBIN in reports:
        page.print(verdict(reports[GATEWAY], reports[ROUND_ROBIN]), style="bold", highlight=False)
    if options.json_file is not None:
        options.json_file.write_bytes(
            msgspec.json.format(msgspec.json.encode(_as_json(samples, reports)), indent=2) + b"\n"
        )


def _as_json(samples: Mapping[str, Sequence[Sample]], reports: Mapping[str, RunReport]) -> dict[str, object]:
    told = {name: dict(_plain(samples[name], report)) for name, report in reports.items()}
    ours = told[GATEWAY]
    made: dict[str, object] = {"totals": ours.pop("all"), "classes": ours}
    if ROUND_ROBIN in told:
        made["round_robin"] = told[ROUND_ROBIN]["all"]
    return made


def _plain(samples: Sequence[Sample], report: RunReport) -> Iterator[tuple[str, dict[str, object]]]:
    """The figures of each class and of all as plain values."""
    left = Counter(one.priority for one in samples if one.measured and not counts(one))
    for name, group in groups(report).items():
        yield (
            name,
            {
                "offered": group.offered,
                "ok": group.ok,
                "rejected": group.rejected,
                "failed": group.failed,
                "cancelled": left.total() if name == "all" else left[name],
                "attainment": _rounded(group.attainment, 4),
                "output_tokens_per_s": round(group.output_tokens_per_s, 1),
                "ttft_ms": {
                    "p50": _rounded(group.ttft_completed_p50_ms, 1),
                    "p99": _rounded(group.ttft_completed_p99_ms, 1),
                },
                "itl_ms": {"p99": _rounded(group.times["itl"].completed.p99_ms, 1)},
            },
        )


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _complain(screen: Console, samples: Mapping[str, Sequence[Sample]]) -> bool:
    """Say what went wrong; whether anything failed."""
    failed = False
    for name, of_arm in samples.items():
        lag_ms = quantile((one.lag_ms for one in of_arm), 0.99)
        if lag_ms is not None and lag_ms > LAG_LIMIT_MS:
            screen.print(
                f"Warning: in arm {name} the client was late (send lag p99 {lag_ms:.0f} ms, limit {LAG_LIMIT_MS:g}): "
                "this machine is too busy for exact times. Close other work, or lower --rate.",
                style="yellow",
                highlight=False,
            )
        bad = Counter((one.outcome.value, one.status, one.reason) for one in of_arm if one.outcome not in _FINE)
        for (outcome, status, reason), count in bad.most_common():
            screen.print(f"{name}: {count} x {outcome}, status {status}: {reason}", highlight=False, markup=False)
        failed = failed or bool(bad) or not any(one.outcome is Outcome.OK for one in of_arm)
    return failed
