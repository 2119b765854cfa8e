"""Sessions of coding agents: `hash_runs` are the prompt's blocks of 64 tokens as runs [first id, count].

Ids of a session rise as things are said, and stay. So a new id belongs to the turn that brings it: of the first turn, the
definitions of tools, the system prompt and the question; of a later one, the answer before it and then what its `trigger`
says, a result of a tool or a message of the user. Roles change at whole blocks. Only the main agent is read.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from loadgen.workload.prompts import Role
from loadgen.workload.rows import Part

RUN_TOKENS = 64
_MAIN = "main"

Fields = Mapping[str, Any]


def is_main(fields: Fields) -> bool:
    """Whether the session's main agent asks."""
    return bool(fields.get("agent", _MAIN) == _MAIN)


class _Session:
    """Where its roles begin, the ids at which runs begin or end, and what was said last."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.roles: list[Role] = []
        self.edges: set[int] = set()
        self.cuts: list[int] = []
        self.blocks = 0  # of the turn before
        self.answer_tokens: int | None = None  # None: it is the first turn

    def say(self, first: int, role: Role) -> None:
        self.starts.append(first)
        self.roles.append(role)
        self.edges.add(first)


class Roles:
    """Who says which block. `learn` every turn in order, then ask for `parts`."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def learn(self, fields: Fields) -> None:
        """One turn. KeyError, TypeError, ValueError on fields that are not there or cannot be."""
        session = self._sessions.setdefault(str(fields["session_id"]), _Session())
        runs = _runs(fields)
        known = max(session.edges, default=min((first for first, _ in runs), default=0))
        new = [(max(first, known), end) for first, end in runs if end > known]
        if new:
            again = sum(max(0, min(end, known) - first) for first, end in runs)
            count = sum(end - first for first, end in new)
            for role, blocks in _said(fields, session, count, again >= session.blocks):
                if blocks and new[0][0] < new[0][1]:
                    session.say(new[0][0], role)
                    new = _after(new, blocks)
        for first, end in runs:
            session.edges.update((first, end))
        session.blocks = sum(end - first for first, end in runs)
        session.answer_tokens = int(fields["output_length"])

    def parts(self, fields: Fields) -> tuple[Part, ...]:
        """The blocks of a turn that was learned, cut wherever any turn of the session cuts: a part is used as a whole."""
        session = self._sessions[str(fields["session_id"])]
        if len(session.cuts) != len(session.edges):
            session.cuts = sorted(session.edges)
        found: list[Part] = []
        for first, end in _runs(fields):
            inside = session.cuts[bisect_right(session.cuts, first) - 1 : bisect_right(session.cuts, end)]
            for start, stop in pairwise(inside):
                role = session.roles[max(0, bisect_right(session.starts, start) - 1)]
                found.append((start, (stop - start) * RUN_TOKENS, role))
        return tuple(found)


def _runs(fields: Fields) -> list[tuple[int, int]]:
    """(first, behind the last) of each run; runs of nothing are left out."""
    return [(int(first), int(first) + int(count)) for first, count in fields["hash_runs"] if int(count) > 0]


def _said(fields: Fields, session: _Session, count: int, goes_on: bool) -> Iterator[tuple[Role, int]]:
    """Who says the `count` new blocks of a turn, in order; it `goes_on` if all of the prompt before comes again."""
    if session.answer_tokens is None:
        tools = round(int(fields.get("tool_tokens") or 0) / RUN_TOKENS)
        system = round(int(fields.get("system_tokens") or 0) / RUN_TOKENS)
        yield "tools", min(tools, count)
        yield "system", min(system, max(0, count - tools))
        yield "user", max(0, count - tools - system)
        return
    of_tool = fields.get("trigger") == "tool_result"
    answer = min(count - 1, max(1, round(session.answer_tokens / RUN_TOKENS))) if goes_on else 0
    if answer:
        yield "call" if of_tool else "assistant", answer
    yield "tool" if of_tool and answer else "user", count - answer


def _after(runs: list[tuple[int, int]], blocks: int) -> list[tuple[int, int]]:
    """What is left of the runs behind that many blocks."""
    left = list(runs)
    while blocks and left:
        first, end = left[0]
        taken = min(blocks, end - first)
        blocks -= taken
        left[0] = (first + taken, end)
        if first + taken == end and len(left) > 1:
            left.pop(0)
        elif first + taken == end:
            break
    return left
