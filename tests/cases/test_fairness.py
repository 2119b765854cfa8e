"""No tenant, class or trick takes another's share: cases C038 to C042. Decisions in virtual time; C042 on sockets."""

import asyncio
import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.config import read
from policies.decisions import Decision, Dispatch, Reason
from policies.events import Arrived, Finished, Outcome, Tick
from policies.types import Limits, Settings, Tenant
from tests.gateway.test_config import GOOD
from tests.gateway.test_reload import Gate, queued
from tests.kit import wire
from tests.kit.processes import until
from tests.kit.raw_client import exchange
from tests.kit.sizes import sized
from tests.kit.stage import EVERY_PLACE, Stage, error_of, stage
from tests.policies import given
from tests.policies.given import World, endpoint, request

CLASSES = tuple(read(GOOD, "f.yaml", {}).config.settings().bands.values())  # those of which nothing is said
USUAL = Limits(max_concurrency=64)  # of a tenant of which nothing is said, with 256 that may wait


def fleet(*tenants: Tenant, patient: bool = False) -> Settings:
    bands = [replace(band, queue_timeout_s=3600.0) for band in CLASSES] if patient else CLASSES
    return replace(given.settings(bands=bands, shed="off"), tenants={each.id: each for each in tenants})


@dataclass
class Hall:
    """Engines with so many places in all; a request holds one for `service_s`. Ends come before what comes then."""

    settings: Settings
    places: int
    service_s: float
    came: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    refused: dict[str, Reason] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        room = endpoint("x", seqs=self.places, prefill=1 << 30)
        self.world = World(room, settings=self.settings)

    def ask(self, name: str, at: float, *, band: str = "standard") -> None:
        """`name` begins with the tenant and a colon."""
        self.until(at)
        self.came[name] = at
        asked = request(name, at=at, tokens=2048, max_output=256, tenant=name.partition(":")[0], band=band)
        self._took(self.world.core.handle(Arrived(request=asked), at), at)

    def until(self, at: float) -> None:
        """What ends or is due by then."""
        core = self.world.core
        while True:
            due = core.next_wakeup()
            due = due if due is not None and due <= at else None
            if self.ends and self.ends[0][0] <= min(at, due if due is not None else at):
                now, name = heapq.heappop(self.ends)
                self.ended.append(now)
                told = Finished(
                    request_id=name, attempt=1, outcome=Outcome.COMPLETED, prompt_tokens=2048, output_tokens=256
                )
                self._took(core.handle(told, now), now)
            elif due is not None:
                self._took(core.handle(Tick(), due), due)
            else:
                return

    def _took(self, decisions: Sequence[Decision], now: float) -> None:
        for each in decisions:
            if isinstance(each, Dispatch):
                self.began[each.request_id] = now
                heapq.heappush(self.ends, (now + self.service_s, each.request_id))
            else:
                self.refused[each.request_id] = each.reason

    def begun(self, begins: str, since: float, to: float) -> int:
        return sum(since <= at < to for name, at in self.began.items() if name.startswith(begins))


def all_of(hall: Hall, begins: str) -> list[str]:
    return [name for name in hall.came if name.startswith(begins)]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_c038_who_comes_last_goes_at_the_next_end_and_both_share_by_weight(weight: float) -> None:
    """16 places; A queues 200 requests of 10 s within its rate; then B sends one, then 20 and more."""
    many = Limits(rpm=6000)
    hall = Hall(fleet(Tenant(id="a", limits=many), Tenant(id="b", limits=many, weight=weight), patient=True), 16, 10.0)
    for number in range(200):
        hall.ask(f"a:{number}", 0.05 * number)
    hall.ask("b:first", 12.0)
    hall.until(40.0)
    assert hall.began["b:first"] == next(at for at in hall.ended if at > 12.0)
    for number in range(20 + 150):
        hall.ask(f"b:{number}", 40.0)
    hall.until(100.0)
    assert hall.refused == {}
    counts = {name: hall.begun(name, 40.0, 100.0) for name in ("a:", "b:")}
    assert sum(counts.values()) == pytest.approx(84, abs=1)  # a standard class has 14 of 16 places
    assert counts["b:"] / sum(counts.values()) == pytest.approx(weight / (1.0 + weight), rel=0.1)
    hall.world.core.check()


def test_c039_a_flood_of_twenty_times_what_can_be_served_is_refused_by_itself_alone() -> None:
    """B is far below its share: of A's no more goes before it than the bound of shares lets. What that means for its first token is measured
    in tests/faults/test_t14_noisy_neighbour.py."""
    hall = Hall(fleet(*(Tenant(id=name, max_queued=256) for name in "ab")), 16, 2.0)
    for step in range(int(sized(60, 300) * 160)):
        hall.ask(f"a:{step}", step / 160)
        if step % 80 == 0:
            hall.ask(f"b:{step}", step / 160)
    hall.until(1000.0)
    quiet = all_of(hall, "b:")
    assert set(quiet) <= set(hall.began) and len(quiet) >= 120
    assert set(hall.refused.values()) == {Reason.QUEUE_FULL} and len(hall.refused) > 0.9 * len(all_of(hall, "a:"))
    loud = sorted(at for name, at in hall.began.items() if name.startswith("a:"))
    for name in quiet:
        before = bisect_left(loud, hall.began[name]) - bisect_right(loud, hall.came[name])
        assert before <= (8192 + 2 * 2560) / 2560, name  # the bound of tenancy.md 6
    hall.world.core.check()


@pytest.mark.parametrize(("low", "least"), [("standard", 0.05), ("batch", 0.05)])
def test_c040_the_lower_class_has_its_part_and_nobody_of_it_waits_beyond_its_time(low: str, least: float) -> None:
    """Twice what can be served of the highest class but one, for five minutes, and one a second of a lower one."""
    hall = Hall(fleet(*(Tenant(id=name) for name in ("high", "low"))), 8, 1.0)
    for step in range(300 * 16):
        hall.ask(f"high:{step}", step / 16, band="interactive")
        if step % 16 == 0:
            hall.ask(f"low:{step}", step / 16, band=low)
    hall.until(300.0)
    hall.world.core.check()
    counts = {name: hall.begun(name, 0.0, 300.0) for name in ("high:", "low:")}
    assert counts["low:"] >= least * sum(counts.values()) > 100
    hall.until(900.0)
    lows = all_of(hall, "low:")
    assert len(lows) == 300 and set(lows) <= set(hall.began)
    most_s = next(band.queue_timeout_s for band in CLASSES if band.name == low)
    assert max(hall.began[name] - hall.came[name] for name in lows) <= most_s
    assert {name.partition(":")[0] for name in hall.refused} == {"high"}


def test_c041_of_twenty_tenants_without_a_class_only_the_noisy_one_is_refused() -> None:
    tenants = [Tenant(id=f"t{number}", limits=USUAL, max_queued=100) for number in range(20)]
    hall = Hall(fleet(*tenants), 16, 0.4)
    for step in range(int(sized(10, 60) * 500)):
        hall.ask(f"t0:{step}", step / 500)
        if step % 25 == 0:
            hall.ask(f"t{1 + step // 25 % 19}:{step}", step / 500)
    hall.until(1000.0)
    refused = Counter(name.partition(":")[0] for name in hall.refused)
    assert set(refused) == {"t0"} and refused["t0"] > 3000
    assert set(hall.refused.values()) == {Reason.QUEUE_FULL}
    others = [name for name in hall.came if not name.startswith("t0:")]
    assert set(others) <= set(hall.began)
    hall.world.core.check()


# -- what a client says of its own time --------------------------------------------------------------------------------

ODD = ("1e308", "9223372036854775807", "-1", "NaN", "1_0", "٣", "", "0", "1" * 5000, "0x10", "1.5", "+5", " 7 ", "inf")
USUAL_TIME = ("x-forebay-timeout-ms", "5000")
SAID_IN = ("x-forebay-timeout-ms", "x-stainless-read-timeout")


@pytest.mark.parametrize("name", SAID_IN)
async def test_c042_an_odd_time_is_refused_ignored_or_held_to_the_longest_and_overtakes_nobody(
    tmp_path: Path, name: str
) -> None:
    """One place; each odd one comes after one of 5 s, and is answered after it or refused. 100 of 100, none is our fault."""
    fleet = {"endpoint": {"max_seqs": 1}, "classes": EVERY_PLACE, "timeouts": {"scale": 1}}
    async with stage(tmp_path, **fleet) as made, made.holding():
        assert {status for value in ODD for status in [await said(made, name, value)]} <= {200, 400}
        for number in range(sized(100, 500)):
            gate = Gate()
            made.engine.answer = gate.answer
            made.engine.clear()
            asked = []
            for at, (text, extra) in enumerate(
                {"runs": (), "usual": [USUAL_TIME], "later": [(name, ODD[number % 2])]}.items()
            ):
                asked.append(asyncio.create_task(made.ask("chat", text, stream=True, extra=extra)))
                await until(lambda: bool(made.engine.seen), 5, "nothing runs")
                await queued(made, at)
            gate.open.set()
            assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 3
            order = [wire.prompt_of(seen.json) for seen in made.engine.seen]
            assert order == ["runs", "usual", "later"], number


async def said(made: Stage, name: str, value: str) -> int:
    message = made.message("chat", "x", extra=[(name, "@")]).replace(b": @\r\n", b": " + value.encode() + b"\r\n")
    answer = await exchange(made.gateway.port, message)
    assert answer.status == 200 or error_of(answer)["code"], value
    return answer.status
