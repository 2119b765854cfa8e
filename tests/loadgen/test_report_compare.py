"""Two runs: verdicts on pairs whose truth is known, gates, refusals, exit codes."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from loadgen.report.compare import METRICS, Comparison, Row, Verdict, change, compare, refusals
from loadgen.report.compare_command import CompareOptions, compare_command
from loadgen.report.compare_table import cautions
from loadgen.report.document import Report
from loadgen.report.gates import GateError, failures, gate
from loadgen.report.record import Outcome
from loadgen.report.resampling import RESAMPLES, Ranked, draws, middle, resampled
from loadgen.report.stats import percentile
from tests.loadgen.reported import broken, reported, sample

HOUR = (10.0, 610.0)  # sixty blocks


def run(
    folder: Path, slower: float = 1.0, *, seed: int = 1, bad: float = 0.02, noise: int = 1, **basis: object
) -> Report:
    """Ten minutes of 2/s: first tokens and pauses `slower` times as long, a share `bad` beyond its limit.

    The load (`seed`) comes in waves that both runs of a pair share; `noise` is each run's own.
    """
    load, own = Random(seed), Random(noise)
    rows = []
    for number in range(1200):
        wave = 1 + (number // 60 % 4) / 2
        first_s = 0.08 * wave * load.lognormvariate(0, 0.3) * slower * own.lognormvariate(0, 0.02)
        late = load.random() < bad
        rows.append(
            sample(number, t=10.0 + number / 2, measured=True, first_s=first_s + (0.5 if late else 0.0),
                   gaps_s=(0.02 * slower, 0.03 * slower), cls="long" if number % 4 == 0 else "short")
        )  # fmt: skip
    return reported(folder, rows, window_s=HOUR, schedule=f"schedule {seed}", **basis)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(tmp_path_factory.mktemp("base"))


def verdicts(made: Comparison, cell: str = "all") -> dict[str, Verdict]:
    return {row.metric: row.verdict for row in made.rows if row.cell == cell}


# ---- resampling


def test_an_interval_holds_the_truth_about_nineteen_times_in_twenty() -> None:
    """Means of 40 blocks of known mean; 100 experiments."""
    random = Random(5)
    held = 0
    for _ in range(100):
        blocks = [random.gauss(10, 3) for _ in range(40)]
        low, high = resampled(blocks, lambda drawn: sum(drawn) / len(drawn)) or (0, 0)
        held += low <= 10 <= high
    assert 88 <= held <= 99


def test_percentiles_of_drawn_blocks_are_those_of_sorting_them() -> None:
    random = Random(1)
    blocks = [[random.lognormvariate(5, 1) for _ in range(random.randrange(0, 60))] for _ in range(20)]
    blocks[3].append(math.inf)
    ranked = Ranked(blocks)
    for weights in draws(20, 4)[:50]:
        drawn = sorted(value for block, times in zip(blocks, weights, strict=True) for value in block * times)
        for p in (0.5, 0.99):
            assert ranked.percentile(weights, p) == pytest.approx(percentile(drawn, p), rel=0.005)
    assert Ranked([[], []]).percentile([1, 1], 0.5) is None
    assert Ranked([[1.0], []]).percentile([0, 2], 0.5) is None


def test_draws_are_fixed_and_middles_are_by_rank() -> None:
    assert draws(10, 0) == draws(10, 0) != draws(10, 1)
    assert len(draws(10, 0)) == RESAMPLES and all(sum(one) == 10 for one in draws(10, 0))
    assert middle([float(value) for value in range(1000, 0, -1)]) == (26, 975)


# ---- verdicts


def test_a_run_beside_itself_is_the_same_in_everything(base: Report) -> None:
    made = compare(base, base, tuple(METRICS), 0.02)
    assert made.paired
    assert set(verdicts(made).values()) == set(verdicts(made, "chat short standard").values()) == {Verdict.SAME}
    assert all(row.change == 0 and row.within == (0, 0) for row in made.rows)


@pytest.mark.parametrize(("slower", "verdict"), [(1.1, Verdict.WORSE), (0.9, Verdict.BETTER), (1.005, Verdict.SAME)])
def test_pairs_of_known_difference_get_their_verdict(
    base: Report, tmp_path: Path, slower: float, verdict: Verdict
) -> None:
    made = compare(base, run(tmp_path, slower, noise=2), ("ttft_p50", "tpot_p50", "stall_p99"), 0.03)
    assert set(verdicts(made).values()) == {verdict}
    first = next(row for row in made.rows if row.metric == "ttft_p50")
    assert first.within is not None and first.within[0] <= slower - 1 <= first.within[1]


def test_pairs_see_what_unpaired_runs_cannot(base: Report, tmp_path: Path) -> None:
    """4 % slower: the waves of the load hide it unless both runs are in the same one."""
    paired = compare(base, run(tmp_path / "a", 1.04, noise=2), ("ttft_p50",), 0.02).rows[0]
    apart = compare(base, run(tmp_path / "b", 1.04, seed=2, noise=2), ("ttft_p50",), 0.02)
    assert not apart.paired
    assert paired.verdict is Verdict.WORSE and apart.rows[0].verdict is Verdict.UNDECIDED
    width = [row.within[1] - row.within[0] for row in (paired, apart.rows[0]) if row.within]
    assert width[0] < width[1] / 3


def test_attainment_and_rejects_are_compared_in_points(base: Report, tmp_path: Path) -> None:
    made = compare(base, run(tmp_path, bad=0.12), ("attainment", "goodput"), 0.02)
    row = made.rows[0]
    assert row.change == pytest.approx(row.after - row.before)
    assert (row.verdict, row.certain) == (Verdict.WORSE, True)
    assert made.rows[1].change == pytest.approx((made.rows[1].after - made.rows[1].before) / made.rows[1].before)


def test_cells_with_few_requests_and_percentiles_of_few_are_left_out(base: Report, tmp_path: Path) -> None:
    rows = [sample(n, t=11 + n / 4, tenant="a") for n in range(200)] + [
        sample(200 + n, t=11 + n, tenant="b") for n in range(40)
    ]
    small = reported(tmp_path, rows)
    made = compare(small, small, tuple(METRICS), 0.02)
    assert {row.cell for row in made.rows} == {"all", "a short standard"}
    assert "ttft_p99" not in verdicts(made) and "ttft_p50" in verdicts(made)


def test_requests_that_never_end_are_worse_than_any_late_one(base: Report, tmp_path: Path) -> None:
    rows = [sample(n, t=11 + n / 20, outcome=Outcome.TIMEOUT if n % 20 == 0 else Outcome.OK) for n in range(1000)]
    ends, never = (
        reported(tmp_path / "a", [sample(n, t=11 + n / 20) for n in range(1000)]),
        reported(tmp_path / "b", rows),
    )
    row, _ = compare(ends, never, ("ttft_p99",), 0.02).rows
    assert (row.after, row.change, row.verdict) == (math.inf, math.inf, Verdict.WORSE)
    back, _ = compare(never, ends, ("ttft_p99",), 0.02).rows
    assert (back.change, back.verdict) == (-1.0, Verdict.BETTER)
    assert compare(never, never, ("ttft_p99",), 0.02).rows[0].verdict is Verdict.SAME


@pytest.mark.parametrize(
    ("metric", "before", "after", "expected"),
    [("ttft_p50", 100, 110, 0.1), ("attainment", 0.9, 0.8, -0.1), ("ttft_p99", math.inf, math.inf, 0), ("goodput", 0, 0, 0), ("goodput", 0, 3, math.inf)],
)  # fmt: skip
def test_changes(metric: str, before: float, after: float, expected: float) -> None:
    assert change(METRICS[metric], before, after) == pytest.approx(expected)


# ---- gates


def rows_of(*rows: tuple[str, str, float, float, tuple[float, float]]) -> Comparison:
    made = [
        Row(metric=metric, cls="short" if tenant else "", tenant=tenant, priority="", before=before, after=after,
            change=change(METRICS[metric], before, after), within=within, verdict=Verdict.UNDECIDED)
        for metric, tenant, before, after, within in rows
    ]  # fmt: skip
    return Comparison(paired=True, rows=tuple(made))


MOVED = rows_of(
    ("ttft_p99", "", 100, 108, (0.05, 0.1)),
    ("ttft_p99", "chat", 100, 104, (0.01, 0.06)),
    ("ttft_p99", "docs", 100, 130, (-0.05, 0.5)),
    ("attainment", "", 0.97, 0.955, (-0.02, -0.01)),
    ("attainment", "chat", 0.97, 0.965, (-0.01, -0.001)),
)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("ttft_p99 > +5%", ["all"]),
        ("ttft_p99{tenant=chat} > +5%", []),
        ("ttft_p99{tenant=chat, class=short} > 3%", ["chat short"]),
        ("ttft_p99{tenant=docs} > +5%", []),  # not certain
        ("ttft_p99{all} > +5%", ["all"]),
        ("ttft_p99 > 3", ["all", "chat short"]),
        ("ttft_p99 < -1%", []),
        ("attainment < -1%", ["all"]),
        ("attainment<-0.4", ["all", "chat short"]),
        ("attainment{class=short} < -0.4%", ["chat short"]),
    ],
)
def test_gates(text: str, cells: list[str]) -> None:
    assert [row.cell for _, row in failures([gate(text)], MOVED)] == cells


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ttft_p98 > 5%", "no metric is called ttft_p98"),
        ("ttft_p99 = 5%", "not of the form"),
        ("ttft_p99{pool=a} > 5%", "'pool=a' is none of class, tenant, priority"),
        ("ttft_p99{tenant=nobody} > 5%", "nothing to compare"),
        ("", "not of the form"),
    ],
)
def test_gates_that_cannot_be(text: str, told: str) -> None:
    with pytest.raises(GateError, match=told):
        failures([gate(text)], MOVED)


# ---- the command


def called(*files: Path, **options: object) -> int:
    return compare_command(CompareOptions(files=files, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs, good, bad and such as are not to be compared."""
    root = tmp_path_factory.mktemp("runs")
    good = [sample(n, t=11 + n / 20) for n in range(1000)]
    slow = [sample(n, t=11 + n / 20, first_s=0.1 if n % 5 else 0.9) for n in range(1000)]
    other = {"name": "other", "tenants": [{"name": "chat"}]}
    made: dict[str, Path] = {}
    for name, rows, basis, rules in (
        ("good", good, {}, None),
        ("slow", slow, {}, None),
        ("invalid", good, {}, broken),
        ("closed", good, {"closed": True}, None),
        ("other", good, {"scenario": other}, None),
        ("elsewhere", good, {"scenario": {"name": "made", "seed": 9, "tenants": [{"name": "chat", "url": "https://b.test"}]}}, None),
        ("fleet", good, {"target": {"fleet": "tp8"}}, None),
    ):  # fmt: skip
        made[name] = root / name
        reported(root / name, rows, *([rules] if rules else []), **basis)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("second", "options", "code", "told"),
    [
        ("good", {}, 0, "passed: attainment < -1%"),
        ("slow", {}, 1, "FAILED attainment < -1%: all attainment -20.0 points"),
        ("slow", {"fail_on": ("ttft_p50 > +5%",)}, 0, "passed: ttft_p50"),
        ("slow", {"fail_on": ("ttft_p99 > +5%", "stall_p99 > 1%")}, 1, "FAILED ttft_p99"),
        ("elsewhere", {}, 0, "the same schedule"),
        ("invalid", {}, 3, "the second run is invalid: V3"),
        ("closed", {}, 3, "closed loop"),
        ("other", {}, 3, "differ in name"),
        ("other", {"allow_different": ("SCENARIO",)}, 0, "other: their scenarios differ in name"),
        ("fleet", {}, 3, "their fleets differ"),
        ("fleet", {"allow_different": ("FLEET",)}, 0, "fleet: their fleets differ"),
        ("gone", {}, 2, "gone"),
        ("good", {"fail_on": ("nonsense",)}, 2, "not of the form"),
        ("good", {"metrics": ("ttft",)}, 2, "there are attainment"),
        ("good", {"min_effect": "2"}, 2, "a percentage"),
        ("good", {"allow_different": ("SEED",)}, 2, "one of SCENARIO, FLEET"),
    ],
)  # fmt: skip
def test_exit_codes_and_reasons(
    folders: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    second: str,
    options: dict[str, object],
    code: int,
    told: str,
) -> None:
    options = {"metrics": ("attainment", "ttft_p50")} | options
    assert called(folders["good"], folders.get(second, Path("gone")), **options) == code
    captured = capsys.readouterr()
    assert told.lower() in (captured.out + captured.err).lower()


def test_more_than_two_files_are_measured_by_the_baseline(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = called(folders["good"], folders["slow"], baseline=folders["good"], json=True, metrics=("attainment",))
    told = json.loads(capsys.readouterr().out)
    assert (code, told["schema"], len(told["comparisons"])) == (1, "forebay.compare/1", 2)
    assert [len(one["failed"]) for one in told["comparisons"]] == [0, 2]
    assert told["comparisons"][1]["rows"][0]["change"] == pytest.approx(-0.2)
    assert called(folders["good"]) == 2


def test_a_comparison_repeats_what_its_runs_warn_of(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "broken rules that are allowed: V4 (--allow)"
    reported(tmp_path / "allowed", [sample(n, t=11 + n / 20) for n in range(1000)], warnings=(told,))
    both = folders["good"], tmp_path / "allowed"
    assert called(*both, html=tmp_path / "c.html", metrics=("attainment",)) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert told in (tmp_path / "c.html").read_text("utf-8")
    assert called(*both, json=True, metrics=("attainment",)) == 0
    assert any(one.endswith(told) for one in json.loads(capsys.readouterr().out)["warnings"])


def test_intervals_of_a_short_window_are_said_to_be_too_narrow(
    folders: dict[str, Path], base: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(folders["good"], folders["slow"], metrics=("attainment",)) == 1
    assert (
        "! 60 s were measured: 95 % intervals of fewer than 12 blocks of 10 s are too narrow" in capsys.readouterr().out
    )
    assert not [one for one in cautions(("a", "b"), (base, base)) if "too narrow" in one], "ten minutes are enough"


def test_the_page_of_a_comparison(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.html"
    assert called(folders["good"], folders["slow"], html=path, metrics=("attainment", "ttft_p50")) == 1
    text = path.read_text("utf-8")
    for words in ("Shares: change in points", "Time to first token", "attainment", "worse", "in pairs"):
        assert words in text
    assert "http://" not in text and "<script" not in text


def test_an_interrupted_run_is_compared_as_far_as_it_went(base: Report) -> None:
    cut = msgspec.structs.replace(
        base,
        blocks=tuple(msgspec.structs.replace(cell, blocks=cell.blocks[:20]) for cell in base.blocks),
        window_s=200.0,
    )
    made = compare(base, cut, ("attainment", "goodput"), 0.02)
    assert made.paired and set(verdicts(made).values()) == {Verdict.SAME}


def test_runs_without_a_difference_have_nothing_to_refuse(base: Report) -> None:
    seeds: Sequence[int] = (1, 2)
    several = [msgspec.structs.replace(base, scenario={**base.scenario, "seed": seed}) for seed in seeds]
    assert refusals(*several, ()) == []
