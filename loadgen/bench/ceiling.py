"""How much can the client of this machine measure? Found by `forebay bench selftest`, remembered, and held against plans.

What a request and a chunk cost the client's CPU says what one worker can send before it is itself what is measured (V4).
"""

import os
from pathlib import Path

import msgspec

CPU_LIMIT = 0.85  # of a core (loadgen.md 8.2, V4)
SAFE_SHARE = 0.5  # of the ceiling: beyond it a run warns
SCHEMA = "forebay.selftest/1"


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU of the client in microseconds: of a request that is not streamed, of a chunk of a stream."""

    request_us: float
    chunk_us: float

    @property
    def requests_per_s(self) -> float:
        """The most whole answers a worker can measure."""
        return CPU_LIMIT * 1e6 / self.request_us

    @property
    def chunks_per_s(self) -> float:
        """The most chunks of streams."""
        return CPU_LIMIT * 1e6 / self.chunk_us

    def share(self, requests_per_s: float, chunks_per_s: float) -> float:
        """What such a load takes of the most that one worker can do."""
        return requests_per_s / self.requests_per_s + chunks_per_s / self.chunks_per_s


class _Kept(msgspec.Struct, kw_only=True):
    schema: str
    costs: Costs


def remember(costs: Costs) -> Path:
    """Keep them for the runs to come; where. OSError when that cannot be written."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(_Kept(schema=SCHEMA, costs=costs)) + b"\n")
    return path


def remembered() -> Costs | None:
    """Those of the last selftest on this machine; None without one."""
    try:
        kept = msgspec.json.decode(_path().read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return kept.costs if kept.schema == SCHEMA else None


def warning(requests_per_s: float, chunks_per_s: float, workers: int) -> str | None:
    """What to say of a load that is more than half of what this machine can measure; None if it is not, or not known."""
    costs = remembered()
    share = costs.share(requests_per_s, chunks_per_s) / workers if costs is not None else 0.0
    if share <= SAFE_SHARE:
        return None
    return (
        f"{requests_per_s:,.0f} requests/s with {chunks_per_s:,.0f} tokens/s are {share * 100:.0f} % of what {workers} "
        f"worker{'s' if workers > 1 else ''} of this machine can measure (forebay bench selftest): more --workers"
    )


def _path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "forebay" / "selftest.json"
