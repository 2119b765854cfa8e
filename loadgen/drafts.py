"""What one tenant asks, request by request, numbered within the tenant: the schedule merges and renumbers them.

- Independent requests: at the times of an arrival process, each with lengths and a prompt of its own.
- Conversations: a later turn repeats all that was said, planned answers too, and comes after the answer before.
- Traces: recorded lengths, times and prefixes; equal ids are equal text, in all of the run. Warm-up and window share
  what a conversation or a trace shares: it is what a cache would hold at that time.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from loadgen.scenario import Scenario, Tenant
from loadgen.workload.arrivals import Sessions, staggered
from loadgen.workload.formats import Row
from loadgen.workload.lengths import Length, tokens
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import Block, prompt_tokens
from loadgen.workload.recipes import Recipe
from loadgen.workload.trace import Trace

LEAST_THINK_S = 0.05  # nobody answers faster; without a bound a closed loop would plan without end
_PURPOSES = ("arrivals", "input", "output", "reasoning", "results", "cancel", "turns", "think")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is particular to one request, whatever its source."""

    t: float
    blocks: tuple[Block, ...]
    output_tokens: int
    reasoning_tokens: int = 0
    tenant: str
    session: str = ""
    turn: int = 0
    after: int | None = None
    think_s: float = 0.0


def draft(scenario: Scenario, tenant: Tenant, seed: int) -> list[Planned]:
    """The requests of one tenant in order of its own numbers, `id` and `after`; ScenarioError as `build`."""
    return list(_Draft(scenario, tenant, seed).requests())


class _Draft:
    def __init__(self, scenario: Scenario, tenant: Tenant, seed: int) -> None:
        self._scenario = scenario
        self._tenant = tenant
        self._seed = seed
        self._streams = self._streams_of(tenant.name)
        self._recipe = Recipe(tenant.prompt, scenario.prefixes, tenant.name, seed)
        self._made = 0
        self._blocks: dict[tuple[str, int, int], Block] = {}

    def requests(self) -> Iterator[Planned]:
        arrivals = self._tenant.arrivals
        if isinstance(arrivals, Sessions):
            yield from self._conversations(arrivals)
        elif isinstance(arrivals, Trace):
            yield from self._recorded(arrivals) if arrivals.users is None else self._replayed_by_users(arrivals)
        else:
            for t in arrivals.times(self._streams["arrivals"], self._scenario.total_s):
                number = self._number()
                yield self._planned(number, self._single(number, t))

    def _streams_of(self, part: str) -> dict[str, Random]:
        return {purpose: Random(f"{self._seed}/{part}/{purpose}") for purpose in _PURPOSES}

    def _single(self, number: int, t: float) -> Asked:
        own = self._recipe.said(
            self._tenant.name, number, self._drawn(self._tenant.input, "input"), self._streams["results"]
        )
        said = (*self._recipe.head(self._phase(t)), *own)
        thought, output = self._answer()
        return Asked(t=t, blocks=said, output_tokens=output, reasoning_tokens=thought, tenant=self._tenant.name)

    def _conversations(self, arrivals: Sessions) -> Iterator[Planned]:
        for user, start_s in enumerate(arrivals.starts(self._streams["arrivals"], self._scenario.total_s)):
            talk = _Talk(f"{self._tenant.name}/{user}", start_s)
            yield from self._conversation(arrivals, talk)
            while arrivals.users is not None and talk.t < self._scenario.total_s:
                talk.begin_anew()
                yield from self._conversation(arrivals, talk)

    def _conversation(self, arrivals: Sessions, talk: "_Talk") -> Iterator[Planned]:
        self._streams = self._streams_of(talk.session)  # one cut short changes no other
        said = self._recipe.head(self._phase(talk.t))
        most = arrivals.max_total_tokens or math.inf
        for turn in range(tokens(arrivals.turns, self._streams["turns"])):
            if turn or talk.sessions > 1:
                talk.wait(max(LEAST_THINK_S, arrivals.think.draw(self._streams["think"])))
            number = self._number()
            size = self._drawn(arrivals.follow if turn and arrivals.follow else self._tenant.input, "input")
            thought, output = self._answer()
            said = (*said, *self._recipe.said(talk.session, turn, size, self._streams["results"]))
            if talk.t >= self._scenario.total_s or prompt_tokens(said) + output > most:
                return
            if talk.t >= 0:
                asked = Asked(
                    t=talk.t, blocks=said, output_tokens=output, reasoning_tokens=thought, tenant=self._tenant.name
                )
                yield self._planned(number, talk.turn(asked, turn, number))
            said = (*said, self._recipe.answer(talk.session, turn, output - thought))

    def _recorded(self, trace: Trace) -> Iterator[Planned]:
        for row in trace.requests(self._streams["arrivals"]):
            if row.t_s < self._scenario.total_s:
                number = self._number()
                yield self._planned(number, self._from_row(number, row, row.t_s))

    def _replayed_by_users(self, trace: Trace) -> Iterator[Planned]:
        sessions = trace.sessions()
        self._streams["turns"].shuffle(sessions)
        users = trace.users or 1
        for user, start_s in enumerate(staggered(users, trace.stagger, self._streams["arrivals"])):
            talk = _Talk(f"{self._tenant.name}/{user}", start_s)
            for session in sessions[user::users]:
                yield from self._session(session, talk)
                talk.begin_anew()

    def _session(self, rows: Sequence[Row], talk: "_Talk") -> Iterator[Planned]:
        for turn, row in enumerate(rows):
            if turn or talk.sessions > 1:
                talk.wait(max(LEAST_THINK_S, row.think_s))
            if talk.t >= self._scenario.total_s:
                return
            number = self._number()
            yield self._planned(number, talk.turn(self._from_row(number, row, talk.t), turn, number))

    def _from_row(self, number: int, row: Row, t: float) -> Asked:
        namespace = f"trace/{self._tenant.name}/{row.session}"
        parts = [self._shared(namespace, *part) for part in row.parts]
        rest = row.input_tokens - sum(block.tokens for block in parts)
        own = self._recipe.said(self._tenant.name, number, rest, self._streams["results"]) if rest > 0 else ()
        head = self._recipe.head(self._phase(t))
        if not head and len(parts) > 1 and not row.session:
            head = (msgspec.structs.replace(parts.pop(0), role="system"),)
        tenant = row.tenant or self._tenant.name
        return Asked(t=t, blocks=(*head, *parts, *own), output_tokens=row.output_tokens, tenant=tenant)

    def _planned(self, number: int, asked: Asked) -> Planned:
        scenario, tenant = self._scenario, self._tenant
        size = prompt_tokens(asked.blocks)
        return Planned(
            **msgspec.structs.asdict(asked),
            id=number,
            priority=tenant.priority,
            cls=scenario.class_of(size + asked.output_tokens),
            input_tokens=size,
            max_tokens=tenant.max_tokens.of(asked.output_tokens),
            stream=tenant.stream,
            cancel_after_s=self._leaves(),
            measured=scenario.warmup_s <= asked.t < scenario.warmup_s + scenario.duration_s,
        )

    def _number(self) -> int:
        self._made += 1
        return self._made - 1

    def _shared(self, namespace: str, number: int, size: int) -> Block:
        """One object for equal blocks: long conversations name each of theirs in every turn."""
        key = (namespace, number, size)
        return self._blocks.setdefault(key, Block(namespace=namespace, id=number, tokens=size))

    def _drawn(self, length: Length | None, purpose: str) -> int:
        return tokens(length, self._streams[purpose]) if length else 1

    def _answer(self) -> tuple[int, int]:
        """Tokens that are thought, and all tokens of the answer."""
        thought = self._drawn(self._tenant.reasoning, "reasoning") if self._tenant.reasoning else 0
        return thought, thought + self._drawn(self._tenant.output, "output")

    def _phase(self, t: float) -> str:
        return "measure" if t >= self._scenario.warmup_s else "warmup"

    def _leaves(self) -> float | None:
        cancel, stream = self._tenant.cancel, self._streams["cancel"]
        if cancel is None:
            return None
        leaves, after_s = stream.random() < cancel.p, cancel.after.draw(stream)
        return after_s if leaves else None


class _Talk:
    """Where one person is: the time of the next turn, and the turn before it."""

    def __init__(self, name: str, t: float) -> None:
        self.t = t
        self.sessions = 1
        self._name = name
        self._last: int | None = None
        self._think_s = 0.0

    @property
    def session(self) -> str:
        """The name of the session they are in."""
        return f"{self._name}/{self.sessions}"

    def wait(self, think_s: float) -> None:
        """The next turn comes that much later."""
        self.t += think_s
        self._think_s = think_s

    def begin_anew(self) -> None:
        """The next turn is the first of another session."""
        self.sessions += 1

    def turn(self, asked: Asked, turn: int, number: int) -> Asked:
        """`asked` as this person's turn after the one before."""
        after, self._last = self._last, number
        return msgspec.structs.replace(
            asked,
            session=self.session,
            turn=turn,
            after=after,
            think_s=0.0 if after is None else self._think_s,
        )
