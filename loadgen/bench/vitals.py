"""How well the client itself is: a row a second in health.jsonl, and the line of the display."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadgen.bench.validity import CPU_SHARE, LOOP_LAG_MS, lag_limit_ms
from loadgen.client import Client
from loadgen.live.progress import Vital
from loadgen.report.folder import Health

PERIOD_S = 1.0


def vitals(client: Client, least_ttft_ms: float) -> Iterator[Vital]:
    """What the validity rules will look at, so far."""
    now = client.health
    lag_ms, loop_ms, cpu = now.send_lag_p99_ms, now.loop_lag_p99_ms, now.cpu_share
    yield Vital(text=f"send lag p99 {lag_ms:.1f} ms", value=lag_ms, limit=lag_limit_ms(least_ttft_ms))
    yield Vital(text=f"loop lag p99 {loop_ms:.1f} ms", value=loop_ms, limit=LOOP_LAG_MS)
    yield Vital(text=f"CPU {cpu * 100:.0f} %", value=cpu, limit=CPU_SHARE)
    failures = sum(now.local_failures.values())
    if failures:
        yield Vital(text=f"{failures} local failures", value=failures, limit=0.0)


class HealthFile:
    """Writes what the client says of itself as it comes."""

    def __init__(self, path: Path, client: Client) -> None:
        self._path = path
        self._client = client
        self._written = 0

    async def run(self) -> None:
        """Each second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.write()

    def write(self) -> None:
        """What is new."""
        now = self._client.health
        new = now.points[self._written :]
        self._written += len(new)
        rows = [
            Health(
                t_s=round(one.t_s, 3),
                worker=one.worker,
                loop_lag_ms=(round(one.loop_lag_ms, 3),),
                cpu=round(one.cpu_share, 4),
                open=now.open,
                loop_lag_p99_ms=round(now.loop_lag_p99_ms, 3),
                local_failures=now.local_failures,
            )
            for one in new
        ]
        with self._path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
