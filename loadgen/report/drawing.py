"""Figures as SVG that follow the page's colours, light or dark: drawn in stand-in colours, which become CSS variables.

matplotlib is imported here alone, and this module only where a page is made: `pip install 'forebay[bench]'`.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

WIDTH_IN, HEIGHT_IN = 6.4, 2.9
SERIES = tuple(f"#0000{number:02x}" for number in range(1, 9))  # one after the other: var(--s1) to var(--s8)
GOOD, BAD, FAINT, INK, GRID, PAPER = "#000011", "#000012", "#000013", "#000014", "#000015", "#000016"
_VARIABLES = {colour: f"s{number}" for number, colour in enumerate(SERIES, start=1)} | {
    GOOD: "good",
    BAD: "bad",
    FAINT: "faint",
    INK: "ink",
    GRID: "grid",
    PAPER: "paper",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # a tenant may be called $x$
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}


class Drawing:
    """One figure on its way: `axes` to draw on, `text` when the `with` of `drawn` is over."""

    def __init__(self, axes: Sequence[Axes]) -> None:
        self.axes = axes
        self.text = ""

    @property
    def ax(self) -> Axes:
        """The first of them."""
        return self.axes[0]


@contextmanager
def drawn(name: str, rows: int = 1, height_in: float = HEIGHT_IN, shared: bool = True) -> Iterator[Drawing]:
    """A figure with so many axes above each other, one x for all where `shared`. `name` keeps ids apart on a page."""
    with rc_context(_STYLE | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=(WIDTH_IN, height_in * (1 if rows == 1 else 0.72 * rows)), layout="constrained")
        grid = canvas.subplots(rows, 1, sharex=rows > 1 and shared, squeeze=False)
        made = Drawing([row[0] for row in grid])
        yield made
        for axes in made.axes:
            axes.margins(x=0.01)
        file = io.StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        made.text = _inline(file.getvalue(), name)


def legend(axes: Axes, columns: int = 4) -> None:
    """Above the axes, where it hides nothing. Long names get fewer columns: the picture shrinks to what a legend leaves."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        longest = max(map(len, labels))
        axes.legend(
            handles,
            [label if len(label) <= _LABEL else "..." + label[3 - _LABEL :] for label in labels],
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=max(1, min(columns, _ROOM // (longest + _MARK))),
            borderaxespad=0.2,
            columnspacing=1.2,
            markerscale=2,
        )


def log_ms(axes: Axes) -> None:
    """Milliseconds along x, by powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("ms")


def log_height(axes: Axes, label: str) -> None:
    """By powers of ten along y."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def percents_across(axes: Axes) -> None:
    """A share along x."""
    axes.set_xlim(0, 1.005)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))


def signed_percents_across(axes: Axes) -> None:
    """A change along x."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:+.3g}"))


def log_numbers(axes: Axes) -> None:
    """Tokens along x, by powers of ten."""
    log_ms(axes)
    axes.set_xlabel("planned prompt tokens")


def percents(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """A share along y."""
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))


def counts(axes: Axes) -> None:
    """Numbers from 0 on along y."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def seconds(axes: Axes) -> None:
    """Time along x."""
    axes.set_xlabel("s since the start")


def number(value: float) -> str:
    """Short: 250, 1.5k, 20k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def finite(values: Sequence[float | None]) -> list[float]:
    """What can be drawn: gaps where there is nothing or no end."""
    return [math.nan if value is None or value == math.inf else value for value in values]


_ROOM, _MARK, _LABEL = 85, 5, 72  # characters of a legend's line, of the mark before a label, of a label
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_NAMESPACE = re.compile(r' xmlns(?::\w+)?="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_COLOUR = re.compile(r"#0000[01][0-9a-f]\b")
_SIZE = re.compile(r'(<svg[^>]*?) width="[\d.]+pt" height="[\d.]+pt"')


def _inline(svg: str, name: str) -> str:
    """An SVG document as part of a page: no prolog, no addresses, ids of its own, colours of the page."""
    svg = _DROPPED.sub("", svg)
    svg = _NAMESPACE.sub("", svg).replace("xlink:href", "href").strip()
    svg = _ID.sub(lambda found: found[1] + name + "-", svg)
    svg = _SIZE.sub(r"\1", svg).replace("'DejaVu Sans'", "inherit")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    return _COLOUR.sub(lambda found: f"var(--{_VARIABLES[found[0]]})" if found[0] in _VARIABLES else found[0], svg)
