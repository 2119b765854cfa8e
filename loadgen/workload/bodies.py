"""The bodies of requests: one recipe, four APIs.

Whatever the API, the simulated engine counts the planned tokens: definitions of tools and arguments of calls are JSON of
the size of their blocks, and a plain completion has its role marks in the text.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from loadgen.workload.dialog import Control, Message, messages
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import TAG_TOKENS, TOKEN_BYTES, Prose

Api = Literal["chat", "completions", "responses", "messages"]
PATHS: Mapping[str, str] = MappingProxyType(
    {
        "chat": "/v1/chat/completions",
        "completions": "/v1/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
    }
)
DEFAULT_MAX_TOKENS = 4096  # where a scenario sends none and the API wants one
TELLING: tuple[Control, ...] = ("ignore_eos", "min_tokens")  # the cap sent is the planned length

Fields = dict[str, Any]
_MARKS = MappingProxyType({"system": "<S>\n", "user": "<U>\n", "assistant": "<A>\n", "tool": "<T>\n"})
_TAG_BYTES = TAG_TOKENS * TOKEN_BYTES
_CALLED = "find"
_SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are put to a server: through which API, to which model, and what sets the lengths of answers."""

    model: str
    api: Api = "chat"
    control: Control = "marker"


def body(terms: Terms, planned: Planned, prose: Prose, answers: Mapping[int, str] | None = None) -> bytes:
    """The JSON of `planned`. `answers`: the texts received so far in its session, by turn."""
    said = messages(prose, planned, terms.control, answers or {})
    fields = {"model": terms.model, **_WRITERS[terms.api](said), **_lengths(terms, planned)}
    if planned.stream:
        fields["stream"] = True
        if terms.api in ("chat", "completions"):
            fields["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(fields)


def cap(terms: Terms, planned: Planned) -> int | None:
    """What is sent as the most tokens of the answer (None: nothing).

    Without an end-of-text token, or with a least number of tokens, only the cap ends an answer at its planned length:
    the server is told the length then.
    """
    if terms.control in TELLING:
        return planned.answer_tokens
    return DEFAULT_MAX_TOKENS if planned.max_tokens is None and terms.api == "messages" else planned.max_tokens


def answer_tokens(terms: Terms, planned: Planned) -> int:
    """Of the planned answer, what the cap that is sent lets through."""
    return min(planned.output_tokens, cap(terms, planned) or planned.output_tokens)


def _lengths(terms: Terms, planned: Planned) -> Fields:
    most = cap(terms, planned)
    found: Fields = {}
    if most is not None:
        found["max_output_tokens" if terms.api == "responses" else "max_tokens"] = most
    if terms.control == "ignore_eos":
        found["ignore_eos"] = True
    elif terms.control == "min_tokens":
        found["min_tokens"] = planned.answer_tokens
    return found


def _chat(said: Sequence[Message]) -> Fields:
    found: list[Fields] = []
    for number, one in enumerate(said):
        if one.role == "call":
            call = {"id": _call_id(number), "type": "function", "function": _called(one.text)}
            _assistant(found, {"role": "assistant", "content": None})["tool_calls"] = [call]
        elif one.role == "tool":
            found.append({"role": "tool", "tool_call_id": _call_id(number - 1), "content": one.text})
        elif one.role != "tools":
            found.append({"role": one.role, "content": one.text})
    return {"messages": found, **_tools(said, _function)}


def _messages(said: Sequence[Message]) -> Fields:
    head: Fields = {}
    found: list[Fields] = []
    for number, one in enumerate(said):
        if one.role == "call":
            part = {"type": "tool_use", "id": _call_id(number), "name": _CALLED, "input": _argument(one.text)}
            before = _assistant(found, {"role": "assistant", "content": []})
            if isinstance(before["content"], str):
                before["content"] = [{"type": "text", "text": before["content"]}]
            before["content"].append(part)
        elif one.role == "tool":
            result = {"type": "tool_result", "tool_use_id": _call_id(number - 1), "content": one.text}
            found.append({"role": "user", "content": [result]})
        elif one.role in ("user", "assistant"):
            found.append({"role": one.role, "content": one.text})
        elif one.role == "system":
            head["system"] = one.text
    return {**head, "messages": found, **_tools(said, lambda name, text: _named(name, text, "input_schema"))}


def _responses(said: Sequence[Message]) -> Fields:
    found: list[Fields] = []
    for number, one in enumerate(said):
        if one.role == "call":
            found.append({"type": "function_call", "call_id": _call_id(number), **_called(one.text)})
        elif one.role == "tool":
            found.append({"type": "function_call_output", "call_id": _call_id(number - 1), "output": one.text})
        elif one.role != "tools":
            found.append({"role": one.role, "content": one.text})
    tools = _tools(said, lambda name, text: {"type": "function", **_named(name, text, "parameters")})
    return {"input": found, "store": False, **tools}


def _completions(said: Sequence[Message]) -> Fields:
    texts: list[str] = []
    for number, one in enumerate(said):
        goes_on = one.role == "call" and number > 0 and said[number - 1].role == "assistant"
        if one.role != "tools" and not goes_on:
            texts.append(_MARKS["assistant" if one.role == "call" else one.role])
        texts.append(one.text)
    return {"prompt": "".join(texts) + _MARKS["assistant"]}


_WRITERS: Mapping[Api, Callable[[Sequence[Message]], Fields]] = MappingProxyType(
    {"chat": _chat, "completions": _completions, "responses": _responses, "messages": _messages}
)


def _assistant(found: list[Fields], otherwise: Fields) -> Fields:
    """The assistant's message that a call belongs to: the last one, if it is one."""
    if not (found and found[-1]["role"] == "assistant"):
        found.append(otherwise)
    return found[-1]


def _call_id(number: int) -> str:
    return f"call_{number:08d}"


def _called(text: str) -> Fields:
    """Name and arguments of a call, together as long as `text`."""
    return {"name": _CALLED, "arguments": msgspec.json.encode(_argument(text)).decode()}


def _argument(text: str) -> Fields:
    return {"q": text[: max(0, len(text) - len(_CALLED) - len('{"q":""}'))]}


def _tools(said: Sequence[Message], definition: Callable[[str, str], Fields]) -> Fields:
    """The one tool that is described by a message of role `tools`: JSON exactly as long as its text."""
    found = []
    for text in (one.text for one in said if one.role == "tools"):
        name, words = "t" + text[: _TAG_BYTES - 1].strip(), text[_TAG_BYTES:]
        bare = len(msgspec.json.encode([definition(name, "")]))
        size = max(0, len(text) - bare)
        found.append(definition(name, words[:size].ljust(size)))
    return {"tools": found} if found else {}


def _function(name: str, text: str) -> Fields:
    return {"type": "function", "function": _named(name, text, "parameters")}


def _named(name: str, text: str, schema: str) -> Fields:
    return {"name": name, "description": text, schema: _SCHEMA}
