"""What one event costs in `Core.handle`: `python tests/bench/core_bench.py`, part of `make bench`.

A realistic cycle on a fleet that is either idle or full: a request arrives, an earlier one gets its first token, the
oldest one finishes and makes room for the head of the queue. Every call is timed; the clock's own cost is taken off.
"""

import gc
import sys
from collections import deque
from dataclasses import replace
from random import Random
from statistics import median
from time import perf_counter_ns

from policies.core import Core
from policies.decisions import Dispatch
from policies.events import Arrived, EndpointUp, Event, Finished, FirstToken, Outcome, SettingsChanged
from policies.types import Affinity, Band, Endpoint, InferenceRequest, Pool, Settings

BUDGET_QUEUED_US, BUDGET_FAST_US = 15.0, 6.0
BUDGET_ALL_64_US, BUDGET_ALL_256_US = 25.0, 40.0
CYCLES = 4000


PLAIN = Settings(
    pools={"p": Pool(name="p", model="m")},
    bands={"standard": Band(name="standard", rank=2, queue_timeout_s=1e6, max_queued=1_000_000)},
    max_queued=1_000_000,
    max_queued_bytes=1 << 40,
    max_attempts=2,
    seed=7,
)
CLASSES = (("critical", 1e5), ("interactive", 2e5), ("standard", 4e5), ("batch", 0.0))
EVERYTHING = replace(
    PLAIN,
    bands={
        name: Band(name=name, rank=rank, queue_timeout_s=1e6, max_queued=1_000_000, slo_ttft_s=slo_s, age_after_s=1e6)
        for rank, (name, slo_s) in enumerate(CLASSES)
    },
    affinity=Affinity(),
)


class Fleet:
    """A core with `endpoints` engines, and `queued` requests waiting; remembers who is in flight."""

    def __init__(self, endpoints: int, queued: int, settings: Settings = PLAIN) -> None:
        self.core, self.random = Core(), Random(7)
        self.bands = list(settings.bands)
        self.tenants = 8 if len(self.bands) > 1 else 1
        self.now, self.arrived = 0.0, 0
        self.computing: deque[str] = deque()
        self.generating: deque[str] = deque()
        self.costs: dict[str, list[int]] = {"Arrived": [], "FirstToken": [], "Finished": []}
        self.handle(SettingsChanged(settings=settings))
        for number in range(endpoints):
            name = f"engine-{number}"
            self.handle(EndpointUp(endpoint=Endpoint(name=name, pools=("p",), max_seqs=32, max_prefill_tokens=2048)))
        if settings.affinity is not None:
            self.fill_index(settings.affinity.index_bytes)
        self.fill(queued)

    def fill_index(self, index_bytes: int) -> None:
        """As it is after hours: every byte of it in use."""
        index = self.core._books.prefixes
        names = [view.name for view in self.core.endpoints()]
        while index is not None and index.used_bytes < 0.98 * index_bytes:
            for name in names:
                index.insert(name, self.request(blocks=400), self.now)

    def fill(self, queued: int) -> None:
        if not queued:
            return
        while self.core.totals().queued < queued:
            self.arrive()
            if self.core.totals().queued > 1:
                self.first_token()
        for cost in self.costs.values():
            cost.clear()

    def handle(self, event: Event) -> None:
        self.now += 0.0005
        began = perf_counter_ns()
        decisions = self.core.handle(event, self.now)
        took = perf_counter_ns() - began
        if type(event).__name__ in self.costs:
            self.costs[type(event).__name__].append(took)
        self.computing.extend(each.request_id for each in decisions if isinstance(each, Dispatch))

    def arrive(self) -> None:
        self.arrived += 1
        self.handle(Arrived(request=self.request(blocks=16 if self.tenants > 1 else 0)))

    def request(self, blocks: int) -> InferenceRequest:
        """Of `blocks` of prefix a fourth is one of 50 heads of its tenant."""
        tenant = self.arrived % self.tenants
        head = 1000 * (tenant + 8 * int(self.random.random() * 50))
        own = tuple(self.random.getrandbits(64) for _ in range(blocks - blocks // 4))
        return InferenceRequest(
            id=f"req-{self.arrived:016d}",
            tenant=f"tenant-{tenant}",
            model="m",
            band=self.bands[self.arrived % len(self.bands)],
            prefix=(*range(head + 1, head + 1 + blocks // 4), *own),
            head=head if blocks else 0,
            route="chat",
            streamed=True,
            arrived_s=self.now,
            deadline_s=self.now + 1e6,
            prompt_tokens=64 * blocks + int(self.random.lognormvariate(6.4, 0.8)),
            max_output_tokens=2048,
            sequences=1,
            body_bytes=2048,
        )

    def first_token(self) -> None:
        if self.computing:
            name = self.computing.popleft()
            self.generating.append(name)
            self.handle(FirstToken(request_id=name, attempt=1))

    def finish(self) -> None:
        if self.generating:
            name = self.generating.popleft()
            self.handle(Finished(request_id=name, attempt=1, outcome=Outcome.COMPLETED, output_tokens=200))


def clock_ns() -> int:
    def once() -> int:
        began = perf_counter_ns()
        return perf_counter_ns() - began

    return int(median(once() for _ in range(10_000)))


def measure(endpoints: int, queued: int, settings: Settings = PLAIN) -> float:
    """Print one row; return the median cost of an event in µs."""
    fleet = Fleet(endpoints, queued, settings)
    gc.collect()
    gc.freeze()
    for _ in range(CYCLES):
        fleet.arrive()
        fleet.first_token()
        fleet.finish()
    gc.unfreeze()
    clock = clock_ns()
    kinds = {kind: sorted((cost - clock) / 1000 for cost in costs) for kind, costs in fleet.costs.items()}
    every = sorted(cost for costs in kinds.values() for cost in costs)
    cells = "  ".join(f"{median(costs):>10.1f}" for costs in kinds.values())
    p99 = every[len(every) * 99 // 100]
    mean = sum(every) / len(every)
    print(f"{endpoints:>9}  {queued:>7}  {cells}  {median(every):>10.1f}  {mean:>6.1f}  {p99:>6.1f}")
    fleet.core.check()
    return median(every)


def main() -> int:
    print("Core.handle, µs per event (median of each kind; median, mean and p99 of all)")
    print(
        f"{'endpoints':>9}  {'queued':>7}  {'Arrived':>10}  {'FirstToken':>10}  {'Finished':>10}  {'median':>10}",
        end="",
    )
    print(f"  {'mean':>6}  {'p99':>6}")
    rows = {
        (endpoints, queued): measure(endpoints, queued) for queued in (0, 100, 10_000) for endpoints in (4, 64, 256)
    }
    fast, queued = rows[4, 0], rows[64, 10_000]
    print(
        f"unqueued, 4 endpoints: {fast:.1f} of {BUDGET_FAST_US} µs; 64 endpoints, 10,000 queued: {queued:.1f} of {BUDGET_QUEUED_US} µs"
    )
    print("with everything on: prefixes of 16 blocks in a full index, 4 classes, 8 tenants")
    full = {endpoints: measure(endpoints, 10_000, EVERYTHING) for endpoints in (64, 256)}
    print(f"{full[64]:.1f} of {BUDGET_ALL_64_US} µs, {full[256]:.1f} of {BUDGET_ALL_256_US} µs")
    within = fast <= BUDGET_FAST_US and queued <= BUDGET_QUEUED_US
    return 0 if within and full[64] <= BUDGET_ALL_64_US and full[256] <= BUDGET_ALL_256_US else 1


if __name__ == "__main__":
    sys.exit(main())
