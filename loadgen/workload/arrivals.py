"""When do requests come? Arrival processes as pure functions of a random stream.

Every process offers its exact rate: N = round(rate x time) requests, whatever the draw, so two runs differ in when
requests come and never in how many (loadgen.md 4.2; vllm bench serve rescales its gaps with the same aim). Gaps are
drawn at unit rate, one after the other, and then scaled: at another rate the same requests come, only closer together.
A rate that changes is a unit process, bent in time.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from typing import Annotated, Literal, NamedTuple

import msgspec

from loadgen.workload.fields import Count, Duration, Fields, NonNegative, Positive, seconds
from loadgen.workload.lengths import Length, mean

_BISECTIONS = 60


class _Steady(Fields, frozen=True):
    """`rate` in requests/s, all the time."""

    rate: Positive

    def mean_rate(self, total_s: float) -> float:
        """Requests/s over `total_s` seconds."""
        return self.rate

    def scaled(self, factor: float) -> "Arrivals":
        """The same process at `factor` times the rate."""
        return msgspec.structs.replace(self, rate=self.rate * factor)  # type: ignore[return-value]


class Constant(_Steady, frozen=True, tag_field="kind", tag="constant"):
    """Equal gaps. `rate` in requests/s."""

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        count = round(self.rate * total_s)
        return (total_s * (i + 0.5) / count for i in range(count))


class Poisson(_Steady, frozen=True, tag_field="kind", tag="poisson"):
    """Independent users: exponential gaps, rescaled, which is a Poisson process given its count."""

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        return _renewal(lambda: stream.expovariate(1.0), stream, round(self.rate * total_s), total_s)


class Gamma(_Steady, frozen=True, tag_field="kind", tag="gamma"):
    """Renewal gaps with coefficient of variation `cv` (real clients: median 1.3-1.5)."""

    cv: Positive

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        return _renewal(lambda: stream.gammavariate(1 / self.cv**2, 1.0), stream, round(self.rate * total_s), total_s)


class Weibull(_Steady, frozen=True, tag_field="kind", tag="weibull"):
    """Renewal gaps with coefficient of variation `cv`, with a lighter tail than `gamma`'s at the same one."""

    cv: Annotated[float, msgspec.Meta(gt=0.05, lt=20)]

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        shape = _weibull_shape(self.cv)
        return _renewal(lambda: stream.weibullvariate(1.0, shape), stream, round(self.rate * total_s), total_s)


class Stage(Fields, frozen=True):
    """From `at` on (since the start of the run) the rate is, or begins at, `rate`."""

    at: Duration
    rate: NonNegative


class _Piece(NamedTuple):
    """Between two times the rate goes in a straight line, or grows by equal factors in equal times (`bent`)."""

    start_s: float
    end_s: float
    first: float
    last: float
    bent: bool = False

    @property
    def _growth(self) -> float:
        """The exponent per second; 0: the rate is level, or goes in a straight line."""
        return math.log(self.last / self.first) / (self.end_s - self.start_s) if self.bent else 0.0

    @property
    def requests(self) -> float:
        if growth := self._growth:
            return (self.last - self.first) / growth
        return (self.first + self.last) / 2 * (self.end_s - self.start_s)

    def when(self, number: float) -> float:
        """The time at which that many requests of the piece have come."""
        if growth := self._growth:
            return self.start_s + math.log1p(number * growth / self.first) / growth
        slope = (self.last - self.first) / (self.end_s - self.start_s)
        speed = self.first + math.sqrt(max(0.0, self.first**2 + 2 * slope * number))
        return self.start_s + (2 * number / speed if speed else 0.0)

    def until(self, end_s: float) -> "_Piece":
        """The part of it before `end_s`."""
        share = (end_s - self.start_s) / (self.end_s - self.start_s)
        last = self.first + (self.last - self.first) * share
        if self.bent:
            last = self.first * (self.last / self.first) ** share
        return self._replace(end_s=end_s, last=last)


class Step(Fields, frozen=True, tag_field="kind", tag="step"):
    """The rate jumps at each stage; 0 before the first. `cv` of the gaps inside (1: Poisson)."""

    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1)]
    cv: Positive = 1.0

    def __post_init__(self) -> None:
        starts = [seconds(stage.at) for stage in self.stages]
        if any(later <= start for start, later in pairwise(starts)):
            raise ValueError("each stage has an `at` later than the one before")

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        return _bent(self._pieces(total_s), self.cv, stream)

    def mean_rate(self, total_s: float) -> float:
        """Requests/s over `total_s` seconds."""
        return sum(piece.requests for piece in self._pieces(total_s)) / total_s

    def scaled(self, factor: float) -> "Arrivals":
        """The same shape at `factor` times the rate."""
        stages = tuple(msgspec.structs.replace(stage, rate=stage.rate * factor) for stage in self.stages)
        return msgspec.structs.replace(self, stages=stages)

    def _pieces(self, total_s: float) -> list[_Piece]:
        return list(_clipped(self.stages, total_s, lambda start_s, end_s, rate, _: _Piece(start_s, end_s, rate, rate)))


class Ramp(Step, frozen=True, tag_field="kind", tag="ramp"):
    """The rate goes from stage to stage and stays at the last one's; 0 before the first.

    `curve`: in a straight line, or by equal factors in equal times, for which each rate has to be above 0.
    """

    curve: Literal["linear", "exponential"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.curve == "exponential" and not all(stage.rate > 0 for stage in self.stages):
            raise ValueError("an exponential ramp has rates above 0")

    def _pieces(self, total_s: float) -> list[_Piece]:
        bent = self.curve == "exponential"
        return list(_clipped(self.stages, total_s, partial(_Piece, bent=bent)))


class Spike(_Steady, frozen=True, tag_field="kind", tag="spike"):
    """`rate`, but `peak` from `at` for the time `lasts`. `cv` of the gaps inside (1: Poisson)."""

    peak: Positive
    at: Duration
    lasts: Duration
    cv: Positive = 1.0

    def times(self, stream: Random, total_s: float) -> Iterator[float]:
        """Arrival times in [0, total_s), sorted."""
        return self._steps().times(stream, total_s)

    def mean_rate(self, total_s: float) -> float:
        """Requests/s over `total_s` seconds."""
        return self._steps().mean_rate(total_s)

    def scaled(self, factor: float) -> "Arrivals":
        """The same shape at `factor` times the rate."""
        return msgspec.structs.replace(self, rate=self.rate * factor, peak=self.peak * factor)

    def _steps(self) -> Step:
        over = f"{seconds(self.at) + seconds(self.lasts):g}s"
        at_rates = (("0s", self.rate), (self.at, self.peak), (over, self.rate))
        return Step(stages=tuple(Stage(at=at, rate=rate) for at, rate in at_rates), cv=self.cv)


class Sessions(Fields, frozen=True, tag_field="kind", tag="sessions"):
    """People who ask, read the answer to its end, `think`, and ask again, `turns` times.

    `rate` sessions/s begin, as a Poisson process, from `lead` before the start on (turns before it are not sent, but
    are history); or there are `users`, who begin within `stagger` and go on with a new session after the last turn: a
    closed loop. `input` of the tenant is the first turn's, `follow` that of later ones (None: the same). A session
    ends before a turn that would exceed `max_total_tokens` of prompt and answer.
    """

    turns: Length
    think: Length
    rate: Positive | None = None
    users: Count | None = None
    stagger: Duration = "30s"
    lead: Duration = "0s"
    follow: Length | None = None
    max_total_tokens: Count | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.users is None):
            raise ValueError("sessions have either `rate` or `users`")

    def mean_rate(self, total_s: float) -> float:
        """About the requests/s offered; of `users` at most, if every answer took no time."""
        if self.rate is not None:
            return self.rate * mean(self.turns)
        return (self.users or 0) / mean(self.think)

    def scaled(self, factor: float) -> "Sessions":
        """The same sessions, `factor` times as many."""
        if self.rate is not None:
            return msgspec.structs.replace(self, rate=self.rate * factor)
        return msgspec.structs.replace(self, users=max(1, round((self.users or 0) * factor)))

    def starts(self, stream: Random, total_s: float) -> Iterable[float]:
        """When sessions (with `users`: their first ones, in any order) begin; before 0 within `lead`."""
        if self.rate is None:
            return staggered(self.users or 0, self.stagger, stream)
        lead_s = seconds(self.lead)
        return (t - lead_s for t in Poisson(rate=self.rate).times(stream, lead_s + total_s))


class Closed(Fields, frozen=True, tag_field="kind", tag="closed"):
    """`users` who begin within `stagger`, and each of whom asks, reads the answer to its end, and thinks, without end.

    No more than `users` requests are ever open; how many come follows from how fast they are answered. Each stands for
    itself: conversations are `sessions` with `users`.
    """

    users: Count
    think: Length
    stagger: Duration = "30s"

    def mean_rate(self, total_s: float) -> float:
        """The requests/s offered if every answer took no time."""
        return self.users / mean(self.think)

    def scaled(self, factor: float) -> "Closed":
        """`factor` times as many users."""
        return msgspec.structs.replace(self, users=max(1, round(self.users * factor)))

    def starts(self, stream: Random) -> list[float]:
        """When each user begins."""
        return staggered(self.users, self.stagger, stream)


Arrivals = Constant | Poisson | Gamma | Weibull | Step | Ramp | Spike


def staggered(users: int, stagger: Duration, stream: Random) -> list[float]:
    """When each of `users` begins."""
    return [stream.random() * seconds(stagger) for _ in range(users)]


def _renewal(gap: Callable[[], float], stream: Random, count: int, total_s: float) -> Iterator[float]:
    """`count` points in [0, total_s) whose gaps, the first and the last one too, are proportional to drawn ones.

    `gap` draws from `stream`, twice the same: once to know their sum, so that nothing has to be kept.
    """
    state = stream.getstate()
    scale = total_s / (sum(gap() for _ in range(count + 1)) or 1.0)
    stream.setstate(state)
    last = math.nextafter(total_s, 0.0)  # rounding must not put anything at the very end
    return (min(point * scale, last) for point in accumulate(gap() for _ in range(count)))


def _weibull_shape(cv: float) -> float:
    low, high = 0.05, 50.0  # the cv falls as the shape grows
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if log_ratio > math.log1p(cv**2) else (low, middle)
    return low


def _clipped(
    stages: Sequence[Stage], total_s: float, piece: Callable[[float, float, float, float], _Piece]
) -> Iterator[_Piece]:
    """The pieces between stages, as far as they lie in [0, total_s)."""
    points = [(seconds(stage.at), stage.rate) for stage in stages]
    points.append((max(total_s, points[-1][0]), points[-1][1]))
    for (start_s, first), (end_s, following) in pairwise(points):
        if min(end_s, total_s) > start_s:
            yield piece(start_s, end_s, first, following).until(min(end_s, total_s))


def _bent(pieces: Sequence[_Piece], cv: float, stream: Random) -> Iterator[float]:
    """A unit process of as many requests as the pieces hold, each put at the time its number is due."""
    whole = sum(piece.requests for piece in pieces)
    done, index = 0.0, 0
    for unit in Gamma(rate=1.0, cv=cv).times(stream, whole) if whole >= 0.5 else ():
        while unit - done > pieces[index].requests and index + 1 < len(pieces):
            done += pieces[index].requests
            index += 1
        yield min(pieces[index].when(unit - done), math.nextafter(pieces[index].end_s, 0.0))
