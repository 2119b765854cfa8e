"""A schedule is a function of (scenario, seed): everything random is decided in it, each purpose by its own stream."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.scenario import Scenario, ScenarioError, standard
from loadgen.schedule import Schedule, build, planned_in, saved

DEMO = standard("demo").lasting(60)


def without(scenario: Scenario, name: str) -> Scenario:
    return msgspec.structs.replace(scenario, tenants=tuple(t for t in scenario.tenants if t.name != name))


def of(schedule: Schedule, tenant: str) -> list[tuple[float, int, int, float | None]]:
    rows = [one for one in schedule.requests if one.tenant == tenant]
    return [(one.t, one.input_tokens, one.output_tokens, one.cancel_after_s) for one in rows]


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    assert build(DEMO, 7).digest() == build(DEMO, 7).digest()
    assert build(DEMO, 7).digest() != build(DEMO, 8).digest()


def digests() -> list[str]:
    names = ("demo", "agents", "agent-tools", "long-chat", "tenants")
    return [build(standard(name).lasting(40), 7).digest() for name in names]


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_digests_do_not_depend_on_the_process(hash_seed: str) -> None:
    code = "from tests.loadgen.test_schedule import digests; print(digests())"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    printed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str(digests())


def test_another_tenant_less_changes_nothing_for_the_others() -> None:
    assert of(build(without(DEMO, "docs"), 7), "chat") == of(build(DEMO, 7), "chat")


def test_another_input_length_changes_no_arrival_and_no_output() -> None:
    tenants = tuple(msgspec.structs.replace(t, input=DEMO.tenants[1].input) for t in DEMO.tenants)
    other = build(msgspec.structs.replace(DEMO, tenants=tenants), 7)
    ours = [(t, out) for t, _, out, _ in of(build(DEMO, 7), "chat")]
    assert [(t, out) for t, _, out, _ in of(other, "chat")] == ours


def test_requests_are_numbered_in_order_of_time() -> None:
    requests = build(DEMO, 7).requests
    assert [one.id for one in requests] == list(range(len(requests)))
    assert [one.t for one in requests] == sorted(one.t for one in requests)
    assert len(requests) == 420


def test_exactly_the_window_is_measured() -> None:
    schedule = build(DEMO, 7)
    assert (schedule.window_start_s, schedule.window_end_s) == (5, 60)
    assert schedule.measured == sum(5 <= one.t < 60 for one in schedule.requests)


def test_input_and_output_lengths_are_not_correlated() -> None:
    long = build(standard("demo").lasting(2000), 7)
    rows = [(one.input_tokens, one.output_tokens) for one in long.requests if one.tenant == "chat"]
    ranks = [{v: r for r, v in enumerate(sorted(set(column)))} for column in zip(*rows, strict=True)]
    xs, ys = ([rank[v] for v in column] for rank, column in zip(ranks, zip(*rows, strict=True), strict=True))
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread = (sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)) ** 0.5
    assert abs(covariance / spread) < 0.05


def test_shared_system_prompts_follow_zipf_and_warm_up_has_its_own() -> None:
    chats = [one for one in build(standard("demo").lasting(600), 7).requests if one.tenant == "chat"]
    used = Counter(one.blocks[0].id for one in chats if one.measured)
    assert used[0] > used[3] > used[19] > 0
    assert {one.blocks[0].role for one in chats} == {"system"}
    namespaces = {(one.measured, one.blocks[0].namespace) for one in chats}
    assert namespaces == {(True, "measure/prefix/assistant"), (False, "warmup/prefix/assistant")}


def test_about_one_chat_in_a_hundred_is_left_by_its_client() -> None:
    chats = [one for one in build(standard("demo").lasting(1000), 7).requests if one.tenant == "chat"]
    assert 0.005 < sum(one.cancel_after_s is not None for one in chats) / len(chats) < 0.015


def test_the_file_is_its_lines_gzipped_and_holds_no_text(tmp_path: Path) -> None:
    schedule = build(DEMO, 7)
    schedule.write(tmp_path / "a.gz")
    schedule.write(tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    head, *rows = gzip.decompress((tmp_path / "a.gz").read_bytes()).splitlines()
    told = json.loads(head)
    assert told["totals"]["requests"] == len(rows) == 420
    assert told["sha256"] == hashlib.sha256(b"".join(row + b"\n" for row in rows)).hexdigest() == schedule.digest()
    assert json.loads(rows[0])["blocks"][-1].keys() == {"namespace", "id", "tokens"}


# ---- files


def test_what_is_drawn_into_a_file_is_what_is_built_in_memory(tmp_path: Path) -> None:
    for name in ("mixed-lengths", "long-chat", "agents", "agent-tools"):
        scenario = standard(name).lasting(60)
        made, built = planned_in(tmp_path / f"{name}.gz", scenario, 5), build(scenario, 5)
        assert tuple(made.requests) == built.requests
        assert (made.digest(), made.totals, len(made.requests)) == (built.digest(), built.totals, len(built.requests))
        again = saved(tmp_path / f"{name}.gz")
        assert (again.digest(), again.totals, again.last_s) == (built.digest(), built.totals, built.requests[-1].t)
        assert (again.name, again.seed, again.scenario_digest) == (scenario.name, 5, scenario.digest())
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz"] * 4, "nothing is left beside them"


def test_a_file_made_by_hand_needs_no_sum(tmp_path: Path) -> None:
    head, *rows = gzip.decompress(written(tmp_path).read_bytes()).splitlines()
    path = tmp_path / "plain.jsonl"
    told = {"version": 3, "scenario": "mine", "window_s": [5, 60]}
    path.write_bytes(b"\n".join([json.dumps(told).encode(), *rows[:10], b""]))
    found = saved(path)
    assert (found.name, len(found.requests), found.seed) == ("mine", 10, 0)
    assert found.totals.requests == 10
    assert json.loads(head)["sha256"] != found.digest()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:5] + lines[6:], "not those that were written"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 3: request 0 comes before the one above"),
        (lambda lines: [lines[0].replace(b'"version":3', b'"version":2'), *lines[1:]], "version 2, expected 3"),
        (lambda lines: [*lines[:4], b'{"id": 3}', *lines[4:]], "line 5: Object missing required field"),
        (lambda lines: [b"[]"], "line 1: not a schedule"),
        (lambda lines: [], "line 1: not a schedule"),
    ],
)
def test_a_file_that_is_no_schedule_is_named_with_its_line(tmp_path: Path, change: Any, said: str) -> None:
    lines = gzip.decompress(written(tmp_path).read_bytes()).splitlines()
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    with pytest.raises(ScenarioError, match=rf"bad\.jsonl.*{said}"):
        saved(path)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ScenarioError, match=r"good\.gz: Compressed file ended"):
        saved(path)


def written(folder: Path) -> Path:
    build(DEMO, 7).write(folder / "good.gz")
    return folder / "good.gz"


# Independent requests with a shared prompt, as many a second as there are seconds in all: nothing may be kept of them.
MANY = """
version: 1
name: many
seed: 7
warmup: 0s
duration: {seconds}s
slo: {{ttft: {{base_ms: 400}}, tpot_ms: 100, stall_ms: 400}}
prefixes: {{sys: {{count: 20, tokens: 800, zipf: 1.1}}}}
tenants:
  - name: chat
    arrivals: {{kind: gamma, rate: 1000, cv: 1.5}}
    input: {{kind: lognormal, median: 600, sigma: 0.8, min: 30, max: 3999}}
    output: {{kind: lognormal, median: 180, sigma: 0.8, min: 10, max: 1500}}
    prompt: {{prefix: sys}}
"""
MEASURED = """
import resource, sys
from pathlib import Path
from typing import Any
from loadgen.scenario import load
from loadgen.schedule import planned_in
schedule = planned_in(Path(sys.argv[1]), load(sys.argv[2]), 7)
assert sum(1 for _ in schedule.requests) == schedule.totals.requests
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def resident_mib(folder: Path, requests: int) -> int:
    """At most, of a process that draws, writes and reads a schedule of that many requests."""
    text = MANY.format(seconds=requests / 1000)
    command = [sys.executable, "-c", MEASURED, str(folder / "many.gz"), text]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_does_not_grow_with_the_schedule(tmp_path: Path) -> None:
    small, large = (resident_mib(tmp_path, requests) for requests in (2_000, 40_000))
    assert large - small < 8


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_five_million_requests_take_no_more_memory_than_few(tmp_path: Path) -> None:
    small, million, five = (resident_mib(tmp_path, requests) for requests in (2_000, 1_000_000, 5_000_000))
    assert million < 300
    assert five - small < 50
