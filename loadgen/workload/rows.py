"""One request of a recorded trace, whatever the format it was written in."""

from dataclasses import dataclass

from loadgen.workload.prompts import MARK_TOKENS, Role, opens

Part = tuple[int, int, Role]
"""(id, tokens, role) of a piece of a prompt that other requests may share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded request; `t_s` from the start of the trace, or of its session.

    `parts` are the pieces of its prompt that other requests may share, from the start on; tokens beyond them are its
    own. Of `output_tokens`, `reasoning_tokens` were thought. Rows of a `session` wait for the answer before them and then
    `think_s`; a `label` names a session without that. What is None (or "") the trace does not tell: priority, what was
    sent as `max_tokens` (0: nothing), whether the answer was streamed, and after how long its client left. `guessed`: the
    trace does not tell the length of the answer either.
    """

    t_s: float
    tenant: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    parts: tuple[Part, ...] = ()
    session: str = ""
    turn: int = 0
    think_s: float = 0.0
    label: str = ""
    priority: str = ""
    max_tokens: int | None = None
    stream: bool | None = None
    leaves_s: float | None = None
    guessed: bool = False

    @property
    def own_tokens(self) -> int:
        """Tokens that stand in none of the parts."""
        return self.input_tokens - sum(tokens for _, tokens, _ in self.parts)

    @property
    def own_role(self) -> Role:
        """Who says them: a tool whose result they end, or the user."""
        return "tool" if self.parts and self.parts[-1][2] == "tool" else "user"

    @property
    def prompt_tokens(self) -> int:
        """The prompt with the marks of its messages and that of the answer."""
        total, before = self.input_tokens + MARK_TOKENS, None
        roles = [role for _, _, role in self.parts] + [self.own_role] * (self.own_tokens > 0)
        for role in roles:
            total += MARK_TOKENS if opens(before, role) else 0
            before = role
        return total
