"""What a person is shown while a load runs, and that it costs next to nothing."""

import asyncio
import os
import re
import sys
import time
from array import array
from types import FrameType

import pytest
from rich.console import Console

from loadgen.live.progress import Tally, View, Vital, shown
from loadgen.report.record import Outcome, Sample
from loadgen.scenario import standard

SLO = standard("demo").slo


class At:
    """A clock that stands."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s


def ended(outcome: Outcome, ttft_s: float = 0.1) -> Sample:
    return Sample(
        id=0,
        tenant="chat",
        priority="interactive",
        measured=True,
        input_tokens=10,
        planned_output=1,
        leaves=False,
        sched_s=1.0,
        sent_s=1.004,
        reads=array("d", [1.0 + ttft_s]),
        outcome=outcome,
    )


def tally() -> Tally:
    made = Tally(("interactive", "batch"), SLO)
    for outcome, ttft_s in [
        (Outcome.OK, 0.1),
        (Outcome.OK, 0.5),
        (Outcome.REJECTED_CAPACITY, 0),
        (Outcome.TRUNCATED, 0),
        (Outcome.CANCELLED, 0),
    ]:
        made.sent(ended(outcome))
        made.ended(ended(outcome, ttft_s))
    made.sent(ended(Outcome.UNFINISHED))
    return made


def test_a_line_says_what_runs_and_how_it_goes() -> None:
    line = View("gateway", At(12.0), tally(), (5.0, 60.0)).line()
    assert "gateway: 12 of 60 s, measuring" in line
    assert "sent 6, in flight 1, done 5, rejected 1, failed 1" in line
    assert "interactive 25.0 %, batch -" in line


@pytest.mark.parametrize(
    ("now_s", "words"),
    [
        (float("-inf"), "0 of 60 s  warm-up"),
        (-0.2, "0 of 60 s  warm-up"),
        (4.9, "warm-up"),
        (5, "measuring"),
        (61, "60 of 60 s  drain"),
    ],
)
def test_the_picture_fits_eighty_columns_at_any_time(now_s: float, words: str) -> None:
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(View("round robin", At(now_s), tally(), (5.0, 60.0)).picture())
        text = console.export_text()
    assert words in text
    assert re.search(r"interactive +6 +[0-9.]+ +2 +1 +1 +100 +500 +25\.0 %", text), text
    assert "send lag p99 4.0 ms" in text
    assert max(map(len, text.splitlines())) <= 80


async def test_without_a_terminal_there_are_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.live.progress._PLAIN_S", 0.01)
    text = ""
    async with shown(Console(stderr=True), View("gateway", At(12.0), tally(), (5.0, 60.0))), asyncio.timeout(20):
        while text.count("\n") < 2:
            await asyncio.sleep(0.01)
            text += capsys.readouterr().err
    lines = text.splitlines()
    assert all(line.startswith("gateway: 12 of 60 s") for line in lines)
    assert not any("\x1b" in line for line in lines)


async def test_on_a_terminal_the_picture_is_redrawn_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.live.progress._LIVE_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    with open(os.devnull, "w") as sink:
        console = Console(file=sink, force_terminal=True, record=True, width=80)
        async with shown(console, View("gateway", At(12.0), tally(), (5.0, 60.0))):
            await asyncio.sleep(0.1)
    assert console.export_text().count("measuring") >= 3


def drawn(view: View, width: int = 120) -> str:
    with open(os.devnull, "w") as sink:
        console = Console(width=width, record=True, file=sink)
        console.print(view.picture())
        return console.export_text()


def busy(now_s: float = 22.0) -> View:
    """With all there is to be said."""
    view = View("noisy-neighbour", At(now_s), tally(), (5.0, 60.0))
    view.offered = lambda until_s: 300
    view.vitals = lambda: [
        Vital(text=f"{what} 7.1 ms", value=7.1, limit=10.0) for what in ("send lag p99", "loop lag p99")
    ]
    return view


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (200, "sent per s ok rejected failed TTFT p50 p99 ms within SLO"),
        (77, "sent per s ok rejected failed TTFT p50 p99 ms within SLO"),
        (76, "sent ok rejected failed TTFT p50 p99 ms within SLO"),
        (70, "sent ok rejected failed TTFT p50 p99 ms within SLO"),
        (60, "sent rejected TTFT p50 p99 ms within SLO"),
        (50, "sent TTFT p50 p99 ms within SLO"),
        (40, "sent TTFT p50 within SLO"),
        (19, "sent"),
        (12, ""),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_and_no_row_is_broken(width: int, headings: str) -> None:
    lines = drawn(busy(), width).splitlines()
    assert max(map(len, lines)) <= width
    place = next(number for number, line in enumerate(lines) if line.startswith("━"))
    assert " ".join(lines[place + 1].split()) == headings
    chat, batch, client = lines[place + 2 : place + 5]
    assert chat.startswith("interactive") and batch.startswith("batch") and client.startswith("client:")
    if width >= 40:
        assert re.search(r"^interactive +6 .* 100 .* 25\.0 %$", chat)
        assert "in flight 1" in " ".join(lines) and "loop lag p99 7.1 ms" in " ".join(lines)


def test_percentiles_are_made_once_a_second_and_counters_each_time() -> None:
    clock, counters = At(12.0), tally()
    view = View("gateway", clock, counters, (5.0, 60.0))
    assert re.search(r"interactive +6 .* 100 +500 ", drawn(view))
    for _ in range(3):
        counters.sent(ended(Outcome.UNFINISHED))
        counters.ended(ended(Outcome.OK, 0.9))
    clock._now_s = 12.9
    assert re.search(r"interactive +9 .* 100 +500 ", drawn(view))
    clock._now_s = 13.0
    assert re.search(r"interactive +9 .* 900 +900 ", drawn(view))


def test_a_picture_takes_few_calls() -> None:
    """Not a time, which a busy machine stretches: rich's own tables took 2,200 calls for this one, its texts 1,900."""
    view = busy()
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with open(os.devnull, "w") as sink:
        console = Console(width=120, file=sink)
        console.print(view.picture())
        sys.setprofile(count)
        try:
            console.print(view.picture())
        finally:
            sys.setprofile(None)
    assert calls < 900


async def test_there_are_four_pictures_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    view, made = busy(), 0
    picture = view.picture

    def counted() -> object:
        nonlocal made
        made += 1
        return picture()

    monkeypatch.setattr(view, "picture", counted)
    with open(os.devnull, "w") as sink:
        began_s = time.monotonic()
        async with shown(Console(file=sink, force_terminal=True, width=80), view):
            await asyncio.sleep(1.1)
        took_s = time.monotonic() - began_s
    assert 2 <= made <= 2 + 4 * took_s
