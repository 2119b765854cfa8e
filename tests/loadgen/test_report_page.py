"""What people see: the console page at every width, and one HTML file that needs nothing and nobody."""

import re
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import msgspec
import pytest
from rich.console import Console

from loadgen.report.console import amount, lines, verdict
from loadgen.report.document import Report
from loadgen.report.folder import read_run
from loadgen.report.making import make
from loadgen.report.page import page
from loadgen.report.parts import Dot, Load, RateProbe, Validity
from loadgen.report.plots import plots
from loadgen.report.plots_of_tenants import fairness
from loadgen.report.record import Outcome, Sample
from tests.loadgen.reported import broken, reported, sample, trusted, written

EMPTY = {"meta", "br", "hr", "img", "link", "input", "path", "use", "rect", "line", "circle"}


def some(count: int, tenants: int = 2) -> list[Sample]:
    """A minute of load with every kind of end."""
    random = Random(1)
    made = []
    for number in range(count):
        outcome = random.choices([Outcome.OK, Outcome.TIMEOUT, Outcome.REJECTED_CAPACITY], [94, 3, 3])[0]
        t = 8.0 + 64.0 * number / count
        gaps = [0.02, 0.03, random.expovariate(20)]
        made.append(
            sample(number, t=t, tenant=f"t{number % tenants}", cls="long" if number % 5 == 0 else "short", outcome=outcome,
                   first_s=random.expovariate(5), gaps_s=gaps, endpoint=f"e{number % 4}", cached_tokens=20, ideal_tokens=40,
                   input_tokens=random.randrange(20, 9000), reason="" if outcome is Outcome.OK else "[red]<script>alert(1)</script>")
        )  # fmt: skip
    return made


def shown(report: Report, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for one in lines(report):
            console.print(one, highlight=False)
        return [row.rstrip() for row in console.export_text().splitlines()]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return reported(tmp_path_factory.mktemp("run"), some(1200))


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    """Its page: drawing one takes seconds."""
    return page(report)


# ---- the console


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_fits_its_terminal_and_cuts_nothing(report: Report, width: int) -> None:
    told = shown(report, width)
    assert max(map(len, told)) <= width
    text = " ".join(" ".join(told).split())
    assert "…" not in text
    for words in (
        "VALID, SLO missed",
        "t0 long",
        "within SLO",
        "tenants",
        "send lag",
        "e0 25.0 %",
        "In flight",
        "rejected_capacity",
    ):
        assert words in text
    assert "[red]<script>" in text, "what servers say is shown as it is"


def test_the_verdict_comes_first_and_says_what_is_missed(report: Report) -> None:
    said = verdict(report)
    share = report.totals.attainment or 0.0
    assert said.startswith(f"VALID, SLO missed: {share * 100:.1f} % of 1,125 requests within it (95 %: ")
    assert re.search(r"target 95\.0 %; t\d (long|short) has \d+\.\d % and 3 more$", said)


def test_an_invalid_run_says_so_with_the_rule_and_its_numbers(tmp_path: Path) -> None:
    told = shown(reported(tmp_path, [sample(n, t=11 + n / 4) for n in range(200)], broken), 120)
    assert any(row.startswith("INVALID, SLO met: 100.0 %") for row in told)
    assert "V3 broken: loop lag p99, ms: 31 (limit 10)" in told


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.03984, "0.03984"), (3.8176, "3.818"), (999.96, "1000"), (53_600.0, "53,600")]
)
def test_what_a_rule_has_found_is_a_number_people_read(value: float | None, text: str) -> None:
    assert amount(value) == text


def test_a_rule_that_could_not_be_judged_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    made = reported(
        tmp_path,
        [sample(n, t=11 + n / 4) for n in range(200)],
        lambda run, figures: Validity(unjudged={"V6": "no cache"}),
    )
    told = shown(made, 120)
    assert any(row.startswith("VALID, ") for row in told) and "V6 could not be judged: no cache." in told
    row = next(row for row in page(made).split("<tr>") if ">V6<" in row)
    assert "not judged" in row and "no cache" in row
    assert msgspec.json.decode(made.to_json())["validity"]["unjudged"] == {"V6": "no cache"}


def test_nothing_measured_is_said_and_not_divided_by(tmp_path: Path) -> None:
    empty = reported(tmp_path, [sample(0, t=1.0)])
    assert verdict(empty) == "VALID: nothing was measured"
    assert shown(empty, 80) and "<h2>Plots</h2>" in page(empty)


def test_many_cells_are_shown_by_class_with_the_worst_of_them(tmp_path: Path) -> None:
    rows = some(4000, tenants=39)
    text = "\n".join(shown(reported(tmp_path, rows), 120))
    assert "all long" in text and "all short" in text and "and 27 more" in text


def test_few_requests_show_no_percentile(tmp_path: Path) -> None:
    text = "\n".join(shown(reported(tmp_path, [sample(n, t=11.0 + n) for n in range(9)]), 150))
    assert "fewer than five requests beyond it is not shown" in text
    assert re.search(r"^all +9 +9 +0 +0 +- +- +- +-", text, re.MULTILINE)


# ---- the HTML page


class Balanced(HTMLParser):
    """Fails at a tag that is closed and not open; collects ids and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data") and value]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_one_well_formed_file_that_fetches_nothing(text: str) -> None:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids)), "ids of one plot are not another's"
    assert parser.links and all(link.startswith("#") and link[1:] in parser.ids for link in parser.links)
    assert not parser.tags & {"script", "link", "img", "iframe", "object"}
    assert "http://" not in text and "url(http" not in text and "@import" not in text
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(parser.ids)
    assert "&lt;script&gt;" in text, "what servers say is no markup"
    assert "prefers-color-scheme: dark" in text


def test_every_colour_of_a_plot_follows_the_page(text: str) -> None:
    svg = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"(?:fill|stroke): #", svg)
    used = set(re.findall(r"var\(--(\w+)\)", svg))
    assert {"ink", "grid", "s1", "good", "bad"} <= used
    assert used <= set(re.findall(r"--(\w+):", text))


def test_the_page_has_every_plot_there_is_something_for(report: Report, text: str) -> None:
    found = re.findall(r"<h3>(.*?)</h3>", text)
    assert len(found) == 13 and "Attainment against rate" not in found
    searched = msgspec.structs.replace(
        report,
        search=(RateProbe(scale=1.0, rate=10.0, seed=1, passed=True, attainment=0.97), RateProbe(scale=2.0, rate=20.0, seed=1, passed=False, attainment=0.6), RateProbe(scale=1.5, rate=15.0, seed=1, passed=False, attainment=None, why="cut off")),
        loads=(Load(name="e0", t_s=(0, 1, 2), running=(1.0, None, 2.0), waiting=(0.0, 0.0, 1.0)),),
    )  # fmt: skip
    more = {plot.title: plot.svg for plot in plots(searched)}
    assert "Attainment against rate" in more and "waiting at e0" in more["Requests in flight"]
    labels = ">passed<", ">failed<", ">cut<"
    assert all(label in more["Attainment against rate"] for label in labels), "every probe is in it"
    assert "<h2>The search</h2>" in (whole := page(searched)) and whole.count("cut off") == 1
    same = [title for title in found if title != "Requests in flight"]
    assert all(more[title].split(">", 1)[1] in text for title in same), "equal reports give equal pages"


def test_limits_of_several_classes_are_not_joined_to_one_line(report: Report) -> None:
    def longest(dots: Sequence[Dot]) -> int:
        """Points of the longest line in the picture."""
        made = plots(msgspec.structs.replace(report, dots=tuple(dots)))
        (svg,) = (one.svg for one in made if one.title == "First token against prompt length")
        return max(path.count("L") for path in re.findall(r'<g id="length-line2d_\d+">\s*<path d="([^"]*)"', svg))

    limits = (400.0, 30_000.0)  # of people, of a nightly job
    both = [Dot(input_tokens=100 + n, ttft_ms=50.0, limit_ms=limits[n % 2], good=True) for n in range(100)]
    assert longest(both) == longest(both[:1])  # that of the axes


def test_long_names_of_servers_do_not_shrink_a_plot(report: Report) -> None:
    def width(names: Sequence[str]) -> float:
        """Of the axes, as a share of the picture."""
        loads = tuple(Load(name=name, t_s=(0, 1), running=(1.0, 2.0), waiting=(0.0, 1.0)) for name in names)
        svg = next(one.svg for one in plots(msgspec.structs.replace(report, loads=loads)) if "in flight" in one.title)
        (left, right), *_ = re.findall(r'id="depth-patch_2">\s*<path d="M ([\d.]+) [\d.]+ *\s*L ([\d.]+)', svg)
        (whole,) = re.findall(r'viewBox="0 0 ([\d.]+)', svg)
        return (float(right) - float(left)) / float(whole)

    short, long = width(["a", "b", "c"]), width([f"http://gpu-{n}.rack-7.example:8000" for n in "abc"])
    assert long == pytest.approx(short, abs=0.02) and long > 0.8


def test_rates_of_a_run_of_seconds_are_a_line_and_no_point(tmp_path: Path) -> None:
    rows = [sample(n, t=1.0 + n / 100) for n in range(600)]
    made = reported(tmp_path, rows, window_s=(1.0, 6.0))
    rates = next(
        one.svg for one in plots(msgspec.structs.replace(made, timeline=made.timeline[:7])) if one.title == "Rates"
    )
    solid = r'<g id="rates-line2d_\d+">\s*<path d="([^"]*)" [^>]*stroke: var\(--s1\); stroke-width: 1.5; stroke-linecap'
    assert max(path.count("L") for path in re.findall(solid, rates)) == 6


@pytest.mark.parametrize("count", [3_000, pytest.param(50_000, marks=[pytest.mark.nightly, pytest.mark.timeout(300)])])
def test_fifty_thousand_requests_fit_in_three_megabytes(tmp_path: Path, count: int) -> None:
    """Points are thinned; the report itself keeps every first token."""
    random = Random(1)
    rows = [
        sample(number, t=10.0 + number * 60 / count, tenant=f"t{number % 8}", cls=("short", "long")[number % 2], gaps_s=(0.02,),
               first_s=random.expovariate(5), input_tokens=random.randrange(20, 9000))
        for number in range(count)
    ]  # fmt: skip
    run = read_run(written(tmp_path, rows[:8]))
    made = make(replace(run, samples=rows), trusted)
    assert made.totals.offered == count
    assert len(made.dots) <= 1500 and all(len(curve.points) <= 200 for curve in made.curves)
    assert sum(len(block.ttft_ms) for cell in made.blocks for block in cell.blocks) == count
    assert len(page(made).encode()) < 3_000_000


def test_names_may_be_anything(tmp_path: Path) -> None:
    """Dollars are no formulas, tags no tags."""
    rows = [
        sample(n, t=11 + n / 8, tenant="$x^2$ & <b>" if n % 2 else "ü", reads=array("d", [12.0 + n / 8]))
        for n in range(400)
    ]
    svg = fairness(reported(tmp_path, rows), "f")
    assert "$x^2$ &amp; &lt;b&gt;" in svg
    Balanced().feed(svg)


def test_nothing_loads_the_plotting_library_before_a_page_is_drawn() -> None:
    code = "import sys, loadgen.report.command, loadgen.report.compare_command, gateway.__main__; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
