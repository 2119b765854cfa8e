"""What a gateway's journal tells: what its core was told of engines and policy, where requests went, and whether the
same events decide the same again."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.live.processes import LiveError
from loadgen.sim.replay import Replay, UnusableJournal, replay
from policies import journal
from policies.events import EndpointUp, SettingsChanged
from policies.types import Endpoint, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`settings` are the first, `endpoints` the last of each; `sent` are dispatches. `replayed`: as `forebay replay`."""

    path: Path
    settings: Settings
    endpoints: tuple[Endpoint, ...]
    sent: dict[str, int]
    replayed: Replay


def told(path: Path) -> Told:
    """Read and replay it. LiveError for a journal that cannot be."""
    result = Replay()
    try:
        replay(path, result)
        return _read(path, result)
    except (UnusableJournal, msgspec.MsgspecError, journal.JournalError) as error:
        raise LiveError(f"{path}: {error}") from error


def _read(path: Path, replayed: Replay) -> Told:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    settings: list[Settings] = []
    endpoints: dict[str, Endpoint] = {}
    sent: Counter[str] = Counter()
    for text in path.read_bytes().splitlines()[1:]:
        line = decode(text)
        sent.update(one["endpoint"] for one in line["decisions"] if one["decision"] == "Dispatch")
        if line["event"] not in ("SettingsChanged", "EndpointUp"):
            continue
        event = journal.decode_event(line)
        if isinstance(event, SettingsChanged):
            settings.append(event.settings)
        elif isinstance(event, EndpointUp):
            endpoints[event.endpoint.name] = event.endpoint
    known = tuple(endpoints[name] for name in sorted(endpoints))
    return Told(path=path, settings=settings[0], endpoints=known, sent=dict(sent), replayed=replayed)
