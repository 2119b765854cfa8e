"""What one event means, in both dialects, and that the cheap watch never overlooks an event that matters."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.routes import ROUTES, Route
from gateway.dialects.stream import BodyFacts, EventFacts, EventKind, Usage, read_body, read_event, tokens_in, watch
from gateway.http import sse

BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
STREAMED = ["chat", "completions", "responses", "messages"]
USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}


def event(data: object, name: str = "", separators: tuple[str, str] = (",", ":")) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=separators)}\n\n".encode()


def chunk(delta: object, **more: object) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": more.pop("finish", None)}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "text": value, "finish_reason": finish}]}


def response(kind: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "sequence_number": 4, "response": {"id": "r", "error": None, "usage": None, **more}}


def kind(route: str, data: bytes) -> EventKind:
    return read_event(BY_NAME[route], data).kind


TOOL = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
DELTA = {"type": "content_block_delta", "index": 0}
EVENTS: list[tuple[str, bytes, EventKind]] = [
    # token-bearing: loadgen.md 6.1
    ("chat", event(chunk({"content": "hi"})), EventKind.TOKEN),
    ("chat", event(chunk({"role": "assistant", "content": "hi"}, finish="stop")), EventKind.TOKEN),
    ("chat", event(chunk({"reasoning": "hm"})), EventKind.TOKEN),
    ("chat", event(chunk({"reasoning_content": "hm"})), EventKind.TOKEN),
    ("chat", event(chunk(TOOL)), EventKind.TOKEN),
    ("chat", event(chunk({"refusal": "no"})), EventKind.TOKEN),
    ("chat", event(chunk({"function_call": {"name": "f"}})), EventKind.TOKEN),
    ("chat", event(chunk({"content": "hi"}, usage=USAGE)), EventKind.TOKEN),
    ("chat", event(chunk({"content": " data: [DONE] "})), EventKind.TOKEN),
    ("completions", event(text("hi")), EventKind.TOKEN),
    ("messages", event(DELTA | {"delta": {"type": "text_delta", "text": "hi"}}, "content_block_delta"), EventKind.TOKEN),
    ("messages", event(DELTA | {"delta": {"type": "thinking_delta", "thinking": "hm"}}), EventKind.TOKEN),
    ("messages", event(DELTA | {"delta": {"type": "input_json_delta", "partial_json": "{"}}), EventKind.TOKEN),
    ("responses", event({"type": "response.output_text.delta", "delta": "hi"}), EventKind.TOKEN),
    ("responses", event({"type": "response.reasoning_text.delta", "delta": "hm"}), EventKind.TOKEN),
    ("responses", event({"type": "response.function_call_arguments.delta", "delta": "{"}), EventKind.TOKEN),
    # not token-bearing
    ("chat", event(chunk({"role": "assistant"})), EventKind.OTHER),
    ("chat", event(chunk({"role": "assistant", "content": ""})), EventKind.OTHER),
    ("chat", event(chunk({"content": None, "tool_calls": []})), EventKind.OTHER),
    ("chat", event(chunk({}, finish="stop")), EventKind.OTHER),
    ("chat", event(chunk({}, finish="stop", usage=USAGE)), EventKind.OTHER),
    ("chat", event(chunk({"content": ""}, error=None)), EventKind.OTHER),
    ("chat", event(chunk({"content": ""}, error={})), EventKind.OTHER),
    ("chat", event({"choices": []}), EventKind.OTHER),
    ("chat", event({"choices": [], "usage": None}), EventKind.OTHER),
    ("completions", event(text("", "stop")), EventKind.OTHER),
    ("messages", event(DELTA | {"delta": {"type": "text_delta", "text": ""}}), EventKind.OTHER),
    ("messages", event(DELTA | {"delta": {"type": "signature_delta", "signature": "x"}}), EventKind.OTHER),
    ("messages", event({"type": "ping"}, "ping"), EventKind.OTHER),
    ("messages", event({"type": "message_start", "message": {"usage": {"input_tokens": 3}}}), EventKind.OTHER),
    ("responses", event(response("response.created")), EventKind.OTHER),
    ("responses", event({"type": "response.output_text.delta", "delta": ""}), EventKind.OTHER),
    ("responses", event({"type": "response.output_text.done", "text": "hi"}), EventKind.OTHER),
    # the usage chunk
    ("chat", event({"choices": [], "usage": USAGE}), EventKind.USAGE),
    ("completions", event({"choices": [], "usage": {}}), EventKind.USAGE),
    # ends
    ("chat", b"data: [DONE]\n\n", EventKind.END),
    ("completions", b"data:[DONE]\r\n\r\n", EventKind.END),
    ("chat", b": x\nid: 4\ndata: [DONE]\n\n", EventKind.END),
    ("chat", b"data: [DONE]", EventKind.END),
    ("messages", event({"type": "message_stop"}, "message_stop"), EventKind.END),
    ("responses", event(response("response.completed")), EventKind.END),
    ("responses", event(response("response.incomplete")), EventKind.END),
    ("messages", b"data: [DONE]\n\n", EventKind.OTHER),
    ("responses", b"data: [DONE]\n\n", EventKind.OTHER),
    ("chat", b"data: x [DONE]\n\n", EventKind.OTHER),
    ("chat", b"data: [DONE]\ndata: [DONE]\n\n", EventKind.OTHER),
    ("chat", b": data: [DONE]\n\n", EventKind.COMMENT),
    ("chat", b"xdata: [DONE]\n\n", EventKind.OTHER),
    # aborts
    ("chat", event(chunk({}, finish="abort")), EventKind.ABORT),
    ("chat", event(chunk({"content": "hi"}, finish="abort", usage=USAGE)), EventKind.ABORT),
    ("completions", event(text("hi", "abort")), EventKind.ABORT),
    ("messages", event({"type": "message_delta", "delta": {"stop_reason": "abort"}}), EventKind.ABORT),
    ("chat", event(chunk({"content": "abort"})), EventKind.TOKEN),
    # comments and frames without data
    ("chat", b": ping\n\n", EventKind.COMMENT),
    ("messages", b":\r\n: two\r\n\r\n", EventKind.COMMENT),
    ("chat", b"\n\n", EventKind.COMMENT),
    ("chat", b"event: ping\n\n", EventKind.OTHER),
    ("chat", b"id: 7\nretry: 10\n\n", EventKind.OTHER),
    ("chat", b"data\n\n", EventKind.OTHER),
    ("chat", b"data:\n\n", EventKind.OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("route", "data", "expected"), EVENTS)
def test_an_event_is_what_its_data_says(route: str, data: bytes, expected: EventKind) -> None:
    assert kind(route, data) is expected


ERRORS = [
    ("chat", event({"error": {"message": "full", "code": 503}}), 503),
    ("chat", event({"error": {"object": "error", "message": "x", "code": 400, "param": None}}), 400),
    ("chat", event({"error": {"message": "x", "status": 429}}), 429),
    ("chat", event({"error": {"message": "x", "code": "rate_limited"}}), None),
    ("chat", event({"error": {"message": "x", "code": True}}), None),
    ("chat", event({"error": "engine is rescaling"}), None),
    ("chat", event({"error": "x", "code": 503}), 503),
    ("chat", event({"object": "error", "message": "x", "code": 500}), 500),
    ("chat", event(chunk({"content": "hi"}, error={"code": 500})), 500),
    ("completions", event({"error": {"code": 500}}), 500),
    ("chat", event({"message": "x"}, "error"), None),
    ("chat", b"event: error\ndata: not json\n\n", None),
    ("chat", b"event: error\n\n", None),
    ("chat", b'data: {"error":{"message":"half \\ud800","code":503}}\n\n', 503),
    ("chat", b'data: {"error":{"message":"x","code":503,"x":NaN}}\n\n', 503),
    ("messages", event({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, "error"), 529),
    ("messages", event({"type": "error", "error": {"type": "invalid_request_error", "message": "x"}}), 400),
    ("messages", event({"type": "error", "error": {"type": "internal_error", "message": "x"}}), None),
    ("messages", event({"error": {"message": "x", "code": 503}}), 503),
    ("responses", event({"type": "error", "code": "server_error", "message": "x"}, "error"), None),
    ("responses", event({"error": {"message": "x", "code": 503}}), 503),
]


@pytest.mark.parametrize(("route", "data", "status"), ERRORS)
def test_an_error_event_carries_its_status(route: str, data: bytes, status: int | None) -> None:
    facts = read_event(BY_NAME[route], data)
    assert (facts.kind, facts.status) == (EventKind.ERROR, status)


def test_an_error_keeps_its_json_to_be_passed_on() -> None:
    facts = read_event(BY_NAME["chat"], b'event: error\ndata: {"error":\ndata: "x"}\n\n')
    assert facts.error == b'{"error":\n"x"}'


def test_a_failed_response_ends_well_for_the_client_and_failed_for_us() -> None:
    facts = read_event(BY_NAME["responses"], event(response("response.failed", error={"code": "server_error"})))
    assert facts == EventFacts(kind=EventKind.END, failed=True)


@pytest.mark.parametrize(
    ("route", "data", "usage"),
    [
        ("chat", event({"choices": [], "usage": USAGE}), Usage(9, None, 7)),
        ("chat", event({"choices": [], "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}}), Usage(9, 4, 7)),
        ("chat", event({"choices": [], "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}}), Usage(9, 0, 7)),
        ("chat", event({"choices": [], "usage": USAGE | {"prompt_tokens_details": None}}), Usage(9, None, 7)),
        ("chat", event(chunk({}, finish="stop", usage=USAGE)), Usage(9, None, 7)),
        ("chat", event({"choices": [], "usage": {"prompt_tokens": "9", "completion_tokens": -1}}), Usage(None, None, None)),
        ("chat", event({"choices": [], "usage": {"prompt_tokens": True, "completion_tokens": 1.5}}), Usage()),
        ("chat", event({"choices": [], "usage": {"prompt_tokens": 10**30}}), Usage()),
        ("chat", event(chunk({"content": "x"}, usage=None)), None),
        ("messages", event({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}), Usage(3, None, None)),
        ("messages", event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}}), Usage(None, None, 7)),
        ("messages", event({"type": "message_delta", "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}}), Usage(9, 4, None)),
        ("responses", event(response("response.completed", usage={"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7})), Usage(9, 4, 7)),
    ],
)  # fmt: skip
def test_usage_is_read_wherever_it_stands(route: str, data: bytes, usage: Usage | None) -> None:
    assert read_event(BY_NAME[route], data).usage == usage


def test_usage_told_in_two_events_adds_up_to_one() -> None:
    start, end = Usage(3, None, 0), Usage(None, None, 7)
    assert end.over(start) == Usage(3, None, 7)
    assert start.over(None) is start


LINE_ENDS = [b"\n", b"\r", b"\r\n"]


@pytest.mark.parametrize("end", LINE_ENDS)
def test_lines_end_at_lf_cr_and_crlf(end: bytes) -> None:
    data = end.join([b"event: x", b'data: {"choices":', b"data:[],", b'data: "usage":{}}', b"", b""])
    assert kind("chat", data) is EventKind.USAGE


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_no_other_character_ends_a_line(character: str) -> None:
    data = b'data: {"choices":[{"text":"a' + character.encode() + b'data: [DONE]"}]}\n\n'
    assert kind("chat", data) in (EventKind.TOKEN, EventKind.OTHER)  # raw control characters are not JSON
    assert kind("chat", data) is (EventKind.TOKEN if ord(character) > 31 else EventKind.OTHER)
    assert kind("chat", b"data: x" + character.encode() + b"data: [DONE]\n\n") is EventKind.OTHER


@pytest.mark.parametrize(
    "data",
    [b"data: {\n\n", b"data: \xff\xfe\n\n", b"data: [1,\n\n", b"data: " + b"[" * 100_000 + b"\n\n", b'data: {"choices":[{"text":"\xff"}]}\n\n'],
)  # fmt: skip
def test_data_that_is_not_json_passes_marked(data: bytes) -> None:
    assert read_event(BY_NAME["chat"], data) == EventFacts(kind=EventKind.OTHER, garbled=True)


@pytest.mark.parametrize("data", [b"1", b"null", b'"x"', b"[]", b"[1]", b'{"choices":1}', b'{"choices":[1,null]}'])
@pytest.mark.parametrize("route", STREAMED)
def test_json_of_another_shape_is_another_event(route: str, data: bytes) -> None:
    assert read_event(BY_NAME[route], b"data: " + data + b"\n\n") == EventFacts(kind=EventKind.OTHER)


def test_a_bom_before_the_first_event_hides_nothing() -> None:
    assert kind("chat", b"\xef\xbb\xbf" + event({"error": "x"})) is EventKind.ERROR


def test_c019_an_event_of_2_mib_is_read() -> None:
    assert kind("chat", event(chunk({"content": "x" * (2 << 20)}))) is EventKind.TOKEN


# ---- watch

MATTERS = {EventKind.ERROR, EventKind.ABORT, EventKind.END, EventKind.USAGE}
ALL_EVENTS = [(route, data) for route, data, _ in EVENTS] + [(route, data) for route, data, _ in ERRORS]


def matters(route: Route, data: bytes) -> bool:
    facts = read_event(route, data)
    return facts.kind in MATTERS or facts.usage is not None


@pytest.mark.parametrize(("route", "data"), ALL_EVENTS)
def test_no_event_that_matters_is_overlooked(route: str, data: bytes) -> None:
    plain = {
        "messages": event(DELTA | {"delta": {"text": "x"}}),
        "responses": event({"type": "response.output_text.delta"}),
    }
    beside = plain.get(route, event(chunk({"content": "x"})))
    looks = watch(BY_NAME[route])
    if matters(BY_NAME[route], data):
        assert looks(data) and looks(beside + data)
        if data.endswith((b"\n", b"\r")):  # else the stream has ended in it
            assert looks(data + beside) and looks(beside * 3 + data + beside * 3)


def test_the_last_chunk_is_looked_at_for_it_may_bear_no_token() -> None:
    looks = watch(BY_NAME["chat"])
    assert looks(event(chunk({}, finish="stop"))) and looks(
        event(chunk({"content": "x"})) + event(chunk({}, finish="stop"))
    )


@pytest.mark.parametrize("route", ["chat", "completions", "messages", "responses"])
def test_what_needs_no_look_is_counted_by_its_tokens(route: str) -> None:
    told = {
        "chat": event(chunk({"content": '"choices" data:'})),
        "completions": event(text('"choices"')),
        "messages": event(DELTA | {"delta": {"text": '"content_block_delta"'}}, "content_block_delta"),
        "responses": event({"type": "response.output_text.delta", "delta": '.delta"'}, "response.output_text.delta"),
    }[route]
    assert [tokens_in(BY_NAME[route], told * count) for count in (1, 3)] == [1, 3]
    around = event({"type": "content_block_stop", "index": 0}, "content_block_stop") if route == "messages" else b""
    assert tokens_in(BY_NAME[route], around + told) == 1


@pytest.mark.parametrize("spacing", [(",", ":"), (", ", ": ")])
def test_spaces_in_json_change_nothing(spacing: tuple[str, str]) -> None:
    for data in ({"choices": [], "usage": USAGE}, chunk({}, finish="abort"), {"error": {"code": 1}}):
        assert watch(BY_NAME["chat"])(event(data, separators=spacing))
    for data in (response("response.completed", usage=USAGE), {"type": "error", "message": "x"}):
        assert watch(BY_NAME["responses"])(event(data, separators=spacing))
    for data in ({"type": "message_delta", "usage": {"output_tokens": 1}}, {"type": "message_stop"}):
        assert watch(BY_NAME["messages"])(event(data, separators=spacing))


@pytest.mark.parametrize(
    ("route", "data"),
    [
        ("chat", event(chunk({"content": " token"}))),
        ("chat", event(chunk({"content": " token"}, usage=None))),
        ("chat", event(chunk({"content": " token"}, usage=None)) * 4),
        ("chat", event(chunk({"content": " token"})) * 4),
        ("completions", event(text(" token"))),
        ("messages", event(DELTA | {"delta": {"text": " token"}}, "content_block_delta") * 3),
        ("responses", event({"type": "response.output_text.delta", "delta": " token"}, "response.output_text.delta")),
    ],
)
def test_ordinary_events_need_no_look(route: str, data: bytes) -> None:
    assert not watch(BY_NAME[route])(data)


# ---- whole answers


@pytest.mark.parametrize(
    ("route", "answer", "facts"),
    [
        ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE}, BodyFacts(usage=Usage(9, None, 7))),
        ("chat", {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}], "usage": USAGE}, BodyFacts(usage=Usage(9, None, 7), aborted=True)),
        ("completions", {"choices": [{"text": "x", "finish_reason": "abort"}]}, BodyFacts(aborted=True)),
        ("responses", {"output": [], "usage": {"input_tokens": 9, "output_tokens": 7}}, BodyFacts(usage=Usage(9, None, 7))),
        ("messages", {"content": [], "stop_reason": "abort", "usage": {"input_tokens": 9, "output_tokens": 7}}, BodyFacts(usage=Usage(9, None, 7), aborted=True)),
        ("embeddings", {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, BodyFacts(usage=Usage(9, None, None))),
        ("rerank", {"results": []}, BodyFacts()),
        ("chat", {"choices": None, "usage": USAGE}, BodyFacts(usage=Usage(9, None, 7))),
        ("chat", {"choices": [None, {"finish_reason": "abort"}], "usage": 3}, BodyFacts(aborted=True)),
        ("chat", [], BodyFacts()),
        ("chat", {"error": "x"}, BodyFacts()),
    ],
)  # fmt: skip
def test_a_whole_answer_tells_usage_and_abort(route: str, answer: object, facts: BodyFacts) -> None:
    assert read_body(BY_NAME[route], json.dumps(answer).encode()) == facts


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"usage":{"prompt_tokens":9'])
def test_an_answer_that_cannot_be_read_tells_nothing(body: bytes) -> None:
    assert read_body(BY_NAME["chat"], body) == BodyFacts()


def test_an_answer_with_values_that_strict_json_has_not_is_read_all_the_same() -> None:
    body = b'{"choices":[{"logprobs":NaN,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    assert read_body(BY_NAME["chat"], body).usage == Usage(1, None, 2)


# ---- properties

PROFILE = settings(max_examples=300, derandomize=True, deadline=None, database=None)
ROUTE = st.sampled_from(STREAMED).map(BY_NAME.__getitem__)
KEYS = ["error", "usage", "choices", "delta", "finish_reason", "type", "response", "message", "code", "text", "content"]
WORDS = ["abort", "error", "message_stop", "response.completed", "response.failed", "content_block_delta", "", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
LINES = st.lists(
    st.sampled_from([b"data:", b"data: ", b"event: error", b"data: [DONE]", b":", b"", b"id", b"\xef\xbb\xbf"])
    | st.binary(max_size=12)
    | JSON.map(lambda value: b"data: " + json.dumps(value).encode()),
    max_size=5,
)


@PROFILE
@given(ROUTE, LINES, st.sampled_from(LINE_ENDS))
def test_any_bytes_are_some_event(route: Route, lines: list[bytes], end: bytes) -> None:
    data = end.join(lines)
    assert isinstance(read_event(route, data), EventFacts)
    assert isinstance(read_body(route, data), BodyFacts)


@PROFILE
@given(ROUTE, JSON, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_watch_is_wrong_only_in_looking(route: Route, value: object, spacing: tuple[str, str]) -> None:
    data = event(value, separators=spacing)
    assert watch(route)(data) or not matters(route, data)


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"\r\n", b"\r", b"data: x", b": ping", b"data: a\n\n"]), max_size=12))
@settings(max_examples=300)
def test_events_are_split_the_same_way_however_their_lines_end(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    events = sse.split(data)
    assert b"".join(events) == data
    for event in events[:-1]:
        assert sse.first_end(event) == len(event)
    assert not events or sse.first_end(events[-1]) in (0, len(events[-1]))
