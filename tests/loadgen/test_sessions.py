"""Conversations and generated prompts: what is said again, what is shared, and who waits for whom."""

import itertools
import math
from collections import Counter

import pytest

from loadgen.report.record import Outcome
from loadgen.scenario import Scenario, load, standard
from loadgen.schedule import Planned, build
from tests.loadgen.simulations import arm, run_to_the_first

SLO = "slo: {ttft: {base_ms: 400}, tpot_ms: 100, stall_ms: 400}"


def scenario(tenant: str, head: str = "") -> Scenario:
    return load(f"""
version: 1
name: generated
seed: 7
warmup: 10s
duration: 80s
tail: 10s
{SLO}
prefixes: {{sys: {{count: 3, tokens: 200, zipf: 1}}, api: {{count: 1, tokens: 3000}}}}
{head}
tenants:
  - name: one
{tenant}
    output: {{kind: fixed, value: 30}}
""")


def conversations(how: str, rest: str = "prompt: {prefix: sys}") -> Scenario:
    return scenario(f"""
    arrivals: {{kind: sessions, turns: {{kind: fixed, value: 4}}, think: {{kind: fixed, value: 5}}, {how}}}
    input: {{kind: fixed, value: 400}}
    {rest}
""")


def by_session(requests: tuple[Planned, ...]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for one in requests:
        found.setdefault(one.session, []).append(one)
    return found


def test_a_later_turn_repeats_all_that_was_said_and_the_answers() -> None:
    for turns in by_session(build(conversations("rate: 0.5"), 7).requests).values():
        for before, after in itertools.pairwise(turns):
            assert after.blocks[: len(before.blocks)] == before.blocks
            assert [block.tokens for block in after.blocks[len(before.blocks) :]] == [30, 400]
            assert (after.after, after.think_s, after.turn) == (before.id, 5, before.turn + 1)
            assert after.t == before.t + 5
            assert [block.role for block in after.blocks[-3:]] == ["user", "assistant", "user"]


def test_sessions_begin_at_their_rate_and_a_follow_up_has_its_own_length() -> None:
    schedule = build(conversations("rate: 0.5, follow: {kind: fixed, value: 20}"), 7)
    firsts = [one for one in schedule.requests if one.turn == 0]
    assert len(firsts) == 50
    assert all(one.blocks[-1].tokens == (20 if one.turn else 400) for one in schedule.requests)


def test_a_lead_starts_in_the_middle_of_conversations() -> None:
    schedule = build(conversations("rate: 0.5, lead: 30s"), 7)
    early = [one for one in schedule.requests if one.t < 4]
    assert any(one.turn > 0 and one.after is None for one in early)
    assert all(one.t >= 0 for one in schedule.requests)
    assert conversations("rate: 0.5").rate == pytest.approx(2)


def test_users_are_always_as_many_and_begin_anew() -> None:
    schedule = build(conversations("users: 3, stagger: 2s"), 7)
    assert sum(one.after is None for one in schedule.requests) == 3
    assert len(by_session(schedule.requests)) > 10
    last: dict[str, Planned] = {}
    for one in schedule.requests:
        user = one.session.rsplit("/", 1)[0]
        if user in last:
            assert (one.after, one.think_s) == (last[user].id, 5)
        last[user] = one
    twice = build(conversations("users: 3, stagger: 2s").scaled(2), 7)
    assert sum(one.after is None for one in twice.requests) == 6


def test_a_session_ends_before_a_turn_that_would_not_fit() -> None:
    schedule = build(conversations("rate: 0.5, max_total_tokens: 1500"), 7)
    assert max(one.input_tokens + one.output_tokens for one in schedule.requests) <= 1500
    assert max(one.turn for one in schedule.requests) == 2


def test_a_session_cut_short_changes_no_other() -> None:
    varied = """
    arrivals: {kind: sessions, rate: 0.5, turns: {kind: uniform, min: 1, max: 5}, think: {kind: uniform, min: 1, max: 9}}
    input: {kind: uniform, min: 100, max: 900}
"""
    whole = by_session(build(scenario(varied), 7).requests)
    shorter = by_session(build(scenario(varied.replace("max: 9}}", "max: 9}, max_total_tokens: 1500}")), 7).requests)
    assert any(len(shorter.get(name, [])) < len(turns) for name, turns in whole.items())
    for name, turns in shorter.items():
        assert [(one.t, one.input_tokens) for one in turns] == [
            (one.t, one.input_tokens) for one in whole[name][: len(turns)]
        ]


def test_thinking_takes_some_time_so_a_closed_loop_is_a_finite_plan() -> None:
    hasty = conversations("users: 1").tenants[0]
    text = "think: {kind: fixed, value: 0}"
    eager = scenario(f"""
    arrivals: {{kind: sessions, turns: {{kind: fixed, value: 1}}, {text}, users: 1, stagger: 0s}}
    input: {{kind: fixed, value: 40}}
""")
    assert len(build(eager, 7).requests) == pytest.approx(100 / 0.05, abs=2)
    assert hasty.stream


def test_tool_definitions_come_first_and_tool_results_come_again() -> None:
    one = scenario("""
    arrivals: {kind: constant, rate: 20}
    input: {kind: fixed, value: 50}
    prompt:
      prefix: sys
      tools: api
      tool_results: {tokens: {kind: uniform, min: 100, max: 900}, pool: 30, zipf: 1.2, repeat: 0.6}
""")
    requests = [row for row in build(one, 7).requests if row.measured]
    assert {tuple(block.role for block in row.blocks) for row in requests} == {
        ("tools", "system", "user", "call", "tool", "user")
    }
    assert {row.blocks[0].tokens for row in requests} == {3000}
    uses = Counter((row.blocks[4].namespace, row.blocks[4].id) for row in requests)
    again = [count for (namespace, _), count in uses.items() if namespace == "result/one"]
    assert len(again) <= 30
    assert sum(again) / len(requests) == pytest.approx(0.6, abs=0.05)
    sizes = {(row.blocks[4].namespace, row.blocks[4].id, row.blocks[4].tokens) for row in requests}
    assert len(sizes) == len(uses)  # a result has one length
    assert len({row.blocks[5] for row in requests}) == len(requests)


def test_the_ideal_is_what_an_endless_cache_would_know() -> None:
    schedule = build(conversations("rate: 0.5", rest=""), 7)
    again = sum(
        sum(block.tokens for block in one.blocks[:-2]) for one in schedule.requests if one.measured and one.turn
    )
    assert schedule.totals.ideal_cached_tokens == again


def test_long_chat_could_reuse_about_as_much_as_the_trace_it_follows() -> None:
    one = standard("long-chat")
    shares = []
    for seed in range(7, 13):
        schedule = build(one, seed)
        measured = [row for row in schedule.requests if row.measured]
        shares.append(schedule.totals.ideal_cached_tokens / sum(row.input_tokens for row in measured))
        assert 5900 < sorted(row.input_tokens for row in measured)[len(measured) // 2] < 7400
    assert sum(shares) / len(shares) == pytest.approx(0.38, abs=0.03)


# ---- classes and goals


def test_a_class_is_the_first_that_fits_prompt_and_answer() -> None:
    one = standard("mixed-lengths")
    for row in build(one, 7).requests:
        assert row.cls == ("short" if row.input_tokens + row.output_tokens <= 4096 else "long")


def test_goals_differ_by_tenant_and_class_in_what_they_say() -> None:
    one = standard("mixed-lengths")
    assert one.goal("docs", "long").target == 0.9
    assert one.goal("docs", "short").target == one.goal("chat", "long").target == 0.95
    assert one.goal("docs", "long").ttft == one.slo.ttft
    batch = standard("spike").goal("batch", "all")
    assert (batch.e2e_ms, batch.ttft.base_ms, batch.target) == (120_000, 120_000, 0.9)


def test_the_tail_is_offered_and_not_measured() -> None:
    one = conversations("rate: 0.5")
    schedule = build(one, 7)
    assert {row.measured for row in schedule.requests if row.t >= 90} == {False}
    assert {row.measured for row in schedule.requests if 10 <= row.t < 90} == {True}
    assert one.lasting(60).total_s == 60


# ---- closed loops


def closed(users: int, think: str) -> Scenario:
    return scenario(f"""
    arrivals: {{kind: closed, users: {users}, think: {think}, stagger: 4s}}
    input: {{kind: uniform, min: 100, max: 900}}
    prompt: {{prefix: sys}}
""")


def test_each_user_of_a_closed_loop_waits_for_the_answer_and_thinks() -> None:
    one = closed(9, "{kind: uniform, min: 2, max: 6}")
    requests = build(one, 7).requests
    heads = [row for row in requests if row.after is None]
    assert len(heads) == 9 and max(row.t for row in heads) < 4
    by_id = {row.id: row for row in requests}
    followers = [row for row in requests if row.after is not None]
    assert len({row.after for row in followers}) == len(followers), "nobody asks twice at a time"
    for row in followers:
        assert row.t == pytest.approx(by_id[row.after].t + row.think_s)
        assert 2 <= row.think_s <= 6
    assert {row.session for row in requests} == {""}, "each question stands for itself"
    assert len({row.blocks[-1] for row in requests}) == len(requests)
    assert one.closed and one.rate == pytest.approx(9 / 4, rel=0.05)


@pytest.mark.parametrize("seed", [3, 4])
def test_no_more_requests_than_users_are_ever_open(seed: int) -> None:
    one = closed(45, "{kind: uniform, min: 0, max: 1}")
    plan = build(one, seed)
    samples = run_to_the_first(arm(plan=one), plan)[1]
    assert len(samples) > 200
    ends = {sample.id: sample.end_s if sample.outcome is Outcome.OK else math.inf for sample in samples}
    turns = sorted([(sample.sched_s, 1) for sample in samples] + [(end_s, -1) for end_s in ends.values()])
    depth = list(itertools.accumulate(change for _, change in turns))
    assert 10 < max(depth) <= 45 and min(depth) >= 0
    by_user = {row.id: row.blocks[-1].namespace for row in plan.requests}
    last: dict[str, float] = {}
    for sample in sorted(samples, key=lambda one: one.sched_s):
        assert sample.sched_s > last.get(by_user[sample.id], -1)
        last[by_user[sample.id]] = ends[sample.id]


def test_a_user_more_changes_nothing_for_the_others() -> None:
    few, more = (build(closed(users, "{kind: uniform, min: 2, max: 6}"), 7).requests for users in (3, 4))
    ours = {(row.t, row.input_tokens, row.think_s) for row in few}
    assert ours < {(row.t, row.input_tokens, row.think_s) for row in more}


def test_real_answers_count_as_known_and_planned_ones_do_not() -> None:
    planned, real = (build(conversations("rate: 0.5", f"prompt: {{answers: {how}}}"), 7) for how in ("planned", "real"))
    turns = sum(one.measured and one.turn > 0 for one in real.requests)
    assert real.totals.ideal_cached_tokens - planned.totals.ideal_cached_tokens == 30 * turns
    assert {block.namespace.partition("/")[0] for one in real.requests for block in one.blocks} == {"own", "answer"}


def test_what_is_thought_is_part_of_the_answer_and_not_said_again() -> None:
    one = conversations("rate: 0.5", "reasoning: {kind: fixed, value: 100}")
    requests = build(one, 7).requests
    assert {(row.output_tokens, row.reasoning_tokens) for row in requests} == {(130, 100)}
    assert {block.tokens for row in requests for block in row.blocks if block.role == "assistant"} == {30}
