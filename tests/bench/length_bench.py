"""What predicting and learning the length of an answer costs: `python tests/bench/length_bench.py`, part of `make bench`.

40 tenants with 8 prompt heads each, answers lognormal; one call in ten is cut. Every call is timed; the clock's own
cost is taken off. `fresh heads`: every request has a head never seen before, which costs most.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).parents[2]))

from policies.length import Lengths
from policies.length.history import NODES
from policies.types import InferenceRequest

BUDGET_PREDICT_US, BUDGET_LEARN_US = 5.0, 4.0
CALLS = 40_000


def request(tenant: int, head: int, limit: int = 8192) -> InferenceRequest:
    return InferenceRequest(
        id="r",
        tenant=f"tenant-{tenant}",
        model="llama-3.1-70b-instruct",
        band="standard",
        route="chat",
        streamed=True,
        arrived_s=0.0,
        deadline_s=60.0,
        prompt_tokens=500,
        max_output_tokens=limit,
        sequences=1,
        body_bytes=2048,
        text_bytes=2000,
        head=head,
    )


def taught(random: Random) -> Lengths:
    lengths = Lengths()
    for _ in range(CALLS):
        tenant = random.randrange(40)
        lengths.learn(request(tenant, random.randrange(1, 9)), int(random.lognormvariate(5, 1)), True)
    return lengths


def clock_ns() -> int:
    def once() -> int:
        began = perf_counter_ns()
        return perf_counter_ns() - began

    return int(median(once() for _ in range(10_000)))


def timed(name: str, call: Callable[[int], object]) -> float:
    """Print one row; return the median in µs."""
    clock = clock_ns()
    costs: list[float] = []
    for number in range(CALLS):
        began = perf_counter_ns()
        call(number)
        costs.append((perf_counter_ns() - began - clock) / 1000)
    costs.sort()
    print(f"{name:<28}  {median(costs):>8.2f}  {fmean(costs):>8.2f}  {costs[CALLS * 99 // 100]:>8.1f}")
    return median(costs)


def main() -> int:
    random = Random(7)
    lengths = taught(random)
    asked = [request(random.randrange(40), random.randrange(1, 9)) for _ in range(CALLS)]
    small = [request(random.randrange(40), random.randrange(1, 9), 128) for _ in range(CALLS)]
    fresh = [request(random.randrange(40), 1000 + number) for number in range(CALLS)]
    tokens = [max(1, int(random.lognormvariate(5, 1))) for _ in range(CALLS)]
    gc.collect()
    gc.freeze()
    print(f"{'µs per call':<28}  {'median':>8}  {'mean':>8}  {'p99':>8}")
    predict = timed("predict", lambda number: lengths.predict(asked[number]))
    cut = timed("predict, cap below p99", lambda number: lengths.predict(small[number]))
    timed("over", lambda number: lengths.over(asked[number], 512.0))
    timed("given", lambda number: lengths.given(asked[number], tokens[number]))
    timed("prompt_tokens", lambda number: lengths.prompt_tokens(asked[number]))
    timed("learn_prompt", lambda number: lengths.learn_prompt(asked[number], 490))
    learn = timed("learn", lambda number: lengths.learn(asked[number], tokens[number], number % 10 > 0))
    timed("learn, fresh heads", lambda number: lengths.learn(fresh[number], tokens[number], True))
    full(lengths)
    print(f"predict: {max(predict, cut):.1f} of {BUDGET_PREDICT_US} µs; learn: {learn:.1f} of {BUDGET_LEARN_US} µs")
    return 0 if max(predict, cut) <= BUDGET_PREDICT_US and learn <= BUDGET_LEARN_US else 1


def full(lengths: Lengths) -> None:
    """Print what dump and restore cost with as many nodes as there can be."""
    for number in range(NODES):
        lengths.learn(request(number % 20, number), 100, True)
    began = perf_counter_ns()
    text = "".join(lengths.dump())
    middle = perf_counter_ns()
    lengths.restore(text)
    ended = perf_counter_ns()
    dump_ms, restore_ms = (middle - began) / 1e6, (ended - middle) / 1e6
    print(f"full: dump {dump_ms:.0f} ms, {len(text) / 2**20:.1f} MiB; restore {restore_ms:.0f} ms")


if __name__ == "__main__":
    sys.exit(main())
