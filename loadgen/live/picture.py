"""The live picture as pieces of known style, cut and folded here for the width of the terminal.

rich's own texts do that too, but are measured, wrapped and split again for each picture. That takes 2.4 times the calls, on
the loop that stamps what is measured.
"""

from collections.abc import Callable, Iterable, Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import strip_control_codes
from rich.segment import Segment
from rich.style import Style

PLAIN, BOLD, DIM, RED = Style(), Style(bold=True), Style(dim=True), Style(color="red")
_GREEN = Style(color="green")
_BAR_CELLS = 74

Part = tuple[str, Style]
Line = list[Part]
Row = tuple[str, ...]

# Heading and width of each column, in order, and when it goes where there is no room: the highest first, 0 never.
_COLUMNS = (
    ("", 13, 0),
    ("sent", 6, 0),
    ("per s", 7, 5),
    ("ok", 6, 4),
    ("rejected", 9, 2),
    ("failed", 7, 3),
    ("TTFT p50", 9, 0),
    ("p99 ms", 8, 1),
    ("within SLO", 12, 0),
)


class Picture:
    """What `rich` prints. `lines` are asked for a number of cells, none of which they exceed."""

    def __init__(self, lines: Callable[[int], Iterable[Line]]) -> None:
        """Lines are made when it is printed."""
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich wants it."""
        for line in self._lines(options.max_width):
            for text, style in line:
                yield Segment(text, style)
            yield Segment.line()


def bar(share: float, width: int) -> Line:
    """How much of all is done."""
    cells = min(_BAR_CELLS, width)
    filled = round(min(max(0.0, share), 1.0) * cells)
    return [("━" * filled, _GREEN), ("━" * (cells - filled), DIM)]


def folded(parts: Iterable[Part], between: str, width: int) -> Iterator[Line]:
    """Side by side, what does not fit beside the one before on a line of its own."""
    line: Line = []
    used = 0
    for part, style in parts:
        text = strip_control_codes(part)
        cells = cell_len(text)
        if line and used + len(between) + cells > width:
            yield line
            line, used = [], 0
        if line:
            line.append((between, PLAIN))
            used += len(between)
        line.append((text if cells <= width else set_cell_size(text, width), style))
        used += cells
    yield line


def table(rows: Iterable[Row], width: int) -> Iterator[Line]:
    """Names and figures below the headings there is room for. A row of a single cell is a remark."""
    kept = _kept(width)
    yield [(_cut("".join(f"{_COLUMNS[place][0]:>{_COLUMNS[place][1]}}" for place in kept), width), PLAIN)]
    for name, *figures in rows:
        if figures:
            cells = "".join(f"{figures[place - 1]:>{_COLUMNS[place][1]}}" for place in kept[1:])
            yield [(_cut(f"{set_cell_size(_cut(strip_control_codes(name), 12), 13)}{cells}", width), PLAIN)]
        else:
            yield [(_cut(name, width), PLAIN)]


def _kept(width: int) -> list[int]:
    """The columns there is room for, by number."""
    kept = list(range(len(_COLUMNS)))
    while sum(_COLUMNS[place][1] for place in kept) > width:
        least = max(kept, key=lambda place: _COLUMNS[place][2])
        if not _COLUMNS[least][2]:
            break
        kept.remove(least)
    return kept


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width)
