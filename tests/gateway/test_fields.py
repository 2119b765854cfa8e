"""The field policy of http.md 4.1: what passes, what is removed, what is refused, and which URLs may be named."""

import json
from typing import Any

import pytest

from gateway.dialects.call import Call, FieldRules, read, write
from gateway.dialects.fields import TABLES, Group
from gateway.dialects.media import LARGE_BYTES
from gateway.dialects.routes import ROUTES, Route
from gateway.errors import GatewayError
from policies.decisions import Reason

BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
NONE = FieldRules(parameters=frozenset(), media_hosts=frozenset(), reject_unknown=False)
STRICT = FieldRules(parameters=frozenset(), media_hosts=frozenset(), reject_unknown=True)
TARGET = ("served", "ours", None)
USER = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": USER},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": USER, "max_tokens": 9},
    "embeddings": {"model": "m", "input": "hi"},
}


def granted(*names: str) -> FieldRules:
    return FieldRules(parameters=frozenset(names), media_hosts=frozenset(), reject_unknown=False)


def read_as(name: str, rules: FieldRules = NONE, /, **more: Any) -> Call:
    return read(BY_NAME[name], json.dumps(LEAST[name] | more).encode(), rules)


def sent(name: str, rules: FieldRules = NONE, /, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(write(read_as(name, rules, **more), *TARGET))
    return body


def refused(name: str, rules: FieldRules = NONE, /, **more: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read_as(name, rules, **more)
    assert caught.value.status == 400
    return caught.value


def test_a_name_is_in_one_group_of_a_table() -> None:
    for table in TABLES.values():
        assert not table.plain & set(table.groups)
        known = table.plain | set(table.groups)
        assert known.issuperset(table.prompt) and known.issuperset(table.caps) and known.issuperset(table.media)


def test_everything_the_sdks_document_is_known_to_its_route() -> None:
    from anthropic.types.message_create_params import MessageCreateParamsBase
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase as Chat
    from openai.types.completion_create_params import CompletionCreateParamsBase as Completion
    from openai.types.embedding_create_params import EmbeddingCreateParams
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    documented = {
        "chat": set(Chat.__annotations__),
        "completions": set(Completion.__annotations__),
        "responses": set(ResponseCreateParamsBase.__annotations__) - {"background_options", "image"},
        "messages": set(MessageCreateParamsBase.__annotations__),
        "embeddings": set(EmbeddingCreateParams.__annotations__),
    }
    for name, fields in documented.items():
        assert fields <= TABLES[name].plain | set(TABLES[name].groups), name


PASSED = {
    "chat": [
        "user",
        "metadata",
        "seed",
        "top_k",
        "min_p",
        "ignore_eos",
        "min_tokens",
        "reasoning_effort",
        "thinking",
        "tools",
    ],
    "completions": [
        "user",
        "suffix",
        "seed",
        "top_k",
        "stop_token_ids",
        "truncate_prompt_tokens",
        "structured_outputs",
    ],
    "responses": ["user", "instructions", "reasoning", "text", "tools", "top_k", "metadata"],
    "messages": ["metadata", "system", "thinking", "top_k", "tools", "tool_choice", "output_config"],
    "embeddings": ["user", "dimensions", "encoding_format"],
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in PASSED.items() for field in fields])
def test_a_documented_field_passes_whatever_its_value(name: str, field: str) -> None:
    values: list[object] = [None, 1, -1.5, "text", [{"a": {}}], {"k": ["v"]}]
    for value in values:
        assert sent(name, STRICT, **{field: value})[field] == value


REMOVED = ["request_id", "rid", "session_id", "session_params", "extra_key", "priority", "cache_salt"]


@pytest.mark.parametrize("field", REMOVED)
@pytest.mark.parametrize("name", LEAST)
def test_c099_ids_salts_and_priority_are_removed(name: str, field: str) -> None:
    for value in ("x", 1, None, {"a": 1}):
        body = sent(name, STRICT, **{field: value})
        assert body.get(field) == ("ours" if field == "cache_salt" else None)
        assert read_as(name, **{field: value}).stripped == (field,)


FORBIDDEN = [
    "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "documents",
    "disaggregated_params", "vllm_xargs", "data_parallel_rank", "routed_dp_rank", "prompt_embeds", "chat_template",
    "lora_path", "custom_logit_processor", "custom_params", "return_hidden_states", "mm_payload", "return_mm_kwargs",
    "lora_request", "prompt_token_ids", "conversation_params", "agent_hierarchy",
]  # fmt: skip


@pytest.mark.parametrize("field", FORBIDDEN)
@pytest.mark.parametrize("name", LEAST)
def test_c099_a_forbidden_field_is_refused_and_its_null_removed(name: str, field: str) -> None:
    values: list[object] = [0, False, "", {}, [], "http://10.0.0.1"]
    for value in values:
        error = refused(name, granted(field), **{field: value})
        assert (error.reason, error.param) == (Reason.PARAMETER_NOT_ALLOWED, field)
    assert field not in sent(name, **{field: None})


def test_documents_are_what_rerank_is_about() -> None:
    body = {"model": "m", "query": "q", "documents": ["a"]}
    assert json.loads(write(read(BY_NAME["rerank"], json.dumps(body).encode(), NONE), *TARGET))["documents"] == ["a"]


GRANTED = ["prompt_logprobs", "echo", "use_beam_search", "allowed_token_ids", "bad_words", "return_token_ids"]
GRANTED += ["mm_processor_kwargs", "media_io_kwargs", "chat_template_kwargs"]


@pytest.mark.parametrize("field", GRANTED)
@pytest.mark.parametrize("name", ["chat", "completions"])
def test_a_guarded_field_needs_the_grant(name: str, field: str) -> None:
    value: object = {"thinking": True} if field == "chat_template_kwargs" else [1]
    error = refused(name, granted("something_else"), **{field: value})
    assert (error.reason, error.param) == (Reason.PARAMETER_NOT_ALLOWED, field)
    assert sent(name, granted(field), **{field: value})[field] == value


@pytest.mark.parametrize("field", GRANTED)
def test_a_guarded_field_that_asks_for_nothing_is_removed(field: str) -> None:
    assert field not in sent("chat", STRICT, **{field: None})
    assert field not in sent("chat", STRICT, **{field: False})


@pytest.mark.parametrize("key", ["x", "enable_thinking ", "documents", "tools", "\r\nx: y", "k" * 5000])
def test_only_listed_template_arguments_pass(key: str) -> None:
    rules = granted("chat_template_kwargs")
    error = refused("chat", rules, chat_template_kwargs={"thinking": True, key: 1})
    assert (error.reason, error.param) == (Reason.PARAMETER_NOT_ALLOWED, f"chat_template_kwargs.{key[:64]}")
    assert refused("chat", rules, chat_template_kwargs=[1]).reason is Reason.INVALID_PARAMETER
    assert sent("chat", rules, chat_template_kwargs={"enable_thinking": False, "thinking": 3})


def test_continuous_usage_needs_the_grant() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    error = refused("chat", stream=True, stream_options=options)
    assert (error.reason, error.param) == (Reason.PARAMETER_NOT_ALLOWED, "stream_options.continuous_usage_stats")
    assert (
        sent("chat", granted("continuous_usage_stats"), stream=True, stream_options=options)["stream_options"]
        == options
    )


@pytest.mark.parametrize("field", ["background", "previous_response_id", "conversation"])
def test_a_response_that_needs_the_engines_memory_is_refused(field: str) -> None:
    values: list[object] = [True, "resp_1", {"id": "x"}]
    for value in values:
        error = refused("responses", **{field: value})
        assert (error.reason, error.param) == (Reason.PARAMETER_NOT_ALLOWED, field)
    for harmless in (None, False):
        assert field not in sent("responses", **{field: harmless})


@pytest.mark.parametrize("name", LEAST)
def test_an_unknown_field_is_stripped_or_refused(name: str) -> None:
    call = read_as(name, brand_new=1, extra_body={"priority": 1, "cache_salt": "x"})
    assert call.stripped == ("brand_new", "extra_body")
    assert not {"brand_new", "extra_body"} & json.loads(write(call, *TARGET)).keys()
    error = refused(name, STRICT, brand_new=None)
    assert (error.reason, error.param) == (Reason.UNKNOWN_PARAMETER, "brand_new")


def test_a_huge_unknown_name_is_not_repeated_whole() -> None:
    error = refused("chat", STRICT, **{"x" * 100_000: 1})
    assert error.param == "x" * 64
    assert len(error.message) < 200


LIMITS = [  # field, the most that passes, the least that does not
    ("n", 8, 9), ("n", 1, 0), ("n", 8, 100_000), ("n", None, 1.0), ("n", 2, True), ("n", 2, "2"), ("n", 2, -1),
    ("best_of", 8, 9), ("top_logprobs", 20, 21), ("top_logprobs", 0, -1), ("top_logprobs", None, 1.5),
    ("logprobs", 20, 21), ("logprobs", True, "1"), ("logprobs", None, -1),
    ("stop", ["x,"] * 16, ["x"] * 17), ("stop", "a,b" * 20, ["x" * 70_000]),
    ("logit_bias", {str(token): 1 for token in range(1024)}, {str(token): 1 for token in range(1025)}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "good", "bad"), LIMITS)
def test_a_limited_field_passes_up_to_its_limit(field: str, good: object, bad: object) -> None:
    assert sent("chat", STRICT, **{field: good})[field] == good
    error = refused("chat", **{field: bad})
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, field)


def test_stop_sequences_of_the_anthropic_dialect_are_limited_too() -> None:
    assert refused("messages", stop_sequences=["x"] * 17).param == "stop_sequences"
    assert sent("messages", stop_sequences=["x"] * 16)


def test_tools_and_schemas_are_at_most_256_kib_together() -> None:
    half = [{"description": "x" * 130_000}]
    assert sent("chat", tools=half)
    error = refused("chat", tools=half, response_format={"schema": "x" * 140_000})
    assert (error.reason, error.param) == (Reason.INVALID_PARAMETER, "tools")
    assert refused("chat", guided_regex="x" * 270_000).param == "guided_regex"


def test_every_group_but_the_plain_one_is_used_on_chat() -> None:
    assert set(TABLES["chat"].groups.values()) == set(Group)


# ---- media

HOSTS = FieldRules(
    parameters=frozenset(), media_hosts=frozenset({"img.example", "cdn.example:8443"}), reject_unknown=False
)
GOOD_URLS = [
    "data:image/png;base64,AAAA", "DATA:text/plain,x", "data:,http://10.0.0.1/", "https://img.example/a.png",
    "http://IMG.example", "https://img.example?x=1", "https://img.example#f", "HTTPS://cdn.example:8443/a",
]  # fmt: skip
BAD_URLS = [
    "http://169.254.169.254/latest/meta-data", "http://2130706433/", "http://0x7f000001/", "http://127.1/", "http://[::1]/",
    "https://img.example.evil/", "https://evil/img.example", "https://img.example@evil/", "https://evil@img.example/",
    "https://img.example:80@evil/", "https://img.example\\@evil/", "https://img.example\\.evil/", "https://img.example:443/",
    "https://cdn.example/", "https://img.example./", "https://img.example%2eevil/", "https:/img.example/", "https:img.example",
    "//img.example/", "https:///img.example/", "https://\timg.example/", "https://img.exam\nple/", " https://img.example/",
    "\x00https://img.example/", "ftp://img.example/", "file:///etc/passwd", "file://img.example/x", "/etc/passwd", "", "x",
    "javascript:1", "https://img\u3002example/", "https://ımg.example/", "gopher://img.example", " data:image/png,x",
    "https://img.example \r\nx: y/", "https://img.example,evil/", "https://img.example;evil/", "blob:https://img.example/",
]  # fmt: skip


def user(*parts: object) -> list[dict[str, object]]:
    return [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "t"}, *parts]}]


def wrappings(url: str) -> list[tuple[str, dict[str, object]]]:
    source = {"type": "url", "url": url}
    image = {"type": "image", "source": source}
    return [
        ("chat", {"messages": user({"type": "image_url", "image_url": {"url": url, "detail": "low"}})}),
        ("chat", {"messages": user({"image_url": url})}),
        ("chat", {"messages": user({"type": "audio_url", "audio_url": {"url": url}})}),
        ("chat", {"messages": user({"type": "video_url", "video_url": {"url": url}})}),
        ("chat", {"messages": user({"type": "file_url", "file_url": {"url": url}})}),
        ("chat", {"messages": [{"role": "tool", "content": ["x", {"type": "image_url", "image_url": {"url": url}}]}]}),
        ("messages", {"messages": user(image)}),
        ("messages", {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [image]})}),
        ("messages", {"messages": user({"type": "document", "source": {"type": "content", "content": [image]}})}),
        ("messages", {"system": [image]}),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        (
            "responses",
            {"input": [{"type": "function_call_output", "output": [{"type": "input_file", "file_url": url}]}]},
        ),
        ("responses", {"input": [{"type": "computer_call_output", "output": {"type": "x", "image_url": url}}]}),
        ("responses", {"tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}),
        ("embeddings", {"messages": user({"type": "image_url", "image_url": {"url": url}})}),
        ("embeddings", {"input": ["a", {"image_url": url}]}),
    ]


@pytest.mark.parametrize("url", GOOD_URLS)
def test_data_and_listed_hosts_pass(url: str) -> None:
    for name, more in wrappings(url):
        assert sent(name, HOSTS, **more), name


@pytest.mark.parametrize("url", BAD_URLS)
def test_c098_any_other_url_is_a_forbidden_target(url: str) -> None:
    for name, more in wrappings(url):
        error = refused(name, HOSTS, **more)
        assert (error.reason, error.param) == (Reason.FORBIDDEN_TARGET, next(iter(more))), (name, more)
        assert url not in error.message or not url.strip("x")


def test_without_a_list_only_data_passes() -> None:
    for name, more in wrappings("https://img.example/a.png"):
        assert refused(name, **more).reason is Reason.FORBIDDEN_TARGET
    for name, more in wrappings("data:image/png;base64,AAAA"):
        assert sent(name, **more)


@pytest.mark.parametrize("key", ['"image_\\u0075rl"', '"\\u0069mage_url"', '"image\\u005furl"', '"image_ur\\u006C"'])
def test_a_key_spelt_with_escapes_hides_nothing(key: str) -> None:
    for inner in (
        '"http://10.0.0.1/"',
        '{"\\u0075rl":"http://10.0.0.1/"}',
        '{"url":"x","url":"h\\u0074tp://10.0.0.1/"}',
    ):
        part = '{"type":"image_url",' + key + ":" + inner + "}"
        body = '{"model":"m","messages":[{"role":"user","content":[' + part + "]}]}"
        with pytest.raises(GatewayError) as caught:
            read(BY_NAME["chat"], body.encode(), HOSTS)
        assert caught.value.reason is Reason.FORBIDDEN_TARGET


def test_the_last_of_two_urls_is_the_one_that_is_judged() -> None:
    body = '{"model":"m","messages":[{"role":"user","content":"x","content":[{"image_url":"data:,","image_url":"http://x/"}]}]}'
    with pytest.raises(GatewayError) as caught:
        read(BY_NAME["chat"], body.encode(), HOSTS)
    assert caught.value.reason is Reason.FORBIDDEN_TARGET


HARMLESS = [
    ("chat", {"messages": [{"role": "user", "content": 'see {"image_url": {"url": "http://10.0.0.1/"}} and [x]'}]}),
    ("chat", {"messages": user({"type": "text", "text": '{"url":"http://10.0.0.1/"}'})}),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"url":"http://x/"}'}}]}]}),
    ("chat", {"messages": user({"type": "image_url", "image_url": None}), "metadata": {"url": "http://x/"}}),
    ("chat", {"tools": [{"function": {"parameters": {"properties": {"url": {"type": "string", "default": "http://x/"}}}}}]}),
    ("messages", {"messages": user({"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "http://10.0.0.1/"}})}),
    ("messages", {"messages": user({"type": "image", "source": {"type": "base64", "media_type": "x", "data": "http://x"}})}),
    ("messages", {"messages": user({"type": "search_result", "source": "https://docs.example/", "content": []})}),
    ("responses", {"input": [{"type": "function_call", "arguments": '{"url":"http://x/"}', "name": "f"}]}),
    ("responses", {"input": [{"role": "assistant", "content": [
        {"type": "output_text", "text": "x", "annotations": [{"type": "url_citation", "url": "http://x/"}]}]}]}),
    ("embeddings", {"input": ['{"url":"http://x/"}', "[1]"]}),
    ("completions", {"prompt": ['{"image_url":"http://x/"}']}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more"), HARMLESS)
def test_a_url_that_no_engine_fetches_is_just_text(name: str, more: dict[str, Any]) -> None:
    assert sent(name, **more).items() >= more.items()


@pytest.mark.parametrize("key", ["prompt_embeds", "image_embeds", "audio_embeds", "video_embeds"])
def test_tensors_in_parts_are_refused_like_the_field(key: str) -> None:
    error = refused("chat", HOSTS, messages=user({"type": key, key: "AAAA"}))
    assert error.reason is Reason.PARAMETER_NOT_ALLOWED


def test_messages_that_are_not_objects_are_refused_where_parts_could_hide() -> None:
    assert refused("chat", messages=["x", ["y"]]).reason is Reason.INVALID_PARAMETER


def test_a_flood_of_parts_is_searched_instead_of_walked() -> None:
    flood = [{"role": "user", "content": [{}]}] * 70_000
    assert len(json.dumps(flood)) > LARGE_BYTES
    assert sent("chat", messages=flood)["messages"] == flood
    flood.append({"role": "user", "content": [{"image_url": "data:,"}]})
    assert refused("chat", messages=flood).param == "messages"


def test_an_image_in_a_large_but_ordinary_prompt_is_walked() -> None:
    big = user(
        {"type": "text", "text": "word, " * 60_000}, {"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}
    )
    assert refused("chat", HOSTS, messages=big).reason is Reason.FORBIDDEN_TARGET
