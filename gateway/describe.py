"""From a checked head and a read body to the facts the core decides on. Pure: no clock, no I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.callers import Caller, ServedModel, Urgency, urgency
from gateway.compose import Trace, client_lines, client_trace
from gateway.dialects.call import Call
from gateway.dialects.prompt import look
from gateway.dialects.routes import Kind, Route
from gateway.errors import GatewayError
from gateway.http.head import Head
from gateway.telemetry.record import RequestRecord
from policies.decisions import Reason
from policies.types import Band, InferenceRequest

_GENERATE: Final = Kind.GENERATE
BYTES_PER_TOKEN: Final = 4.0  # until it is learned per tenant and model (scheduling.md 3)
SPARSEST_BYTES_PER_TOKEN: Final = 8  # no text has fewer tokens than this: only then is a prompt surely too long
TEXT_ROUTE_S: Final = 5.0  # the whole of a route that runs on an engine's API process
FEW_QUOTES: Final = 64
_DIGITS: Final = re.compile(rb"[0-9]{1,10}\Z").match
_SECONDS: Final = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,6})?\Z").match
_MEDIA: Final = re.compile(  # quotes in text are escaped, so this stands only where a part begins
    rb'"type"\s*:\s*"(?:image_url|image|input_image|input_audio|audio_url|video_url|file|input_file|document)"'
).findall
_ROLE: Final = b'"role":'  # quotes in text are escaped
_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z").match


def takes(kind: str, route: Route) -> bool:
    """Whether a route is for this kind of model."""
    if route.kind is Kind.TEXT:
        return True
    if kind == "embedding":
        return route.kind is Kind.PREFILL
    return route.kind is Kind.GENERATE and (kind == "chat" or route.name == "completions")


def too_long(model: ServedModel) -> GatewayError:
    """The refusal of what is surely too long; the engine counts exactly."""
    return GatewayError(
        Reason.TOO_LONG,
        f"This model's maximum context length is {model.context_tokens} tokens. Shorten the prompt.",
        param="messages",
    )


def prompt_tokens(call: Call) -> int:
    """The estimated length of the whole prompt."""
    return int(call.prompt_bytes / BYTES_PER_TOKEN) + 1


def parts(call: Call) -> tuple[int, int]:
    """How many messages and media it has, about: what is reserved for them beside their text."""
    messages = media = 0
    for name in call.plan.prompt:
        raw = bytes(call.fields[name])
        plain = _plain_messages(raw)
        if plain >= 0:
            messages += plain
            continue
        strings = raw.split(b'"', FEW_QUOTES)
        if len(strings) > FEW_QUOTES:
            messages += raw.count(b'"role"')
            media += len(_MEDIA(raw))
        else:
            messages += strings.count(b"role")
            if b"type" in strings:
                media += len(_MEDIA(raw))
    return messages, media


def _plain_messages(raw: bytes) -> int:
    """How many messages it holds, if it has no other objects: then no part stands in it. Else -1.

    From brace to brace, as most prompts have few: to find a byte takes a tenth of what it takes to part text at it.
    """
    found, at = 0, raw.find(b"{")
    while at >= 0:
        if raw[at + 1 : at + 8] != _ROLE:
            return -1
        found += 1
        at = raw.find(b"{", at + 1)
    return found


def output_cap(call: Call, model: ServedModel) -> int | None:
    """The cap to write into the request, None to leave it as it is (http.md 4.1)."""
    if call.route.kind is not _GENERATE:
        return None
    asked = call.max_output_tokens
    if asked is None:
        fits = prompt_tokens(call) + model.max_output_tokens <= model.context_tokens
        return model.max_output_tokens if fits else None
    return model.max_output_tokens if asked > model.max_output_tokens else None


def total_s(head: Head, kind: Kind, longest_s: float) -> tuple[float, bool]:
    """How long a request may take, and whether that is the client's own wish."""
    if kind is Kind.TEXT:
        longest_s = min(longest_s, TEXT_ROUTE_S)
    asked = head.fields.get(b"x-forebay-timeout-ms")
    if asked is None or not _DIGITS(asked) or int(asked) == 0:
        return longest_s, False
    wanted = int(asked) / 1000
    return (wanted, True) if wanted < longest_s else (longest_s, False)


def first_byte_s(head: Head, longest_s: float) -> float:
    """The wait for a first byte: the SDK's own read timeout bounds it."""
    asked = head.fields.get(b"x-stainless-read-timeout")
    if asked is None or not _SECONDS(asked) or float(asked) == 0.0:
        return longest_s
    return min(longest_s, float(asked))


def client_request_id(asked: bytes) -> str:
    """The client's id if it is one that may be echoed."""
    return asked.decode() if _ID(asked) else ""


def session(head: Head) -> str:
    """The client's session, a hint for stickiness."""
    asked = head.fields.get(b"x-forebay-session")
    return asked.decode() if asked is not None and _ID(asked) else ""


def most_output_tokens(call: Call, model: ServedModel) -> int:
    """The most that one sequence may generate."""
    if call.route.kind is not _GENERATE:
        return 0
    asked, most = call.max_output_tokens, model.max_output_tokens
    return most if asked is None or asked > most else asked


@dataclass(slots=True, kw_only=True)
class Wishes:
    """Everything a client's head says that matters after it was accepted; the same for every head of the same bytes on
    one connection. `record`: what is known of its requests when their head is known, for each to copy.

    `caller` and `band` are what its credential and its wish for a class came to, as long as `book` is in force.
    """

    route: Route
    record: RequestRecord
    asked_band: bytes | None
    session: str
    total_s: float
    bounds_total: bool  # `total_s` is the client's own
    first_byte_s: float
    lines: bytes  # for the engine
    trace: Trace | None
    media_checked: bool = False  # its media type and coding were found good
    book: Any = None  # a Book
    caller: Caller | None = None
    band: str = ""
    odd: Urgency | None = None  # the class asked for is not the one given

    def belong(self, caller: Caller, book: Any, bands: Mapping[str, Band]) -> None:
        """The credential is that of a caller, by a book of keys."""
        self.book, self.caller = book, caller
        found = urgency(self.asked_band, caller, bands)
        self.band = found.band
        self.odd = found if found.unknown or found.clamped is not None else None
        record = self.record
        record.tenant, record.key, record.band = caller.tenant, caller.key, found.band


def wishes(head: Head, route: Route, given: "Given") -> Wishes:
    """Read them out of a head."""
    longest_s, is_wish = total_s(head, route.kind, given.total_s)
    return Wishes(
        route=route,
        record=RequestRecord(
            method=head.method.decode("ascii"),
            route=route.name,
            path=route.path,
            client_request_id=client_request_id(head.get(b"x-request-id")),
            client_retry=head.get(b"x-stainless-retry-count").decode("ascii"),
        ),
        asked_band=head.fields.get(b"x-forebay-priority"),
        session=session(head),
        total_s=longest_s,
        bounds_total=is_wish,
        first_byte_s=first_byte_s(head, given.first_byte_s),
        lines=client_lines(head, route, given.forward),
        trace=client_trace(head),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the configuration says where a client is silent."""

    bands: Mapping[str, Band]
    total_s: float
    first_byte_s: float
    forward: tuple[bytes, ...]


# What is known of a request beside its head and body: its id, who asks, whether tokens may be limited and so what is
# reserved for them is counted, when it came and by when it must have ended, on time.monotonic().
Facts = tuple[str, Caller, bool, float, float]


def request(call: Call, model: ServedModel, wishes: Wishes, facts: Facts) -> InferenceRequest:
    """Everything the core may know."""
    request_id, caller, counted, received_s, deadline_s = facts
    tokens, kind, shape, chain, head = look(call, model.block_tokens, (caller.tenant, caller.salt, model.served_as))
    messages, media = parts(call) if counted else (0, 0)
    return InferenceRequest(
        request_id,
        caller.tenant,
        model.name,
        wishes.band,
        wishes.route.name,
        call.stream,
        received_s,
        deadline_s,
        prompt_tokens=tokens or prompt_tokens(call),
        max_output_tokens=most_output_tokens(call, model),
        sequences=call.sequences,
        body_bytes=call.body_bytes,
        prefix=chain,
        session=wishes.session,
        text_bytes=0 if tokens else call.prompt_bytes,
        kind=kind,
        head=head,
        shape=shape,
        key=caller.key,
        messages=messages,
        media=media,
        names_most=call.max_output_tokens is not None,
    )
