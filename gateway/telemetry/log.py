"""What an operator should know, one line per change of state, on stderr. Not a place for requests: they have the access log.

Where something could happen thousands of times a second (a client that sends nonsense), `limited` writes one line a
second per kind and says how many it left out.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway.telemetry.access_log import LogFormat
from gateway.telemetry.lines import Value, as_text, printable
from gateway.telemetry.sink import Sink

Level = Literal["debug", "info", "warning", "error"]
_RANKS: dict[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_LIMIT_S = 1.0
_MAX_KINDS = 256
_MAX_FRAMES = 6


class EventLog:
    """Writes operational lines of `level` and above, with the fields of `always` in each. `now`: a monotonic clock, s."""

    def __init__(
        self,
        sink: Sink,
        *,
        level: Level = "info",
        log_format: LogFormat = "json",
        now: Callable[[], float] = time.monotonic,
        always: Mapping[str, Value] | None = None,
    ) -> None:
        self._sink = sink
        self._always = dict(always or {})
        self.change(level, log_format)
        self._now = now
        self._quiet: dict[str, tuple[float, int]] = {}  # kind -> (silent until, lines left out)

    def change(self, level: Level, log_format: LogFormat) -> None:
        """Write lines of that level and above, in that form."""
        self._rank = _RANKS[level]
        self._json = log_format == "json"

    def write(self, level: Level, event: str, **fields: Value) -> None:
        """Write one line: `event` is a short fixed sentence, `fields` are its facts."""
        if _RANKS[level] < self._rank:
            return
        given = {**self._always, **fields}
        safe = {name: printable(value) if isinstance(value, str) else value for name, value in given.items()}
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._json:
            self._sink.write(msgspec.json.encode({"ts": moment, "level": level, "event": event, **safe}) + b"\n")
        else:
            self._sink.write(as_text(moment, (level.upper(), event), safe.items()))

    def debug(self, event: str, **fields: Value) -> None:
        """A detail for people who look for a fault."""
        self.write("debug", event, **fields)

    def info(self, event: str, **fields: Value) -> None:
        """A normal change of state."""
        self.write("info", event, **fields)

    def warning(self, event: str, **fields: Value) -> None:
        """Something an operator may have to act on."""
        self.write("warning", event, **fields)

    def error(self, event: str, **fields: Value) -> None:
        """A fault of this program, or of its surroundings, that costs requests."""
        self.write("error", event, **fields)

    def failure(self, event: str, error: BaseException) -> None:
        """An exception nobody expected: its type and where it came from, never its text, which may quote a prompt."""
        self.write("error", event, error=type(error).__name__, at=_places(error))

    def limited(self, level: Level, kind: str, event: str, **fields: Value) -> None:
        """At most one line a second per `kind` (a Reason, never anything a client wrote)."""
        now = self._now()
        until, left_out = self._quiet.get(kind, (0.0, 0))
        if now < until or (kind not in self._quiet and len(self._quiet) >= _MAX_KINDS):
            self._quiet[kind] = (until, left_out + 1)
            return
        self._quiet[kind] = (now + _LIMIT_S, 0)
        if left_out:
            fields["left_out"] = left_out
        self.write(level, event, **fields)


def _places(error: BaseException) -> str:
    """The innermost calls as `module:line`, outermost first."""
    frames = list(traceback.walk_tb(error.__traceback__))[-_MAX_FRAMES:]
    return " > ".join(f"{frame.f_globals.get('__name__', '?')}:{line}" for frame, line in frames)
