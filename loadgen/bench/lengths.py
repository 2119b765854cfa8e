"""What makes an answer as long as planned, and how many tokens a prompt really has: asked of the server, not assumed."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from loadgen.client import LengthControl, Question, Target, ask
from loadgen.report.record import Outcome
from loadgen.workload.dialog import marker
from loadgen.workload.prompts import Block, Prose

LARGEST, SHARES = 1024, (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # tokens of the prompts that are measured
UNNATURAL = 48  # tokens of an answer that nobody gives to a yes-or-no question
MARKED = (11, 23)
CLOSE = 0.01  # a tokenizer that takes so nearly a word for a token needs no correction
UNENDING: dict[Literal["ignore_eos", "min_tokens"], object] = {"ignore_eos": True, "min_tokens": UNNATURAL}
PLAUSIBLE = (0.25, 4.0)  # tokens of a word; a server that says otherwise does not count them
_SHORT = "Is water wet? Answer with the single word yes."


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Real tokens = `slope` x planned + `intercept`. `words` are written per planned token to make up for it.

    `residual` is what they are off together then, as a share of their planned length; `template_tokens` of every prompt are
    known to the server's cache before it is asked. All as of a server that tells no usage: 1, 0, 1.
    """

    slope: float = 1.0
    intercept: float = 0.0
    words: float = 1.0
    residual: float = 0.0
    template_tokens: int = 0
    measured: int = 0  # prompts

    def real(self, planned: int) -> float:
        """What the server will count for a prompt as it is written."""
        return self.slope * self.words * planned + self.intercept


async def chosen_control(target: Target, options: dict[str, float]) -> LengthControl:
    """The first that works: markers of a simulated engine, `ignore_eos`, `min_tokens`, or none."""
    marked = [Question(text=f"Hello. {marker(count)}", max_tokens=64) for count in MARKED]
    if [await _answered(target, one, options) for one in marked] == list(MARKED):
        return "marker"
    for name, value in UNENDING.items():
        question = Question(text=_SHORT, max_tokens=UNNATURAL, params={name: value})
        if await _answered(target, question, options) == UNNATURAL:
            return name
    return "none"


async def measured_sizes(target: Target, prose: Prose, longest: int, options: dict[str, float]) -> Sizes:
    """Five prompts of known plan, none longer than the longest of the run."""
    told = []
    for number, share in enumerate(SHARES):
        size = max(8, round(share * min(LARGEST, longest)))
        text = prose.text(Block(namespace="preflight/size", id=number, tokens=size))
        reply = await ask(target, Question(text=text, max_tokens=1), **options)
        if reply.sample.outcome is Outcome.OK and reply.sample.prompt_tokens:
            told.append((size + PLANNED_MARKS, reply.sample.prompt_tokens, reply.sample.cached_tokens))
    return sizes_of(told)


PLANNED_MARKS = 2  # tokens that every plan adds to what is said


def sizes_of(told: Sequence[tuple[int, int, int | None]]) -> Sizes:
    """From planned, counted and cached tokens of each prompt. The first may have warmed the cache for the others.

    Where nobody says what was cached, the template is at most what is counted beyond what was written.
    """
    if len(told) < 2:
        return Sizes(measured=len(told))
    slope, intercept = _line([(float(planned), float(counted)) for planned, counted, _ in told])
    words = 1.0 if abs(slope - 1) <= CLOSE or not PLAUSIBLE[0] <= slope <= PLAUSIBLE[1] else 1 / slope
    made = Sizes(slope=slope, intercept=intercept, words=words, measured=len(told))
    residual = sum(abs(made.real(planned) - planned) for planned, _, _ in told) / sum(row[0] for row in told)
    known = [cached for _, _, cached in told[1:] if cached is not None]
    template = max(known) if known else max(0, round(intercept)) + PLANNED_MARKS
    return msgspec.structs.replace(made, residual=residual, template_tokens=template)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: slope and intercept."""
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 1.0
    return slope, y_mean - slope * x_mean


async def _answered(target: Target, question: Question, options: dict[str, float]) -> int | None:
    """Tokens of the answer, None without a good one."""
    sample = (await ask(target, question, **options)).sample
    return sample.output_tokens if sample.outcome is Outcome.OK else None
