"""A schedule out of a journal: what if the same requests had come to another policy, or to other engines?

Only arrivals and lengths are taken. Later events of a journal belong to what was decided then (loadgen.md 1.5), so a
request that got no answer has no known length: it is given the median of its tenant's answers. Prefixes come from
the gateway's block hashes: equal hashes become equal blocks.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median_low
from typing import Any

import msgspec

from loadgen.scenario import Scenario, ScenarioError
from loadgen.schedule import Schedule
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import OWN, Block, prompt_tokens
from policies import journal
from policies.events import Arrived, Cancelled, Event, Finished, SettingsChanged
from policies.journal import JournalError
from policies.types import InferenceRequest

LONG_BLOCKS_FROM_TOKENS = 4096  # scheduling.md 8
WARMUP_SHARE = 0.1  # at most that much of it is not measured: simulated engines begin cold
ONE_MESSAGE = 2  # tokens of marks: that of the user, and that of the answer
_DEFAULT_BLOCK_TOKENS = 64


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """`guessed` of the requests have a length that the journal does not tell."""

    schedule: Schedule
    guessed: int


def recorded(path: Path, scenario: Scenario) -> Recorded:
    """The requests of a journal; the scenario gives them classes. Raises ScenarioError."""
    requests: list[InferenceRequest] = []
    ends: dict[str, Finished] = {}
    left: dict[str, float] = {}
    block_tokens = _DEFAULT_BLOCK_TOKENS
    for now, event in _events(path):
        if isinstance(event, Arrived):
            requests.append(event.request)
        elif isinstance(event, Finished):
            ends[event.request_id] = event
        elif isinstance(event, Cancelled):
            left[event.request_id] = now
        elif isinstance(event, SettingsChanged) and event.settings.affinity is not None:
            block_tokens = event.settings.affinity.block_tokens
    if not requests:
        raise ScenarioError(f"{path}: no request in this journal")
    return _Made(scenario, ends, left, block_tokens).schedule(requests)


class _Made:
    """Turns the requests of one journal into planned ones."""

    def __init__(
        self, scenario: Scenario, ends: dict[str, Finished], left: dict[str, float], block_tokens: int
    ) -> None:
        self._scenario = scenario
        self._ends = ends
        self._left = left
        self._block_tokens = block_tokens
        self._guessed = 0

    def schedule(self, requests: list[InferenceRequest]) -> Recorded:
        requests = sorted(requests, key=lambda request: request.arrived_s)
        usual = self._usual(requests)
        begin_s, end_s = requests[0].arrived_s, requests[-1].arrived_s
        warmup_s = min(self._scenario.warmup_s, WARMUP_SHARE * (end_s - begin_s))
        planned = (self._planned(number, one, begin_s, usual) for number, one in enumerate(requests))
        made = Schedule(
            name=self._scenario.name,
            seed=0,
            window_start_s=warmup_s,
            window_end_s=end_s - begin_s + 1e-6,
            requests=tuple(msgspec.structs.replace(one, measured=one.t >= warmup_s) for one in planned),
        )
        return Recorded(schedule=made, guessed=self._guessed)

    def _usual(self, requests: list[InferenceRequest]) -> dict[str, int]:
        """The median answer of each tenant, and under "" of all."""
        known: dict[str, list[int]] = defaultdict(list)
        for request in requests:
            told = self._told(request)
            if told is not None:
                known[request.tenant].append(told)
                known[""].append(told)
        return {tenant: median_low(lengths) for tenant, lengths in known.items()}

    def _told(self, request: InferenceRequest) -> int | None:
        end = self._ends.get(request.id)
        return end.output_tokens if end is not None else None

    def _planned(self, number: int, request: InferenceRequest, begin_s: float, usual: dict[str, int]) -> Planned:
        output = self._told(request)
        if output is None:
            self._guessed += 1
            output = usual.get(request.tenant, usual.get("", 1))
        blocks = self._blocks(number, request)
        size = prompt_tokens(blocks)
        left_s = self._left.get(request.id)
        return Planned(
            id=number,
            t=request.arrived_s - begin_s,
            tenant=request.tenant,
            priority=request.band,
            cls=self._scenario.class_of(size + output),
            session=request.session,
            input_tokens=size,
            output_tokens=max(1, output),
            max_tokens=request.max_output_tokens or None,
            stream=request.streamed,
            cancel_after_s=None if left_s is None else left_s - request.arrived_s,
            measured=False,
            blocks=blocks,
        )

    def _blocks(self, number: int, request: InferenceRequest) -> tuple[Block, ...]:
        """One block for each hash of the prefix, and what is left as the request's own."""
        end = self._ends.get(request.id)
        told = end.prompt_tokens if end is not None else None
        left = max(1, (told or request.prompt_tokens) - ONE_MESSAGE)
        blocks: list[Block] = []
        done = 0
        for link in request.prefix:
            size = self._block_tokens * (1 if done < LONG_BLOCKS_FROM_TOKENS else 4)
            if size >= left:
                break
            blocks.append(Block(namespace="journal", id=link, tokens=size))
            done += size
            left -= size
        return (*blocks, Block(namespace=OWN + "journal", id=number, tokens=left))


def _events(path: Path) -> Iterator[tuple[float, Event]]:
    """What was handled, in order; a last line that was cut off in writing is left out. Raises ScenarioError."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    number = 0
    try:
        for number, text in _lines(path):
            line = decode(text)
            if number == 1:
                journal.check_header(line)
            elif "dropped" not in line:
                yield msgspec.convert(line["t"], float), journal.decode_event(line)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except (JournalError, msgspec.MsgspecError, KeyError) as error:
        raise ScenarioError(f"{path}, line {number}: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.endswith(b"\n"):
                yield number, text
