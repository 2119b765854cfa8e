"""A request body read and checked: what the engine is asked to do. `read` is that of the `vllm` dialect, and `sglang/ask.py`
puts its own together from the same parts.

Refusals are vLLM's (engines.md 4.2): `Refusal` carries status, message, error type and parameter, and knows the body
of both its error shapes.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadgen.engine_server import tokens

MAX_SALT = 128
SALT_FORBIDDEN = frozenset("@/\\\0")
COMPLETION_TOKENS = 16  # what /v1/completions gives when nothing is said
MARKER = re.compile(r"\[\[fb ([^\]]*)\]\]")
MARKER_START = "[[fb "


class Refusal(Exception):
    """The engine's error answer. `raw` replaces the whole body (string-valued errors)."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None, raw: Any = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.raw = raw

    def body(self, route: str) -> bytes:
        """The error body in the shape of the route."""
        if self.raw is not None:
            return msgspec.json.encode(self.raw)
        if route == "messages":
            kind = (
                "not_found_error"
                if self.status == 404
                else "invalid_request_error"
                if self.status < 500
                else "api_error"
            )
            return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": self.message}})
        return msgspec.json.encode({"error": self.detail()})

    def detail(self) -> dict[str, object]:
        """The `error` object, as it also stands in a stream's error event."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


@dataclass(slots=True, kw_only=True)
class Marker:
    """`[[fb out=137 think=40 tool=name canary=abc fault=...]]` in the last message of a user or a tool."""

    output: int | None = None
    think: int = 0
    tool: str | None = None
    canary: str = ""
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class Ask:
    """One request. `prompts` are rendered; each gives `n` sequences. `tools` are the names that may be called.

    Prompts share a prefix cache within one `namespace`. `id` is the client's own, "" where the engine makes one; `fields` is
    all that was asked, for shapes that need more.
    """

    route: str
    model: str
    prompts: list[bytes]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: list[str]
    salt: str
    priority: int
    interval: int
    reads_cache: bool
    tools: list[str]
    must_call: bool
    id: str = ""
    namespace: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    marker: Marker = field(default_factory=Marker)


def read(route: str, body: bytes, markers: bool) -> Ask:
    """The request in `body`, or a `Refusal`."""
    return from_fields(route, decoded(body), markers)


def from_fields(route: str, data: dict[str, Any], markers: bool) -> Ask:
    """The request of these fields, or a `Refusal`."""
    ask = basic(route, data)
    if data.get("stream_options") is not None and not ask.stream:
        raise Refusal(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    ask.salt = _salt(data)
    ask.namespace = f"{ask.salt}\0{ask.model}"
    if route != "messages":  # whose model of a body has no such field; there the header says it
        ask.priority = integer(data, "priority", 0, least=-(1 << 63))
    ask.interval = integer(data, "stream_interval", 1, least=1)
    ask.reads_cache = data.get("prompt_logprobs") is None
    if ask.max_tokens is not None and ask.min_tokens > ask.max_tokens:
        raise Refusal(400, f"min_tokens must be less than or equal to max_tokens={ask.max_tokens}", param="min_tokens")
    prompts(data, ask, markers)
    return ask


def basic(route: str, data: dict[str, Any]) -> Ask:
    """What all dialects have, without the prompts."""
    options = _stream_options(data)
    return Ask(
        route=route,
        model=text(data, "model", ""),
        prompts=[],
        n=integer(data, "n", 1, least=1),
        stream=_flag(data, "stream"),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        max_tokens=_max_tokens(route, data),
        min_tokens=integer(data, "min_tokens", 0, least=0),
        ignore_eos=_flag(data, "ignore_eos"),
        stop=_stop(data),
        salt="",
        priority=0,
        interval=1,
        reads_cache=True,
        tools=[],
        must_call=False,
    )


def prompts(data: dict[str, Any], ask: Ask, markers: bool) -> None:
    """Render the prompts into `ask`, with the marker of the last thing said."""
    talks = ask.route in ("chat", "messages", "responses")
    last = _conversation(data, ask) if talks else _completion_prompts(data, ask)
    if markers:
        ask.marker = _marker(last)


def decoded(body: bytes) -> dict[str, Any]:
    """The JSON object, or a `Refusal`."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"JSON decode error: {error}", "Bad Request") from error
    if not isinstance(data, dict):
        raise Refusal(400, "Input should be a valid dictionary", "Bad Request")
    return data


def _stream_options(data: dict[str, Any]) -> dict[str, Any]:
    options = data.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Refusal(400, "stream_options: Input should be a valid dictionary", "Bad Request", "stream_options")
    return options


def _max_tokens(route: str, data: dict[str, Any]) -> int | None:
    if data.get("max_completion_tokens") is not None:
        return integer(data, "max_completion_tokens", 0, least=1)
    if data.get("max_tokens") is not None:
        return integer(data, "max_tokens", 0, least=1)
    if route == "messages":
        raise Refusal(400, "max_tokens: Field required", "Bad Request", "max_tokens")
    return COMPLETION_TOKENS if route == "completions" else None


def _stop(data: dict[str, Any]) -> list[str]:
    stop = data.get("stop", data.get("stop_sequences"))
    found = [stop] if isinstance(stop, str) else (stop or [])
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise Refusal(400, "stop: Input should be a valid string or list of strings", "Bad Request", "stop")
    return [entry for entry in found if entry]


def _salt(data: dict[str, Any]) -> str:
    salt = data.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise Refusal(
            400, "Parameter 'cache_salt' must be a non-empty string if provided.", "Bad Request", "cache_salt"
        )
    if len(salt) > MAX_SALT or SALT_FORBIDDEN.intersection(salt):
        text = f"Parameter 'cache_salt' must be at most {MAX_SALT} characters without '@', '/', '\\' and NUL."
        raise Refusal(400, text, "Bad Request", "cache_salt")
    return salt


def _completion_prompts(data: dict[str, Any], ask: Ask) -> str:
    prompt = data.get("prompt")
    many = prompt if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
    if not many:
        raise Refusal(400, "prompt: at least one prompt is required", "Bad Request", "prompt")
    for entry in many:
        if isinstance(entry, str):
            ask.prompts.append(tokens.padded(entry))
        elif isinstance(entry, list) and _is_ids(entry):
            ask.prompts.append(b"".join((number & 0xFFFFFFFF).to_bytes(4, "big") for number in entry))
        else:
            raise Refusal(400, "prompt: Input should be a valid string or list", "Bad Request", "prompt")
    return many[-1] if isinstance(many[-1], str) else ""


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(entry) is int for entry in value)


def _conversation(data: dict[str, Any], ask: Ask) -> str:
    """Render the messages into `ask`; returns the text of the last message that is not the model's."""
    messages = data.get("messages")
    if not isinstance(messages, list) or not all(isinstance(entry, dict) for entry in messages):
        raise Refusal(400, "messages: Input should be a valid list", "Bad Request", "messages")
    if not messages:
        raise Refusal(400, "messages must contain at least one item", param="messages")
    pairs = [(str(entry.get("role", "user")), _content(entry)) for entry in messages]
    system = data.get("system") if ask.route == "messages" else None
    if system is not None:
        pairs.insert(0, ("system", _parts(system)))
    tools = data.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(entry, dict) for entry in tools):
        raise Refusal(400, "tools: Input should be a valid list", "Bad Request", "tools")
    ask.tools = [str((entry.get("function") or entry).get("name", "tool")) for entry in tools]
    _choose_tool(data.get("tool_choice"), ask)
    ask.prompts = [tokens.render(msgspec.json.encode(tools) if tools else b"", pairs)]
    return next((text for role, text in reversed(pairs) if role in ("user", "tool")), "")


def _choose_tool(choice: Any, ask: Ask) -> None:
    if isinstance(choice, dict):
        name = (choice.get("function") or choice).get("name")
        ask.must_call = choice.get("type") in ("function", "tool", "any")
        if name is not None:
            ask.tools = [str(name)]
    else:
        ask.must_call = choice == "required"
        if choice == "none":
            ask.tools = []


def _content(message: dict[str, Any]) -> str:
    text = _parts(message.get("content"))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, dict) else {}
        text += f"{function.get('name', '')}{function.get('arguments', '')}"
    return text


def _parts(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(400, "content: Input should be a valid string or list", "Bad Request", "messages")
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    if part.get("type") == "tool_result":
        return _parts(part.get("content"))
    if part.get("type") == "tool_use":
        return f"{part.get('name', '')}{msgspec.json.encode(part.get('input')).decode()}"
    text = part.get("text", part.get("thinking", ""))
    return text if isinstance(text, str) else ""


def _marker(text: str) -> Marker:
    found = MARKER.search(text, max(0, text.rfind(MARKER_START)))  # those before it belong to what was said earlier
    marker = Marker()
    for pair in found.group(1).split() if found else ():
        key, _, value = pair.partition("=")
        if key in ("out", "think") and value.isascii() and value.isdigit():
            setattr(marker, "output" if key == "out" else key, int(value))
        elif key in ("tool", "canary", "fault"):
            setattr(marker, key, value)
        else:
            raise Refusal(400, f"marker: {pair!r} is not understood", "Bad Request", "messages")
    return marker


def integer(data: dict[str, Any], name: str, default: int, least: int) -> int:
    """A whole number, or a `Refusal`."""
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise Refusal(400, f"{name}: Input should be an integer of at least {least}", "Bad Request", name)
    return value


def _flag(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value not in (None, True, False):
        raise Refusal(400, f"{name}: Input should be a valid boolean", "Bad Request", name)
    return bool(value)


def text(data: dict[str, Any], name: str, default: str) -> str:
    """Text, or a `Refusal`."""
    value = data.get(name, default)
    if not isinstance(value, str):
        raise Refusal(400, f"{name}: Input should be a valid string", "Bad Request", name)
    return value
