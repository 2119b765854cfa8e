"""Traces: the formats people publish, what is cut from them, and what equal ids become."""

import gzip
import json
import statistics
from pathlib import Path
from random import Random

import pytest

from loadgen.scenario import Scenario, ScenarioError, load, names, standard
from loadgen.schedule import Planned, Schedule, build, saved
from loadgen.sim.arm import run
from loadgen.workload import formats
from loadgen.workload.prompts import grouped, prompt_tokens
from loadgen.workload.trace import Filter, Sample, Trace
from tests.kit.shared import trace_file
from tests.loadgen.simulations import arm

NEEDS_TRACE = {name for name in names() if name.endswith("-trace")} | {"conversation-ttl"}


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", ":1: is not a trace: no columns"),
        ('{"timestamp": 1}\n', ":1: input_length is missing"),
        ('{"timestamp": "x"', ":1: Input data was truncated"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5}\n\nnothing\n', ":3: "),
        ('{"timestamp": 1, "input_length": -5, "output_length": 5}\n', ":1: a time or a length that cannot be"),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1]}\n',
            ":1: hash_ids: 1 of them for 600",
        ),
        ('{"timestamp": 1, "input_length": [], "output_length": 5}\n', ":1: int\\(\\) argument must be"),
        ('{"session_id": "s", "input_length": 5, "output_length": 5}\n', ":1: hash_runs is missing"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,374,44\n2023-11-16,1\n",
            ":3: not as many values",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,374,44\n", ":2: Invalid isoformat string"),
        ("Timestamp,Request tokens,Response tokens\n5,many,3\n", ":2: invalid literal"),
        ("timestamp,input_tokens,output_tokens\nnan,4,3\n", ":2: a time or a length that cannot be"),
    ],
)
def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=r"bad\.jsonl" + said):
        formats.read(str(file), None)


def test_an_empty_file_holds_no_request_and_a_broken_archive_is_named(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.jsonl", tmp_path / "broken.gz"
    empty.write_text("")
    assert formats.read(str(empty), None) == ()
    broken.write_bytes(gzip.compress(b"{}" * 500)[:-9])
    with pytest.raises(ScenarioError, match=r"broken\.gz is not a trace"):
        formats.read(str(broken), None)


def test_burstgpt_is_read_in_seconds_from_its_first_row_without_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "b.csv"
    file.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,,1.2,ChatGPT,472,18,490,Conversation log\n"
        "45.5,s7,0.5,GPT-4,1087,230,1317,Conversation log\n"
        "118,,0,ChatGPT,417,0,417,API log\n"
    )
    first, second = formats.read(str(file), "Model")
    assert (first.t_s, first.input_tokens, first.output_tokens, first.tenant) == (0, 472, 18, "ChatGPT")
    assert (second.t_s, second.label, second.tenant) == (40.5, "s7", "GPT-4")


def test_servegen_is_read_with_its_share_of_reasoning(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("request_id,timestamp,input_tokens,output_tokens,reason_ratio\n0,0.5,300,400,0.75\n1,2,10,20,\n")
    first, second = formats.read(str(file), None)
    assert (first.t_s, first.output_tokens, first.reasoning_tokens) == (0, 400, 300)
    assert (second.t_s, second.reasoning_tokens) == (1.5, 0)
    one = build(scenario(str(file)), 7).requests[0]
    assert (one.output_tokens, one.reasoning_tokens) == (400, 300)


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
    file = written(tmp_path / "t.jsonl", [row(0, 900, 98), row(1, 900, 99)])
    kept = build(scenario(file, "filter: {max_total_tokens: 1000}"), 7).requests
    assert [one.input_tokens + one.output_tokens for one in kept] == [1000]  # no system message: two marks


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
    counts = [0] * (int(max(times)) + 1)
    for t in times:
        counts[int(t)] += 1
    return statistics.pvariance(counts) / statistics.fmean(counts)


@pytest.mark.parametrize(("how", "low", "high"), [("auto", 0.5, 1.5), ("even", 0, 0.5), ("off", 5, 25)])
def test_batches_are_spread_up_to_the_next(tmp_path: Path, how: str, low: float, high: float) -> None:
    trace = Trace(file=written(tmp_path / "t.jsonl", batches()), dequantise=how)  # type: ignore[arg-type]
    times = [one.t_s for one in trace.requests(Random(7))]
    assert times == sorted(times)
    assert low < dispersion([t for t in times if t < 597]) < high


def test_a_real_trace_with_batched_times_comes_as_single_requests() -> None:
    file = trace_file("mooncake_conversation")
    for how, low, high in (("auto", 0.8, 1.5), ("off", 5, 25)):
        times = [one.t_s for one in Trace(file=str(file), dequantise=how).requests(Random(7))]  # type: ignore[arg-type]
        assert low < dispersion([t for t in times if t < 600]) < high
        assert low < dispersion(times) < high, "the whole hour"


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
    long = [number for number, one in enumerate(schedule.requests) if one.input_tokens == 64 * 12 + 10 + 4]
    assert len(long) == 1
    assert shared(schedule, long[0] - 1, long[0]) == 640
    assert shared(schedule, long[0], long[0] + 1) == 256
    first, other = (one for one in schedule.requests if one.turn == 0)
    assert not {(b.namespace, b.id) for b in first.blocks} & {(b.namespace, b.id) for b in other.blocks}


def test_runs_are_cut_into_tools_system_and_who_says_what(tmp_path: Path) -> None:
    rows = [
        turn("s", 0, [[1, 10]], tool_tokens=250, system_tokens=120, trigger="user"),
        turn("s", 1, [[1, 14]], output_length=128, trigger="tool_result"),
        turn("s", 2, [[1, 18]], trigger="user"),
        turn("s", 3, [[1, 6], [19, 2]], trigger="tool_result"),  # compacted: nobody knows what is what
    ]
    requests = build(scenario(written(tmp_path / "t.jsonl", rows), "users: 1, stagger: 0s"), 7).requests
    said = [[(role, sum(one.tokens for one in blocks)) for role, blocks in grouped(one.blocks)] for one in requests]
    first = [("tools", 256), ("system", 128), ("user", 256)]
    assert said[0] == [*first[:2], ("user", 256 + 10)]
    assert said[1] == [*first, ("call", 64), ("tool", 192 + 10)]
    assert said[2] == [*first, ("call", 64), ("tool", 192), ("assistant", 128), ("user", 128 + 10)]
    assert said[3] == [*first[:2], ("user", 128 + 10)]
    for number, one in enumerate(requests):
        assert (
            one.input_tokens
            == prompt_tokens(one.blocks)
            == formats.read(str(tmp_path / "t.jsonl"), None)[number].prompt_tokens
        )


def test_a_sample_is_the_same_under_every_seed_and_keeps_what_shares_a_prefix(tmp_path: Path) -> None:
    rows = [row(1000 * t, 1500, hash_ids=[0, t % 40, 1000 + t]) for t in range(200)]
    file = written(tmp_path / "t.jsonl", rows)
    for by, groups in (("prefix", 40), ("request", 200)):
        trace = Trace(file=file, sample=Sample(one_in=4, by=by))  # type: ignore[arg-type]
        taken = trace.requests(Random(1))
        assert [one.parts for one in taken] == [one.parts for one in trace.requests(Random(2))]
        names = {one.parts[1][0] for one in taken}
        assert len(taken) == pytest.approx(50, abs=25)
        assert by == "request" or len(taken) == 5 * len(names)
        assert len(names) < groups
    assert [
        one.t_s
        for one in Trace(file=file, tenant_field="timestamp", rows=Filter(tenants=("3000",))).requests(Random(1))
    ] == [3]


def test_a_journal_is_a_trace_and_its_schedule_survives_a_file(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    made = arm(journal=path)
    before = [one for one in build(made.scenario, 3).requests if one.t < 22]  # the run is over when its window is
    run(made, 3)
    path.write_text(path.read_text() + '{"seq": 9999, "t"')  # cut off in writing
    one = scenario(str(path), "tenant_field: tenant")
    again = build(one, 7)

    def told(t: float, row: Planned, most: int | None) -> tuple[object, ...]:
        return row.tenant, row.priority, round(t, 6), row.input_tokens, most, row.stream

    assert [told(row.t, row, row.max_tokens) for row in again.requests[: len(before)]] == [
        told(row.t - before[0].t, row, min(8192, 16384 - row.input_tokens)) for row in before
    ]
    again.write(tmp_path / "schedule.jsonl.gz")
    read = saved(tmp_path / "schedule.jsonl.gz")
    assert tuple(read.requests) == again.requests
    assert (read.digest(), read.totals, read.scenario_digest) == (again.digest(), again.totals, one.digest())


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


def test_sessions_are_kept_for_the_next_rate_and_read_again_when_the_file_has_changed(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", [turn(f"s{session}", 0, [[1, 3]]) for session in range(3)])
    trace = Trace(file=file, users=2)
    first = trace.sessions()
    more = trace.scaled(2.0).sessions()
    assert more == first
    assert all(a is b for a, b in zip(more, first, strict=True)), "not read twice"
    more.reverse()
    assert trace.sessions() == first, "whoever shuffles them has their own list"
    written(tmp_path / "t.jsonl", [turn("another", 0, [[1, 3]])])
    assert [one.session for (one,) in trace.sessions()] == ["another"]
    cut = Trace(file=file, users=2, rows=Filter(min_turns=2))
    assert cut.sessions() == []


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
    assert one.closed or schedule.measured / one.duration_s == pytest.approx(one.rate, rel=0.15)
    context = 65536 if one.fleet == "ref4-64k" else 32768
    assert max(row.input_tokens + row.output_tokens for row in schedule.requests) <= context
    assert max(row.t for row in schedule.requests) < one.total_s


@pytest.mark.parametrize("name", ["chat", "code", "tenants", "reasoning", "agents"])
def test_what_follows_a_trace_amounts_to_what_the_trace_does(name: str) -> None:
    """A third apart at most in rate, tokens and sharing, where the trace is there to compare with."""
    recorded = standard(f"{name}-trace")
    file = recorded.tenants[0].arrivals.file  # type: ignore[union-attr]
    replayed = recorded.with_trace(trace_file(file.removesuffix(".jsonl.gz")))
    ours, theirs = (build(one, 7).totals for one in (standard(name), replayed))
    assert len(ours.tenants) == len(theirs.tenants)
    for field in ("requests", "input_tokens", "output_tokens"):
        assert getattr(ours, field) == pytest.approx(getattr(theirs, field), rel=0.33), field
    assert ours.ideal_share == pytest.approx(theirs.ideal_share, abs=0.05)


def test_the_ttl_scenario_keeps_whole_groups_of_conversations() -> None:
    one = standard("conversation-ttl").with_trace(trace_file("mooncake_conversation"))
    schedule = build(one, 7)
    chats = [row for row in schedule.requests if row.tenant == "chat"]
    assert len(chats) / 12031 == pytest.approx(1 / 8, rel=0.15)
    assert schedule.totals.ideal_share > 0.2
    assert max(row.input_tokens + row.output_tokens for row in chats) <= 32768
