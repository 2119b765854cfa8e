"""Routes of vLLM that only read a prompt: embeddings, rerank, score. One token is computed behind each prompt and not told.

Numbers follow from the texts and mean nothing.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from loadgen.engine_server.answer import Answer, Segment
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.shapes import Filled, Last, Template, Unframed

DIMENSIONS = 64
RANGE = 1 << 64


def as_completion(route: str, data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a completion of one token with the same prompts, or a `Refusal`."""
    kept: dict[str, Any] = {name: data[name] for name in ("model", "cache_salt", "priority") if name in data}
    return {**kept, "prompt": _prompts(route, data), "max_tokens": 1, "ignore_eos": True}


def _prompts(route: str, data: dict[str, Any]) -> Any:
    if route == "embeddings":
        return data.get("input")
    if route == "rerank":
        query, documents = data.get("query"), _texts(data, "documents")
        return [f"{query}{text}" for text in documents]
    first, second = _texts(data, "text_1"), _texts(data, "text_2")
    if len(first) not in (1, len(second)):
        raise Refusal(400, "text_1: one text, or as many as text_2 has", "Bad Request", "text_1")
    return [f"{one}{other}" for one, other in zip(first * (len(second) // len(first)), second, strict=True)]


def _texts(data: dict[str, Any], name: str) -> list[str]:
    value = data.get(name)
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise Refusal(400, f"{name}: Input should be a valid string or list of strings", "Bad Request", name)
    return found


def _share(prompt: bytes, place: int) -> float:
    """A number of 0 to 1 that belongs to this prompt and place."""
    return xxhash.xxh3_64_intdigest(prompt, place) / RANGE


class Pooled(Unframed, Filled):
    """An answer without a stream; its choices are the prompts."""

    def __init__(self, request_id: str, ask: Ask) -> None:
        self.id = request_id
        self.ask = ask

    def usage(self, prompt: int, output: int, cached: int | None, reasoning: int) -> bytes:
        details = None if cached is None else {"cached_tokens": cached}
        counts = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
        return msgspec.json.encode({**counts, "prompt_tokens_details": details})

    def around(self, index: int, segment: Segment) -> Template:
        return b"", b""

    def finish(self, last: Last) -> list[bytes]:
        return []

    def end(self, usage: bytes) -> list[bytes]:
        return []

    def whole(self, answers: Sequence[tuple[Answer, int]], usage: bytes) -> bytes:
        shares = [_share(prompt, 0) for prompt in self.ask.prompts]
        return msgspec.json.encode({**self._data(shares), "model": self.ask.model, "usage": msgspec.Raw(usage)})

    def _data(self, shares: list[float]) -> dict[str, object]:
        raise NotImplementedError


class Embeddings(Pooled):
    """`/v1/embeddings`."""

    def _data(self, shares: list[float]) -> dict[str, object]:
        data = [
            {"index": index, "object": "embedding", "embedding": self._vector(prompt)}
            for index, prompt in enumerate(self.ask.prompts)
        ]
        return {"id": f"embd-{self.id}", "object": "list", "data": data}

    def _vector(self, prompt: bytes) -> list[float] | str:
        size = self.ask.fields.get("dimensions") or DIMENSIONS
        values = [2 * _share(prompt, place) - 1 for place in range(size)]
        if self.ask.fields.get("encoding_format") != "base64":
            return values
        return base64.b64encode(struct.pack(f"<{size}f", *values)).decode()


class Rerank(Pooled):
    """`/v1/rerank`: the best first."""

    def _data(self, shares: list[float]) -> dict[str, object]:
        documents = self.ask.fields["documents"]
        found = [
            {"index": index, "document": {"text": documents[index]}, "relevance_score": share}
            for index, share in sorted(enumerate(shares), key=lambda pair: -pair[1])
        ]
        return {"id": f"rerank-{self.id}", "results": found[: self.ask.fields.get("top_n") or None]}


class Score(Pooled):
    """`/v1/score`."""

    def _data(self, shares: list[float]) -> dict[str, object]:
        data = [{"index": index, "object": "score", "score": share} for index, share in enumerate(shares)]
        return {"id": f"score-{self.id}", "object": "list", "data": data}
