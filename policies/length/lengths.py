"""How long will the answer be, and how long is the prompt? From what this tenant's earlier requests were.

Who asks, with which prompt head, is what predicts (scheduling.md 3): prompt and answer length of one service are
uncorrelated. From general to specific: the tenant's model, then route and shape of the answer, then the prompt's head.
Answers that a schema or a forced tool shapes have a tree of their own, for they are another population.

`max_output_tokens` is an upper bound and never a guess, since clients send large constants; `declared` is for those
who know that theirs do not.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from policies.length.distribution import below, bucket, exactly, given
from policies.length.history import FORCED, FREE, History, Key, Node
from policies.length.ratios import Ratios
from policies.length.text import read, written
from policies.types import InferenceRequest, Prediction

_NOTHING: Final = exactly(0.0)
_FORCED_SHAPES: Final = ("schema", "tool")  # how `InferenceRequest.shape` begins when the answer's form is fixed


class Lengths:
    """What is known of answers and of bytes per token. `kind` is Settings.length: learned or declared.

    Reading changes nothing. It learns in both kinds, so that a change of `kind` does not begin from nothing.
    """

    __slots__ = ("_history", "_ratios", "kind")

    def __init__(self, kind: str = "learned") -> None:
        self.kind = kind
        self._history = History()
        self._ratios = Ratios()

    def prompt_tokens(self, request: InferenceRequest) -> int:
        """Tokens of the prompt: exact where no text is in it, else by what its tenant's bytes were before."""
        if request.text_bytes <= 0:
            return request.prompt_tokens
        return max(1, round(request.text_bytes / self._ratios.bytes_per_token(request)))

    def predict(self, request: InferenceRequest) -> Prediction:
        """What one sequence's answer will be. The record is shared: do not change it."""
        limit_tokens = request.max_output_tokens
        if limit_tokens <= 0:
            return _NOTHING
        if self.kind == "declared":
            return exactly(limit_tokens)
        return self._node(request).within(limit_tokens)

    def over(self, request: InferenceRequest, tokens: float) -> float:
        """The probability that one sequence's answer has more than `tokens`."""
        if request.max_output_tokens <= max(tokens, 0.0):
            return 0.0
        if self.kind == "declared":
            return 1.0
        return 1.0 - below(self._node(request).cdf, tokens)

    def given(self, request: InferenceRequest, generated: int) -> Prediction:
        """What a sequence's answer will be in the end, now that it has `generated` tokens and goes on."""
        limit_tokens = request.max_output_tokens
        if generated <= 0 or limit_tokens <= 0:
            return self.predict(request)
        if self.kind == "declared":
            return exactly(limit_tokens)
        return given(self._node(request).cdf, generated, limit_tokens)

    def learn(self, request: InferenceRequest, output_tokens: int, natural: bool) -> None:
        """Take the `output_tokens` of all sequences of an answer that is over.

        Not `natural`: the client left, the cap was reached or an error came, so it would have been longer.
        """
        tokens = output_tokens // max(1, request.sequences)
        if request.max_output_tokens <= 0 or (tokens < 1 and not natural):
            return
        root, keys = _place(request.model, request.route, request.shape, request.head)
        self._history.learn(request.tenant, keys, root, (bucket(tokens), natural))

    def learn_prompt(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """Take the engine's own count of a prompt's tokens, for the bytes per token of its tenant, model and kind."""
        self._ratios.learn(request, prompt_tokens)

    def dump(self) -> Iterator[str]:
        """All that was learned, as versioned JSON text in small pieces: it may go on learning between them."""
        return written(self._history, self._ratios)

    def restore(self, text: str) -> None:
        """Know what `dump` said, instead of what is known now; raises ValueError, with nothing changed."""
        self._history, self._ratios = read(text)

    def _node(self, request: InferenceRequest) -> Node:
        root, keys = _place(request.model, request.route, request.shape, request.head)
        return self._history.find(request.tenant, keys, root)


@lru_cache(maxsize=1024)  # beyond it only speed is lost
def _place(model: str, route: str, shape: str, head: int) -> tuple[Node, tuple[Key, ...]]:
    """Where such an answer is counted, general to specific; before those what is believed of any."""
    forced = shape.startswith(_FORCED_SHAPES)
    root = FORCED if forced else FREE
    general: tuple[Key, ...] = ((model, forced), (model, route, shape))
    return root, (*general, (model, route, shape, head)) if head else general
