"""Which part of a recorded trace is replayed, and how fast.

Times of a trace are multiplied by `time_scale`: 0.4 makes gaps 0.4 times as long, so the rate 2.5 times as high.
Recorded times may be rounded to batches (Mooncake's come every 3 s); `dequantise` spreads a batch over the time up
to the next one: `uniform` at random in order, `even` in equal steps, `auto` uniform if more than half of the rows
share their time with another. Rows that cannot be served in `max_total_tokens` of context are left out; a session is
cut before its first such turn, and left out with fewer than `min_turns` before it.

Without sessions a trace is an open loop. With them it is `users` people, each of whom takes one session after the
other; a turn comes `think_s` after the answer before, at most `think_max`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, pairwise
from random import Random
from statistics import fmean
from typing import Literal

import msgspec
import xxhash

from loadgen.workload import formats
from loadgen.workload.fields import Count, Duration, Fields, Positive, ScenarioError, seconds
from loadgen.workload.rows import Row


class Filter(Fields, frozen=True):
    """Which rows are taken. Tokens of prompt and answer together; turns of a session; `tenants` by the name in the trace."""

    max_total_tokens: Count | None = None
    min_turns: Count = 1
    tenants: tuple[str, ...] | None = None


class Sample(Fields, frozen=True):
    """One in so many is taken: requests, or all that begin with the same blocks (the first two), or tenants, or sessions.

    Which ones follows from their names, so it is the same under every seed.
    """

    one_in: Count
    by: Literal["request", "prefix", "tenant", "session"] = "request"

    def takes(self, number: int, row: Row) -> bool:
        """Whether the row of that number is taken."""
        key = {
            "request": str(number),
            "prefix": "/".join(str(one) for one, _, _ in row.parts[:2]) or str(number),
            "tenant": row.tenant,
            "session": row.session or row.label or str(number),
        }[self.by]
        return xxhash.xxh3_64_intdigest(key.encode()) % self.one_in == 0


class Trace(
    Fields, frozen=True, tag_field="kind", tag="trace", rename={"begin": "from", "end": "to", "rows": "filter"}
):
    """Replays the trace in `file` between `from` and `to`; `tenant_field` splits it into tenants of those names."""

    file: str
    begin: Duration = "0s"
    end: Duration | None = None
    time_scale: Positive = 1.0
    dequantise: Literal["auto", "uniform", "even", "off"] = "auto"
    tenant_field: str | None = None
    rows: Filter = Filter()
    sample: Sample | None = None
    users: Count | None = None
    stagger: Duration = "30s"
    think_max: Duration = "60s"

    def mean_rate(self, total_s: float) -> float:
        """Requests/s over `total_s` seconds; of `users` at most, if every answer took no time. ScenarioError as `read`."""
        if self.users is not None:
            thinks_s = [row.think_s for rows in self.sessions() for row in rows]
            return self.users / fmean(thinks_s or [1.0])
        return len([row for row in self.requests(Random("rate")) if row.t_s < total_s]) / total_s

    def scaled(self, factor: float) -> "Trace":
        """`factor` times the rate: faster, or with more users."""
        if self.users is not None:
            return msgspec.structs.replace(self, users=max(1, round(self.users * factor)))
        return msgspec.structs.replace(self, time_scale=self.time_scale / factor)

    def requests(self, stream: Random) -> list[Row]:
        """The rows of an open loop with their times from the start of the replay, sorted."""
        end_s = seconds(self.end) if self.end else float("inf")
        begin_s = seconds(self.begin)
        rows = sorted(self._taken(), key=lambda row: row.t_s)
        if any(row.session for row in rows):
            raise ScenarioError(f"{self.file} holds sessions: say how many `users`")
        spread = self._spread(rows, stream)
        return [
            replace(row, t_s=(t_s - begin_s) * self.time_scale)
            for row, t_s in zip(rows, spread, strict=True)
            if begin_s <= t_s < end_s and self._fits(row)
        ]

    def names(self) -> list[str]:
        """Of its tenants, as they are in the file, whatever of it is replayed. ScenarioError as `read`."""
        return sorted({row.tenant for row in formats.read(self.file, self.tenant_field)})

    def sessions(self) -> list[list[Row]]:
        """The sessions of the trace, cut to the context, in the order of the file. The same whatever `users` there are."""
        return [*_sessions(msgspec.structs.replace(self, users=None), formats.stamp(self.file))]

    def read_sessions(self) -> list[list[Row]]:
        """Read and cut."""
        by_name: dict[str, list[Row]] = defaultdict(list)
        for row in self._taken():
            by_name[row.session].append(row)
        if "" in by_name:
            raise ScenarioError(f"{self.file} holds no sessions: `users` is not for it")
        found = (list(self._fitting(sorted(rows, key=lambda row: row.turn))) for rows in by_name.values())
        return [rows for rows in found if len(rows) >= self.rows.min_turns]

    def _taken(self) -> Iterator[Row]:
        """The sample, of tenants that are wanted. Batches are spread as they are then."""
        wanted, sample = self.rows.tenants, self.sample
        for number, row in enumerate(formats.read(self.file, self.tenant_field)):
            if (wanted is None or row.tenant in wanted) and (sample is None or sample.takes(number, row)):
                yield row

    def _fits(self, row: Row) -> bool:
        most = self.rows.max_total_tokens
        return most is None or row.prompt_tokens + row.output_tokens <= most

    def _fitting(self, rows: Sequence[Row]) -> Iterator[Row]:
        most_s = seconds(self.think_max)
        for row in rows:
            if not self._fits(row):
                return
            yield replace(row, think_s=min(row.think_s, most_s))

    def _spread(self, rows: Sequence[Row], stream: Random) -> list[float]:
        times = [row.t_s for row in rows]
        distinct = len(set(times))
        if self.dequantise == "off" or (self.dequantise == "auto" and 2 * distinct >= len(times)):
            return times
        return list(_spread_out(times, stream if self.dequantise != "even" else None))


@lru_cache(maxsize=4)
def _sessions(trace: Trace, _: object) -> list[list[Row]]:
    """`_` changes with the file. A search asks again at each rate."""
    return trace.read_sessions()


def _spread_out(times: Sequence[float], stream: Random | None) -> Iterator[float]:
    """Each batch of equal times over the time to the next; the last one as long as the one before."""
    batches = [(t_s, len(list(group))) for t_s, group in groupby(times)]
    starts = [t_s for t_s, _ in batches]
    gaps = [later - t_s for t_s, later in pairwise(starts)]
    gaps.append(gaps[-1] if gaps else 0.0)
    for (t_s, count), gap in zip(batches, gaps, strict=True):
        shares = sorted(stream.random() for _ in range(count)) if stream else [i / count for i in range(count)]
        yield from (t_s + share * gap for share in shares)
