"""Reads request traces: when, how long, which prefix. Formats are told apart by what their first line holds.

- JSON Lines with `timestamp` (ms), `input_length`, `output_length`: Mooncake's, and derived files of that form (`tenant`,
  `reasoning_length`). `hash_ids` name the prompt's blocks of 512 tokens: the first is taken for the system message.
- The same with `session_id`: sessions of coding agents (agents.py).
- JSON Lines that begin with a journal's head: what a gateway or a simulation has handled (journals.py).
- CSV with TIMESTAMP, ContextTokens, GeneratedTokens: Azure's traces of 2023 and 2024.
- CSV with Timestamp (s), Request tokens, Response tokens: BurstGPT.
- CSV with timestamp (s), input_tokens, output_tokens and perhaps reason_ratio: what ServeGen generates.

Plain or gzipped. Requests without an answer are left out: there is nothing to serve.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from loadgen.workload import agents, journals
from loadgen.workload.fields import ScenarioError
from loadgen.workload.prompts import Role
from loadgen.workload.rows import Part, Row

ID_TOKENS = 512  # of one of `hash_ids`

Fields = Mapping[str, Any]
_Reader = Callable[[Fields, str | None], Row]


def read(file: str, tenant_field: str | None) -> tuple[Row, ...]:
    """The requests of a trace in the order of the file; `tenant_field` names the field that tells tenants apart.

    ScenarioError if there is no such file, or `FILE:LINE: what` if a line of it is not a request.
    """
    return _read(file, tenant_field, stamp(file))


def stamp(file: str) -> tuple[int, int]:
    """What changes with the file. ScenarioError if there is none."""
    path = Path(file)
    if not path.is_file():
        raise ScenarioError(f"there is no trace file {file}; say where it is with --trace FILE")
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4)
def _read(file: str, tenant_field: str | None, _: object) -> tuple[Row, ...]:
    """`_` changes with the file."""
    path = Path(file)
    try:
        text = _text(path)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file} is not a trace: {error}") from error
    lines = text.splitlines()
    if lines and '"config"' in lines[0] and not text.endswith("\n"):
        lines.pop()  # of a journal that was cut off in writing
    rows = _rows(file, lines, tenant_field) if lines else []
    return tuple(row for row in rows if row.output_tokens > 0)


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")


def _rows(file: str, lines: list[str], tenant_field: str | None) -> Iterable[Row]:
    if not lines[0].startswith("{"):
        return _each(file, _csv(file, lines), _csv_reader(file, lines[0]), tenant_field)
    fields = list(_json(file, lines))
    first = fields[0][1] if fields else {}
    if journals.begins(first):
        return journals.rows(file, fields, tenant_field is not None)
    if "session_id" in first:
        fields = [(number, one) for number, one in fields if agents.is_main(one)]
        roles = agents.Roles()
        for number, one in fields:
            _told(file, number, roles.learn, one)
        return _each(file, fields, lambda one, field: _agent(one, field, roles), tenant_field)
    return _each(file, fields, _mooncake, tenant_field)


def _each(
    file: str, numbered: Iterable[tuple[int, Fields]], reader: _Reader, tenant_field: str | None
) -> Iterator[Row]:
    for number, fields in numbered:
        row = _told(file, number, reader, fields, tenant_field)
        if not (math.isfinite(row.t_s) and row.input_tokens >= 0 and row.output_tokens >= 0 and row.own_tokens >= 0):
            raise ScenarioError(f"{file}:{number}: a time or a length that cannot be")
        yield row


def _told(file: str, number: int, what: Callable[..., Any], *about: Any) -> Any:
    """`what` of a line, and where it is if that is not possible."""
    try:
        return what(*about)
    except KeyError as error:
        raise ScenarioError(f"{file}:{number}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ScenarioError(f"{file}:{number}: {error}") from error


# ---- JSON Lines


def _json(file: str, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _told(file, number, decode, line)


def _mooncake(fields: Fields, tenant_field: str | None) -> Row:
    return Row(
        t_s=float(fields["timestamp"]) / 1000,
        tenant=_tenant(fields, tenant_field),
        input_tokens=int(fields["input_length"]),
        output_tokens=int(fields["output_length"]),
        reasoning_tokens=int(fields.get("reasoning_length") or 0),
        parts=_hashed(fields.get("hash_ids", ()), int(fields["input_length"])),
    )


def _hashed(ids: Iterable[Any], length: int) -> tuple[Part, ...]:
    known = [int(one) for one in ids]
    needed = -(-length // ID_TOKENS)
    if known and len(known) != needed:
        raise ValueError(f"hash_ids: {len(known)} of them for {length} tokens, which are {needed} blocks")
    roles: list[Role] = ["system" if number == 0 and len(known) > 1 else "user" for number in range(len(known))]
    sizes = [min(ID_TOKENS, length - number * ID_TOKENS) for number in range(len(known))]
    return tuple(zip(known, sizes, roles, strict=True))


def _agent(fields: Fields, tenant_field: str | None, roles: agents.Roles) -> Row:
    return Row(
        t_s=float(fields["timestamp"]) / 1000,
        tenant=_tenant(fields, tenant_field),
        input_tokens=int(fields["input_length"]),
        output_tokens=int(fields["output_length"]),
        parts=roles.parts(fields),
        session=str(fields["session_id"]),
        turn=int(fields["turn"]),
        think_s=float(fields.get("think_ms") or 0) / 1000,
    )


def _tenant(fields: Fields, tenant_field: str | None) -> str:
    return str(fields[tenant_field]) if tenant_field else ""


# ---- CSV


def _csv(file: str, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(lines)
    for fields in reader:
        if None in fields or None in fields.values():
            raise ScenarioError(f"{file}:{reader.line_num}: not as many values as there are columns")
        yield reader.line_num, fields


def _csv_reader(file: str, head: str) -> _Reader:
    columns = set(next(csv.reader([head]), []))
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        return _Azure()
    for clock, prompt, answer in (
        ("Timestamp", "Request tokens", "Response tokens"),
        ("timestamp", "input_tokens", "output_tokens"),
    ):
        if {clock, prompt, answer} <= columns:
            return _Seconds(clock, prompt, answer)
    raise ScenarioError(f"{file}:1: is not a trace: no columns of Azure's, BurstGPT's or ServeGen's, and no JSON")


class _Azure:
    """Times of day, taken from the first one on."""

    def __init__(self) -> None:
        self._zero: datetime | None = None

    def __call__(self, fields: Fields, tenant_field: str | None) -> Row:
        time = _moment(fields["TIMESTAMP"])
        self._zero = self._zero or time
        return Row(
            t_s=(time - self._zero).total_seconds(),
            tenant=_tenant(fields, tenant_field),
            input_tokens=int(fields["ContextTokens"]),
            output_tokens=int(fields["GeneratedTokens"]),
        )


class _Seconds:
    """Seconds, taken from the first row on, under columns of these names."""

    def __init__(self, clock: str, prompt: str, answer: str) -> None:
        self._names = clock, prompt, answer
        self._zero_s: float | None = None

    def __call__(self, fields: Fields, tenant_field: str | None) -> Row:
        clock, prompt, answer = self._names
        t_s, output = float(fields[clock]), int(fields[answer])
        self._zero_s = t_s if self._zero_s is None else self._zero_s
        return Row(
            t_s=t_s - self._zero_s,
            tenant=_tenant(fields, tenant_field),
            input_tokens=int(fields[prompt]),
            output_tokens=output,
            reasoning_tokens=min(output, round(float(fields.get("reason_ratio") or 0) * output)),
            label=str(fields.get("Session ID") or ""),
        )


def _moment(text: str) -> datetime:
    """An ISO time with any number of digits behind the point; a zone, always UTC there, is left out."""
    whole, _, fraction = text.partition("+")[0].partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")
