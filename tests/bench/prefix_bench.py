"""What prefix affinity costs: `python tests/bench/prefix_bench.py`, part of `make bench`.

Chains of a 2 and a 128 KiB prompt; then questions to the index and inserts, once as full as 256 MiB allow, once as full
as engines of 534,000 KV tokens make it (at most as many blocks as those hold). Medians; other work on the machine shows.
"""

import gc
from collections.abc import Callable
from random import Random
from statistics import median
from time import perf_counter_ns, thread_time_ns

from policies.fingerprint import chain, depth_bytes, seed
from policies.state.match import Match
from policies.state.prefixes import Prefixes
from policies.types import Affinity, InferenceRequest

BUDGETS_US = {2: 3.0, 128: 60.0}  # scheduling.md 8
BUDGET_US_PER_BLOCK = {"known": 0.15, "match": 0.1}
BLOCKS, NEW_BLOCKS = 40, 7  # 64 KiB of text and its last 28 KiB
TENANTS = 50
RANDOM = Random(7)


def asked(prefix: tuple[int, ...], tenant: str = "tenant-0") -> InferenceRequest:
    return InferenceRequest(
        id="req",
        tenant=tenant,
        model="m",
        band="standard",
        route="chat",
        streamed=True,
        arrived_s=0.0,
        deadline_s=1e9,
        prompt_tokens=depth_bytes(len(prefix), 64) // 4 + 10,
        max_output_tokens=256,
        sequences=1,
        body_bytes=2048,
        prefix=prefix,
    )


def fresh(blocks: int) -> tuple[int, ...]:
    return tuple(RANDOM.getrandbits(64) for _ in range(blocks))


def took_us(call: Callable[[], object]) -> float:
    began = perf_counter_ns()
    call()
    return (perf_counter_ns() - began) / 1000


def costs_us(call: Callable[[], object], times: int = 3000) -> float:
    return median(took_us(call) for _ in range(times))


class Full:
    """An index of so many endpoints that is as full as it gets."""

    def __init__(self, endpoints: int, kv_tokens: int) -> None:
        self.index, self.names, self.now = Prefixes(Affinity()), [f"engine-{at}" for at in range(endpoints)], 0.0
        for name in self.names:
            self.index.up(name, kv_tokens)
        self.sent, before = 0, -1
        while self.index.used_bytes > before or self.sent % 1000:
            before = self.index.used_bytes if self.sent % 1000 == 0 else before
            self.insert()
        gc.collect()
        gc.freeze()

    def insert(self) -> float:
        """A prompt nobody has seen, where room must be made for it."""
        self.sent += 1
        self.now += 0.0001
        one = asked(fresh(NEW_BLOCKS), f"tenant-{RANDOM.randrange(TENANTS)}")
        began = thread_time_ns()  # not the wall's: of its p99 little would be ours
        self.index.insert(self.names[self.sent % len(self.names)], one, self.now)
        return (thread_time_ns() - began) / 1000

    def rows(self) -> dict[str, float]:
        index, now = self.index, self.now
        new = sorted(self.insert() for _ in range(4000))
        known, cold = asked(fresh(BLOCKS)), asked(fresh(BLOCKS))
        for _ in range(2):
            index.insert(self.names[1], known, now)
        longer = asked((*known.prefix, *fresh(6)))
        rows = {
            "new": median(new),
            "new p99": new[len(new) * 99 // 100],
            "known": costs_us(lambda: index.insert(self.names[1], known, now)),
            "cold": costs_us(lambda: index.match(cold, now)),
            "match": costs_us(lambda: index.match(longer, now)),
        }
        for name in self.names:
            index.insert(name, asked(known.prefix[:8]), now)
        rows["shared"] = costs_us(lambda: index.match(longer, now))
        found = index.match(longer, now)
        rows["cached"] = costs_us(lambda: [found.cached(name) for name in self.names[:2]]) / 2
        rows["other"] = median(self.other(longer, now) for _ in range(3000))
        return rows

    def other(self, one: InferenceRequest, now: float) -> float:
        """What an endpoint has that is not among the first few holders: the last one, in most cases."""
        found: Match = self.index.match(one, now)
        return took_us(lambda: found.cached(self.names[-1]))


def chains() -> bool:
    good = True
    for kib, budget_us in BUDGETS_US.items():
        text = RANDOM.randbytes(kib * 1024)
        parts = [text[at : at + 700] for at in range(0, len(text), 700)]
        start, cost = seed("acme", "m"), 0.0
        cost = costs_us(lambda parts=parts, start=start: chain(parts, 64, start))  # type: ignore[misc]
        print(f"chain of {kib} KiB in {len(parts)} parts: {cost:.1f} of {budget_us} µs")
        good &= cost <= budget_us
    return good


def main() -> int:
    good = chains()
    print(f"\nindex, µs: {BLOCKS} blocks known, held by one, or by all in their first 8; {NEW_BLOCKS} new ones")
    columns = ["new", "new p99", "known", "cold", "match", "shared", "cached", "other"]
    print(f"{'endpoints':>9}  {'MiB':>5}  " + "  ".join(f"{column:>7}" for column in columns))
    for kv_tokens in (0, 534_000):
        for endpoints in (4, 64, 256):
            full = Full(endpoints, kv_tokens)
            used, rows = full.index.used_bytes / 2**20, full.rows()
            print(f"{endpoints:>9}  {used:>5.0f}  " + "  ".join(f"{rows[column]:>7.1f}" for column in columns))
            good &= all(rows[row] <= BLOCKS * budget_us for row, budget_us in BUDGET_US_PER_BLOCK.items())
            gc.unfreeze()
    print("within the budgets" if good else "NOT within the budgets")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
