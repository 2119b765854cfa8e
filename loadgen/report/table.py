"""The table of a comparison and the sentences under it, for people who run platforms."""

from collections.abc import Iterator, Mapping

from rich import box
from rich.table import Table

from loadgen.report.figures import Figures
from loadgen.report.record import Slo
from loadgen.report.run import RunReport

_HEADINGS = ("offered", "ok", "rejected", "TTFT\np50", "TTFT\np99", "ITL\np99", "tokens\nper s", "within\nSLO")


def groups(report: RunReport) -> dict[str, Figures]:
    """Each priority, of which there is one cell, and all."""
    return {**{priority: cell for (_, _, priority), cell in report.cells.items()}, "all": report.totals}


def table(arms: Mapping[str, RunReport]) -> Table:
    """One block of rows for each class and for all, one row for each arm; times in ms."""
    failed = any(arm.totals.failed for arm in arms.values())
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if failed else 1, 0, 0), show_edge=False)
    made.add_column("times in ms", no_wrap=True)
    for heading in _headings(failed):
        made.add_column(heading, justify="right", no_wrap=True)
    for name in groups(next(iter(arms.values()))):
        made.add_row(name, style="bold")
        for arm, report in arms.items():
            made.add_row(f"  {arm}", *_cells(groups(report)[name], failed))
        made.add_section()
    return made


def footnotes(slo: Slo, arms: Mapping[str, RunReport]) -> Iterator[str]:
    """What the words of the table mean, as far as this table needs it."""
    yield (
        f"SLO: first token within {slo.ttft.base_ms:g} ms (+ {slo.ttft.per_token_ms:g} ms per prompt token beyond "
        f"{slo.ttft.free_tokens:,}), no pause above {slo.stall_ms:g} ms, at most {slo.tpot_ms:g} ms per token on "
        "average. Times count from the intended arrival; refused and failed requests count as misses."
    )
    if not all(group.firm(0.99) for arm in arms.values() for group in groups(arm).values()):
        yield "~ too few requests for this percentile: read it as roughly the largest value."


def verdict(gateway: RunReport, round_robin: RunReport) -> str:
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


def _first_token(ours: Figures, theirs: Figures) -> str:
    a, b = ours.ttft_completed_p99_ms, theirs.ttft_completed_p99_ms
    if a is None or b is None:
        return ""
    return f"; p99 time to first token {_ms(a)} instead of {_ms(b)}"


def _headings(failed: bool) -> tuple[str, ...]:
    return (*_HEADINGS[:3], "failed", *_HEADINGS[3:]) if failed else _HEADINGS


def _cells(group: Figures, failed: bool) -> list[str]:
    counts = [group.offered, group.ok, group.rejected, *([group.failed] if failed else [])]
    ttft = [
        _time(ms, group.firm(p)) for ms, p in ((group.ttft_completed_p50_ms, 0.5), (group.ttft_completed_p99_ms, 0.99))
    ]
    attainment = "-" if group.attainment is None else f"{group.attainment * 100:.1f} %"
    itl = _time(group.times["itl"].completed.p99_ms, True)
    return [*(f"{count:,.0f}" for count in counts), *ttft, itl, f"{group.output_tokens_per_s:,.0f}", attainment]


def _time(ms: float | None, firm: bool) -> str:
    return "-" if ms is None else f"{'' if firm else '~'}{ms:,.0f}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.1f} s"
