"""What if lengths were known, wrong, or wrong on purpose? Stand-ins for the core's length predictor.

- `oracle` knows each answer's length.
- `shuffled` takes another request's for it: a predictor without skill, but with the right distribution.
- `adversarial` takes the lengths in reverse: the longest answer is said to be the shortest.

Only here does anything on the gateway's side know an answer before it is given; results with it bound what prediction
can be worth and are never reported as the product's (scheduling.md 3).
"""

from collections.abc import Mapping, Sequence
from random import Random

from loadgen.schedule import Schedule
from loadgen.sim.call import name
from policies.length import Lengths, Prediction
from policies.types import InferenceRequest

KINDS = ("oracle", "shuffled", "adversarial")
GROWTH = 1.25  # an answer that has outlived what was said of it goes on for that much


class Foresight(Lengths):
    """Says of each request the length that `lengths` has under its id. Learns nothing but bytes per token."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__()
        self._lengths = lengths

    def predict(self, request: InferenceRequest) -> Prediction:
        """One number, as certain as can be."""
        return _exactly(self._said(request))

    def over(self, request: InferenceRequest, tokens: float) -> float:
        """0 or 1."""
        return 1.0 if self._said(request) > tokens else 0.0

    def given(self, request: InferenceRequest, generated: int) -> Prediction:
        """The same number, until the answer has outlived it."""
        said = self._said(request)
        return _exactly(said if said > generated else min(request.max_output_tokens, generated * GROWTH))

    def learn(self, request: InferenceRequest, output_tokens: int, natural: bool) -> None:
        """There is nothing to learn."""

    def _said(self, request: InferenceRequest) -> float:
        return min(request.max_output_tokens, self._lengths[request.id])


def foresight(kind: str, schedule: Schedule, seed: int) -> Foresight:
    """The stand-in of that kind for a schedule; `seed` shuffles."""
    names = [name(planned) for planned in schedule.requests]
    true = [planned.output_tokens for planned in schedule.requests]
    return Foresight(dict(zip(names, _said(kind, true, seed), strict=True)))


def _said(kind: str, true: Sequence[int], seed: int) -> list[int]:
    said = list(true)
    if kind == "shuffled":
        Random(f"{seed}/lengths").shuffle(said)
    elif kind == "adversarial":
        by_length = sorted(range(len(true)), key=lambda number: (true[number], number))
        for number, other in zip(by_length, reversed(by_length), strict=True):
            said[number] = true[other]
    return said


def _exactly(tokens: float) -> Prediction:
    return Prediction(p25=tokens, p50=tokens, p90=tokens, p99=tokens, mean=tokens, held=tokens)
