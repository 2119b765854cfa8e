"""A request body, understood: read once, and written anew for each engine.

The top level is decoded into a dict of raw values, and only fields that are read are decoded further. Of duplicate keys
the last counts, for us and for the engine alike, because it gets the re-assembled map. `write` changes what the gateway
sets, in the client's order, and copies the rest byte for byte. What a field may be: fields.py and policy.py.
"""

from typing import Final

import msgspec

from gateway.dialects import policy, values
from gateway.dialects.fields import TABLES, Table
from gateway.dialects.plan import Plan, plan_of
from gateway.dialects.policy import FieldRules
from gateway.dialects.routes import Kind, Route
from gateway.dialects.values import Fields
from gateway.errors import GatewayError
from policies.decisions import Reason

__all__ = ["Call", "FieldRules", "lowered", "read", "write"]

LARGE_BYTES: Final = 256 * 1024  # of bodies above this the small fields are weighed before a dict is made of them
SMALL_FIELDS_BYTES: Final = 128 * 1024
MOST_TOKENS: Final = 2**31 - 1

_encode: Final = msgspec.json.Encoder().encode
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_USAGE_ONLY: Final = msgspec.Raw(b'{"include_usage":true}')
_TEXT: Final = Kind.TEXT
_USAGE_ROUTES: Final = frozenset({"chat", "completions"})


class Call(msgspec.Struct, kw_only=True):
    """What a client asks for.

    `plan` is of all fields it sent. `max_output_tokens` is what it gave, None if nothing. `sequences` = max(n, best_of) x prompts. `wants_usage`: it asked
    for the usage chunk of its stream. `fields` is what the policy left, in the client's order. `stripped` names fields
    it sent and the engine does not get, as far as they fit the header `x-forebay-stripped`. `prompt_bytes` is the raw JSON of the prompt and the tools: text as it is
    escaped, plus some 30 bytes of keys and quotes per message; a picture that stands inline counts as 4,096 bytes.
    """

    route: Route
    plan: Plan
    model: str
    stream: bool
    max_output_tokens: int | None
    sequences: int
    wants_usage: bool
    fields: Fields
    stripped: tuple[str, ...]
    prompt_bytes: int
    body_bytes: int


def read(route: Route, body: bytes, rules: FieldRules) -> Call:
    """Read a whole body. Raises GatewayError (all 400), with `param` where one field is at fault."""
    try:
        fields = _top_level(route, body)
        plan = plan_of(route.name, tuple(fields))
        stripped, inline_bytes = policy.apply(plan, fields, rules)
        raw_model = fields.get("model")
        if raw_model is None:
            raise values.missing("model")
        stream = "stream" in fields and values.flag("stream", fields["stream"])
        prompt_bytes = -inline_bytes
        for name in plan.prompt:
            prompt_bytes += len(fields[name])
        return Call(
            route=route,
            plan=plan,
            model=values.text("model", raw_model, 256),
            stream=stream,
            max_output_tokens=_max_output_tokens(plan, fields),
            sequences=_sequences(plan, fields) if plan.batch or plan.copies else 1,
            wants_usage=stream and "stream_options" in fields and _wants_usage(fields, rules),
            fields=fields,
            stripped=stripped,
            prompt_bytes=prompt_bytes if prompt_bytes > 0 else 0,
            body_bytes=len(body),
        )
    except RecursionError:
        raise GatewayError(Reason.JSON_TOO_DEEP) from None


def write(call: Call, served_as: str, salt: str | None, output_cap: int | None, priority: int | None = None) -> bytes:
    """The body sent upstream. `salt` None: the engine knows none. `output_cap`: the most tokens it may generate. `priority`
    None: the engine does not go by it."""
    given, route = call.fields, call.route
    fields: dict[str, msgspec.Raw | str | bool | int] = {**given, "model": served_as}
    if salt is not None and route.kind is not _TEXT:
        fields["cache_salt"] = salt
    if priority is not None:
        fields["priority"] = priority
    if route.name == "responses" or "store" in given:
        fields["store"] = False
    if call.stream and not call.wants_usage and route.name in _USAGE_ROUTES:
        fields["stream_options"] = _with_usage(given.get("stream_options"))
    if output_cap is not None:
        fields |= _capped(given, TABLES[route.name], output_cap)
    return _encode(fields)


def lowered(call: Call, cap: int) -> tuple[str, ...]:
    """Names of the client's own caps that are above `cap`, of which it is told."""
    return tuple(_capped(call.fields, TABLES[call.route.name], cap))


def _top_level(route: Route, body: bytes) -> Fields:
    try:
        if not body.isascii():
            body.decode()  # the decoder does not look inside values it leaves raw
        if len(body) > LARGE_BYTES:
            _weigh(TABLES[route.name], body)
        fields: Fields = values.decode_fields(body)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        raise GatewayError(Reason.INVALID_JSON) from None
    return fields


def _weigh(table: Table, body: bytes) -> None:
    """Refuse a flood of small fields: a dict of a million entries stops the loop for half a second."""
    prompt = sum(len(value) for value in msgspec.structs.astuple(table.large.decode(body)))
    if len(body) - prompt > SMALL_FIELDS_BYTES:
        raise GatewayError(Reason.INVALID_PARAMETER, "The fields beside the prompt are larger than 128 KiB.")


def _max_output_tokens(plan: Plan, fields: Fields) -> int | None:
    """The cap that counts. Engines differ in which of two they read, so none stays that is above it."""
    counts: int | None = None
    for name in plan.caps:
        tokens = values.integer(name, fields[name], 1, MOST_TOKENS)
        if counts is None:
            counts = tokens
        elif tokens is not None and tokens > counts:
            fields[name] = msgspec.Raw(b"%d" % counts)
    return counts


def _sequences(plan: Plan, fields: Fields) -> int:
    prompts = copies = 1
    for name in plan.batch:
        prompts = max(prompts, values.batch(fields[name]))
    for name in plan.copies:
        copies = max(copies, values.integer(name, fields[name], 1, policy.MOST_COPIES) or 1)
    return prompts * copies


def _wants_usage(fields: Fields, rules: FieldRules) -> bool:
    options = values.fields_of("stream_options", fields["stream_options"])
    if options.get("continuous_usage_stats") == _TRUE and "continuous_usage_stats" not in rules.parameters:
        raise policy.not_allowed("stream_options.continuous_usage_stats")
    return "include_usage" in options and values.flag("stream_options.include_usage", options["include_usage"])


def _with_usage(given: msgspec.Raw | None) -> msgspec.Raw:
    if given is None:
        return _USAGE_ONLY
    options = values.fields_of("stream_options", given)
    options["include_usage"] = _TRUE
    return msgspec.Raw(_encode(options))


def _capped(fields: Fields, table: Table, cap: int) -> dict[str, int]:
    """`cap` where no cap was given, and for any that is above it: engines differ in which of two they read."""
    asked = {name: values.integer(name, fields[name], 1, MOST_TOKENS) for name in table.caps if name in fields}
    given = {name: tokens for name, tokens in asked.items() if tokens is not None}
    if not given:
        return dict.fromkeys(table.caps[-1:], cap)
    return {name: cap for name, tokens in given.items() if tokens > cap}
