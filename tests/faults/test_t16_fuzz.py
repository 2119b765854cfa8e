"""T16: whatever a client or an engine writes, nothing crashes, nothing is 5xx that is not told so, nothing is mixed up.

Three legs over real sockets: JSON bodies, event streams in any segmentation, heads of engines. 1,000 examples each, 20,000 at
night.
"""

import gc
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.invariants import Invariants
from tests.kit.raw_client import exchange
from tests.kit.script_engine import FIN, Seen, Step, Wait
from tests.kit.sizes import patience, sized
from tests.kit.sockets import cpu_ns
from tests.kit.stage import Stage, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(patience(120, 1800))]

EXAMPLES = sized(1000, 20_000)
fuzz = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True
)
STALL_S = 0.1  # of the gateway's loop


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The invariants are checked once, after all examples: C1 and C2 are sums over all of them."""
    timeouts = {"first_byte_s": 5, "idle_s": 5, "total_s": 10}
    # Making examples blocks this loop, and with it the engine: it must not be probed in the meantime.
    changes = {"timeouts": timeouts, "retries": {"max_attempts": 1}, "upstream": {"probe_s": 60}}
    async with stage(tmp_path_factory.mktemp("t16"), **changes) as made:
        invariants = Invariants(made.gateway, made.engines)
        await invariants.begin()
        yield made
        await invariants.check()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Engine and client answer in time: they live beside what hypothesis remembers of all examples, and after some ten thousand a
    look of the garbage collector over that took 0.75 s, longer than the gateway waits for a first byte. It looks between two examples."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def told(response: Response) -> str:
    """Why it is not what it should be, for a failure to say."""
    reason = response.header("x-forebay-reason")
    return f"{response.status}, ended by {response.end}, reason {reason}: {response.body[:300]!r}"


# Bodies of clients

texts = st.text(max_size=20)
numbers = st.one_of(st.integers(-(10**30), 10**30), st.floats(), st.just(1e400), st.integers(-3, 40))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
names = st.sampled_from(
    """model messages prompt stream stream_options max_tokens max_completion_tokens n best_of stop tools logit_bias logprobs
    top_logprobs temperature user cache_salt priority request_id rid kv_transfer_params prompt_embeds chat_template documents
    response_format store background previous_response_id input system metadata extra_body""".split()  # noqa: SIM905
)
objects = st.dictionaries(st.one_of(names, names, texts), values, max_size=6)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Mostly a request that would be served, with fields put in, spelled by a JSON encoder or spoilt by bytes."""
    route = draw(st.sampled_from(("chat", "completions", "messages", "responses")))
    value: Any = {**wire.request_body(route, "canary"), **draw(objects)}
    if draw(st.integers(0, 9)) == 0:
        value = draw(values)
    data = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 2)) :]
    return data


@fuzz
@given(data=bodies(), route=st.sampled_from(("chat", "completions", "messages", "responses")))
async def test_no_body_is_ever_answered_5xx(one: Stage, data: bytes, route: str) -> None:
    one.reset()
    one.engine.answer = lambda seen: [wire.json_answer(wire.body("chat", "taken"))]
    with undisturbed():
        before_ns = cpu_ns(one.gateway.pid)
        response = await exchange(one.gateway.port, wire.request(wire.ROUTES[route].decode(), data))
        took_ns = cpu_ns(one.gateway.pid) - before_ns
    assert took_ns < STALL_S * 1e9
    assert response.clean and response.status in (200, 400, 404), told(response)
    assert response.header("x-request-id")
    if response.status == 200:
        (seen,) = one.engine.seen
        same_document(strictly(data), strictly(seen.body))
    else:
        assert one.engine.seen == []
        assert json.loads(response.body)["error"]["message"]


def strictly(data: bytes) -> Any:
    """JSON as RFC 8259 has it: NaN and Infinity are no numbers, bytes are UTF-8."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} was passed on")

    return json.loads(data.decode(), parse_constant=refuse)


SET_BY_US = {
    "cache_salt",
    "model",
    "store",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
}


def same_document(sent: Any, got: Any) -> None:
    """Client and engine see one document: what was passed on is what was sent, field by field."""
    for name, value in got.items():
        if name not in SET_BY_US:
            assert same(sent[name], value), name
    assert {"cache_salt", "request_id", "rid", "priority"} & sent.keys() & got.keys() <= {"cache_salt"}
    assert got["model"] == "m"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b) and type(a) is type(b)


# Event streams of engines

line_ends = st.sampled_from((b"\n", b"\n", b"\n", b"\r\n", b"\r"))
odd_text = st.text(alphabet=st.sampled_from('ab \u2028\u2029\x85\x0b\x0c\x1c界🙂é"\\:{}[]data,'), max_size=30)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event: token chunks, comments, ids, events without data, several data lines, text that looks like an end."""
    end = draw(line_ends)
    kind = draw(
        st.sampled_from(("token", "token", "token", "comment", "id", "retry", "event", "lines", "done_inside", "large"))
    )
    text = draw(odd_text)
    delta = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    lines = {
        "token": [b"data: " + json.dumps(delta, ensure_ascii=False).encode()],
        "comment": [b": " + text.encode()],
        "id": [b"id: 7", b"data: " + json.dumps(delta).encode()],
        "retry": [b"retry: 100"],
        "event": [b"event: ping"],
        "lines": [b"data: [", b"data: 1]"],
        "done_inside": [b"data: " + json.dumps({**delta, "note": "\n\ndata: [DONE]\n\n"}).encode()],
        "large": [b"data: " + json.dumps({**delta, "pad": "x" * draw(st.integers(1, 300_000))}).encode()],
    }[kind]
    return end.join(lines) + end + end


class Sent(NamedTuple):
    """What the client must get, and the segments in which the engine sends it. A failure shows it without its padding, so that what
    is wrong is still to be seen; it comes again by the blob that is printed."""

    body: bytes
    parts: list[bytes]

    def __repr__(self) -> str:
        return re.sub(r"x{20,}", lambda padding: f"<{len(padding[0])} x>", f"Sent({self.body!r}, {self.parts!r})")


@st.composite
def streams(draw: st.DrawFn) -> Sent:
    """Often with a usage event for us."""
    first = wire.event({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    said = first + b"".join(draw(st.lists(events(), max_size=8)))
    usage = wire.event({"id": "c", "choices": [], "usage": wire.usage("chat", 5, 3)}) if draw(st.booleans()) else b""
    body = said + usage + wire.DONE
    cuts = sorted(draw(st.lists(st.integers(1, len(body) - 1), max_size=12)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return Sent(said + wire.DONE, [part for part in parts if part])


@fuzz
@given(stream=streams(), chunked=st.booleans())
async def test_a_stream_arrives_byte_for_byte_however_it_is_cut(one: Stage, stream: Sent, chunked: bool) -> None:
    one.reset()
    body, parts = stream

    def answer(seen: Seen) -> list[Step]:
        if chunked:
            return [wire.stream_head(), *map(wire.chunk, parts), wire.LAST_CHUNK]
        return [wire.head(content_type="text/event-stream"), *parts, FIN]

    one.engine.answer = answer
    with undisturbed():
        response = await one.ask("chat", "any", stream=True)
    assert (response.status, response.end) == (200, "chunked"), told(response)
    same = response.body == body  # said apart: the difference of long texts takes minutes to be shown
    assert same, f"{len(response.body)} bytes for {len(body)}, other ones from {first_other(response.body, body)} on"


def first_other(a: bytes, b: bytes) -> int:
    """Where two texts part."""
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


TORN = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}'
USAGE = wire.event({"id": "c", "choices": [], "usage": wire.usage("chat", 5, 3)})


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
async def test_an_event_end_torn_anywhere_before_a_stripped_event_stays_whole(one: Stage, end: bytes) -> None:
    """What the fuzzer found: CR LF CR in one read, LF in the next."""
    for cut in range(len(end) + 1):
        one.reset()
        parts = [part for part in (TORN + end[:cut], end[cut:] + USAGE + wire.DONE) if part]
        one.engine.answer = lambda seen, parts=parts: [  # type: ignore[misc]
            wire.stream_head(), wire.chunk(parts[0]), Wait(0.01), wire.chunk(parts[1]), wire.LAST_CHUNK
        ]  # fmt: skip
        response = await one.ask("chat", "any", stream=True)
        assert (response.end, response.body) == ("chunked", TORN + end + wire.DONE), (end, cut)


# Heads of engines

HEADS = [
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
    b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\x00", b":", b" ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 12,
    b"content-length: 3\r\n", b"content-length: -1\r\n", b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip, chunked\r\n", b"connection: close\r\n",
    b"content-type: text/event-stream\r\n", b"content-encoding: gzip\r\n", b"location: http://127.0.0.1/\r\n", b"set-cookie: a=b\r\n", b"retry-after: 99999999999999999999\r\n",
    b"x: " + b"a" * 20_000 + b"\r\n", b"\xff\xfe", b"HTTP/9.9", b"302", b"999", b"000", b"-1", b"ffffffffffffffffff",
]  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A good answer with the canary `mine`, spoilt at up to three places; sometimes noise alone."""
    body = json.dumps(wire.body("chat", "mine")).encode()
    template = draw(st.sampled_from(HEADS))
    data = template % (len(body), body)
    if draw(st.integers(0, 12)) == 0:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(1, 3))):
        head_end = max(1, data.find(b"\r\n\r\n") + 4)
        at = draw(st.integers(0, head_end if draw(st.booleans()) else len(data)))
        data = (
            data[:at]
            + draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=2)))
            + data[at + draw(st.integers(0, 4)) :]
        )
    return data


@fuzz
@given(data=answers(), route=st.sampled_from(("chat", "messages")))
async def test_a_bad_answer_is_told_and_never_reaches_the_next_request(one: Stage, data: bytes, route: str) -> None:
    one.reset()
    one.engine.once.append([data, FIN])
    with undisturbed():
        response = await one.ask(route, "fuzz")
    assert response.status in (*range(200, 600), 529) and response.end != "open", told(response)
    if response.status >= 500:
        assert json.loads(response.body)["error"]["message"] and response.header("x-forebay-reason")
    assert not [name for name, _ in response.headers if name.lower() in (b"location", b"set-cookie", b"server", b"x")]
    with undisturbed():
        following = await one.ask(route, "the next one")
    assert following.status == 200, told(following)
    assert b"the next one" in following.body and b"mine" not in following.body
