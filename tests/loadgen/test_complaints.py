"""What people have complained of in load tools (loadgen.md 9), measured on real runs at the size that is asked for there.

Complaints that are none of time, or that a run inside one process can show, are tested beside what they are about:
`test_client*`, `test_bench*`, `test_report*`, `test_schedule`, `test_trace`.
"""

import asyncio
import re
import signal
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest

from loadgen.bench.selftest_loads import Load, ttft_ms
from loadgen.bench.selftest_loads import sent as loaded
from loadgen.bench.validity import Evidence, judged
from loadgen.report.record import Outcome, Sample
from loadgen.scenario import load
from loadgen.schedule import build
from loadgen.sim import fleet as fleets
from loadgen.sim.arm import run
from loadgen.workload.prompts import Prose
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.noop_server import noop_server
from tests.kit.processes import until
from tests.kit.script_engine import ScriptEngine, Seen, Step, Wait
from tests.loadgen.benching import BUSY, bench, command, ended, started
from tests.loadgen.sending import Seen as Watched
from tests.loadgen.sending import client, planned, sent, steady
from tests.loadgen.simulated import simulated
from tests.loadgen.simulations import arm
from tests.loadgen.test_schedule import MANY

pytestmark = pytest.mark.timeout(120)
STREAMED = b'"stream":true'
STEPPED = """\
model: noop
step: {{t0_ms: {step_ms}, tw_ms: 0, c_us: 0, x_us: 0, k_ns: 0, a_ns: 0, s_us: 0}}
kv_tokens: null
max_model_len: 1048576
"""


def one_tenant(
    arrivals: str, *, seconds: float, warmup: float = 0.0, answer: int = 3, slo: str = "ttft: {base_ms: 3000}"
) -> str:
    """A scenario of one tenant with prompts of 40 tokens."""
    return f"""
version: 1
name: one
seed: 7
warmup: {warmup:g}s
duration: {seconds:g}s
tail: 0s
slo: {{{slo}, tpot_ms: 1000, stall_ms: 3000, target: 0.1}}
tenants:
  - name: one
    arrivals: {arrivals}
    input: {{kind: fixed, value: 40}}
    output: {{kind: fixed, value: {answer}}}
"""


# ---- 1: what a request waited for is in its latency


async def test_complaint_1_offered_latency_has_every_wait_and_service_latency_has_not(tmp_path: Path) -> None:
    """40/s into 4 places of 190 ms; for a second the client does not come to send at all."""
    free_s = [0.0] * 4

    def full(seen: Seen) -> Iterator[Step]:
        if STREAMED in seen.body:
            now_s = time.monotonic()
            place = free_s.index(min(free_s))
            free_s[place] = max(free_s[place], now_s) + 0.19
            yield Wait(free_s[place] - now_s)
        yield from wire.echo(seen)

    scenario = one_tenant("{kind: constant, rate: 40}", seconds=3)
    async with ScriptEngine(full) as engine:
        options = ("--url", engine.url, "--length-control", "none", "--no-html", *BUSY)
        child = started(tmp_path, *options, scenario=scenario)
        file = tmp_path / "out" / "requests.jsonl"
        await until(lambda: file.exists() and file.read_bytes().count(b"\n") > 20, 30, "nothing is sent")
        child.signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        child.signal(signal.SIGCONT)
        done = await ended(child, tmp_path)
    assert done.code == 0, done.err
    times, rows = done.report["totals"]["times"]["e2e"], done.requests
    late_ms = fmean(row["t_send"] - row["t_sched"] for row in rows) * 1000
    assert len(rows) == 120 and times["completed"]["mean_ms"] >= 600, "and not 196"
    assert late_ms > 100
    assert times["completed"]["mean_ms"] - times["service"]["mean_ms"] == pytest.approx(late_ms, rel=0.01)
    assert done.rule("V1")["state"] == "allowed", "without leave of V1 such a run is worth nothing"


# ---- 2: long prompts


@pytest.mark.serial
async def test_complaint_2_prompts_of_50k_tokens_are_timed_like_those_of_1k(tmp_path: Path) -> None:
    """Test C of loadgen.md 8.1."""
    async with noop_server(tmp_path) as url:
        short = await loaded(Load(rate=50, count=150, tokens=1_000, stream=True), [url])
        long = await loaded(Load(rate=50, count=300, tokens=50_000, stream=True), [url])
    assert (short.achieved, long.achieved) == (1.0, 1.0)
    assert abs(long.p(0.5, ttft_ms) - short.p(0.5, ttft_ms)) <= 3
    assert long.health.loop_lag_p99_ms <= 10


# ---- 4: closed loops


async def test_complaint_4_a_closed_load_of_45_users_has_at_most_45_requests_open() -> None:
    scenario = load(
        one_tenant("{kind: closed, users: 45, think: {kind: uniform, min: 0, max: 0.05}, stagger: 100ms}", seconds=2)
    )
    watched = Watched()
    answer = wire.stream(wire.events("chat", ["the ", "cat "]))
    async with ScriptEngine(lambda seen: [Wait(0.1), *answer]) as engine:
        samples = await client(build(scenario, 7), [engine.url], watched).run(Prose("salt"))
        assert engine.peak <= 45
    assert 40 <= watched.peak <= 45 and len(samples) > 300
    assert {one.outcome for one in samples} == {Outcome.OK}


# ---- 5: the end of a run


@pytest.mark.serial
async def test_complaint_5_the_last_tenth_of_a_run_is_as_fast_as_the_first(tmp_path: Path) -> None:
    """200 streams a second of a server that does nothing but wait 20 ms between words."""
    async with noop_server(tmp_path, pause_s=0.02) as url:
        samples = await sent([url], *steady(200, 1600), length_control="none")
    assert {one.outcome for one in samples} == {Outcome.OK}
    first, last = (
        (median(one.ttft_ms or 0 for one in part), median(gap for one in part for gap in one.gaps_ms()))
        for part in (samples[:160], samples[-160:])
    )
    assert last[0] == pytest.approx(first[0], abs=1), "first tokens"
    assert last[1] == pytest.approx(first[1], abs=1), "pauses"
    assert first[1] == pytest.approx(20, abs=1)


# ---- 6: thought and roles


async def test_complaint_6_a_thought_is_the_first_token_what_is_said_comes_later_and_usage_counts() -> None:
    async with simulated(served_model_name="m") as engine:
        url = f"http://127.0.0.1:{engine.port}"
        asked = planned(0, output_tokens=60, reasoning_tokens=40)
        (got,) = await sent([url], asked, length_control="marker")
    assert (got.outcome, got.output_tokens, got.token_events) == (Outcome.OK, 60, 60)
    tokens, said = list(got.read_tokens) or [1] * len(got.reads), list(got.reads).index(got.content_s)
    assert sum(tokens[:said]) <= 40 < sum(tokens[: said + 1]), "40 tokens were thought"
    assert got.ttft_ms is not None and got.ttfo_ms is not None
    assert got.ttfo_ms > got.ttft_ms == (got.reads[0] - got.sched_s) * 1000


async def test_complaint_6_a_role_that_comes_500_ms_early_is_no_token() -> None:
    async with simulated(served_model_name="m", faults=("role_early:500",)) as engine:
        (got,) = await sent([f"http://127.0.0.1:{engine.port}"], planned(0, output_tokens=20), length_control="marker")
    assert got.outcome is Outcome.OK and got.ttft_ms is not None and got.ttfb_ms is not None
    assert got.ttft_ms >= 500 and got.ttft_ms - got.ttfb_ms >= 450
    assert sum(got.gaps_ms()) < 500, "it is in no pause"


# ---- 8: failures


async def test_complaint_8_of_99_failures_in_100_the_report_says_so(tmp_path: Path) -> None:
    good: list[Seen] = []

    def failing(seen: Seen) -> Iterable[Step]:
        if STREAMED not in seen.body or not good:
            good.extend([seen] if STREAMED in seen.body else [])
            return list(wire.echo(seen))
        return [wire.json_answer({"error": {"message": "out of memory", "code": "oom"}}, status=500)]

    scenario = one_tenant("{kind: constant, rate: 50}", seconds=2)
    async with ScriptEngine(failing) as engine:
        done = await bench(tmp_path, "--url", engine.url, "--length-control", "none", scenario=scenario)
    assert done.code == 1, done.err
    totals = done.report["totals"]
    assert (totals["offered"], totals["ok"]) == (100, 1)
    assert totals["attainment"] <= 0.01
    assert totals["times"]["ttft"]["adjusted"]["p50_ms"] == totals["times"]["e2e"]["adjusted"]["p50_ms"] == "inf"
    assert [(end["outcome"], end["status"], end["reason"], end["count"]) for end in done.report["ends"]] == [
        ("error_status", 500, "oom", 99)
    ]


# ---- 9: ceilings


async def test_complaint_9_100_and_1000_requests_have_the_same_mean(tmp_path: Path) -> None:
    """Of a server that takes half a second."""
    async with noop_server(tmp_path, wait_s=0.5) as url:
        for _ in range(3):  # other work on the machine may spoil a run, a fault spoils all three
            runs = [await sent([url], *steady(200, count), length_control="none") for count in (100, 1000)]
            assert {one.outcome for samples in runs for one in samples} == {Outcome.OK}
            means = [fmean(one.ttft_ms or 0 for one in samples) for samples in runs]
            assert min(means) >= 500
            if means[1] == pytest.approx(means[0], rel=0.02):
                return
    raise AssertionError(f"it is not the same: {means}")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_complaint_9_the_client_of_an_idle_machine_is_as_fast_as_is_asked(tmp_path: Path) -> None:
    """8.1 A to E, as long as they are there."""
    done = await command(tmp_path, "selftest", "--json", timeout_s=1100)
    assert done.code == 0, done.out + done.err


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_complaint_9_a_million_requests_take_less_than_300_mb_before_the_first_is_sent(tmp_path: Path) -> None:
    scenario = MANY.format(seconds=1000)
    async with ScriptEngine() as engine:
        child = started(tmp_path, "--url", engine.url, "--length-control", "none", *BUSY, scenario=scenario)
        try:
            await until(lambda: any(STREAMED in one.body for one in engine.seen), 800, "nothing is sent", every_s=0.001)
            status = Path(f"/proc/{child.pid}/status").read_text("ascii")
        finally:
            child.kill()
    assert "1,000,000 requests in" in child.err.read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None and int(peak[1]) * 1024 < 300e6


# ---- 10: ramp and drain


LONG_ANSWERS = one_tenant("{kind: constant, rate: 1}", seconds=60, warmup=35, answer=60)
STEADY_PER_S = 60.0  # an answer of 60 tokens each second; it takes 30 s


def test_complaint_10_ramp_and_drain_are_not_in_the_throughput(tmp_path: Path) -> None:
    profile = tmp_path / "half-a-second.yaml"
    profile.write_text(STEPPED.format(step_ms=500))
    flags = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 8192}
    fleet = fleets.checked("one", {"engines": [{"name": "e", "count": 1, "profile": str(profile), "flags": flags}]})
    report = run(arm("round_robin", load(LONG_ANSWERS), fleet), 7).report
    assert report.totals.ok == 60 and report.window_s == 60
    assert report.totals.output_tokens_per_s == pytest.approx(STEADY_PER_S, rel=0.03)


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_complaint_10_nor_are_they_in_a_live_run(tmp_path: Path) -> None:
    profile = tmp_path / "half-a-second.yaml"
    profile.write_text(STEPPED.format(step_ms=500))
    async with Engine(tmp_path, arguments=("--profile", str(profile), "--allow-markers")) as engine:
        options = ("--url", engine.url, "--no-html", "--allow", "V8", *BUSY)
        done = await ended(started(tmp_path, *options, scenario=LONG_ANSWERS), tmp_path, 250)
    assert done.code == 0, done.err
    assert done.report["window_s"] == 60 and done.report["totals"]["ok"] == 60
    assert done.report["totals"]["output_tokens_per_s"] == pytest.approx(STEADY_PER_S, rel=0.03)


# ---- 12: the first requests


@pytest.mark.serial
async def test_complaint_12_the_first_100_go_out_at_the_gaps_of_the_schedule(tmp_path: Path) -> None:
    plan = build(load(one_tenant("{kind: poisson, rate: 100}", seconds=1)), 7)
    async with noop_server(tmp_path) as url:
        samples: list[Sample] = await client(plan, [url], length_control="none").run(Prose("salt"))
    off_ms = sorted(
        abs((later.sent_s - one.sent_s) - (later.sched_s - one.sched_s)) * 1000 for one, later in pairwise(samples)
    )
    seen = Evidence(samples=samples, window_s=(0.0, 1.0), least_ttft_ms=400.0)
    (rule,) = (one for one in judged(seen, ()).rules if one.id == "V1")
    assert len(samples) == 100 and rule.limit == 10.0 and rule.state == "ok", rule
    assert off_ms[98 - 1] <= rule.limit, "p99 of 99 gaps"
