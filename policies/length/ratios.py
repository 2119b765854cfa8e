"""Bytes of text per token, learned from the engines' own counts per (tenant, model, kind of text)."""

from typing import Final

from policies.types import InferenceRequest

# scheduling.md 3: English, code and JSON, CJK (1.5 characters of 3 bytes)
START_BYTES: Final = {"text": 4.0, "code": 3.0, "cjk": 4.5}
STEP: Final = 0.05
LEAST_BYTES: Final = 1.0
MOST_BYTES: Final = 8.0
RATIOS: Final = 4096

Key = tuple[str, str, str]


class Ratios:
    """A moving average for each key; above 4,096 the oldest go first."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[Key, float] = {}

    def bytes_per_token(self, request: InferenceRequest) -> float:
        """What the tenant's text had so far, or the start value of its kind."""
        return self._ratio((request.tenant, request.model, request.kind))

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """Take the count of one prompt; ignored without text or tokens."""
        if request.text_bytes <= 0 or prompt_tokens <= 0:
            return
        known, key = self.known, (request.tenant, request.model, request.kind)
        ratio = self._ratio(key)
        sample = min(MOST_BYTES, max(LEAST_BYTES, request.text_bytes / prompt_tokens))
        known[key] = ratio + (sample - ratio) * STEP
        if len(known) > RATIOS:
            del known[next(iter(known))]

    def _ratio(self, key: Key) -> float:
        found = self.known.get(key)
        return START_BYTES.get(key[2], START_BYTES["text"]) if found is None else found
