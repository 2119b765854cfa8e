"""The loads of `forebay bench selftest` (loadgen.md 8.1): what is sent, to which engines, and what must hold."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.client import OTHERS, Client, ClientOptions, Health, Target
from loadgen.report.record import Outcome, Sample
from loadgen.report.stats import percentile
from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, Prose, prompt_tokens

MODEL = "noop"
STEP_MS = 50.0  # of the engines of test B
_SETTLED = 0.25  # of a run: what is opened once is open by then


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a test and its bounds, None: none."""

    name: str
    value: float | None
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """It was measured and lies within."""
        if self.value is None or math.isnan(self.value):
            return False
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one run came to. `growth`: bytes of memory for each request, once it had settled."""

    samples: list[Sample]
    cpu_s: float
    health: Health
    growth: float | None

    @property
    def reads(self) -> int:
        """Reads that carried tokens."""
        return sum(len(one.reads) for one in self.samples)

    @property
    def achieved(self) -> float:
        """Good answers among all requests."""
        return sum(one.outcome is Outcome.OK for one in self.samples) / len(self.samples)

    def p(self, share: float, values: Callable[[Sample], Sequence[float]]) -> float:
        """A percentile over all samples; nan of nothing."""
        found = percentile(sorted(value for one in self.samples for value in values(one)), share)
        return math.nan if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`count` requests at `rate`, each of `tokens` of prompt and `answer` tokens, streamed or not."""

    rate: float
    count: int
    tokens: int = 100
    answer: int = 1
    stream: bool = False

    def schedule(self) -> Schedule:
        """Its requests, at equal gaps."""
        return Schedule(
            name="selftest",
            seed=0,
            window_start_s=0.0,
            window_end_s=self.count / self.rate,
            requests=tuple(self._planned(number) for number in range(self.count)),
        )

    def _planned(self, number: int) -> Planned:
        blocks = (Block(namespace="selftest", id=number, tokens=self.tokens),)
        return Planned(
            id=number,
            t=number / self.rate,
            tenant="selftest",
            priority="standard",
            cls="all",
            input_tokens=prompt_tokens(blocks),
            output_tokens=self.answer,
            max_tokens=self.answer,
            stream=self.stream,
            measured=True,
            blocks=blocks,
        )


async def sent(load: Load, urls: Sequence[str], *, keep: bool = True) -> Ran:
    """Send it to the engines at `urls`, in turn. Without `keep` no sample is left, as none is in `bench` while it sends."""
    plan = load.schedule()
    watch = _Memory(len(plan.requests))
    targets = {OTHERS: [Target(url=url, model=MODEL) for url in urls]}
    client = Client(plan, targets, ClientOptions(timeout_s=60.0), watch, keep=keep)
    cpu_s = time.process_time()
    samples = await client.run(Prose("selftest"))
    return Ran(
        samples=samples,
        cpu_s=time.process_time() - cpu_s,
        health=client.health,
        growth=watch.growth(),
    )


class _Memory:
    """Looks at the memory of this process when a run has settled, and when its last request ends."""

    def __init__(self, count: int) -> None:
        self._marks = {max(1, int(count * _SETTLED)), count}
        self._ended = 0
        self._seen: list[tuple[int, int]] = []

    def sent(self, sample: Sample) -> None:
        """Nothing to do."""

    def ended(self, sample: Sample) -> None:
        self._ended += 1
        if self._ended in self._marks and (held := resident_bytes()) is not None:
            self._seen.append((self._ended, held))

    def growth(self) -> float | None:
        """Bytes for each request between the two looks."""
        if len(self._seen) < 2:
            return None
        (first, held), (last, more) = self._seen
        return (more - held) / (last - first)


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()


def ttft_ms(sample: Sample) -> Sequence[float]:
    """Of a streamed answer."""
    return () if sample.ttft_ms is None else (sample.ttft_ms,)


def lag_ms(sample: Sample) -> Sequence[float]:
    """How late it was sent."""
    return (sample.lag_ms,)


def gaps_ms(sample: Sample) -> Sequence[float]:
    """Between its reads."""
    return tuple(sample.gaps_ms())
