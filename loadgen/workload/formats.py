"""Reads request traces: when, how long, which prefix. Formats are told apart by what a line holds.

- JSON Lines with `timestamp` (ms), `input_length`, `output_length`: the derived files described in traces/README.md
  and Mooncake's own. `hash_ids` name the prompt's blocks of 512 tokens, `hash_runs` ([first, count] runs) its blocks
  of 64; `session_id`, `turn` and `think_ms` make conversations, of which only the main agent is read.
- CSV with TIMESTAMP, ContextTokens, GeneratedTokens: Azure's public traces.

Plain or gzipped. Requests without an answer are left out: there is nothing to serve.
"""

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from loadgen.workload.fields import ScenarioError

ID_TOKENS = 512  # of one of `hash_ids`
RUN_TOKENS = 64  # of one block of `hash_runs`
MAIN_AGENT = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded request; `t_s` from the start of the trace, or of its session.

    `parts` are the (id, tokens) of its prompt that other requests may share, from the start on; tokens beyond them
    are its own. `think_s` is the client's time since the answer before.
    """

    t_s: float
    tenant: str
    input_tokens: int
    output_tokens: int
    parts: tuple[tuple[int, int], ...] = ()
    session: str = ""
    turn: int = 0
    think_s: float = 0.0


@lru_cache(maxsize=4)
def read(file: str, tenant_field: str | None) -> tuple[Row, ...]:
    """The requests of a trace in the order of the file; `tenant_field` names the field that tells tenants apart.

    ScenarioError if there is no such file, or if a line of it is not a request.
    """
    path = Path(file)
    if not path.is_file():
        raise ScenarioError(f"there is no trace file {file}; say where it is with --trace FILE")
    try:
        lines = _text(path).splitlines()
        rows = list(_json(lines, tenant_field) if lines and lines[0].startswith("{") else _csv(lines))
    except (OSError, EOFError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ScenarioError(f"{file} is not a trace: {type(error).__name__} {error}") from error
    return tuple(row for row in rows if row.output_tokens > 0)


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def _json(lines: Iterable[str], tenant_field: str | None) -> Iterator[Row]:
    found = [msgspec.json.decode(line) for line in lines if line]
    found = [fields for fields in found if fields.get("agent", MAIN_AGENT) == MAIN_AGENT]
    cuts = _cuts(found)
    for fields in found:
        session = str(fields.get("session_id", ""))
        yield Row(
            t_s=float(fields["timestamp"]) / 1000,
            tenant=str(fields[tenant_field]) if tenant_field else "",
            input_tokens=int(fields["input_length"]),
            output_tokens=int(fields["output_length"]),
            parts=_parts(fields, cuts.get(session, [])),
            session=session,
            turn=int(fields.get("turn", 0)),
            think_s=float(fields.get("think_ms") or 0) / 1000,
        )


def _csv(lines: Iterable[str]) -> Iterator[Row]:
    zero: datetime | None = None
    for fields in csv.DictReader(lines):
        time = _moment(fields["TIMESTAMP"])
        zero = zero or time
        yield Row(
            t_s=(time - zero).total_seconds(),
            tenant="",
            input_tokens=int(fields["ContextTokens"]),
            output_tokens=int(fields["GeneratedTokens"]),
        )


def _moment(text: str) -> datetime:
    """An ISO time with any number of digits behind the point; a zone, always UTC there, is left out."""
    whole, _, fraction = text.partition("+")[0].partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")


def _cuts(found: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """By session: the ids at which runs begin or end. What lies between two of them is always used as a whole."""
    cuts: dict[str, set[int]] = {}
    for fields in found:
        edges = cuts.setdefault(str(fields.get("session_id", "")), set())
        for first, count in fields.get("hash_runs", ()):
            edges.update((first, first + count))
    return {session: sorted(edges) for session, edges in cuts.items()}


def _parts(fields: Mapping[str, Any], cuts: list[int]) -> tuple[tuple[int, int], ...]:
    length = int(fields["input_length"])
    if "hash_ids" in fields:
        ids = [int(one) for one in fields["hash_ids"]]
        sizes = [min(ID_TOKENS, length - start) for start in range(0, length, ID_TOKENS)]
        return tuple(zip(ids, sizes, strict=True))
    found: list[tuple[int, int]] = []
    for first, count in fields.get("hash_runs", ()):
        inside = [cut for cut in cuts if first <= cut <= first + count]
        found += [(start, (end - start) * RUN_TOKENS) for start, end in pairwise(inside)]
    return tuple(found)
