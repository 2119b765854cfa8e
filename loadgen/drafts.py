"""What one tenant asks: threads of requests, each in the order of time. The schedule merges and numbers them.

- Independent requests: at the times of an arrival process, each with lengths and a prompt of its own.
- Users of a closed loop: each asks, waits for the answer, thinks, and asks something else.
- Conversations: a later turn repeats all that was said, and comes after the answer before.
- Traces: recorded lengths, times and prefixes; equal ids are equal text, in all of the run. Warm-up and window share
  what a conversation or a trace shares: it is what a cache would hold at that time.

Nothing is kept of what was handed out, so a schedule may be longer than memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from loadgen.scenario import Scenario, Tenant
from loadgen.workload.arrivals import Closed, Sessions, staggered
from loadgen.workload.lengths import Length, tokens
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import OWN, Block, Role, prompt_tokens
from loadgen.workload.recipes import Recipe
from loadgen.workload.rows import Row
from loadgen.workload.trace import Trace

LEAST_THINK_S = 0.05  # nobody answers faster; without a bound a closed loop would plan without end


class Draws:
    """The random streams of one tenant, one user or one session: what is drawn for one changes nothing for another."""

    def __init__(self, seed: int, part: str) -> None:
        """`part` is the name of that tenant, user or session."""
        self._part = f"{seed}/{part}"
        self._streams: dict[str, Random] = {}

    def __getitem__(self, purpose: str) -> Random:
        stream = self._streams.get(purpose)
        if stream is None:
            stream = self._streams[purpose] = Random(f"{self._part}/{purpose}")
        return stream

    def tokens(self, length: Length | None, purpose: str) -> int:
        """Whole tokens, 0 without a length."""
        return tokens(length, self[purpose]) if length else 0


@dataclass(slots=True)
class Thread:
    """Requests in the order of time, none before `start_s`. If `chained`, each waits for the answer before it.

    `last` is the id of the request handed out last; None: none yet.
    """

    start_s: float
    requests: Iterator[Planned]
    chained: bool = True
    last: int | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is particular to one request, whatever its source."""

    t: float
    blocks: tuple[Block, ...]
    output_tokens: int
    reasoning_tokens: int = 0
    tenant: str
    session: str = ""
    turn: int = 0
    think_s: float = 0.0


def draft(scenario: Scenario, tenant: Tenant, seed: int) -> Iterator[Thread]:
    """The threads of one tenant in order of their start, without `id` and `after`; ScenarioError as `build`."""
    return _Draft(scenario, tenant, seed).threads()


class _Draft:
    def __init__(self, scenario: Scenario, tenant: Tenant, seed: int) -> None:
        self._scenario = scenario
        self._tenant = tenant
        self._seed = seed
        self._recipe = Recipe(tenant.prompt, scenario.prefixes, tenant.name, seed)
        self._blocks: dict[tuple[str, int, int], Block] = {}

    def threads(self) -> Iterator[Thread]:
        arrivals = self._tenant.arrivals
        draws = self._draws(self._tenant.name)
        total_s = self._scenario.total_s
        if isinstance(arrivals, Sessions):
            yield from _by_start(arrivals.starts(draws["arrivals"], total_s), self._conversations)
        elif isinstance(arrivals, Closed):
            yield from _by_start(arrivals.starts(draws["arrivals"]), self._user)
        elif not isinstance(arrivals, Trace):
            yield Thread(0.0, self._independent(arrivals.times(draws["arrivals"], total_s), draws), chained=False)
        elif arrivals.users is None:
            yield Thread(0.0, self._recorded(arrivals, draws), chained=False)
        else:
            yield from self._replayed_by_users(arrivals, arrivals.users, draws)

    def _draws(self, part: str) -> Draws:
        return Draws(self._seed, part)

    # ---- generated

    def _independent(self, times: Iterable[float], draws: Draws) -> Iterator[Planned]:
        for number, t in enumerate(times):
            yield self._planned(self._single(self._tenant.name, number, t, draws), draws)

    def _user(self, user: int, start_s: float) -> Iterator[Planned]:
        """What one user of a closed loop asks, one after the other."""
        arrivals, name, t, think_s = self._tenant.arrivals, f"{self._tenant.name}/{user}", start_s, 0.0
        draws, number = self._draws(name), 0
        while t < self._scenario.total_s and isinstance(arrivals, Closed):
            asked = self._single(name, number, t, draws)
            yield self._planned(msgspec.structs.replace(asked, think_s=think_s), draws)
            think_s = max(LEAST_THINK_S, arrivals.think.draw(draws["think"]))
            t, number = t + think_s, number + 1

    def _single(self, place: str, number: int, t: float, draws: Draws) -> Asked:
        own = self._recipe.said(place, number, draws.tokens(self._tenant.input, "input"), draws["results"])
        said = (*self._recipe.head(self._phase(t), draws["prefix"], draws["tools"]), *own)
        thought, output = self._answer(draws)
        return Asked(t=t, blocks=said, output_tokens=output, reasoning_tokens=thought, tenant=self._tenant.name)

    def _conversations(self, user: int, start_s: float) -> Iterator[Planned]:
        """One conversation, or all of one of a fixed number of users."""
        arrivals = self._tenant.arrivals
        talk = _Talk(f"{self._tenant.name}/{user}", start_s)
        if isinstance(arrivals, Sessions):
            yield from self._conversation(arrivals, talk)
            while arrivals.users is not None and talk.t < self._scenario.total_s:
                talk.begin_anew()
                yield from self._conversation(arrivals, talk)

    def _conversation(self, arrivals: Sessions, talk: "_Talk") -> Iterator[Planned]:
        draws = self._draws(talk.session)  # one cut short changes no other
        said = self._recipe.head(self._phase(talk.t), draws["prefix"], draws["tools"])
        most = arrivals.max_total_tokens or math.inf
        for turn in range(tokens(arrivals.turns, draws["turns"])):
            if turn or talk.sessions > 1:
                talk.wait(max(LEAST_THINK_S, arrivals.think.draw(draws["think"])))
            size = draws.tokens(arrivals.follow if turn and arrivals.follow else self._tenant.input, "input")
            thought, output = self._answer(draws)
            said = (*said, *self._recipe.said(talk.session, turn, size, draws["results"]))
            if talk.t >= self._scenario.total_s or prompt_tokens(said) + output > most:
                return
            if talk.t >= 0:
                asked = Asked(
                    t=talk.t, blocks=said, output_tokens=output, reasoning_tokens=thought, tenant=self._tenant.name
                )
                yield self._planned(talk.turn(asked, turn), draws)
            said = (*said, self._recipe.answer(talk.session, turn, output - thought))

    def _answer(self, draws: Draws) -> tuple[int, int]:
        """Tokens that are thought, and all tokens of the answer."""
        thought = draws.tokens(self._tenant.reasoning, "reasoning")
        return thought, thought + draws.tokens(self._tenant.output, "output")

    # ---- recorded

    def _recorded(self, trace: Trace, draws: Draws) -> Iterator[Planned]:
        for number, row in enumerate(trace.requests(draws["arrivals"])):
            if row.t_s < self._scenario.total_s:
                yield _as_told(self._planned(self._from_row(number, row, row.t_s, draws), draws), row)

    def _replayed_by_users(self, trace: Trace, users: int, draws: Draws) -> Iterator[Thread]:
        sessions = trace.sessions()
        draws["turns"].shuffle(sessions)

        def replayed(user: int, start_s: float) -> Iterator[Planned]:
            talk = _Talk(f"{self._tenant.name}/{user}", start_s)
            for session in sessions[user::users]:
                yield from self._session(session, talk)
                talk.begin_anew()

        yield from _by_start(staggered(users, trace.stagger, draws["arrivals"]), replayed)

    def _session(self, rows: Sequence[Row], talk: "_Talk") -> Iterator[Planned]:
        draws = self._draws(talk.session)
        for turn, row in enumerate(rows):
            if turn or talk.sessions > 1:
                talk.wait(max(LEAST_THINK_S, row.think_s))
            if talk.t >= self._scenario.total_s:
                return
            yield self._planned(talk.turn(self._from_row(turn, row, talk.t, draws), turn), draws)

    def _from_row(self, number: int, row: Row, t: float, draws: Draws) -> Asked:
        namespace = f"trace/{self._tenant.name}/{row.session}"
        parts = [self._shared(namespace, *part) for part in row.parts]
        own = Block(namespace=OWN + namespace, id=number, tokens=row.own_tokens, role=row.own_role)
        head = self._recipe.head(self._phase(t), draws["prefix"], draws["tools"])
        return Asked(
            t=t,
            blocks=(*head, *parts, own) if own.tokens else (*head, *parts),
            output_tokens=row.output_tokens,
            reasoning_tokens=row.reasoning_tokens,
            tenant=row.tenant or self._tenant.name,
            session=row.label,
        )

    def _shared(self, namespace: str, number: int, size: int, role: Role) -> Block:
        """One object for equal blocks: long conversations name each of theirs in every turn."""
        key = (namespace, number, size)
        return self._blocks.setdefault(key, Block(namespace=namespace, id=number, tokens=size, role=role))

    # ---- all

    def _planned(self, asked: Asked, draws: Draws) -> Planned:
        scenario, tenant = self._scenario, self._tenant
        size = prompt_tokens(asked.blocks)
        return Planned(
            **msgspec.structs.asdict(asked),
            id=0,
            priority=tenant.priority,
            cls=scenario.class_of(size + asked.output_tokens),
            input_tokens=size,
            max_tokens=tenant.max_tokens.of(asked.output_tokens),
            stream=tenant.stream,
            cancel_after_s=self._leaves(draws["cancel"]),
            measured=scenario.warmup_s <= asked.t < scenario.warmup_s + scenario.duration_s,
        )

    def _phase(self, t: float) -> str:
        return "measure" if t >= self._scenario.warmup_s else "warmup"

    def _leaves(self, stream: Random) -> float | None:
        cancel = self._tenant.cancel
        if cancel is None:
            return None
        leaves, after_s = stream.random() < cancel.p, cancel.after.draw(stream)
        return after_s if leaves else None


def _as_told(planned: Planned, row: Row) -> Planned:
    """With what the trace tells of the request."""
    told = {"priority": row.priority or None, "stream": row.stream, "cancel_after_s": row.leaves_s}
    changes: dict[str, object] = {name: value for name, value in told.items() if value is not None}
    if row.max_tokens is not None:
        changes["max_tokens"] = row.max_tokens or None
    return msgspec.structs.replace(planned, **changes) if changes else planned


def _by_start(starts: Iterable[float], thread: Callable[[int, float], Iterator[Planned]]) -> Iterator[Thread]:
    """One thread for each start, which come sorted or are few enough to be sorted."""
    numbered = enumerate(starts)
    ordered = sorted(numbered, key=lambda one: one[1]) if isinstance(starts, list) else numbered
    for number, start_s in ordered:
        yield Thread(start_s, thread(number, start_s))


class _Talk:
    """Where one person is: the time of the next turn, and how long they think before it."""

    def __init__(self, name: str, t: float) -> None:
        self.t = t
        self.sessions = 1
        self._name = name
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

    def turn(self, asked: Asked, turn: int) -> Asked:
        """`asked` as this person's turn after the one before."""
        return msgspec.structs.replace(asked, session=self.session, turn=turn, think_s=self._think_s)
