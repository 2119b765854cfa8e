"""What classes may hold of a pool, and whose turn it is: tenancy.md 5 and rows 24 to 26 of its acceptance."""

from collections import Counter
from itertools import pairwise

import pytest

from policies.types import Band, Pool
from tests.policies.given import World, endpoint, settings

CRITICAL = Band(name="critical", rank=0, queue_timeout_s=30.0, max_queued=512, reserved=0.05, age_after_s=5.0)
INTERACTIVE = Band(
    name="interactive", rank=1, queue_timeout_s=30.0, max_queued=5000, ceiling=0.95, reserved=0.05, age_after_s=5.0
)
STANDARD = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=5000, ceiling=0.9, min_share=0.1)
BATCH = Band(
    name="batch", rank=3, queue_timeout_s=6000.0, max_queued=5000, ceiling=0.85, min_share=0.05, age_after_s=120.0
)
BANDS = (CRITICAL, INTERACTIVE, STANDARD, BATCH)


def world(*rooms: int, bands: tuple[Band, ...] = BANDS) -> World:
    loads = [endpoint(f"e{number}", seqs=seqs, prefill=100_000) for number, seqs in enumerate(rooms)]
    return World(*loads, settings=settings(bands=bands))


def fill(made: World, band: str, count: int, at: float = 0.0, **facts: object) -> int:
    """How many of so many go at once."""
    return sum(bool(made.arrive(f"{band}{at:g}-{number}", at, band=band, **facts)) for number in range(count))


def test_row_24_batch_leaves_room_and_a_critical_one_goes_in_the_same_event() -> None:
    made = world(20)
    assert fill(made, "batch", 40) == 17
    assert made.arrive("c", 1.0, band="critical") == ["c>e0"]
    assert made.finish("batch0-0", 2.0) == ["batch0-17>e0"]
    assert made.finish("c", 3.0) == []  # its place is not theirs


@pytest.mark.parametrize(("room", "most"), [(7, 7), (8, 6), (20, 18), (60, 54)])
def test_less_urgent_classes_leave_free_what_is_reserved(room: int, most: int) -> None:
    """With room for less than 8 nothing is reserved."""
    made = world(room, bands=BANDS)
    fill(made, "batch", room)
    fill(made, "standard", room)
    assert made.load("e0")[0] == most


def test_a_class_at_its_ceiling_hides_nobody_behind_it() -> None:
    made = world(10, 10)
    assert fill(made, "batch", 20) == 17
    assert fill(made, "standard", 5) == 1
    assert fill(made, "interactive", 5) == 1
    assert fill(made, "critical", 5) == 1
    assert sum(made.load(name)[0] for name in ("e0", "e1")) == 20


def test_room_that_a_class_gets_back_is_used_wherever_it_is() -> None:
    """The head waits for its class, not for an engine: when one of it ends on `e0`, it may go to `e1`."""
    made = world(4, 16)
    assert fill(made, "batch", 30) == 17
    on_first = made.load("e0")[0]
    assert 0 < on_first <= 4
    for number in range(17):
        made.finish(f"batch0-{number}", 1.0 + number)
    assert sum(made.load(name)[0] for name in ("e0", "e1")) == 13


def test_what_runs_on_an_engine_that_is_down_takes_nobodys_room() -> None:
    made = world(10, 10)
    assert fill(made, "batch", 17) == 17
    made.down("e0", 1.0)
    there = made.load("e1")[0]
    fill(made, "batch", 9, at=2.0)
    assert made.load("e1")[0] == max(there, 8)
    made.up(endpoint("e0", seqs=10, prefill=100_000), 3.0)
    assert sum(made.load(name)[0] for name in ("e0", "e1")) == 17


def test_nor_does_what_runs_on_one_that_is_another_pools_now() -> None:
    pools = (Pool(name="main", model="llama", lanes="off"), Pool(name="other", model="qwen", lanes="off"))
    made = World(endpoint("e0", seqs=10), settings=settings(bands=BANDS, pools=pools))
    assert fill(made, "batch", 9, tokens=1) == 8
    made.up(endpoint("e0", seqs=10, pools=("other",)), 1.0)
    made.up(endpoint("e1", seqs=10), 1.0)
    assert made.load("e1") == (1, 1)  # the one that waited
    assert fill(made, "batch", 9, at=2.0, tokens=1) == 7
    made.finish("batch0-0", 3.0)
    assert made.load("e1") == (8, 8)


def test_a_request_of_many_sequences_goes_when_its_class_has_room_for_one() -> None:
    """Else those of one sequence behind it would take all that becomes free."""
    made = world(20)
    assert made.arrive("a", band="batch", sequences=16) == ["a>e0"]
    assert made.arrive("big", band="batch", sequences=4) == ["big>e0"]
    assert made.arrive("b", band="batch") == []
    assert made.finish("big", 1.0) == ["b>e0"]


def flood(made: World, band: str, count: int, at: float = 0.0) -> None:
    for number in range(count):
        made.arrive(f"{band}-{at:g}-{number}", at, band=band)


def serve(made: World, running: list[str], times: int, at: float, every_s: float, band: str = "") -> list[str]:
    """Who goes, in order, when one of those that run ends every so often, and one of `band` comes each time."""
    gone = []
    for number in range(times):
        now = at + number * every_s
        if band:
            made.arrive(f"{band}+{at:g}-{number}", now, band=band)
        told = made.finish(running.pop(0), now)
        names = [text.partition(">")[0] for text in told]
        running += names
        gone += names
    return gone


def test_row_25_strict_turns_leave_a_part_to_the_least_urgent() -> None:
    """Interactive never lets up, batch is backlogged: it gets its 5 % of the cost, and no more."""
    made = world(20)
    running = [f"interactive-0-{number}" for number in range(19)]
    flood(made, "interactive", 60)
    flood(made, "batch", 60)
    gone = serve(made, running, 400, 1.0, 0.01, "interactive")
    kinds = Counter(name[:5] for name in gone)
    assert 0.045 <= kinds["batch"] / kinds.total() <= 0.06


def test_row_26_an_old_head_is_served_within_four_dispatches() -> None:
    without_share = Band(name="standard", rank=2, queue_timeout_s=600.0, max_queued=5000)
    made = world(20, bands=(CRITICAL, INTERACTIVE, without_share))
    running = [f"interactive-0-{number}" for number in range(19)]
    flood(made, "interactive", 30)
    flood(made, "standard", 40)
    before = serve(made, running, 290, 0.1, 0.1, "interactive")
    assert not [name for name in before if name.startswith("standard")]  # nobody has waited for 30 s
    after = serve(made, running, 40, 30.1, 0.01, "interactive")
    old = [place for place, name in enumerate(after) if name.startswith("standard")]
    assert old[0] < 4
    assert all(second - first >= 4 for first, second in pairwise(old))
    assert len(old) == 10


def test_one_that_has_waited_too_long_has_the_room_of_any_other() -> None:
    """Held back to half a step beside interactive, on its turn batch is not."""
    bands = (INTERACTIVE, Band(name="batch", rank=3, queue_timeout_s=600.0, max_queued=99, age_after_s=2.0))
    made = World(endpoint("x", seqs=99, prefill=1000), settings=settings(bands=bands))
    assert made.arrive("a", 0.0, tokens=600, band="interactive") == ["a>x"]
    assert made.arrive("old", 0.5, tokens=100, band="batch") == []
    for number in range(3):
        made.arrive(f"i{number}", 0.6, tokens=600, band="interactive")
    assert made.first_token("a", 1.0) == ["i1>x"]
    assert made.first_token("i0", 3.0) == ["i2>x"]
    assert made.arrive("i4", 3.0, tokens=600, band="interactive") == []
    assert made.first_token("i1", 4.0) == ["old>x", "i4>x"]
