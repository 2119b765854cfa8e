"""The table of a comparison and the sentences under it, for people who run platforms."""

from collections.abc import Iterator, Mapping

from rich import box
from rich.table import Table

from loadgen.report.record import Slo
from loadgen.report.stats import Quantile, Report, Totals

_HEADINGS = ("offered", "ok", "rejected", "TTFT\np50", "TTFT\np99", "ITL\np99", "tokens\nper s", "within\nSLO")


def table(arms: Mapping[str, Report]) -> Table:
    """One block of rows for each class and for all, one row for each arm; times in ms."""
    first = next(iter(arms.values()))
    failed = any(arm.totals.failed for arm in arms.values())
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if failed else 1, 0, 0), show_edge=False)
    made.add_column("times in ms", no_wrap=True)
    for heading in _headings(failed):
        made.add_column(heading, justify="right", no_wrap=True)
    for name in (*first.classes, "all"):
        made.add_row(name, style="bold")
        for arm, report in arms.items():
            group = report.totals if name == "all" else report.classes[name]
            made.add_row(f"  {arm}", *_cells(group, failed))
        made.add_section()
    return made


def footnotes(slo: Slo, arms: Mapping[str, Report]) -> Iterator[str]:
    """What the words of the table mean, as far as this table needs it."""
    yield (
        f"SLO: first token within {slo.ttft.base_ms:g} ms (+ {slo.ttft.per_token_ms:g} ms per prompt token beyond "
        f"{slo.ttft.free_tokens:,}), no pause above {slo.stall_ms:g} ms, at most {slo.tpot_ms:g} ms per token on "
        "average. Times count from the intended arrival; refused and failed requests count as misses."
    )
    groups = [group for arm in arms.values() for group in (arm.totals, *arm.classes.values())]
    if not all(quantile.firm for group in groups for quantile in (group.ttft_p50, group.ttft_p99, group.itl_p99)):
        yield "~ too few requests for this percentile: read it as roughly the largest value."


def verdict(gateway: Report, round_robin: Report) -> str:
    """One sentence: by how much the gateway is better, or that it is not."""
    ours, theirs = gateway.totals.attainment, round_robin.totals.attainment
    if ours is None or theirs is None:
        return "Nothing was measured: the run was too short for this rate."
    points = (ours - theirs) * 100
    ours_text, theirs_text = f"{ours * 100:.1f} %", f"{theirs * 100:.1f} %"
    if points < 0.05:
        return (
            f"The gateway was not better here: {ours_text} of requests within their SLO, {theirs_text} with round "
            "robin. Below saturation there is little to gain; try a higher --rate."
        )
    return (
        f"The gateway kept {ours_text} of all requests within their SLO, round robin {theirs_text}: "
        f"{points:.1f} points more on the same engines and the same load"
        f"{_first_token(gateway.totals, round_robin.totals)}."
    )


def _first_token(ours: Totals, theirs: Totals) -> str:
    a, b = ours.ttft_p99.value, theirs.ttft_p99.value
    if a is None or b is None:
        return ""
    return f"; p99 time to first token {_ms(a)} instead of {_ms(b)}"


def _headings(failed: bool) -> tuple[str, ...]:
    return (*_HEADINGS[:3], "failed", *_HEADINGS[3:]) if failed else _HEADINGS


def _cells(group: Totals, failed: bool) -> list[str]:
    counts = [group.offered, group.ok, group.rejected, *([group.failed] if failed else [])]
    times = [_time(quantile) for quantile in (group.ttft_p50, group.ttft_p99, group.itl_p99)]
    attainment = "-" if group.attainment is None else f"{group.attainment * 100:.1f} %"
    return [*(f"{count:,}" for count in counts), *times, f"{group.output_tokens_per_s:,.0f}", attainment]


def _time(quantile: Quantile) -> str:
    if quantile.value is None:
        return "-"
    return f"{'' if quantile.firm else '~'}{quantile.value:,.0f}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.1f} s"
