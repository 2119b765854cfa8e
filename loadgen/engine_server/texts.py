"""Routes of vLLM that touch no model: tokens of a text, the text of tokens, how many tokens a conversation has."""

from typing import Any

from loadgen.engine_server import ask as asks
from loadgen.engine_server import tokens
from loadgen.engine_server.ask import Refusal


def tokenize(data: dict[str, Any], context: int) -> dict[str, Any]:
    """`/tokenize`: of a prompt or of messages."""
    route = "chat" if "messages" in data else "completions"
    (prompt, *_) = asks.from_fields(route, data, markers=False).prompts
    size = tokens.TOKEN_BYTES
    ids = [int.from_bytes(prompt[at : at + size].ljust(size), "big") for at in range(0, len(prompt), size)]
    return {"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": None}


def detokenize(data: dict[str, Any], context: int) -> dict[str, Any]:
    """`/detokenize`: without the spaces that fill up the last token."""
    ids = data.get("tokens")
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 1 << 32 for one in ids):
        raise Refusal(400, "tokens: Input should be a valid list of integers", "Bad Request", "tokens")
    text = b"".join(one.to_bytes(tokens.TOKEN_BYTES, "big") for one in ids)
    return {"prompt": text.decode(errors="replace").rstrip()}


def count_tokens(data: dict[str, Any], context: int) -> dict[str, Any]:
    """`/v1/messages/count_tokens`."""
    (prompt,) = asks.from_fields("messages", {"max_tokens": 1, **data}, markers=False).prompts
    return {"input_tokens": tokens.count(prompt)}
