"""Bodies are read under the rules of http.md 4 and written with only what the gateway sets changed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.call import Call, FieldRules, read, write
from gateway.dialects.fields import TABLES
from gateway.dialects.routes import ROUTES, Kind, Route
from gateway.errors import GatewayError
from policies.decisions import Reason

RULES = FieldRules(parameters=frozenset(), media_hosts=frozenset(), reject_unknown=False)
TARGET = ("served", "s" * 43, None)
BY_NAME = {route.name: route for route in ROUTES}
USER = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {  # the least that each route takes
    "chat": {"model": "m", "messages": USER},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": USER, "max_tokens": 9},
    "embeddings": {"model": "m", "input": "hi"},
    "rerank": {"model": "m", "query": "q", "documents": ["a", "b"]},
    "score": {"model": "m", "text_1": "a", "text_2": "b"},
    "tokenize": {"model": "m", "prompt": "hi"},
    "detokenize": {"model": "m", "tokens": [1, 2]},
    "count_tokens": {"model": "m", "messages": USER},
}


def encode(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def read_as(name: str, **more: object) -> Call:
    return read(BY_NAME[name], encode(LEAST[name] | more), RULES)


def refused(name: str, body: bytes, rules: FieldRules = RULES) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read(BY_NAME[name], body, rules)
    assert caught.value.status == 400
    return caught.value


def written(call: Call, target: tuple[str, str | None, int | None] = TARGET) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(write(call, *target))
    return body


def test_every_route_with_a_body_has_a_table() -> None:
    assert set(TABLES) == {route.name for route in ROUTES if route.kind is not Kind.LOCAL} == set(LEAST)


@pytest.mark.parametrize("name", LEAST)
def test_the_least_of_each_route_is_read_and_written(name: str) -> None:
    call = read_as(name)
    assert (call.model, call.stream, call.stripped, call.wants_usage) == ("m", False, (), False)
    salt = {} if call.route.kind is Kind.TEXT else {"cache_salt": TARGET[1]}  # it caches nothing
    store = {"store": False} if name == "responses" else {}
    assert written(call) == LEAST[name] | {"model": "served"} | salt | store
    assert call.body_bytes == len(encode(LEAST[name]))


# ---- the document


BAD_DOCUMENTS = {
    "nothing": b"", "space": b"  ", "array": b"[]", "null": b"null", "string": b'"x"', "number": b"1", "open": b"{",
    "trailing bytes": b'{"model":"m"} x', "two": b"{}{}", "comma": b'{"model":"m",}', "comment": b'{/**/"model":"m"}',
    "single quotes": b"{'model':'m'}", "nan": b'{"model":"m","messages":[],"seed":NaN}', "inf": b'{"x":Infinity}',
    "leading zero": b'{"seed":01}', "lone surrogate": b'{"model":"m","messages":["\\ud800"]}',
    "surrogate in a key": b'{"\\udfff":1}', "control": b'{"user":"a\nb"}', "bom": b'\xef\xbb\xbf{"model":"m","messages":[]}',
    "utf-16": '{"model":"m"}'.encode("utf-16"), "invalid utf-8 read": b'{"model":"\xff","messages":[]}',
    "invalid utf-8 skipped": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "cesu": b'{"model":"m","messages":["\xed\xa0\x80"]}', "overlong": b'{"model":"m","messages":["\xc0\x80"]}',
}  # fmt: skip


@pytest.mark.parametrize("body", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_c010_what_is_not_one_json_object_in_utf8_is_invalid_json(body: bytes) -> None:
    assert refused("chat", body).reason is Reason.INVALID_JSON


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"content":'])
@pytest.mark.parametrize("depth", [1100, 100_000])
def test_c010_a_deep_body_is_too_deep_and_not_a_crash(opening: bytes, depth: int) -> None:
    body = b'{"model":"m","messages":' + opening * depth
    assert refused("chat", body).reason is Reason.JSON_TOO_DEEP


@pytest.mark.parametrize("field", ["messages", "metadata"])
def test_a_body_of_400_levels_passes(field: str) -> None:
    value = b'{"content":' * 200 + b'[{"content":' * 100 + b'"x"' + b"}]" * 100 + b"}" * 200
    body = b'{"model":"m","messages":[],"%s":[%s]}' % (field.encode(), value)
    assert json.loads(write(read(BY_NAME["chat"], body, RULES), *TARGET))["model"] == "served"


def test_nested_parts_deeper_than_python_likes_are_too_deep() -> None:
    body = b'{"model":"m","messages":[%s"x"%s]}' % (b'{"content":[' * 480, b"]}" * 480)
    assert refused("chat", body).reason is Reason.JSON_TOO_DEEP


def test_the_last_of_duplicate_keys_counts_for_us_and_for_the_engine() -> None:
    body = b'{"model":"a","messages":[],"model":"b","max_tokens":1,"m\\u0061x_tokens":7,"priority":1,"priority":2}'
    call = read(BY_NAME["chat"], body, RULES)
    assert (call.model, call.max_output_tokens) == ("b", 7)
    upstream = write(call, *TARGET)
    assert upstream.count(b'"model"') == upstream.count(b"max_tokens") == 1
    assert json.loads(upstream)["max_tokens"] == 7


def test_fields_we_do_not_read_keep_their_bytes() -> None:
    seed = b"1" * 5000
    body = (
        b'{ "seed" : %s , "model":"m", "temperature": 0.70 ,"messages" : [ {"role": "user","content":"\\u00e9\\/"} ] }'
    )
    upstream = write(read(BY_NAME["chat"], body % seed, RULES), *TARGET)
    expected = b'{"seed":%s,"model":"served","temperature":0.70,"messages":[ {"role": "user","content":"\\u00e9\\/"} ],'
    assert upstream == expected % seed + b'"cache_salt":"%s"}' % (b"s" * 43)


# ---- the fields that are read


@pytest.mark.parametrize("model", [1, None, "", "x" * 257, ["m"], True])
def test_a_model_is_a_string_of_1_to_256_characters(model: object) -> None:
    error = refused("chat", encode({"model": model, "messages": USER}))
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, "model")


def test_a_body_without_a_model_names_the_field() -> None:
    assert refused("chat", encode({"messages": USER})).param == "model"


@pytest.mark.parametrize(("value", "stream"), [("true", True), ("false", False), ("null", False)])
def test_stream_is_a_flag(value: str, stream: bool) -> None:
    body = b'{"model":"m","messages":[],"stream":%s}' % value.encode()
    assert read(BY_NAME["chat"], body, RULES).stream is stream


@pytest.mark.parametrize("value", ["1", "0", '"true"', "[]", "{}", "1.0"])
def test_stream_is_nothing_else(value: str) -> None:
    error = refused("chat", b'{"model":"m","messages":[],"stream":%s}' % value.encode())
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, "stream")


CAPS = [("chat", "max_tokens"), ("chat", "max_completion_tokens"), ("completions", "max_tokens")]
CAPS += [("responses", "max_output_tokens"), ("messages", "max_tokens")]


@pytest.mark.parametrize(("name", "field"), CAPS)
@pytest.mark.parametrize("value", ["0", "-1", "2147483648", "1.0", "1e3", '"5"', "true", "[]", "1" * 5000])
def test_an_output_cap_is_an_integer_in_range(name: str, field: str, value: str) -> None:
    body = encode({key: value for key, value in LEAST[name].items() if key != field})[:-1]
    error = refused(name, body + b',"%s":%s}' % (field.encode(), value.encode()))
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, field)


@pytest.mark.parametrize(("name", "field"), CAPS)
@pytest.mark.parametrize("value", [1, 2147483647])
def test_an_output_cap_is_read(name: str, field: str, value: int) -> None:
    assert read_as(name, **{field: value}).max_output_tokens == value


def test_no_cap_and_null_are_no_cap() -> None:
    assert read_as("chat").max_output_tokens is None
    assert read_as("chat", max_tokens=None, max_completion_tokens=None).max_output_tokens is None
    assert read_as("chat", max_completion_tokens=None, max_tokens=5).max_output_tokens == 5


def test_of_two_caps_the_one_that_most_engines_obey_is_read_and_the_other_judged() -> None:
    assert read_as("chat", max_tokens=5, max_completion_tokens=7).max_output_tokens == 7
    body = encode(LEAST["chat"] | {"max_tokens": True, "max_completion_tokens": 7})
    assert refused("chat", body).param == "max_tokens"


def test_a_prompt_is_required() -> None:
    for name, body in LEAST.items():
        for field in body.keys() - {"model", "text_1", "text_2"}:
            error = refused(name, encode({key: value for key, value in body.items() if key != field}))
            assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, field), name


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("chat", "messages", {}), ("chat", "messages", "hi"), ("chat", "messages", None), ("chat", "messages", 3),
        ("completions", "prompt", {}), ("completions", "prompt", None), ("responses", "input", {}),
        ("messages", "messages", 1), ("embeddings", "input", 7), ("embeddings", "input", {}),
        ("chat", "stream_options", []), ("chat", "stream_options", 1),
    ],
)  # fmt: skip
def test_a_prompt_of_the_wrong_type_names_the_field(name: str, field: str, value: object) -> None:
    error = refused(name, encode(LEAST[name] | {field: value}))
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, field)


@pytest.mark.parametrize(
    ("name", "more", "sequences"),
    [
        ("chat", {}, 1),
        ("chat", {"n": 3}, 3),
        ("chat", {"n": None}, 1),
        ("completions", {"n": 2, "best_of": 5}, 5),
        ("completions", {"prompt": ["a", "b,c", 'd","e'], "n": 2}, 6),
        ("completions", {"prompt": [1, 2, 3, 4]}, 1),
        ("completions", {"prompt": [[1, 2], [3], [4, 5]], "n": 2}, 6),
        ("completions", {"prompt": []}, 1),
        ("embeddings", {"input": ["a", "b", "c", "d"]}, 4),
        ("embeddings", {"input": [[1, 2], [3]]}, 2),
        ("rerank", {}, 2),
        ("score", {"text_2": ["a", "b", "c"]}, 3),
        ("responses", {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, 1),
    ],
)
def test_sequences_are_copies_times_prompts(name: str, more: dict[str, Any], sequences: int) -> None:
    assert read_as(name, **more).sequences == sequences


def test_a_list_too_long_to_be_counted_is_never_counted_too_low() -> None:
    assert read_as("embeddings", input=["a"] * 300_000).sequences == 300_000


INLINE = "A" * 1_000_000


@pytest.mark.parametrize(
    ("route", "part"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{INLINE}"}}),
        ("chat", {"type": "input_audio", "input_audio": {"data": INLINE, "format": "wav"}}),
        ("chat", {"type": "file", "file": {"file_data": INLINE, "filename": "a.pdf"}}),
        ("messages", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": INLINE}}),
    ],
    ids=["picture", "sound", "file", "picture of the other dialect"],
)
def test_what_stands_inline_counts_as_a_part_and_not_as_text(route: str, part: dict[str, object]) -> None:
    text = {"type": "text", "text": "what is this?"}
    messages = [{"role": "user", "content": [text, part, part]}]
    assert 8000 < read_as(route, messages=messages).prompt_bytes < 9000


def test_prompt_bytes_are_the_raw_bytes_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read_as("chat", tools=tools, user="x" * 999).prompt_bytes == len(encode(USER)) + len(encode(tools))
    assert read_as("messages", system="be good").prompt_bytes == len(encode(USER)) + len(b'"be good"')
    assert read_as("completions", prompt="a" * 1000).prompt_bytes == 1002


# ---- what is written


def test_the_map_keeps_the_clients_order_and_new_fields_come_last() -> None:
    body = {"temperature": 1, "stream": True, "model": "m", "messages": USER, "top_p": 0.5}
    upstream = write(read(BY_NAME["chat"], encode(body), RULES), "x", "y", 3)
    assert list(json.loads(upstream)) == [*body, "cache_salt", "stream_options", "max_tokens"]


@pytest.mark.parametrize("given", ["mine", "", None, 7, {"a": 1}])
def test_c099_the_salt_is_ours_or_nobodys(given: object) -> None:
    call = read_as("chat", cache_salt=given)
    assert written(call)["cache_salt"] == TARGET[1]
    assert "cache_salt" not in written(call, ("x", None, None))
    assert call.stripped == ("cache_salt",)


@pytest.mark.parametrize("model", [*map(chr, range(1, 256)), 'a","priority":1,"b":"', "\u2028", "\U0001f600"])
def test_c097_names_are_encoded_wherever_they_stand(model: str) -> None:
    call = read_as("chat", model=model)
    assert call.model == model
    assert written(call, (model, None, None)) == {"model": model, "messages": USER}


@pytest.mark.parametrize("store", [True, False, None, "absent"])
def test_a_response_is_never_stored(store: object) -> None:
    more = {} if store == "absent" else {"store": store}
    assert written(read_as("responses", **more))["store"] is False
    assert written(read_as("chat", **more)).get("store", False) is False


@pytest.mark.parametrize(
    ("name", "options", "wants", "sent"),
    [
        ("chat", "absent", False, {"include_usage": True}),
        ("completions", "absent", False, {"include_usage": True}),
        ("chat", None, False, {"include_usage": True}),
        ("chat", {}, False, {"include_usage": True}),
        ("chat", {"include_usage": False, "include_obfuscation": False}, False, {"include_usage": True, "include_obfuscation": False}),
        ("chat", {"include_usage": None}, False, {"include_usage": True}),
        ("chat", {"include_usage": True, "x": [1]}, True, {"include_usage": True, "x": [1]}),
        ("chat", {"continuous_usage_stats": False}, False, {"continuous_usage_stats": False, "include_usage": True}),
        ("responses", {"include_obfuscation": True}, False, {"include_obfuscation": True}),
        ("responses", "absent", False, None),
        ("messages", "absent", False, None),
    ],
)  # fmt: skip
def test_c025_usage_is_always_asked_for_on_openai_streams(
    name: str, options: object, wants: bool, sent: dict[str, Any] | None
) -> None:
    more = {} if options == "absent" else {"stream_options": options}
    call = read_as(name, stream=True, **more)
    assert call.wants_usage is wants
    assert written(call).get("stream_options") == sent


def test_stream_options_without_a_stream_are_the_engines_to_refuse() -> None:
    call = read_as("chat", stream_options={"include_usage": True})
    assert not call.wants_usage
    assert written(call)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("value", [1, "true", []])
def test_include_usage_is_a_flag(value: object) -> None:
    body = encode(LEAST["chat"] | {"stream": True, "stream_options": {"include_usage": value}})
    assert refused("chat", body).param == "stream_options.include_usage"


CAPPED = [  # route, what the client gave, cap, what the engine gets
    ("chat", {}, 100, {"max_tokens": 100}),
    ("chat", {"max_tokens": None}, 100, {"max_tokens": 100}),
    ("chat", {"max_tokens": 50}, 100, {"max_tokens": 50}),
    ("chat", {"max_tokens": 150}, 100, {"max_tokens": 100}),
    ("chat", {"max_completion_tokens": 150}, 100, {"max_completion_tokens": 100}),
    ("chat", {"max_completion_tokens": 50, "max_tokens": 150}, 100, {"max_completion_tokens": 50, "max_tokens": 50}),
    ("chat", {"max_completion_tokens": 150, "max_tokens": 50}, 100, {"max_completion_tokens": 100, "max_tokens": 50}),
    ("chat", {"max_completion_tokens": 50, "max_tokens": 10**9}, None, {"max_completion_tokens": 50, "max_tokens": 50}),
    ("chat", {"max_completion_tokens": 50, "max_tokens": 20}, None, {"max_completion_tokens": 50, "max_tokens": 20}),
    (
        "chat",
        {"max_completion_tokens": None, "max_tokens": 20},
        None,
        {"max_completion_tokens": None, "max_tokens": 20},
    ),
    ("completions", {}, 100, {"max_tokens": 100}),
    ("responses", {}, 100, {"max_output_tokens": 100}),
    ("responses", {"max_output_tokens": 101}, 100, {"max_output_tokens": 100}),
    ("messages", {"max_tokens": 101}, 100, {"max_tokens": 100}),
    ("embeddings", {}, 100, {}),
    ("count_tokens", {}, 100, {}),
    ("chat", {}, None, {}),
    ("chat", {"max_tokens": 10**9}, None, {"max_tokens": 10**9}),
]


@pytest.mark.parametrize(("name", "given", "cap", "sent"), CAPPED)
def test_the_output_cap_is_written_where_none_was_given_or_lowered(
    name: str, given: dict[str, Any], cap: int | None, sent: dict[str, Any]
) -> None:
    body = written(read_as(name, **given), ("x", None, cap))
    assert {key: value for key, value in body.items() if key.startswith("max_")} == sent


@pytest.mark.parametrize("priority", [0, 3, -3])
def test_the_priority_of_a_body_is_the_gateways_or_none(priority: int) -> None:
    call = read_as("chat", priority=7)
    assert json.loads(write(call, *TARGET, priority))["priority"] == priority
    assert "priority" not in written(call)


def test_one_call_is_written_for_two_engines_without_a_trace_of_the_first() -> None:
    call = read_as("chat", stream=True)
    write(call, "one", "a", 1)
    body = written(call, ("two", None, None))
    assert body == LEAST["chat"] | {"model": "two", "stream": True, "stream_options": {"include_usage": True}}


def test_what_was_removed_is_named_within_the_256_bytes_of_a_header() -> None:
    assert read_as("chat").stripped == ()
    assert read_as("chat", zeta=1, priority=3, alpha=None).stripped == ("zeta", "priority", "alpha")
    many = read_as("chat", **{f"unknown_{number}": number for number in range(500)})
    assert 200 < len(",".join(many.stripped)) <= 256
    assert len(written(many)) == 3


@pytest.mark.parametrize("name", [*map(chr, range(256)), "", "a b", "é", "x" * 300, "a,b", "a\r\nx-evil: 1"])
def test_c097_only_plain_names_reach_that_header(name: str) -> None:
    *first, last = read_as("chat", **{name: 1, "plain": 2}).stripped
    assert last == "plain"
    assert first in ([], [name])
    assert all(0x21 <= ord(character) <= 0x7E and character != "," for character in "".join(first))


def test_many_small_fields_in_a_large_body_are_refused_before_a_dict_is_made_of_them() -> None:
    flood = b",".join(b'"k%x":1' % number for number in range(60_000))
    body = b'{"model":"m","messages":[],' + flood + b"}"
    assert refused("chat", body).reason is Reason.INVALID_PARAMETER
    twice = b'{"messages":[],"model":"m"' + b',"model":"m"' * 60_000 + b"}"
    assert refused("chat", twice).reason is Reason.INVALID_PARAMETER


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_c011_an_8_mb_prompt_passes(name: str) -> None:
    prompt = "long é " * 1_000_000
    field = next(iter(LEAST[name].keys() - {"model", "max_tokens"}))
    value: object = [{"role": "user", "content": prompt}] if field == "messages" else prompt
    call = read_as(name, **{field: value})
    assert call.prompt_bytes > 8_000_000
    assert written(call)[field] == value


# ---- properties

PROFILE = settings(max_examples=300, derandomize=True, deadline=None, database=None)
NAMES = sorted({name for table in TABLES.values() for name in table.plain | set(table.groups)})
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "image_url", "url", "type", "source", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), VALUES, max_size=8)
ROUTE = st.sampled_from([route for route in ROUTES if route.kind is not Kind.LOCAL])
EVERYTHING = FieldRules(parameters=frozenset(NAMES), media_hosts=frozenset({"img.example"}), reject_unknown=False)


@PROFILE
@given(ROUTE, st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | VALUES.map(encode))
def test_any_bytes_are_read_or_refused_as_a_400(route: Route, body: bytes) -> None:
    try:
        read(route, body, RULES)
    except GatewayError as error:
        assert error.status == 400


@PROFILE
@given(ROUTE, BODIES, st.booleans())
def test_what_is_written_has_the_clients_values_apart_from_what_is_set(
    route: Route, fields: dict[str, Any], all_granted: bool
) -> None:
    body = LEAST[route.name] | fields
    try:
        call = read(route, encode(body), EVERYTHING if all_granted else RULES)
    except GatewayError as error:
        assert error.status == 400
        return
    sent = json.loads(write(call, "served", "s", 50))
    ours = {"model", "cache_salt", "store", "stream_options", *TABLES[route.name].caps}
    assert sent["model"] == "served"
    assert sent.get("cache_salt") == (None if route.kind is Kind.TEXT else "s")
    assert {key: value for key, value in sent.items() if key not in ours} == {
        key: value for key, value in body.items() if key in call.fields and key not in ours
    }
    assert all(sent[cap] is None or 1 <= sent[cap] <= 50 for cap in TABLES[route.name].caps if cap in sent)
