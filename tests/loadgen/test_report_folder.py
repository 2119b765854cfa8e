"""What a run leaves: read back as it was written, made again after a kill, counted honestly where it was cut."""

import csv
import gzip
import json
import math
from array import array
from pathlib import Path
from random import Random

import msgspec
import pytest

from loadgen.bench.rules import rules
from loadgen.report import document
from loadgen.report import folder as files
from loadgen.report.command import report_command
from loadgen.report.console import endpoints as console_endpoints
from loadgen.report.console import gateway
from loadgen.report.document import ReportError
from loadgen.report.folder import Ending, Scrape, read_run
from loadgen.report.lines import line, samples
from loadgen.report.making import make
from loadgen.report.outputs import NO_PAGE, rebuild, write_all
from loadgen.report.parts import State
from loadgen.report.plots_of_tenants import endpoints
from loadgen.report.record import Outcome, Sample, Try
from loadgen.schedule import Schedule
from tests.loadgen.reported import STD, broken, planned, reported, sample, trusted, written


def load(count: int = 600, seed: int = 1) -> list[Sample]:
    """A minute of two tenants, most of it good."""
    random = Random(seed)
    made = []
    for number in range(count):
        t = 5.0 + 65.0 * number / count
        tenant, cls = random.choice([("chat", "short"), ("chat", "long"), ("docs", "long")])
        outcome = random.choices([Outcome.OK, Outcome.TIMEOUT, Outcome.REJECTED_QUOTA], [90, 5, 5])[0]
        gaps = [random.expovariate(40) for _ in range(random.randrange(1, 20))]
        made.append(
            sample(number, t=t, tenant=tenant, cls=cls, outcome=outcome, first_s=random.expovariate(6), gaps_s=gaps,
                   sent_s=t + 0.0005, endpoint=f"e{number % 3}", cached_tokens=number % 50, ideal_tokens=50)
        )  # fmt: skip
    return made


# ---- lines


def test_a_line_read_back_is_the_request(tmp_path: Path) -> None:
    rich = sample(
        5, t=12.345678, sent_s=12.346, head_s=12.4, byte_s=12.41, content_s=12.5, first_s=0.1, gaps_s=(0.1, 0.000123),
        read_tokens=array("i", [2, 1, 3]), token_events=6, output_tokens=6, session="s/1", turn=2, tries=2, worker=1,
        earlier=(Try(sent_s=12.346, end_s=12.35, status=503, outcome=Outcome.REJECTED_CAPACITY, reason="overloaded"),),
        pool="short", gateway_class="batch", endpoint="e0", attempts=2, queued_s=0.0125, cached_tokens=64, ideal_tokens=80, request_id="r", leaves=True,
    )  # fmt: skip
    cases = [
        rich,
        sample(6, outcome=Outcome.REJECTED_QUOTA, status=429, reason="rate_limited", sent_s=12.0),
        sample(7, gaps_s=()),
    ]
    (tmp_path / "r.jsonl").write_bytes(b"".join(line(one, STD) for one in cases))
    for before, after in zip(cases, samples(tmp_path / "r.jsonl"), strict=True):
        for name in Sample.__slots__:
            was, now = getattr(before, name), getattr(after, name)
            close = isinstance(was, array | float)
            now, was = (list(one) if isinstance(one, array) else one for one in (now, was))
            assert now == (pytest.approx(was, abs=1e-6) if close else was), name


def test_lines_say_which_phase_and_why_it_was_not_good() -> None:
    rows = [json.loads(line(one, STD, 70.0)) for one in (sample(t=5.0), sample(t=20.0, first_s=0.5), sample(t=71.0))]
    assert [row["phase"] for row in rows] == ["warmup", "measure", "tail"]
    assert [(row["good"], row["missed"]) for row in rows] == [(True, []), (False, ["ttft"]), (True, [])]
    assert rows[0]["gaps_us"] == [20000, 20000] and "read_tokens" not in rows[0]


def test_torn_lines_are_left_out_and_another_kind_of_file_is_an_error(tmp_path: Path) -> None:
    """A kill tears the last one, a full disk any."""
    whole = b"".join(line(sample(number), STD) for number in range(3))
    path = tmp_path / "r.jsonl"
    path.write_bytes(line(sample(4), STD)[:50] + line(sample(5), STD) + whole + line(sample(3), STD)[:50])
    assert [one.id for one in samples(path)] == [0, 1, 2]
    path.write_bytes(b'{"id": 1}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl:1: "):
        samples(path)
    path.write_bytes(b"")
    assert samples(path) == []


def test_what_a_full_disk_swallowed_counts_as_unfinished(tmp_path: Path) -> None:
    rows = [sample(n, t=11 + n / 4) for n in range(200)]
    written(tmp_path, rows)
    lines = (tmp_path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "requests.jsonl").write_bytes(b"".join([*lines[:50], lines[50][:90], *lines[51:]]))
    made = make(read_run(tmp_path), trusted)
    assert (made.totals.offered, made.totals.ok) == (200, 198)
    assert any("Due and left no line: 2 of" in told for told in made.warnings)


def test_lines_of_a_version_that_did_not_know_the_gateways_class_are_read(tmp_path: Path) -> None:
    plain = json.loads(line(sample(3, pool="short", gateway_class="batch"), STD))
    del plain["gateway_class"]
    (tmp_path / "r.jsonl").write_text(json.dumps(plain) + "\n")
    (one,) = samples(tmp_path / "r.jsonl")
    assert (one.id, one.pool, one.gateway_class) == (3, "short", "")


def test_equal_names_and_times_of_many_lines_are_one_object(tmp_path: Path) -> None:
    """A report of a million requests must fit into memory."""
    rows = [sample(n, gaps_s=(), head_s=12.1, pool="main", gateway_class="batch", endpoint="e0") for n in range(2)]
    (tmp_path / "r.jsonl").write_bytes(b"".join(line(one, STD) for one in rows))
    one, other = samples(tmp_path / "r.jsonl")
    for name in ("tenant", "cls", "priority", "session", "pool", "gateway_class", "endpoint"):
        assert getattr(one, name) is getattr(other, name), name
    assert one.reads == (12.1,) and one.head_s is one.byte_s is one.end_s is one.reads[0]


# ---- the report


def test_what_the_gateways_headers_say_stands_by_pool_and_class(tmp_path: Path) -> None:
    rows = [
        sample(n, t=11 + n / 10, pool="main", gateway_class="batch" if n % 3 else "interactive",
               attempts=2 if n == 4 else 1, queued_s=0.004 if n % 3 else 0.0)
        for n in range(300)
    ]  # fmt: skip
    made = reported(tmp_path, [*rows, sample(300), sample(301, t=5.0, pool="main")])
    batch, interactive = made.gateway
    assert (batch.pool, batch.cls, batch.requests, batch.again, batch.queued.p50_ms) == ("main", "batch", 200, 1, 4.0)
    assert (interactive.cls, interactive.requests, interactive.again, interactive.queued.p50_ms) == (
        "interactive",
        100,
        0,
        0.0,
    )
    (told,) = gateway(made)
    assert told.startswith("By the gateway's headers: 200 in main/batch (in queue p50 4 ms, "), told
    assert document.read(tmp_path / "report.json").gateway == made.gateway


def test_a_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = reported(tmp_path, load())
    back = document.read(tmp_path / "report.json")
    assert back.to_json() == made.to_json() == (tmp_path / "report.json").read_bytes()
    assert json.loads(made.to_json())["schema"] == "forebay.report/1"
    assert (back.exit_code, back.name, back.totals.offered) == (made.exit_code, "made", made.totals.offered)


def test_infinity_survives_the_file_and_a_tenant_may_be_called_inf(tmp_path: Path) -> None:
    rows = [
        sample(number, t=11.0 + number / 20, tenant="inf", outcome=Outcome.TIMEOUT, reason="inf")
        for number in range(1000)
    ]
    reported(tmp_path, rows)
    back = document.read(tmp_path / "report.json")
    assert back.totals.ttft_p99_ms == math.inf and back.totals.times["ttft"].adjusted.p50_ms == math.inf  # type: ignore[union-attr]
    assert back.cells[0].tenant == "inf" and back.ends[0].reason == "inf"
    assert back.blocks[0].blocks[0].ttft_ms[0] == math.inf


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema": "forebay.report/2"}', "schema forebay.report/2; this version reads forebay.report/1"),
        ("[]", "no `schema`"),
        ("{", "r.json"),
        ('{"schema": "forebay.report/1"}', "missing required field"),
    ],
)
def test_what_is_no_report_says_so(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ReportError, match=r"r\.json") as caught:
        document.read(tmp_path / "r.json")
    assert told in str(caught.value)
    with pytest.raises(ReportError, match=r"gone\.json"):
        document.read(tmp_path / "gone.json")


def test_the_report_made_again_after_a_torn_line_is_the_same(tmp_path: Path) -> None:
    made = reported(tmp_path, load()).to_json()
    with (tmp_path / "requests.jsonl").open("ab") as file:
        file.write(line(sample(9999), STD)[:70])
    with (tmp_path / "health.jsonl").open("ab") as file:
        file.write(b'{"t_s": 81.0, "wor')
    (tmp_path / "report.json").unlink()
    assert rebuild(tmp_path, trusted)[0].to_json() == made
    assert {path.name for path in tmp_path.iterdir()} >= {"report.json", "requests.csv", "timeline.csv", "report.html"}


def test_a_killed_run_counts_what_was_due_and_left_no_line(tmp_path: Path) -> None:
    """Killed at 40 s: what was due before and never ended is unfinished, what was due later was never offered."""
    rows = load()
    written(tmp_path, rows)
    basis = files.read_basis(tmp_path)
    files.begin(tmp_path, msgspec.structs.replace(basis, ending=None))
    ended = [one for one in rows if one.end_s < 40.0 and one.sched_s < 39.0]
    (tmp_path / "requests.jsonl").write_bytes(b"".join(line(one, STD, 70.0) for one in ended))
    (tmp_path / "health.jsonl").write_bytes(
        msgspec.json.encode({"t_s": 40.0, "worker": 0, "loop_lag_ms": [0.1], "cpu": 0.1}) + b"\n"
    )
    run = read_run(tmp_path)
    due = [one for one in rows if one.sched_s < 40.0]
    assert (len(run.samples), run.lost, run.end_s) == (len(due), len(due) - len(ended), 40.0)
    report = make(read_run(tmp_path), trusted)
    measured = [one for one in due if one.measured]
    assert report.totals.offered == len(measured)
    assert next(end.count for end in report.ends if end.outcome is Outcome.UNFINISHED) == sum(
        one.measured for one in due if one not in ended
    )
    assert (report.run.interrupted, report.exit_code, report.window_s) == (True, 130, 30.0)
    judged = {rule.id: rule for rule in make(run, rules).validity.rules}
    assert judged["V2"].state is State.OK, "whether a request without a line had been sent, nobody knows"
    assert any("killed" in told for told in report.warnings) and any("left no line" in told for told in report.warnings)


def test_an_interrupted_run_ends_where_sending_did(tmp_path: Path) -> None:
    rows = [one for one in load() if one.sched_s < 30.0]
    written(tmp_path, rows)
    files.end(tmp_path, Ending(finished="x", took_s=35.0, stopped_s=30.0, interrupted=True))
    report = make(read_run(tmp_path), trusted)
    assert (report.window_s, report.exit_code) == (20.0, 130)
    assert report.client.offered_per_s == pytest.approx(sum(one.measured for one in rows) / 20.0)


def test_a_turn_after_one_that_is_missing_was_never_due(tmp_path: Path) -> None:
    rows = [sample(0), sample(1, t=13.0)]
    written(tmp_path, rows[:1])
    lines = gzip.decompress((tmp_path / "schedule.jsonl.gz").read_bytes())
    later = msgspec.structs.replace(planned(rows[1]), after=0)
    (tmp_path / "schedule.jsonl.gz").write_bytes(gzip.compress(lines + msgspec.json.encode(later) + b"\n"))
    assert read_run(tmp_path).lost == 0


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl", "schedule.jsonl.gz"])
def test_a_folder_without_a_run_says_what_is_missing(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, load(20))
    (tmp_path / name).unlink()
    assert report_command(tmp_path, trusted) == 2
    told = capsys.readouterr().err
    assert name in told and told.count(str(tmp_path)) <= 2 and "Errno" not in told


def test_what_is_no_folder_of_a_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text("{}")
    for path, said in (
        (tmp_path / "nowhere", f"{tmp_path}/nowhere: there is no such folder"),
        (tmp_path, f"{tmp_path}: has no run.json: it is no folder of a run"),
        (tmp_path / "report.json", f"{tmp_path}/report.json is a file: name the folder of the run, {tmp_path}"),
    ):
        assert report_command(path, trusted) == 2
        assert capsys.readouterr().err == f"forebay bench report: {said}\n"


# ---- figures that only a run has


def test_a_hundred_requests_are_grouped_by_cause_and_all_of_them_count(tmp_path: Path) -> None:
    """C110."""
    causes = [
        (Outcome.OK, 200, "", 60),
        (Outcome.REJECTED_QUOTA, 429, "rate_limited", 10),
        (Outcome.REJECTED_CAPACITY, 503, "overloaded", 10),
        (Outcome.TRUNCATED, 200, "", 10),
        (Outcome.ERROR_STREAM, 200, "engine died " + "x" * 100, 10),
    ]
    rows = [(outcome, status, reason) for outcome, status, reason, count in causes for _ in range(count)]
    made = reported(
        tmp_path,
        [sample(n, t=11 + n / 4, outcome=o, status=s, reason=r, first_s=0.1) for n, (o, s, r) in enumerate(rows)],
    )
    assert (made.totals.offered, made.totals.ok, made.totals.attainment) == (100, 60, 0.6)
    assert made.totals.goodput_per_s == pytest.approx(1.0)
    assert made.totals.attainment_admitted == pytest.approx(60 / 90)
    assert {(end.outcome, end.status): end.count for end in made.ends} == {
        (outcome, status): count for outcome, status, _, count in causes[1:]
    }
    assert max(len(end.reason) for end in made.ends) == 80
    assert made.totals.times["ttft"].adjusted is not None and made.totals.times["ttft"].adjusted.p90_ms == math.inf


def test_each_tenant_and_class_has_its_own_outcomes_and_causes(tmp_path: Path) -> None:
    ends = [(Outcome.OK, 200, ""), (Outcome.REJECTED_QUOTA, 429, "rate_limited"), (Outcome.CANCELLED, 200, "")]
    rows = [("a", ends[0])] * 5 + [("a", ends[1])] * 3 + [("b", ends[0])] * 4 + [("b", ends[2])] * 2
    made = reported(
        tmp_path,
        [
            sample(n, t=11.0 + n, tenant=tenant, outcome=o, status=s, reason=r, leaves=o is Outcome.CANCELLED)
            for n, (tenant, (o, s, r)) in enumerate(rows)
        ],
    )
    assert made.outcomes == {"cancelled": 2, "ok": 9, "rejected_quota": 3}
    assert {cell.tenant: cell.outcomes for cell in made.cells} == {
        "a": {"ok": 5, "rejected_quota": 3},
        "b": {"cancelled": 2, "ok": 4},
    }
    assert {cell.tenant: [(end.status, end.reason, end.count) for end in cell.ends] for cell in made.cells} == {
        "a": [(429, "rate_limited", 3)],
        "b": [],
    }
    assert {tenant for second in made.timeline for tenant in second.completed_of} == {"a", "b"}
    assert sum(second.sent_of.get("a", 0) for second in made.timeline) == 8
    assert sum(second.completed_of.get("b", 0) for second in made.timeline) == 4


def test_engines_that_no_header_names_are_shown_over_time_as_they_count_themselves(tmp_path: Path) -> None:
    written(tmp_path, [sample(n, t=11.0 + n) for n in range(9)])
    looks = [
        Scrape(t_s=t, name=name, requests=before + grown)
        for name, before, of in (("e0", 100.0, (0, 2, 5, 9)), ("e1", 7.0, (0, 0, 1, 1)))
        for t, grown in zip((-1.0, 4.0, 9.9, 21.0), of, strict=True)
    ]
    (tmp_path / files.SCRAPES).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in looks))
    made = make(read_run(tmp_path), trusted)
    assert {one.name: one.timeline for one in made.endpoints} == {"e0": (5, 0, 4), "e1": (1, 0, 0)}
    assert endpoints(made, "e")


def test_silent_truncation_is_no_success(tmp_path: Path) -> None:
    rows = [
        sample(n, t=11 + n / 20, outcome=Outcome.TRUNCATED, reads=array("d", [11.1 + n / 20]), token_events=1)
        for n in range(200)
    ]
    made = reported(tmp_path, rows)
    assert (made.totals.ok, made.totals.attainment, made.totals.goodput_per_s, made.exit_code) == (0, 0.0, 0.0, 1)
    assert made.ends[0].count == 200


def test_throughput_is_that_of_the_window_whatever_ramps_and_drains(tmp_path: Path) -> None:
    """C111: answers of 30 s, one begun each second: 30 at once in the steady state, each 2 tokens a second."""
    rows = [sample(n, t=float(n), first_s=0.5, gaps_s=[0.5] * 59, output_tokens=60) for n in range(100)]
    made = reported(tmp_path, rows, window_s=(35.0, 95.0))
    assert made.totals.output_tokens_per_s == pytest.approx(60.0, rel=0.03)
    assert made.in_flight.mean == pytest.approx(30, rel=0.03)
    assert sum(block.output_tokens for cell in made.blocks for block in cell.blocks) == pytest.approx(60 * 60, rel=0.01)


def test_the_end_of_a_run_is_no_slower_than_its_beginning(tmp_path: Path) -> None:
    """The first tokens of the last tenth of the window equal those of the first."""
    made = reported(tmp_path, [sample(n, t=10 + n / 10, first_s=0.1) for n in range(620)])
    found = [second.ttft_p50_ms for second in made.timeline[10:70]]
    assert max(abs((one or 0) - 100) for one in (*found[:6], *found[-6:])) < 1


def test_depth_and_think_time_are_told(tmp_path: Path) -> None:
    first = [sample(n, t=11.0 + n, session=f"s{n}", turn=0) for n in range(40)]
    later = [sample(40 + n, t=one.end_s + 3.0, session=one.session, turn=1) for n, one in enumerate(first)]
    made = reported(tmp_path, [*first, *later], closed=True)
    assert made.client.think_s == pytest.approx(3.0)
    assert made.closed and any("Closed loop" in told for told in made.warnings)


def test_the_most_in_flight_is_of_every_moment(tmp_path: Path) -> None:
    """Five at once for a tenth of a second, that no look once a second sees; one that follows at the end of another is no sixth."""
    rows = [sample(n, t=12.0 + n / 100, first_s=0.1, gaps_s=()) for n in range(5)]
    made = reported(tmp_path, [*rows, sample(5, t=rows[0].end_s), sample(6, t=40.0)])
    assert made.client.in_flight_max == 5 and max(second.in_flight for second in made.timeline) < 5


def test_think_time_of_a_closed_loop_is_told_too(tmp_path: Path) -> None:
    """Its users have no conversations: the schedule says which answer each request waited for."""
    first = [sample(n, t=11.0 + n) for n in range(20)]
    later = [sample(20 + n, t=one.end_s + 0.5) for n, one in enumerate(first)]
    written(tmp_path, [*first, *later], closed=True)
    rows = [msgspec.structs.replace(planned(one), after=one.id - 20, think_s=0.5) for one in later]
    Schedule(name="made", seed=7, window_start_s=10.0, window_end_s=70.0, requests=(*map(planned, first), *rows)).write(
        tmp_path / files.SCHEDULE
    )
    assert make(read_run(tmp_path), trusted).client.think_s == pytest.approx(0.5)


@pytest.mark.parametrize(("arrivals", "state"), [({"users": 3}, "ok"), ({"rate": 1}, "breach")])
def test_users_of_a_closed_loop_excuse_nobody_else_from_being_sent(
    tmp_path: Path, arrivals: dict[str, int], state: str
) -> None:
    rows = [
        sample(n, t=11.0 + n / 4, tenant="a" if n % 2 else "b", sent_s=0.0 if n % 2 else 11.0 + n / 4)
        for n in range(80)
    ]
    closed = [{"name": "a", "arrivals": arrivals}, {"name": "b", "arrivals": {"users": 2}}]
    made = reported(tmp_path, rows, rules, closed=True, scenario={"name": "made", "seed": 7, "tenants": closed})
    assert [rule.state for rule in made.validity.rules if rule.id == "V2"] == [state]


def test_where_answers_do_not_tell_what_was_cached_the_engines_do(tmp_path: Path) -> None:
    written(tmp_path, [sample(n, t=11.0 + n) for n in range(9)])
    looks = [
        Scrape(t_s=t, name="e0", running=0.0, requests=of, prompt_tokens=of * 100, cached_tokens=of * 40)
        for t, of in ((-1.0, 5.0), (80.0, 14.0))
    ]
    (tmp_path / files.SCRAPES).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in looks))
    made = make(read_run(tmp_path), trusted)
    assert "Cached, as engines count it over the whole run: 40.0 % of prompt tokens." in list(console_endpoints(made))


def test_a_counter_that_has_no_series_before_its_first_event_began_at_nothing(tmp_path: Path) -> None:
    written(tmp_path, [sample(n, t=11.0 + n) for n in range(9)])
    looks = [
        Scrape(t_s=t, name="e0", requests=of, prompt_tokens=of * 100, cached_tokens=of * 40 or None)
        for t, of in ((-1.0, 0.0), (80.0, 9.0))
    ]
    (tmp_path / files.SCRAPES).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in looks))
    (endpoint,) = make(read_run(tmp_path), trusted).endpoints
    assert endpoint.cached_tokens == 360


def test_a_warm_up_that_was_too_short_is_told(tmp_path: Path) -> None:
    random = Random(2)
    rows = [sample(n, t=10 + n / 10, first_s=(0.3 if n < 60 else 0.1) + random.random() / 50) for n in range(600)]
    assert any("Warm-up may be too short" in told for told in reported(tmp_path, rows).warnings)
    even = [sample(n, t=10 + n / 10, first_s=0.1 + random.random() / 5) for n in range(600)]
    assert not any("Warm-up" in told for told in reported(tmp_path, even).warnings)


def test_a_tenant_that_is_to_be_refused_fails_no_run(tmp_path: Path) -> None:
    good = [sample(n, t=11 + n / 4) for n in range(200)]
    bad = [sample(200 + n, t=11 + n / 4, tenant="aggressor", outcome=Outcome.REJECTED_QUOTA) for n in range(200)]
    goals = [files.Goal(tenant="chat", cls="short", slo=STD), files.Goal(tenant="aggressor", cls="short", slo=STD)]
    assert not reported(tmp_path, [*good, *bad], goals=tuple(goals)).slo_met
    goals[1] = files.Goal(tenant="aggressor", cls="short", slo=STD, expect_rejects=True)
    made = reported(tmp_path, [*good, *bad], goals=tuple(goals))
    assert made.slo_met and made.totals.attainment == 0.5, "it stays in the report"


@pytest.mark.parametrize(
    ("rules", "good", "code"), [(trusted, True, 0), (trusted, False, 1), (broken, True, 3), (broken, False, 3)]
)
def test_exit_codes(tmp_path: Path, rules: files.Rules, good: bool, code: int) -> None:
    rows = [sample(n, t=11 + n / 4, first_s=0.1 if good else 0.9) for n in range(200)]
    assert reported(tmp_path, rows, rules).exit_code == code


def test_endpoints_come_from_headers_or_from_what_engines_count(tmp_path: Path) -> None:
    rows = [sample(n, t=11 + n / 4, endpoint="a" if n % 4 else "b") for n in range(200)]
    made = reported(tmp_path, rows)
    assert [(one.name, one.requests, one.share) for one in made.endpoints] == [("a", 150, 0.75), ("b", 50, 0.25)]
    assert made.imbalance == 1.5 and sum(made.endpoints[0].timeline) == 150
    written(tmp_path, [sample(n, t=11 + n / 4) for n in range(200)])
    looks = [
        Scrape(t_s=float(t), name=name, running=2.0, waiting=float(t % 3), requests=count * t)
        for t in (0, 10, 20)
        for name, count in (("e0:9000", 5.0), ("e1:9000", 15.0))
    ]
    (tmp_path / "scrapes.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in looks))
    scraped = make(read_run(tmp_path), trusted)
    assert [(one.name, one.requests, one.share) for one in scraped.endpoints] == [
        ("e0:9000", 100, 0.25),
        ("e1:9000", 300, 0.75),
    ]
    assert scraped.loads[0].waiting == (0.0, 1.0, 2.0)


def test_the_tables_for_other_programs_have_every_request_and_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load(100)
    run = read_run(written(tmp_path, rows))
    monkeypatch.setattr("loadgen.report.outputs.find_spec", lambda name: None)
    assert write_all(tmp_path, run, make(run, trusted)) == (NO_PAGE,), "and without what draws there is no page"
    assert not (tmp_path / "report.html").exists()
    with (tmp_path / "requests.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["id"]) for row in table] == list(range(100))
    assert float(table[50]["t_sched"]) == pytest.approx(rows[50].sched_s, abs=1e-6)
    assert {"tenant", "class", "outcome", "ttft_ms", "good", "missed", "pauses"} <= table[0].keys()
    with (tmp_path / "timeline.csv").open(newline="") as file:
        seconds = list(csv.DictReader(file))
    assert sum(int(row["offered_chat"]) + int(row["offered_docs"]) for row in seconds) == 100
    assert sum(int(row["ended_ok"]) for row in seconds) == sum(one.outcome is Outcome.OK for one in rows)
    assert float(seconds[20]["loop_lag_max_ms"]) == 0.2
    assert all(len(value.partition(".")[2]) <= 4 for row in seconds for value in row.values())
