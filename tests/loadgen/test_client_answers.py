"""What the load client makes of the bytes of an answer, for each API: tokens, times, usage, and what went wrong."""

import json
from typing import Any

import pytest

from loadgen.client import APIS, Api
from loadgen.client.answer import Stream, Whole
from loadgen.report.record import Outcome, Sample
from tests.kit import wire

DONE = wire.DONE


def sample() -> Sample:
    return Sample(
        id=0, tenant="chat", priority="", measured=True, input_tokens=9, planned_output=3, leaves=False, sched_s=0
    )


def fed(api: Api, *reads: bytes, said: list[str] | None = None) -> tuple[Outcome, Sample]:
    got = sample()
    answer = Stream(api, got, said)
    for number, data in enumerate(reads):
        answer.take(number + 1.0, data)
    return answer.end(complete=True), got


def whole(api: Api, body: Any, said: list[str] | None = None) -> tuple[Outcome, Sample]:
    got = sample()
    answer = Whole(api, got, said)
    answer.take(2.0, json.dumps(body).encode())
    return answer.end(complete=True), got


def chunk(finish: str | None = None, usage: Any = None, **delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return wire.event({"choices": [choice], "usage": usage})


def usage(prompt: int, output: int) -> bytes:
    return wire.event({"choices": [], "usage": wire.usage("chat", prompt, output)})


@pytest.mark.parametrize("api", APIS)
def test_a_good_stream_of_each_api_is_stamped_counted_and_read(api: Api) -> None:
    events = wire.events(api, ["the ", "cat ", "ran "], prompt=9)
    said: list[str] = []
    outcome, got = fed(api, *events, said=said)
    first = next(number for number, one in enumerate(events) if b"the " in one) + 1.0
    assert outcome is Outcome.OK
    assert list(got.reads) == [first, first + 1, first + 2]  # no role, block start, usage or end mark
    assert (got.prompt_tokens, got.output_tokens, got.token_events, got.content_s) == (9, 3, 3, first)
    assert "".join(said) == "the cat ran "


@pytest.mark.parametrize("api", APIS)
def test_a_good_whole_answer_of_each_api_has_usage_and_text_and_no_first_token(api: Api) -> None:
    said: list[str] = []
    outcome, got = whole(api, wire.body(api, "the cat", prompt=9, output=4), said)
    assert (outcome, got.prompt_tokens, got.output_tokens, list(got.reads)) == (Outcome.OK, 9, 4, [2.0])
    assert said == ["the cat"]


@pytest.mark.parametrize("api", APIS)
def test_a_stream_cut_at_any_byte_of_any_api_is_never_ok(api: Api) -> None:
    stream = b"".join(wire.events(api, ["the ", "cat ", "ran "]))
    for cut in range(len(stream)):
        assert fed(api, stream[:cut])[0] is Outcome.TRUNCATED, cut


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_any_split_of_the_reads_and_any_line_end_give_the_same_answer(api: Api, ends: bytes) -> None:
    stream = b"".join(wire.events(api, ["the ", "cat ", "ran "])).replace(b"\n", ends)
    stream += b"\n" if ends == b"\r" else b""  # the end of a lone CR is known by what follows
    for cut in range(1, len(stream)):
        outcome, got = fed(api, stream[:cut], stream[cut:])
        assert (outcome, got.token_events, got.output_tokens) == (Outcome.OK, 3, 3), cut
    outcome, got = fed(api, *(stream[i : i + 1] for i in range(len(stream))))
    assert (outcome, got.token_events) == (Outcome.OK, 3)


THINKING = {
    "chat": [chunk(role="assistant", content=""), chunk(reasoning="hm "), chunk(reasoning_content="so "),
             chunk(content="yes"), chunk("stop"), usage(9, 40), DONE],
    "messages": [wire.event({"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 1,
                                                                           "cache_read_input_tokens": 5}}}),
                 wire.event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}),
                 wire.event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "so"}}),
                 wire.event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "yes"}}),
                 wire.event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}}),
                 wire.event({"type": "message_stop"})],
    "responses": [wire.event({"type": "response.created"}),
                  wire.event({"type": "response.reasoning_text.delta", "delta": "hm"}),
                  wire.event({"type": "response.reasoning_summary_text.delta", "delta": "so"}),
                  wire.event({"type": "response.output_text.delta", "delta": "yes"}),
                  wire.event({"type": "response.completed", "response": wire.response_object("yes", 9, 40)})],
}  # fmt: skip


@pytest.mark.parametrize("api", THINKING)
def test_c109_the_first_token_may_be_a_thought_the_first_of_content_comes_later_and_usage_counts(api: Api) -> None:
    outcome, got = fed(api, *THINKING[api])
    assert (outcome, list(got.reads), got.content_s) == (Outcome.OK, [2.0, 3.0, 4.0], 4.0)
    assert (got.tokens, got.prompt_tokens, got.token_events) == (40, 9, 3)
    assert got.tpot_ms == pytest.approx(2000 / 39)


CALLS = {
    "chat": [chunk(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
             chunk(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), chunk("tool_calls"), DONE],
    "messages": [wire.event({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}),
                 wire.event({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "}"}}),
                 wire.event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
                 wire.event({"type": "message_stop"})],
    "responses": [wire.event({"type": "response.function_call_arguments.delta", "delta": "{"}),
                  wire.event({"type": "response.function_call_arguments.delta", "delta": "}"}),
                  wire.event({"type": "response.completed", "response": {"status": "completed"}})],
}  # fmt: skip


@pytest.mark.parametrize("api", CALLS)
def test_c109_an_answer_of_tool_calls_alone_has_its_times_and_without_usage_its_events(api: Api) -> None:
    outcome, got = fed(api, *CALLS[api])
    assert (outcome, list(got.reads), got.content_s) == (Outcome.OK, [1.0, 2.0], 1.0)
    assert (got.output_tokens, got.tokens) == (None, 2)


def test_c109_several_tokens_per_chunk_are_no_longer_pause_per_token() -> None:
    four = [chunk(content="a b c d ") for _ in range(5)]
    outcome, got = fed("chat", *four, chunk("stop"), usage(9, 20), DONE)
    assert outcome is Outcome.OK
    assert list(got.gaps_ms()) == [1000.0] * 4  # of a read, four tokens each
    assert got.tpot_ms == pytest.approx(4000 / 19)


def test_events_that_come_in_one_read_are_counted_for_it() -> None:
    outcome, got = fed("chat", chunk(content="a"), chunk(content="b") + chunk(content="c"), chunk("stop") + DONE)
    assert (outcome, list(got.reads), list(got.read_tokens)) == (Outcome.OK, [1.0, 2.0], [1, 2])


def test_a_role_a_null_an_empty_string_and_the_end_bear_no_tokens() -> None:
    nothing = [chunk(role="assistant"), chunk(content=None), chunk(content="", reasoning=None, tool_calls=None)]
    outcome, got = fed("chat", *nothing, b": ping\n\n", chunk("stop"), usage(9, 0), DONE)
    assert (outcome, list(got.reads), got.token_events) == (Outcome.OK, [], 0)


BAD: list[tuple[Api, list[bytes], Outcome, str]] = [
    ("chat", [chunk(content="a"), wire.event({"error": {"message": "died", "code": "backend_stall"}})],
     Outcome.ERROR_STREAM, "backend_stall"),
    ("chat", [chunk(content="a"), wire.event({"error": {"message": "died", "code": 500}}), DONE],
     Outcome.ERROR_STREAM, "500 died"),
    ("chat", [wire.event({"object": "error", "message": "out of memory", "code": None})],
     Outcome.ERROR_STREAM, "out of memory"),
    ("chat", [chunk(content="a"), chunk("abort"), DONE], Outcome.ERROR_STREAM, "abort"),
    ("chat", [chunk(content="a"), b'data: {"choices\n\n', DONE], Outcome.ERROR_PROTOCOL, "an event is no JSON of this API"),
    ("chat", [chunk(content="a"), chunk("stop")], Outcome.TRUNCATED, ""),
    ("chat", [chunk(content="a"), DONE], Outcome.TRUNCATED, ""),
    ("completions", [wire.event({"error": {"message": "m" * 200}})], Outcome.ERROR_STREAM, "m" * 80),
    ("messages", [wire.event({"type": "error", "error": {"type": "overloaded_error", "message": "later"}})],
     Outcome.ERROR_STREAM, "later"),
    ("messages", [wire.event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})], Outcome.TRUNCATED, ""),
    ("responses", [wire.event({"type": "error", "code": "evicted", "message": "m"})], Outcome.ERROR_STREAM, "evicted"),
    ("responses", [wire.event({"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}})],
     Outcome.ERROR_STREAM, "x"),
    ("responses", [wire.event({"type": "response.output_text.delta", "delta": "a"})], Outcome.TRUNCATED, ""),
]  # fmt: skip


@pytest.mark.parametrize(("api", "events", "outcome", "reason"), BAD)
def test_an_answer_that_went_wrong_is_no_success_and_says_why(
    api: Api, events: list[bytes], outcome: Outcome, reason: str
) -> None:
    found, got = fed(api, *events)
    assert (found, got.reason) == (outcome, reason)


@pytest.mark.parametrize(
    "events",
    [
        [chunk(content='say data: [DONE] and "error"'), chunk("stop"), DONE],
        [chunk(content="\n\ndata: [DONE]\n\n"), chunk("length"), DONE],
        [chunk(content="x", error=None), chunk("stop"), DONE],
        [b"event: message\n" + chunk(content="x"), b"id: 7\nretry: 10\n" + chunk("stop"), DONE],
    ],
)
def test_what_only_looks_like_an_end_or_an_error_is_text(events: list[bytes]) -> None:
    assert fed("chat", *events)[0] is Outcome.OK


def test_an_answer_that_was_cut_at_its_length_is_a_good_one() -> None:
    assert (
        fed("responses", wire.event({"type": "response.incomplete", "response": {"status": "incomplete"}}))[0]
        is Outcome.OK
    )
    assert whole("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]})[0] is Outcome.OK


@pytest.mark.parametrize(
    ("api", "body", "outcome"),
    [
        ("chat", {"error": {"message": "no", "code": 1}}, Outcome.ERROR_STREAM),
        ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": None}]}, Outcome.TRUNCATED),
        ("chat", [], Outcome.ERROR_PROTOCOL),
        ("responses", {"status": "failed", "error": {"code": "x"}}, Outcome.ERROR_STREAM),
        ("messages", {"type": "error", "error": {"message": "x"}}, Outcome.ERROR_STREAM),
    ],
)
def test_a_whole_answer_can_go_wrong_inside_a_200_too(api: Api, body: Any, outcome: Outcome) -> None:
    assert whole(api, body)[0] is outcome
