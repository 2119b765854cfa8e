"""`forebay bench` from end to end, as a process, on simulated engines: files, exit codes, what is said and what is not."""

import asyncio
import gzip
import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.bench.__main__ import app
from loadgen.bench.searching import KILLED, Tried, note
from loadgen.report.folder import SCHEDULE
from loadgen.report.parts import RateProbe
from loadgen.scenario import load, standard
from loadgen.schedule import build, saved
from tests.kit.engines import Engine
from tests.kit.processes import ROOT, Child, free_ports, python, until
from tests.loadgen.benching import BUSY, KEYS, REQUESTS, TINY, Done, bench, command, ended, simulated, started

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Answers at once, obeys markers, and tells what came from its cache."""
    directory = tmp_path_factory.mktemp("engine")
    with simulated(directory, "--profile", "noop", "--allow-markers", "--enable-prompt-tokens-details") as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Wants a key, and takes no more than 512 tokens."""
    flags = ("--profile", "noop", "--api-key", KEYS["KEY_CHAT"], "--max-model-len", "512", "--max-num-seqs", "64")
    with simulated(tmp_path_factory.mktemp("guarded"), *flags, "--max-num-batched-tokens", "512") as made:
        yield made


async def test_a_run_leaves_its_files_and_a_report(engine: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--json", "--scrape", engine.url, "--probe", "10", "--prime")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report == done.report and report["schema"] == "forebay.report/1"
    assert report["slo_met"] and report["totals"]["ok"] == report["totals"]["offered"] > 110
    assert report["target"]["model"] == "noop" and report["run"]["length_control"] == "marker"
    assert {cell["tenant"]: cell["judged"] for cell in report["cells"]} == {"chat": True, "jobs": False}
    assert report["probe"]["completed"]["count"] >= 11
    assert {name for name in ("V5", "V6", "V7", "V8") if done.rule(name)["state"] != "ok"} == set()
    assert done.rule("V9")["value"] > 0
    assert [one["name"] for one in report["endpoints"]] == [one["name"] for one in report["loads"]] == [engine.url]
    for file in (
        "schedule.jsonl.gz",
        "requests.jsonl",
        "requests.csv",
        "timeline.csv",
        "scrapes.jsonl",
        "health.jsonl",
    ):
        assert (done.folder / file).stat().st_size > 0, file
    assert len(done.requests) == REQUESTS


async def test_no_key_and_no_userinfo_is_ever_written(engine: Engine, tmp_path: Path) -> None:
    url = engine.url.replace("http://", "http://somebody:password-in-url@")
    done = await bench(tmp_path, "--url", url)
    assert done.code == 0, done.err
    written = done.everything()
    for secret in (*KEYS.values(), "password-in-url", "somebody"):
        assert secret.encode() not in written


async def test_without_a_terminal_progress_is_plain_lines_and_the_report_is_alone_on_stdout(
    engine: Engine, tmp_path: Path
) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--set", "duration=6s")
    assert done.code == 0, done.err
    assert re.search(r"^tiny: 5 of 6 s, measuring: sent \d+, in flight \d+, ", done.err, re.M), done.err
    assert "tiny: finished: sent " in done.err
    assert "\x1b" not in done.out + done.err
    assert "SLO met" in done.out and "finished" not in done.out
    assert "V1, V2" in done.out, "what is allowed is said"


async def on_a_terminal(engine: Engine, tmp_path: Path, env: dict[str, str], *arguments: str) -> str:
    """What a run with shared prefixes sent before it shows there."""
    ours, theirs = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "COLUMNS": "100", "LINES": "30"}
    (tmp_path / "tiny.yaml").write_text(TINY)
    argv = python("-m", "gateway", "bench", "tiny.yaml", "--url", engine.url, "--out", "out", "--no-html", "--prime")
    with subprocess.Popen(
        [*argv, *BUSY, *arguments], cwd=tmp_path, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs,
        env=environ | env,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = await asyncio.to_thread(_until_closed, ours)
        assert process.wait(30) == 0, shown
    return shown.decode(errors="replace")


async def test_quiet_shows_nothing_on_a_terminal_either(engine: Engine, tmp_path: Path) -> None:
    assert await on_a_terminal(engine, tmp_path, {}, "--quiet") == ""


@pytest.mark.parametrize("colour", [True, False])
async def test_on_a_terminal_there_is_a_picture_and_no_color_has_none(
    engine: Engine, tmp_path: Path, colour: bool
) -> None:
    text = await on_a_terminal(engine, tmp_path, {} if colour else {"NO_COLOR": "1"})
    assert text.count("measuring") >= 5, "redrawn"
    assert " s  prime  " in text
    assert re.search(r"chat +[0-9]+ +[0-9.]+ +[0-9]+", text) and "send lag p99" in text and "CPU" in text
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", text)) == colour
    assert f"tiny: finished: sent {REQUESTS}" in text


def _until_closed(terminal: int) -> bytes:
    """What is shown there."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as file, suppress(OSError):  # EIO when the other side is closed
        while data := file.read(65536):
            shown += data
    return shown


async def test_several_workers_send_what_one_would(engine: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--workers", "2")
    assert done.code == 0, done.err
    assert {row["worker"] for row in done.requests} == {0, 1} and len(done.requests) == REQUESTS
    assert done.rule("V6")["state"] == done.rule("V7")["state"] == "ok"


async def test_quiet_says_nothing_but_the_report(engine: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--quiet")
    assert done.code == 0 and done.err == ""
    assert "SLO met" in done.out


async def test_a_goal_that_is_missed_is_told_by_the_exit_code(engine: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--set", "slo.ttft.base_ms=0.001", "--set", "slo.target=0.5")
    assert done.code == 1, done.err
    assert "SLO missed" in done.out


@pytest.mark.parametrize(
    ("scenario", "arguments", "words"),
    [
        (TINY + "tennants: []\n", (), "tiny.yaml:26:1: tennants"),
        (TINY.replace("rate: 88", "rate: -1"), (), "tiny.yaml:14:37: tenants[0].arrivals.rate"),
        (TINY.replace("tenants:", "tenants: ["), (), "tiny.yaml:"),
        (TINY, ("--set", "tenants.nobody.weight=2"), "there is no nobody"),
        (TINY, ("--set", "fleet.engines.e.count=2"), "there is no engines"),
        (TINY, ("--set", "tenants.nobody.weight=2"), "; there are chat, jobs"),
        (
            TINY,
            ("--set", "tenants.chat.priority=urgent"),
            "'urgent' is not one of batch, critical, interactive, standard",
        ),
        (TINY, ("--scale-tenant", "nobody=2"), "no tenant is called nobody; there are chat, jobs"),
        (TINY, ("--scale-tenant", "job=2"), "did you mean 'jobs'?"),
        (TINY, ("--find-max-rate", "--scale-tenant", "job"), "did you mean 'jobs'?"),
        (TINY, ("--trace", "/nowhere"), "--trace /nowhere: scenario tiny reads no trace"),
        (TINY, ("--allow", "V11"), "there are V1, V2"),
        (TINY, ("--tail", "5"), "500ms, 30s or 10m"),
        (TINY, ("--timeout", "0s"), "--timeout: more than 0"),
        (TINY, ("--connect-timeout", "0ms"), "--connect-timeout: more than 0"),
        (TINY, ("--keys", "/nowhere/keys.yaml"), "No such file"),
        (TINY, ("--url", "ftp://127.0.0.1"), "--url: 'ftp://127.0.0.1' is no URL of a server"),
        (TINY, ("--url", "http://me:pass/word@host:80"), "--url: a URL that cannot be read"),
        (TINY, ("--scrape", "127.0.0.1:9090"), "--scrape: '127.0.0.1:9090' is no URL of a server"),
        (TINY, ("--set", "tenants.jobs.url=host:80"), "`url` of tenant jobs: 'host:80' is no URL of a server"),
        (TINY, ("--find-max-rate", "--scale-tenant", "chat", "--scale-tenant", "jobs"), "one tenant"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_sent(
    scenario: str, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(scenario)
    url = () if "--url" in arguments else ("--url", "http://127.0.0.1:9")
    done = CliRunner().invoke(app, [str(file), "--out", str(out), *url, *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not out.exists() and not done.stdout
    assert "requests in" not in done.stderr and "pass" not in done.stderr.replace("password", "")


async def test_a_server_is_needed_for_every_tenant_that_has_none_of_its_own(engine: Engine, tmp_path: Path) -> None:
    own = ("--set", f"tenants.chat.url={engine.url}", "--set", f"tenants.jobs.url={engine.url}")
    for lacking in (own[:2], (*own, "--probe", "5")):
        done = await bench(tmp_path, *lacking)
        assert done.code == 2 and done.err.startswith("forebay bench: --url is missing"), done.err
    assert (await bench(tmp_path, *own)).code == 0


async def test_a_run_that_says_too_little_is_invalid_unless_that_is_allowed(engine: Engine, tmp_path: Path) -> None:
    short = ("--url", engine.url, "--set", "duration=500ms")
    done = await bench(tmp_path, *short)
    assert done.code == 3, done.err
    assert "INVALID" in done.out and done.rule("V8")["state"] == "breach"
    again = tmp_path / "again"
    again.mkdir()
    done = await bench(again, *short, "--allow", "V8")
    assert done.code == 0 and done.rule("V8")["state"] == "allowed"
    assert "V8" in done.out


async def test_preflight_names_the_tenant_whose_key_is_refused(guarded: Engine, tmp_path: Path) -> None:
    done = await bench(
        tmp_path, "--url", guarded.url, env={"KEY_CHAT": KEYS["KEY_CHAT"], "KEY_JOBS": "wrong-key-of-jobs"}
    )
    assert done.code == 4, done.err
    assert "tenant jobs" in done.err and "401" in done.err and "the variable KEY_JOBS" in done.err
    assert "wrong-key" not in done.err


async def test_preflight_says_which_key_is_missing(guarded: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", guarded.url, env={})
    assert done.code == 4
    assert "tenant chat" in done.err and "the variable KEY_CHAT, which is not set" in done.err


async def test_a_file_of_keys_has_the_tenants_of_the_scenario(engine: Engine, tmp_path: Path) -> None:
    """One that is in neither is refused; one that is not in the file is told, before the run and in its report."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"chat: {KEYS['KEY_CHAT']}\njob: {KEYS['KEY_JOBS']}\n")
    done = await bench(tmp_path, "--url", engine.url, "--keys", str(keys), env={})
    assert done.code == 2 and f"--keys {keys}:2:1: " in done.err and "did you mean 'jobs'?" in done.err
    assert not done.folder.exists()
    keys.write_text(f"chat: {KEYS['KEY_CHAT']}\nprobe: {KEYS['KEY_JOBS']}\n")
    assert (await bench(tmp_path, "--url", engine.url, "--keys", str(keys), env={})).code == 2
    done = await bench(tmp_path, "--url", engine.url, "--keys", str(keys), "--probe", "5", env={})
    assert done.code == 0, done.err
    told = f"--keys {keys} has no key for jobs: sent without one"
    assert told in done.err and told in done.report["warnings"]


def test_a_dry_run_reads_the_keys_as_a_run_does(tmp_path: Path) -> None:
    file, keys = tmp_path / "tiny.yaml", tmp_path / "keys.yaml"
    file.write_text(TINY)
    asked = [str(file), "--dry-run", "--keys", str(keys)]
    keys.write_text("chat: a\n jobs: b\n")
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2 and f"--keys {keys}:2:6: not a mapping" in done.stderr and not done.stdout
    keys.write_text("chat: a\njob: b\n")
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2 and f"--keys {keys}:2:1: " in done.stderr and "did you mean 'jobs'?" in done.stderr
    keys.write_text("chat: a\n")
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["requests"] == REQUESTS
    assert f"--keys {keys} has no key for jobs" in done.stderr


TRACED = """
version: 1
name: traced
seed: 7
warmup: 0s
duration: 4s
slo: {ttft: {base_ms: 3000}, tpot_ms: 1000, stall_ms: 3000, target: 0.9}
tenants:
  - {name: all, arrivals: {kind: trace, file: trace.jsonl, tenant_field: tenant}}
"""


def test_keys_are_of_tenants_that_the_trace_has_also_of_those_that_come_after_the_run(tmp_path: Path) -> None:
    file, trace, keys = (tmp_path / name for name in ("traced.yaml", "trace.jsonl", "keys.yaml"))
    file.write_text(TRACED)
    rows = [{"timestamp": t * 1000, "input_length": 9, "output_length": 3, "tenant": f"t{t}"} for t in range(8)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [str(file), "--dry-run", "--trace", str(trace), "--keys", str(keys)]
    keys.write_text("".join(f"t{t}: k\n" for t in range(8)))
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0 and not done.stderr, done.output
    keys.write_text("t0: k\nt9: k\n")
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2 and f"{keys}:2:1: no tenant of the scenario is called that" in done.stderr, done.output
    schedule = tmp_path / "schedule.jsonl.gz"
    build(load(TRACED).with_trace(trace), 7).write(schedule)
    trace.unlink()  # a saved schedule does not need it
    done = CliRunner().invoke(app, [str(file), "--dry-run", "--schedule", str(schedule), "--keys", str(keys)])
    assert done.exit_code == 0 and "has no key for t1, t2, t3" in done.stderr, done.output


async def test_where_answers_do_not_say_what_was_cached_the_engines_that_are_scraped_do(
    guarded: Engine, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"'*': {KEYS['KEY_CHAT']}\n")
    asked = ("--url", guarded.url, "--keys", str(keys), "--length-control", "none", "--allow", "V7", "--salt", "none")
    scraped = (*asked, "--scrape", guarded.url, "--probe", "5", "--prime")
    first = await bench(tmp_path, *scraped)
    assert first.code == 0, first.err
    assert first.rule("V6")["state"] == "ok" and first.rule("V6")["value"] > 1000
    again = tmp_path / "again"
    again.mkdir()
    second = await bench(again, *scraped)
    assert second.code == 3 and second.rule("V6")["state"] == "breach"
    assert "prompt tokens from a cache, as engines count it over the whole run" in second.rule("V6")["words"]


async def test_what_came_from_a_cache_is_not_judged_where_nothing_tells(guarded: Engine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"'*': {KEYS['KEY_CHAT']}\n")
    done = await bench(tmp_path, "--url", guarded.url, "--keys", str(keys), "--length-control", "none", "--allow", "V7")
    assert done.code == 0, done.err
    assert "V6" not in {rule["id"] for rule in done.report["validity"]["rules"]}
    assert "--enable-prompt-tokens-details" in done.report["validity"]["unjudged"]["V6"]
    assert "V6 could not be judged: no answer says" in done.out and "VALID" in done.out


async def test_preflight_finds_prompts_that_do_not_fit(guarded: Engine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"'*': {KEYS['KEY_CHAT']}\n")
    long = ("--set", "tenants.jobs.input.value=600")
    done = await bench(tmp_path, "--url", guarded.url, "--keys", str(keys), *long)
    assert done.code == 4, done.err
    assert "tenant jobs" in done.err and "context of 512" in done.err and "input.max" in done.err


async def test_preflight_names_the_models_that_are_there(engine: Engine, tmp_path: Path) -> None:
    done = await bench(tmp_path, "--url", engine.url, "--model", "gpt-9")
    assert done.code == 4
    assert "tenant chat" in done.err and "gpt-9" in done.err and "/v1/models has noop" in done.err


async def test_preflight_says_that_nobody_is_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = await command(tmp_path, "tiny.yaml", "--url", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert done.code == 4
    assert "/v1/models: Connection refused; is the server there" in done.err and "Errno" not in done.err
    assert not (tmp_path / "runs").exists(), "a run that did not begin leaves nothing"


async def sent(child: Child, requests: int) -> None:
    """Until so many have ended."""
    file = child.out.parent / "out" / "requests.jsonl"
    await until(lambda: file.exists() and file.read_bytes().count(b"\n") > requests, 60, "nothing is sent")


async def interrupted(child: Child, times: int, requests: int) -> None:
    """Ctrl-C that often, once so many requests have ended."""
    await sent(child, requests)
    for time in range(times):
        child.signal(signal.SIGINT)
        if time + 1 < times:
            await until(lambda: "Ctrl-C again" in child.err.read_text(), 10, "the first Ctrl-C was not heard")


@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_writes_what_was_measured(engine: Engine, tmp_path: Path, times: int) -> None:
    child = started(tmp_path, "--url", engine.url, "--set", "duration=60s", "--no-html", "--allow", "V8", *BUSY)
    await interrupted(child, times, 60)
    done = await ended(child, tmp_path, 15)
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    report = done.report
    assert report["run"]["interrupted"] and report["totals"]["ok"] > 10
    assert report["window_s"] < 30
    assert any("interrupted" in told for told in report["warnings"])
    assert "interrupted" in done.out


async def test_ctrl_c_in_a_search_leaves_a_report_of_the_probes_so_far(engine: Engine, tmp_path: Path) -> None:
    """And a search of one tenant's rate leaves the others alone."""
    search = (
        "--find-max-rate",
        "--scale-tenant",
        "jobs",
        "--start",
        "1",
        "--probe-seconds",
        "3",
        "--probe-requests",
        "1",
    )
    child = started(tmp_path, "--url", engine.url, "--no-html", *search, *BUSY)
    second = tmp_path / "out" / "probe-02" / "requests.jsonl"
    await until(lambda: second.exists() and second.read_bytes().count(b"\n") > 5, 60, "there is no second probe")
    child.signal(signal.SIGINT)
    done = await ended(child, tmp_path, 20)
    assert done.code == 130, done.err
    assert "INTERRUPTED: x 1 has passed" in done.out and "Traceback" not in done.err
    assert [(probe["passed"], probe["why"]) for probe in done.report["search"]] == [(True, ""), (False, "interrupted")]
    with_both = [Counter(one.tenant for one in saved(done.folder / f"probe-0{n}" / SCHEDULE).requests) for n in (1, 2)]
    assert [(one["chat"], one["jobs"]) for one in with_both] == [(286, 39), (286, 78)]
    assert done.report["run"]["interrupted"] and done.report["totals"]["offered"] == 300, (
        "of the first probe, all of it"
    )


async def test_c106_a_run_whose_client_was_held_up_is_invalid_whatever_its_latencies(
    engine: Engine, tmp_path: Path
) -> None:
    child = started(tmp_path, "--url", engine.url, "--set", "duration=4s", "--no-html")
    await sent(child, 60)
    child.signal(signal.SIGSTOP)
    await asyncio.sleep(0.6)  # of the load, 60 requests are due in it
    child.signal(signal.SIGCONT)
    done = await ended(child, tmp_path)
    assert done.code == 3 and "INVALID" in done.out, done.err
    assert done.rule("V1")["state"] == "breach" and done.rule("V1")["value"] > 100
    assert done.report["client"]["lag"]["max_ms"] > 400


async def test_a_search_ends_where_the_client_is_the_limit(engine: Engine, tmp_path: Path) -> None:
    search = ("--find-max-rate", "--start", "1", "--probe-seconds", "1.25", "--probe-requests", "100")
    done = await bench(tmp_path, "--url", engine.url, *search, "--max-open", "1")
    assert done.code == 3, done.err
    assert [(probe["passed"], probe["why"]) for probe in done.report["search"]] == [(False, "client limit reached: V5")]
    assert "INVALID: client limit reached at x 1, V5" in done.out


async def test_a_search_whose_first_probe_is_too_small_to_be_judged_ends_there(engine: Engine, tmp_path: Path) -> None:
    search = ("--find-max-rate", "--start", "1", "--probe-seconds", "1", "--probe-requests", "50")
    done = await bench(tmp_path, "--url", engine.url, *search, "--set", "warmup=0s", "--set", "tail=0s")
    assert done.code == 3, done.err
    assert [probe["why"] for probe in done.report["search"]] == ["no cell with enough requests"]
    assert "INVALID: no group of requests is large enough to be judged; take longer --probe-seconds" in done.out


async def test_after_a_kill_in_a_search_its_probes_are_reported(engine: Engine, tmp_path: Path) -> None:
    """What has ended is of the search, what was cut off is reported by itself, and what is missing is named."""
    search = ("--find-max-rate", "--start", "1", "--probe-seconds", "2", "--probe-requests", "1")
    child = started(tmp_path, "--url", engine.url, "--no-html", *search, *BUSY)
    out = tmp_path / "out"
    third = out / "probe-03" / "requests.jsonl"
    await until(lambda: third.exists() and third.read_bytes().count(b"\n") > 100, 60, "there is no third probe")
    child.kill()
    assert not (out / "run.json").exists() and not (out / "report.json").exists()
    again = await command(tmp_path, "report", "out")
    assert again.code == 130, again.err
    assert "The search was killed: 2 of its 3 probes had ended." in again.err
    assert "probe-03 (x 4, seed 7) was killed: its own report is of what it had written." in again.err
    assert "tiny: INTERRUPTED: x 2 has passed" in again.out and re.search(r"^ +3 +4\.000 .* killed$", again.out, re.M)
    reports = [json.loads((folder / "report.json").read_bytes()) for folder in (out, *sorted(out.glob("probe-*")))]
    assert [(one["passed"], one["why"]) for one in reports[0]["search"]] == [(True, ""), (True, ""), (False, "killed")]
    assert reports[0]["schedule"] == reports[2]["schedule"] and (out / "report.html").exists()
    assert [one["run"]["finished"] is None for one in reports[1:]] == [False, False, True]
    told = (await command(tmp_path, "report", "out", "--json")).out
    assert json.loads(told)["search"] == reports[0]["search"], "once more"
    assert any("2 of its 3 probes had ended" in one for one in json.loads(told)["warnings"])
    refused = await command(tmp_path, "tiny.yaml", "--url", engine.url, "--out", "out", "--find-max-rate")
    assert refused.code == 2 and "of another run is there" in refused.err


async def test_after_a_kill_in_the_first_probe_of_a_search_that_is_what_there_is(
    engine: Engine, tmp_path: Path
) -> None:
    search = ("--find-max-rate", "--start", "1", "--probe-seconds", "30", "--probe-requests", "1")
    child = started(tmp_path, "--url", engine.url, "--no-html", *search, *BUSY)
    out = tmp_path / "out"
    first = out / "probe-01" / "requests.jsonl"
    await until(lambda: first.exists() and first.read_bytes().count(b"\n") > 60, 60, "there is no probe")
    child.kill()
    refused = await command(tmp_path, "tiny.yaml", "--url", engine.url, "--out", "out", "--find-max-rate")
    assert refused.code == 2 and "search.jsonl of another run is there" in refused.err
    again = await command(tmp_path, "report", "out", "--json")
    assert again.code == 130, again.err
    assert "0 of its 1 probes had ended" in again.err and "probe-01 (x 1, seed 7) was killed" in again.err
    report = json.loads(again.out)
    assert report["totals"]["ok"] > 10 and report["search"] == [] and report["run"]["finished"] is None


async def test_a_search_that_was_killed_before_it_sent_anything_says_what_is_missing(tmp_path: Path) -> None:
    probe = RateProbe(scale=1.0, rate=9.0, seed=7, passed=False, attainment=None, why=KILLED)
    (tmp_path / "out" / "probe-01").mkdir(parents=True)
    note(tmp_path / "out", Tried("probe-01", probe))
    again = await command(tmp_path, "report", "out")
    assert again.code == 2 and "no probe has left anything to report" in again.err
    assert "probe-01 (x 1, seed 7) is left out" in again.err and "run.json" in again.err


async def test_ctrl_c_in_the_warm_up_leaves_a_report_of_nothing(engine: Engine, tmp_path: Path) -> None:
    child = started(tmp_path, "--url", engine.url, "--no-html", "--set", "warmup=60s", *BUSY)
    await interrupted(child, 1, 3)
    done = await ended(child, tmp_path, 15)
    assert done.code == 130, done.err
    assert done.report["totals"]["offered"] == 0 and "nothing was measured" in done.out


async def test_after_a_kill_the_report_is_made_of_what_was_written(engine: Engine, tmp_path: Path) -> None:
    child = started(tmp_path, "--url", engine.url, "--set", "duration=60s", *BUSY)
    await sent(child, 60)
    child.kill()
    assert not (tmp_path / "out" / "report.json").exists()
    again = await command(tmp_path, "report", "out", "--json")
    assert again.code == 130, again.err
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    report = json.loads(again.out)
    assert report["totals"]["ok"] > 30 and report["run"]["finished"] is None
    assert any("killed" in told for told in report["warnings"])


async def test_ctrl_c_before_the_load_ends_the_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # accepts, and never answers
        child = started(tmp_path, "--url", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        await until(lambda: "requests in" in child.err.read_text(), 30, "it does not begin")
        child.signal(signal.SIGINT)
        done = await ended(child, tmp_path, 10)
    assert done.code == 130
    assert "before anything was measured" in done.err and "Traceback" not in done.err


def test_a_dry_run_sends_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(TINY)
    done = CliRunner().invoke(app, [str(file), "--out", str(out), "--dry-run", "--scale", "2"])
    assert done.exit_code == 0, done.output
    assert f"{2 * REQUESTS} requests" in done.stdout
    assert "salt: none" not in done.stdout
    assert "salt: none" in CliRunner().invoke(app, [str(file), "--dry-run", "--salt", "none"]).stdout
    assert not out.exists()


def test_a_dry_run_as_json_has_the_same_figures_on_stdout_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    asked = [str(file), "--dry-run", "--scale", "2", "--salt", "none"]
    told = CliRunner().invoke(app, asked).stdout
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0 and not done.stderr
    offered = json.loads(done.stdout)
    assert offered["schema"] == "forebay.offer/1" and offered["scenario"] == "tiny" and offered["salt"] == "none"
    assert offered["requests"] == 2 * REQUESTS == sum(offered["tenants"].values())
    assert list(offered["tenants"]) == ["chat", "jobs"] and sum(offered["classes"].values()) == offered["measured"]
    for figure in (offered["measured"], offered["prompts"]["total"], offered["answers"]["total"]):
        assert f"{figure:,}" in told
    assert f"p99 {offered['prompts']['p99']:,}; {offered['cached_tokens']:,} " in told and offered["schedule"] in told


def test_a_schedule_of_another_scenario_is_refused_with_the_tenant_that_is_missing(tmp_path: Path) -> None:
    schedule, file = tmp_path / "schedule.jsonl.gz", tmp_path / "tiny.yaml"
    file.write_text(TINY)
    build(standard("headline").lasting(10), 1).write(schedule)  # of a tenant chat, which tiny has too
    assert CliRunner().invoke(app, [str(file), "--schedule", str(schedule), "--dry-run"]).exit_code == 0
    build(standard("mixed-lengths").lasting(10), 1).write(schedule)
    for more in (["--dry-run"], ["--url", "http://127.0.0.1:9"]):
        done = CliRunner().invoke(app, [str(file), "--schedule", str(schedule), "--out", str(tmp_path / "out"), *more])
        assert done.exit_code == 2
        assert "it was made of mixed-lengths, and scenario tiny has no tenant docs" in done.stderr


async def test_a_saved_schedule_is_sent_as_it_is(engine: Engine, tmp_path: Path) -> None:
    first = await bench(tmp_path, "--url", engine.url, "--seed", "3")
    again = tmp_path / "again"
    again.mkdir()
    second = await bench(again, "--url", engine.url, "--schedule", str(first.folder / "schedule.jsonl.gz"))
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.report["schedule"] == second.report["schedule"]
    cached = [one.report["totals"]["cached_tokens"] for one in (first, second)]
    assert cached[0] == cached[1] > 0, "another salt"
    assert len(of_prefixes := first_of_prefixes(first)) == 2 and not any(of_prefixes), "warm-up has texts of its own"


def first_of_prefixes(done: Done) -> list[int]:
    """Cached tokens of the first measured request with each shared prefix."""
    with gzip.open(done.folder / "schedule.jsonl.gz") as file:
        planned = [json.loads(line) for line in file][1:]
    first = {
        one["blocks"][0]["id"]: one["id"] for one in reversed(planned) if one["measured"] and one["tenant"] == "chat"
    }
    return [row["cached_tokens"] for row in done.requests if row["id"] in first.values()]


async def test_without_a_salt_the_second_run_is_seen_to_measure_the_first_ones_cache(
    engine: Engine, tmp_path: Path
) -> None:
    unsalted = ("--url", engine.url, "--salt", "none")
    first = await bench(tmp_path, *unsalted)
    again = tmp_path / "again"
    again.mkdir()
    second = await bench(again, *unsalted)
    assert (first.code, second.code) == (0, 3), first.err + second.err
    assert second.rule("V6")["state"] == "breach"
    assert "no salt" in first.out and "no salt" in second.out


def test_the_scenarios_and_their_schema_are_listed() -> None:
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0 and "mixed-lengths" in listed.stdout and "smoke" in listed.stdout
    schema = CliRunner().invoke(app, ["schema"])
    assert schema.exit_code == 0 and "tenants" in json.dumps(json.loads(schema.stdout))


async def test_without_words_it_says_what_there_is(tmp_path: Path) -> None:
    done = await command(tmp_path)
    assert done.code == 2 and "list" in done.err + done.out
    helped = CliRunner().invoke(app, ["--help"])
    assert helped.exit_code == 0 and "SCENARIO" in helped.stdout
