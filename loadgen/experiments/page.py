"""docs/experiments.md: what was claimed, what came out. Made of the results file alone, so it can be made again."""

import math
from collections.abc import Iterator, Sequence

from loadgen.experiments.figures import Estimate
from loadgen.experiments.findings import FINDINGS
from loadgen.experiments.judge import MET, MISSED, ON_AVERAGE, UNKNOWN, Verdict
from loadgen.experiments.section import Rates, Row, Runs, Section

HEAD = """# Experiments

What the scheduling core claims, and what came out. Every figure is **simulated**: the core and the baselines on the same
requests, in front of [engines of known speed](engine-model.md), in [virtual time](simulator.md). They compare ways of
scheduling; they promise no machine's numbers.

`make experiments` runs everything (about 1,300 runs and searches, half an hour on two idle cores) and writes this page; `make experiments
ARGS="E1 E3"` renews two sections. Results are kept in `runs/experiments` and found again as long as nothing they depend on has
changed. Where there is a C compiler the simulated engines are compiled first, which takes seconds and changes no digit.

- Every request offered is in the denominator; refusals, failures and timeouts are misses, and wait for ever in the percentiles.
- Each arm gets the same requests at the same times. Claims are judged in pairs, seed by seed, with 95 % t-intervals over
  the seeds: **met** when the whole interval is on the claim's side, **met on average** when only the mean is.
- Every arm has the engines' long-prefill cap and prefix caching on, unless the experiment is about that. The core sees
  metrics that are a second old, and its classes promise what the scenario judges by.
- *The best baseline* is the one of B0..B7 (`random` to `smg_least_load_http`) with the highest rate under the same seeds.
  B8 `least_prefill` and B9 `lmetric` know exactly what no scrape shows; no router in the field is as strong.
- The highest rate is bisected to 4 % in windows of 120 s or 500 requests: the SLO met in total and by every
  group of 100 requests, and no queue that grows.
"""


SHOWN = 3  # misses in the list of verdicts


def page(sections: Sequence[Section]) -> str:
    """The whole page."""
    lines = [HEAD, "## Verdicts", "", "| | claim | verdict |", "|---|---|---|"]
    for one in sections:
        lines.append(f"| [{one.id}](#{_anchor(one)}) | {one.title} | {_summary(one)} |")
    for one in sections:
        lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def verdict(one: Verdict) -> str:
    """Met, or missed by how much."""
    if one.estimate is None:
        return "cannot be judged: somebody waited for ever, or nothing happened"
    found = f"{_told(one, one.estimate.mean)}{_within(one)}"
    if one.outcome == MISSED:
        return f"**{'broken' if one.must_not else 'missed'}** by {_gap(one)}: {found}"
    kept = {MET: "kept", ON_AVERAGE: "kept on average"} if one.must_not else {MET: "met", ON_AVERAGE: ON_AVERAGE}
    return f"{kept[one.outcome]}: {found}"


def _section(one: Section) -> Iterator[str]:
    yield f"## {one.id}. {one.title}"
    yield ""
    yield one.claim
    yield ""
    if one.verdicts:
        yield "| claim | where | bound | verdict |"
        yield "|---|---|---|---|"
    for each in one.verdicts:
        against = f" (here {each.theirs})" if each.theirs else ""
        price = "must not: " if each.must_not else ""
        yield f"| {price}{each.says}{against} | {each.where} | {_bound(each)} | {verdict(each)} |"
    for name in one.skipped:
        yield f"\nNot run: {name}"
    for rates in one.rates:
        yield from _rates(rates)
    for runs in one.runs:
        yield from _runs(runs)
        if one.curve:
            yield from _curve(runs)
    if one.id in FINDINGS:
        yield f"\n**The limit.** {FINDINGS[one.id]}"
    for note in one.notes:
        yield f"\n{note}"
    yield ""
    yield f"Simulated. `{one.made['command']}`, commit {one.made['commit']}, {one.made['day']}."


def _rates(rates: Rates) -> Iterator[str]:
    yield f"\n**{rates.where}: the highest rate inside the SLO**\n"
    yield "| arm | requests/s | 95 % | seeds | beyond it fails |"
    yield "|---|---|---|---|---|"
    for arm, (found, seeds, limit) in sorted(rates.arms.items(), key=lambda entry: -entry[1][0].mean):
        yield f"| {arm} | {found.mean:.2f} | {_interval(found, 1, 2)} | {seeds} | {limit} |"


def _runs(runs: Runs) -> Iterator[str]:
    groups = list(dict.fromkeys(name for row in runs.rows for name in row.groups))
    seeds = f"{runs.seeds} seeds" if runs.seeds > 1 else "one seed"
    yield f"\n**{runs.where}**: {runs.offered_per_s:.2f} requests/s for {runs.window_s:.0f} s, {seeds}\n"
    extra = [name for name in _EXTRA if any(row.figures.get(name) for row in runs.rows)]
    headings = [*_HEADINGS, *(_EXTRA[name] for name in extra), *(f"{name}: p50 / p99 ms, in SLO" for name in groups)]
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in runs.rows:
        yield f"| {' | '.join([*_row(row), *(_plain(row.figures[name]) for name in extra), *(_group(row, name) for name in groups)])} |"


def _curve(runs: Runs) -> Iterator[str]:
    factors = list(runs.rows[0].curve)
    yield f"\n| within SLO % with all limits times | {' | '.join(factors)} |"
    yield "|---" * (len(factors) + 1) + "|"
    for row in runs.rows:
        yield f"| {row.arm} | {' | '.join(f'{row.curve[factor] * 100:.1f}' for factor in factors)} |"


_HEADINGS = (
    "arm",
    "within SLO %",
    "95 %",
    "good/s",
    "tokens/s",
    "refused",
    "failed",
    "TTFT p50 ms",
    "TTFT p99 ms",
    "stall p99 ms",
    "cached / ideal %",
)
_EXTRA = {
    "imbalance": "most / mean requests",
    "coverage": "coverage",
    "moves_per_min": "lane moves/min",
    "refusals_cv": "refusals CV",
    "longest_wait_s": "longest wait s",
}


def _row(row: Row) -> list[str]:
    figures = row.figures
    share = figures["cached_share"]
    return [
        row.arm,
        f"{row.attainment.mean * 100:.1f}",
        _interval(row.attainment, 100, 1),
        f"{figures['goodput_per_s'] or 0:.2f}",
        *(_plain(figures[name], 0) for name in ("output_tokens_per_s", "rejected_capacity", "failed")),
        *(_plain(figures[name], 0) for name in ("ttft_p50_ms", "ttft_p99_ms", "stall_p99_ms")),
        "-" if share is None else f"{share * 100:.0f}",
    ]


def _group(row: Row, name: str) -> str:
    found = row.groups.get(name, {})
    share = found.get("attainment")
    times = f"{_plain(found.get('ttft_p50_ms'), 0)} / {_plain(found.get('ttft_p99_ms'), 0)}"
    return f"{times}, {'-' if share is None else f'{share * 100:.1f} %'}"


def _summary(one: Section) -> str:
    """How many claims of each kind stand how, and the first ones that are missed, by how much."""
    if not one.verdicts:
        return "not run"
    told = []
    for must_not, words in (
        (False, ("met", "met on average", "missed")),
        (True, ("kept", "kept on average", "broken")),
    ):
        outcomes = [each.outcome for each in one.verdicts if each.must_not is must_not]
        counted = zip((MET, ON_AVERAGE, MISSED), words, strict=True)
        told += [f"{outcomes.count(kind)} {word}" for kind, word in counted if kind in outcomes]
        told += [f"{outcomes.count(UNKNOWN)} not judged"] if UNKNOWN in outcomes else []
    worst = [f"<br>{each.where}: {each.says}: {verdict(each)}" for each in one.verdicts if each.outcome == MISSED]
    return ", ".join(told) + "".join(worst[:SHOWN]) + (f"<br>and {len(worst) - SHOWN} more" if worst[SHOWN:] else "")


def _told(one: Verdict, value: float) -> str:
    if one.how == "ratio":
        return "without end" if value == math.inf else f"{value:.2f} x"
    if _is_share(one.figure):
        return f"{value * 100:+.1f} points" if one.how == "difference" else f"{value * 100:.1f} %"
    return f"{value:.2f}"


def _is_share(name: str) -> bool:
    return name.endswith(("attainment", "cached_share", "coverage"))


def _bound(one: Verdict) -> str:
    least = [] if one.at_least is None else [f"at least {_told(one, one.at_least)}"]
    most = [] if one.at_most is None else [f"at most {_told(one, one.at_most)}"]
    return ", ".join(least + most)


def _gap(one: Verdict) -> str:
    """From the mean to the bound that it misses."""
    mean = one.estimate.mean if one.estimate else 0.0
    low = one.at_least is not None and mean < one.at_least
    gap = abs(mean - ((one.at_least if low else one.at_most) or 0.0))
    if gap == math.inf:
        return "far"
    if one.how != "ratio" and _is_share(one.figure):
        return f"{gap * 100:.1f} points"
    return f"{gap:.2f}"


def _within(one: Verdict) -> str:
    found = one.estimate
    if found is None or found.low is None or found.high is None:
        return " (one seed)"
    return f" ({_told(one, found.low)} to {_told(one, found.high)})"


def _interval(found: Estimate, times: float, digits: int) -> str:
    if found.low is None or found.high is None:
        return "-"
    return f"{found.low * times:.{digits}f} to {found.high * times:.{digits}f}"


def _plain(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    return "never" if value == math.inf else f"{value:,.{digits}f}"


def _anchor(one: Section) -> str:
    """Of the heading, as GitHub makes it."""
    heading = f"{one.id}. {one.title}".lower().replace(" ", "-")
    return "".join(letter for letter in heading if letter.isalnum() or letter == "-")
