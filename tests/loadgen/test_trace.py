"""Traces: the formats people publish, what is cut from them, and what equal ids become."""

import gzip
import json
import statistics
from pathlib import Path
from random import Random

import pytest

from loadgen.scenario import Scenario, ScenarioError, load, names, standard
from loadgen.schedule import Schedule, build
from loadgen.workload import formats
from loadgen.workload.trace import Filter, Trace

NEEDS_TRACE = {"agents", "chat-trace", "code", "long-chat-trace", "reasoning", "tenants"}


def written(path: Path, rows: list[dict[str, object]]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def row(t_ms: float, tokens: int = 1000, output: int = 50, **more: object) -> dict[str, object]:
    return {"timestamp": t_ms, "input_length": tokens, "output_length": output, **more}


def turn(session: str, number: int, runs: list[list[int]], **more: object) -> dict[str, object]:
    tokens = 64 * sum(count for _, count in runs) + 10
    told = {"session_id": session, "agent": "main", "turn": number, "hash_runs": runs, "think_ms": 2000}
    return row(0, tokens, **{**told, **more})


def scenario(file: str, more: str = "", rest: str = "") -> Scenario:
    return load(f"""
version: 1
name: traced
seed: 7
warmup: 1s
duration: 99s
slo: {{ttft: {{base_ms: 400}}, tpot_ms: 100, stall_ms: 400}}
tenants:
  - name: replay
    arrivals: {{kind: trace, file: {file}, {more}}}
{rest}
""")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_json_lines_are_read_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, [row(0, 10, 5), row(1500, 20, 6, tenant="b"), row(1600, 20, 0)])
    first, second = formats.read(file, None)  # the third has no answer
    assert (first.t_s, first.input_tokens, first.output_tokens) == (0, 10, 5)
    assert (second.t_s, second.tenant) == (1.5, "")


def test_azure_csv_is_read_with_its_seven_digits_and_with_a_zone(tmp_path: Path) -> None:
    for name, zone in (("a.csv", ""), ("b.csv", "+00:00")):
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        lines += [f"2023-11-16 18:15:46.6805900{zone},374,44", f"2023-11-16 18:15:50.9951690{zone},396,109"]
        (tmp_path / name).write_text("\r\n".join(lines) + "\r\n")
        first, second = formats.read(str(tmp_path / name), None)
        assert (first.t_s, first.input_tokens, first.output_tokens) == (0, 374, 44)
        assert second.t_s == pytest.approx(4.314579)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', '{"timestamp": "x"', '{"a": 1}\nnothing\n'])
def test_what_is_no_trace_is_a_scenario_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / f"bad{len(text)}.jsonl"
    file.write_text(text)
    if not text:
        assert formats.read(str(file), None) == ()
        return
    with pytest.raises(ScenarioError, match=r"is not a trace"):
        formats.read(str(file), None)


def test_a_missing_file_is_named_with_the_option_that_helps() -> None:
    with pytest.raises(ScenarioError, match=r"no trace file nowhere\.jsonl; say where it is with --trace FILE"):
        build(scenario("nowhere.jsonl"), 7)


def test_trace_files_are_found_where_the_option_says(tmp_path: Path) -> None:
    written(tmp_path / "t.jsonl", [row(0), row(2000)])
    of_folder = scenario("elsewhere/t.jsonl").with_trace(tmp_path)
    of_file = scenario("other.jsonl").with_trace(tmp_path / "t.jsonl")
    assert len(build(of_folder, 7).requests) == len(build(of_file, 7).requests) == 2
    assert of_folder.tenants[0].arrivals.dequantise == "auto"  # type: ignore[union-attr]


def test_a_cut_is_scaled_in_time(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", [row(1000 * t) for t in range(100)])
    schedule = build(scenario(file, "from: 10s, to: 60s, time_scale: 0.4"), 7)
    assert [one.t for one in schedule.requests] == pytest.approx([0.4 * t for t in range(50)])


def test_a_faster_trace_is_the_same_requests_in_less_time(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", [row(500 * t) for t in range(200)])
    slow = scenario(file)
    fast = slow.scaled(2)
    assert (slow.rate, fast.rate) == pytest.approx((2, 4))
    assert (fast.warmup_s, fast.duration_s) == (0.5, 49.5)
    assert build(fast, 7).measured == build(slow, 7).measured == 198
    assert fast.at_rate(2).duration_s == pytest.approx(99)


def test_what_does_not_fit_the_context_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", [row(0, 900, 97), row(1, 900, 98)])
    kept = build(scenario(file, "filter: {max_total_tokens: 1000}"), 7).requests
    assert [one.input_tokens + one.output_tokens for one in kept] == [999]  # no system message: two marks


def test_a_field_splits_a_trace_into_tenants(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", [row(t, tenant=f"t{t % 3}") for t in range(9)])
    of_three = scenario(file, "tenant_field: tenant", "    slo: {all: {tpot_ms: 55}}\n    priority: batch")
    requests = build(of_three, 7).requests
    assert sorted({one.tenant for one in requests}) == ["t0", "t1", "t2"]
    assert {one.priority for one in requests} == {"batch"}
    assert of_three.goal("t1", "all").tpot_ms == 55


# ---- batches


def batches() -> list[dict[str, object]]:
    random = Random(1)
    counts = [max(0, round(random.gauss(10, 3))) for _ in range(200)]
    return [row(3000 * batch) for batch, count in enumerate(counts) for _ in range(count)]


def dispersion(times: list[float]) -> float:
    counts = [0] * 600
    for t in times:
        counts[int(t)] += 1
    return statistics.pvariance(counts) / statistics.fmean(counts)


@pytest.mark.parametrize(("how", "low", "high"), [("auto", 0.5, 1.5), ("even", 0, 0.5), ("off", 5, 25)])
def test_batches_are_spread_up_to_the_next(tmp_path: Path, how: str, low: float, high: float) -> None:
    trace = Trace(file=written(tmp_path / "t.jsonl", batches()), dequantise=how)  # type: ignore[arg-type]
    times = [one.t_s for one in trace.requests(Random(7))]
    assert times == sorted(times)
    assert low < dispersion([t for t in times if t < 597]) < high


def test_auto_leaves_exact_times_alone(tmp_path: Path) -> None:
    trace = Trace(file=written(tmp_path / "t.jsonl", [row(137 * t) for t in range(20)]))
    assert [one.t_s for one in trace.requests(Random(7))] == pytest.approx([0.137 * t for t in range(20)])


# ---- prefixes


def shared(schedule: Schedule, first: int, second: int) -> int:
    """Tokens of the head that two requests have in common."""
    a, b = (one.blocks for one in (schedule.requests[first], schedule.requests[second]))
    same = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        same += left.tokens
    return same


def test_hash_ids_are_blocks_of_512_and_the_first_is_the_system_message(tmp_path: Path) -> None:
    rows = [row(0, 1300, hash_ids=[0, 1, 2]), row(1, 1100, hash_ids=[0, 1, 5]), row(2, 600, hash_ids=[0, 9])]
    schedule = build(scenario(written(tmp_path / "t.jsonl", rows)), 7)
    first = schedule.requests[0]
    assert [(block.role, block.tokens) for block in first.blocks] == [("system", 512), ("user", 512), ("user", 276)]
    assert first.input_tokens == 1303
    assert (shared(schedule, 0, 1), shared(schedule, 1, 2)) == (1024, 512)


def test_hash_runs_share_up_to_where_they_part(tmp_path: Path) -> None:
    rows = [turn("s", 0, [[1, 10]]), turn("s", 1, [[1, 12]]), turn("s", 2, [[1, 4], [50, 3]])]
    rows += [turn("z", 0, [[1, 10]]), {**turn("s", 1, [[90, 3]]), "agent": "sub1"}]
    file = written(tmp_path / "t.jsonl", rows)
    schedule = build(scenario(file, "users: 1, stagger: 0s"), 7)
    by_turn = {(one.session, one.turn): one for one in schedule.requests}
    assert len(by_turn) == 4  # the subagent is left out
    assert shared(schedule, 0, 1) in (640, 0)
    long = [number for number, one in enumerate(schedule.requests) if one.input_tokens == 64 * 12 + 12]
    assert len(long) == 1
    assert shared(schedule, long[0] - 1, long[0]) == 640
    assert shared(schedule, long[0], long[0] + 1) == 256
    first, other = (one for one in schedule.requests if one.turn == 0)
    assert not {(b.namespace, b.id) for b in first.blocks} & {(b.namespace, b.id) for b in other.blocks}


def test_a_session_is_a_chain_of_turns_that_wait_for_the_one_before(tmp_path: Path) -> None:
    rows = [turn("s", number, [[1, 5 + number]], think_ms=think) for number, think in enumerate((7000, 2000, 900_000))]
    schedule = build(scenario(written(tmp_path / "t.jsonl", rows), "users: 1, stagger: 0s, think_max: 60s"), 7)
    assert [(one.turn, one.after, one.think_s, one.t) for one in schedule.requests] == [
        (0, None, 0, 0),
        (1, 0, 2, 2),
        (2, 1, 60, 62),
    ]


def test_users_take_one_session_after_the_other_and_none_twice(tmp_path: Path) -> None:
    rows = [turn(f"s{session}", number, [[1, 3]]) for session in range(6) for number in range(2)]
    schedule = build(scenario(written(tmp_path / "t.jsonl", rows), "users: 2"), 7)
    assert len(schedule.requests) == 12
    assert sum(one.after is None for one in schedule.requests) == 2
    assert len({one.session for one in schedule.requests}) == 6
    by_id = {one.id: one for one in schedule.requests}
    assert all(by_id[one.after].t < one.t for one in schedule.requests if one.after is not None)


def test_a_session_ends_where_the_context_does_and_short_ones_are_left_out(tmp_path: Path) -> None:
    rows = [turn("s", number, [[1, 10 * (number + 1)]]) for number in range(5)]
    rows += [turn("z", number, [[1, 30 * (number + 1)]]) for number in range(5)]
    trace = Trace(file=written(tmp_path / "t.jsonl", rows), users=1, rows=Filter(max_total_tokens=2000, min_turns=2))
    assert [[one.turn for one in session] for session in trace.sessions()] == [[0, 1, 2]]


def test_users_and_sessions_belong_together(tmp_path: Path) -> None:
    sessions = written(tmp_path / "s.jsonl", [turn("s", 0, [[1, 10]])])
    plain = written(tmp_path / "p.jsonl", [row(0)])
    with pytest.raises(ScenarioError, match="say how many `users`"):
        build(scenario(sessions), 7)
    with pytest.raises(ScenarioError, match="holds no sessions"):
        build(scenario(plain, "users: 3"), 7)


# ---- the standard scenarios of traces


@pytest.mark.parametrize("name", sorted(NEEDS_TRACE))
def test_scenarios_of_traces_say_what_they_need(name: str) -> None:
    with pytest.raises(
        ScenarioError, match=r"there is no trace file \w+\.jsonl\.gz; say where it is with --trace FILE"
    ):
        build(standard(name), 7)


@pytest.mark.parametrize("name", sorted(set(names()) - NEEDS_TRACE))
def test_all_others_need_nothing(name: str) -> None:
    one = standard(name)
    schedule = build(one, one.seed)
    assert one.name == name
    assert schedule.measured / one.duration_s == pytest.approx(one.rate, rel=0.15)
    assert max(row.input_tokens + row.output_tokens for row in schedule.requests) <= 32768
    assert max(row.t for row in schedule.requests) < one.total_s
