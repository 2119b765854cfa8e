"""Decisions and bytes to numbers. One call per event, no allocation after the first of its kind.

A *lane* holds what is counted per (tenant, model, class), so that a request touches one dictionary however many
families it feeds. Gauges are never balanced by hand: they are read from the live tables when somebody looks.
`chunks()` copies all values in one go, then formats the copy: a scrape shows one instant, and the loop runs in between.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from gateway.telemetry import families, process
from gateway.telemetry import render as text
from gateway.telemetry.families import Family
from gateway.telemetry.histogram import LAG_BOUNDS, REQUEST_BOUNDS, STORE_BOUNDS, Histogram
from gateway.telemetry.record import RequestRecord
from policies.decisions import Reason
from policies.events import Cause
from policies.ordering import due_s
from policies.state.views import Totals
from policies.types import Band

UNKNOWN: Final = "unknown"
OTHER: Final = "other"
MAX_TENANTS: Final = 100
MAX_CLASSES: Final = 16  # as many as there are ranks
MAX_NAMES: Final = 256  # routes, endpoints: from a table and the configuration, so this is a backstop

ATTEMPT_RESULTS: Final = ("connect_failed", "bounced", "stale_resent", "finished", "broken", "aborted")
OUTCOMES: Final = ("completed", "rejected", "expired", "cancelled", "failed")
_STAGES: Final = ("body", "queued", "connect", "sent", "stream")
_REASONS: Final = frozenset({"", *Reason, *_STAGES})
_CAUSES: Final = frozenset({*Cause, *Reason})
NO_BANDS: Final[Mapping[str, Band]] = {}

Reading = Iterable[tuple[tuple[str, ...], float]]


class LabelCap:
    """The first `room` different values keep their name, all later ones are `other`."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._room:
            return OTHER
        self._seen.add(value)
        return value


class _Timings:
    """The histograms of one (class, model), and what the class has promised."""

    __slots__ = ("band", "duration", "queue", "tpot", "ttft")

    def __init__(self, band: Band | None) -> None:
        self.band = band
        self.queue = Histogram(REQUEST_BOUNDS)
        self.ttft = Histogram(REQUEST_BOUNDS)
        self.tpot = Histogram(REQUEST_BOUNDS)
        self.duration = Histogram(REQUEST_BOUNDS)


class Lane:
    """What is counted per (tenant, model, class)."""

    __slots__ = ("cached_tokens", "ended", "missed", "output_tokens", "prompt_tokens", "received", "timings")

    def __init__(self, timings: _Timings) -> None:
        self.received = 0
        self.ended: dict[str, defaultdict[str, int]] = {}  # by outcome and reason
        self.missed: defaultdict[str, int] = defaultdict(int)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.timings = timings

    def end(self, record: RequestRecord) -> None:
        outcome, output_tokens, timings = record.outcome, record.output_tokens, self.timings
        reason = record.stage if outcome == "cancelled" else record.reason
        by_reason = self.ended.get(outcome)
        if by_reason is None:
            by_reason = self.ended[outcome] = defaultdict(int)
        by_reason[reason if reason in _REASONS else OTHER] += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.output_tokens += output_tokens
        queue_ms, ttft_ms, duration_ms = record.queue_ms, record.ttft_ms, record.duration_ms
        if queue_ms is not None:
            timings.queue.observe(queue_ms / 1000)
        if ttft_ms is not None:
            timings.ttft.observe(ttft_ms / 1000)
        if duration_ms is not None and outcome == "completed":
            timings.duration.observe(duration_ms / 1000)
            if ttft_ms is not None:
                gap_s = 0.0
                if output_tokens > 1:
                    gap_s = (duration_ms - ttft_ms) / 1000 / (output_tokens - 1)
                    timings.tpot.observe(gap_s)
                band = timings.band
                if band is not None and (band.slo_ttft_s or band.slo_itl_s):
                    self.missed[_missed(band, record.prompt_tokens, ttft_ms / 1000, gap_s)] += 1


def _missed(band: Band, prompt_tokens: int, ttft_s: float, gap_s: float) -> str:
    """What of its class's SLO a stream has missed."""
    is_late = ttft_s > due_s(band, 0.0, prompt_tokens)
    if 0.0 < band.slo_itl_s < gap_s:
        return "both" if is_late else "itl"
    return "ttft" if is_late else "none"


class Metrics:
    """All counters of the process. `models`: the configured names; any other model is counted as `unknown`. `tenants`:
    how many have a label of their own. `bands`: the classes, by whose SLO streams are judged."""

    def __init__(
        self,
        *,
        models: Collection[str],
        version: str,
        tenants: int = MAX_TENANTS,
        bands: Mapping[str, Band] = NO_BANDS,
    ) -> None:
        self.loop_lag = Histogram(LAG_BOUNDS)
        self.store_seconds = Histogram(STORE_BOUNDS)
        self._models = frozenset(models)
        self._bands = bands
        self._lanes: dict[tuple[str, str, str], Lane] = {}  # (tenant, model, class)
        self._timings: dict[tuple[str, str], _Timings] = {}  # (class, model)
        self._refused: defaultdict[str, int] = defaultdict(int)
        self._responses: dict[str, defaultdict[int, int]] = {}  # by route and status
        self._failures: defaultdict[tuple[str, str], int] = defaultdict(int)  # (endpoint, cause)
        self._noted: defaultdict[tuple[str, str], int] = defaultdict(int)  # (pool, note)
        self._attempts = dict.fromkeys(ATTEMPT_RESULTS, 0)
        self._started = 0
        self.usage_missing = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self.tenant_label = LabelCap(tenants)
        self._class_label = LabelCap(MAX_CLASSES)
        self._route_label = LabelCap(MAX_NAMES)
        self._endpoint_label = LabelCap(MAX_NAMES)
        self._pool_label = LabelCap(MAX_NAMES)
        self._watched: dict[str, Callable[[], Reading]] = {}
        self.watch(families.BUILD, lambda: [((version,), 1)])
        for family, read in process.READINGS:
            self.watch_value(family, read)

    def change(self, models: Collection[str], bands: Mapping[str, Band] = NO_BANDS) -> None:
        """These are the configured models and classes now. What was counted stays."""
        self._models = frozenset(models)
        self._bands = bands
        for (band, _), timings in self._timings.items():
            timings.band = bands.get(band)

    def received(self, record: RequestRecord) -> Lane:
        """A request that counts (C1): with `Arrived`, or with the early end of one that never gets there. Returns where
        it is counted, for `ended`."""
        lane = self._lanes.get((record.tenant, record.model, record.band)) or self._new_lane(record)
        lane.received += 1
        return lane

    def ended(self, record: RequestRecord, lane: Lane | None) -> None:
        """A record is complete. Only one that was `received` counts in C1: `lane` is where."""
        self._bytes_in += record.bytes_in
        self._bytes_out += record.bytes_out
        by_status = self._responses.get(record.route)
        if by_status is None:
            by_status = self._responses.setdefault(self._route_label(record.route or OTHER), defaultdict(int))
        by_status[record.status] += 1
        if lane is not None:
            lane.end(record)
        elif record.reason:
            self.http_refused(record.reason)

    def http_refused(self, reason: str) -> None:
        """A message was refused by HTTP rules, outside C1."""
        self._refused[reason if reason in _REASONS else OTHER] += 1

    def attempt_started(self) -> None:
        """A try on an endpoint begins; exactly one `attempt` follows."""
        self._started += 1

    def noted(self, pool: str, note: str) -> None:
        """What was out of the ordinary about where a try goes: the `note` of its `Why`."""
        self._noted[self._pool_label(pool), note] += 1

    def attempt(self, result: str) -> None:
        """A try ended, with one of `ATTEMPT_RESULTS`; KeyError for anything else."""
        self._attempts[result] += 1

    def attempts_open(self) -> int:
        """Tries that began and have not ended: 0 after quiesce, or one was lost."""
        return self._started - sum(self._attempts.values())

    def upstream_failed(self, endpoint: str, cause: str) -> None:
        """An endpoint did not answer well. `cause`: a `Cause`, or the `Reason` the client was given."""
        self._failures[self._endpoint_label(endpoint), cause if cause in _CAUSES else OTHER] += 1

    def totals(self, *, queued: int, inflight: int) -> Totals:
        """The terms of C1 over all tenants and models, with what the live tables hold now."""
        ended = dict.fromkeys(OUTCOMES, 0)
        for lane in self._lanes.values():
            for outcome, by_reason in lane.ended.items():
                ended[outcome] += sum(by_reason.values())
        received = sum(lane.received for lane in self._lanes.values())
        return Totals(received=received, queued=queued, inflight=inflight, **ended)

    def watch(self, family: Family, read: Callable[[], Reading]) -> None:
        """Have `read` give (label values, value) pairs of a watched family at every scrape; it must be quick."""
        if not family.watched:
            raise ValueError(f"{family.name} is counted, not watched")
        self._watched[family.name] = read

    def watch_value(self, family: Family, read: Callable[[], float]) -> None:
        """The same for a family without labels."""
        self.watch(family, lambda: [((), read())])

    def unwatched(self) -> list[str]:
        """Names of documented families that nothing feeds: empty in a gateway that is put together whole."""
        return [family.name for family in families.FAMILIES if family.watched and family.name not in self._watched]

    def chunks(self) -> Iterator[bytes]:
        """The exposition of this instant; every step is a fraction of a millisecond."""
        return text.chunks(self.snapshot())

    def render(self) -> bytes:
        """The exposition in one piece."""
        return b"".join(self.chunks())

    def _new_lane(self, record: RequestRecord) -> Lane:
        model = record.model if record.model in self._models else UNKNOWN
        key = (self.tenant_label(record.tenant), model, self._class_label(record.band))
        lane = self._lanes.get(key)
        if lane is None:
            timings = self._timings.setdefault((key[2], model), _Timings(self._bands.get(key[2])))
            lane = self._lanes[key] = Lane(timings)
        return lane

    def snapshot(self) -> list[tuple[Family, text.Samples]]:
        """All values of this instant."""
        counted: list[tuple[Family, text.Samples]] = [
            (families.RECEIVED, [(key, lane.received) for key, lane in self._lanes.items()]),
            (families.ENDED, list(self._ended_samples())),
            (families.SLO, list(self._slo_samples())),
            (families.TOKENS, list(self._token_samples())),
            *self._timing_samples(),
            (families.HTTP_REFUSED, [((reason,), count) for reason, count in self._refused.items()]),
            (
                families.HTTP_RESPONSES,
                [
                    ((route, str(status)), count)
                    for route, by_status in self._responses.items()
                    for status, count in by_status.items()
                ],
            ),
            (families.BODY_BYTES, [(("in",), self._bytes_in), (("out",), self._bytes_out)]),
            (families.ATTEMPTS_STARTED, [((), self._started)]),
            (families.ATTEMPTS, [((result,), count) for result, count in self._attempts.items()]),
            (families.DISPATCHES_NOTED, list(self._noted.items())),
            (families.UPSTREAM_FAILURES, list(self._failures.items())),
            (families.USAGE_MISSING, [((), self.usage_missing)]),
            (families.LOOP_LAG, [((), self.loop_lag.state())]),
            (families.STORE_SECONDS, [((), self.store_seconds.state())]),
        ]
        return counted + self._watched_samples()

    def _ended_samples(self) -> Iterator[text.Sample]:
        for lane_key, lane in self._lanes.items():
            for outcome, by_reason in lane.ended.items():
                for reason, count in by_reason.items():
                    yield (outcome, reason, *lane_key), count

    def _slo_samples(self) -> Iterator[text.Sample]:
        for key, lane in self._lanes.items():
            for missed, count in lane.missed.items():
                yield (missed, *key), count

    def _token_samples(self) -> Iterator[text.Sample]:
        for key, lane in self._lanes.items():
            yield ("prompt", *key), lane.prompt_tokens
            yield ("cached", *key), lane.cached_tokens
            yield ("output", *key), lane.output_tokens

    def _timing_samples(self) -> list[tuple[Family, text.Samples]]:
        timings = self._timings.items()
        return [
            (families.DURATION, _observed((key, timing.duration) for key, timing in timings)),
            (families.TTFT, _observed((key, timing.ttft) for key, timing in timings)),
            (families.TPOT, _observed((key, timing.tpot) for key, timing in timings)),
            (families.QUEUE_TIME, _observed((key, timing.queue) for key, timing in timings)),
        ]

    def _watched_samples(self) -> list[tuple[Family, text.Samples]]:
        return [
            (family, list(self._watched[family.name]())) for family in families.FAMILIES if family.name in self._watched
        ]


def _observed(histograms: Iterable[tuple[tuple[str, ...], Histogram]]) -> text.Samples:
    """Only those that ever saw a value: a model nobody asks for costs no series."""
    return [(key, histogram.state()) for key, histogram in histograms if any(histogram.counts)]
