"""The route table is closed: exact bytes, one upstream path each, everything else 404 or 405."""

import pytest

from gateway.dialects.routes import ROUTES, Dialect, Kind, Route, match, named_model
from gateway.errors import GatewayError
from policies.decisions import Reason

GOOD = [
    ("POST", "/v1/chat/completions", "chat", "/v1/chat/completions", Kind.GENERATE, Dialect.OPENAI),
    ("POST", "/v1/completions", "completions", "/v1/completions", Kind.GENERATE, Dialect.OPENAI),
    ("POST", "/v1/responses", "responses", "/v1/responses", Kind.GENERATE, Dialect.OPENAI),
    ("POST", "/v1/messages", "messages", "/v1/messages", Kind.GENERATE, Dialect.ANTHROPIC),
    ("POST", "/v1/embeddings", "embeddings", "/v1/embeddings", Kind.PREFILL, Dialect.OPENAI),
    ("POST", "/v1/rerank", "rerank", "/v1/rerank", Kind.PREFILL, Dialect.OPENAI),
    ("POST", "/rerank", "rerank", "/v1/rerank", Kind.PREFILL, Dialect.OPENAI),
    ("POST", "/v1/score", "score", "/v1/score", Kind.PREFILL, Dialect.OPENAI),
    ("POST", "/score", "score", "/v1/score", Kind.PREFILL, Dialect.OPENAI),
    ("POST", "/tokenize", "tokenize", "/tokenize", Kind.TEXT, Dialect.OPENAI),
    ("POST", "/detokenize", "detokenize", "/detokenize", Kind.TEXT, Dialect.OPENAI),
    ("POST", "/v1/messages/count_tokens", "count_tokens", "/v1/messages/count_tokens", Kind.TEXT, Dialect.ANTHROPIC),
    ("GET", "/v1/models", "models", "", Kind.LOCAL, Dialect.OPENAI),
    ("GET", "/v1/usage", "usage", "", Kind.LOCAL, Dialect.OPENAI),
    ("GET", "/livez", "livez", "", Kind.LOCAL, Dialect.OPENAI),
    ("GET", "/readyz", "readyz", "", Kind.LOCAL, Dialect.OPENAI),
]


def refused(method: bytes, target: bytes) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        match(method, target)
    return caught.value


@pytest.mark.parametrize(("method", "path", "name", "upstream", "kind", "dialect"), GOOD)
def test_each_row_of_the_table_is_found(
    method: str, path: str, name: str, upstream: str, kind: Kind, dialect: Dialect
) -> None:
    route = match(method.encode(), path.encode())
    assert (route.name, route.upstream_path, route.kind, route.dialect) == (name, upstream.encode(), kind, dialect)
    assert (route.method, route.path) == (method, path)


def test_the_table_has_no_row_beyond_these() -> None:
    assert {route.path for route in ROUTES} == {row[1] for row in GOOD} | {"/v1/models/{id}"}


@pytest.mark.parametrize("query", [b"?", b"?beta=true", b"?id=engine-3&x=/../sleep", b"??", b"?\xff"])
def test_the_query_string_is_dropped(query: bytes) -> None:
    assert match(b"POST", b"/v1/messages" + query).upstream_path == b"/v1/messages"


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "*", "/v1", "/v1/", "/V1/messages", "/v1/messages/", "//v1/messages", "/v1//messages", "/v1/./messages",
        "/v1/x/../messages", "/v1/messages%20", "/v1%2Fmessages", "/v1/message%73", "/v1/messages;x", "/v1\\messages",
        "/v1/messages#x", "v1/messages", " /v1/messages", "/v1/messages\t", "/v1/chat/completions/render", "/v1/usage/",
        "/invocations", "/metrics", "/health", "/load", "/pooling", "/classify", "/inference/v1/generate", "/sleep",
        "/wake_up", "/v1/load_lora_adapter", "/generate", "/flush_cache", "/abort_request", "/kv_cache_events",
        "/v1/models/", "/v1/modelsx", "/livez/", "/admin/v1/drain", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_any_other_path_is_not_found(method: str, path: str) -> None:
    assert refused(method.encode(), path.encode()).reason is Reason.NOT_FOUND


SPELLINGS = [
    "/{}", "//{}", "/./{}", "/x/../{}", "/{}/", "/{}%2f", "/%2e/{}", "/{};a=b", "/{}?x", "/v1/{}", "/v1/../{}", "/{}#",
    "/v1/chat/completions/../../../{}", "/v1/models/../../{}", "/v1/models/..%2f..%2f{}", "/livez/../{}", "/\\{}",
    "http://engine/{}", "/v1/chat/completions/{}", "/{}.json",
]  # fmt: skip
ADMIN = ["sleep", "wake_up", "metrics", "load", "health", "version", "invocations", "reset_prefix_cache", "collective_rpc",
         "v1/load_lora_adapter", "start_profile", "flush_cache", "update_weights_from_disk", "abort_request", "generate"]  # fmt: skip


@pytest.mark.parametrize("admin", ADMIN)
def test_c098_no_spelling_of_an_admin_path_reaches_an_engine(admin: str) -> None:
    for spelling in SPELLINGS:
        for method in (b"GET", b"POST", b"PUT", b"DELETE"):
            try:
                route = match(method, spelling.format(admin).encode())
            except GatewayError as error:
                assert error.status in (404, 405)
            else:
                assert route.upstream_path == b"", spelling  # a model of that name is looked up here and not found


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE", b"CONNECT", b"post"])
def test_a_wrong_method_is_told_the_right_one(method: bytes) -> None:
    error = refused(method, b"/v1/chat/completions?x")
    assert (error.reason, error.status, error.allow) == (Reason.METHOD, 405, "POST")


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/m", b"/livez", b"/readyz"])
@pytest.mark.parametrize("method", [b"POST", b"HEAD", b"OPTIONS"])
def test_local_routes_are_for_get(method: bytes, path: bytes) -> None:
    assert refused(method, path).allow == "GET"


def test_a_model_is_asked_for_as_it_stands_or_as_the_sdks_spell_it() -> None:
    names = ["llama", "meta-llama/Llama 3", "mödel"]
    assert match(b"GET", b"/v1/models/llama").name == "model"
    for target, name in {
        b"/v1/models/llama": "llama",
        b"/v1/models/llama?x=1": "llama",
        b"/v1/models/meta-llama%2FLlama%203": "meta-llama/Llama 3",
        b"/v1/models/meta-llama/Llama%203": "meta-llama/Llama 3",
        b"/v1/models/m%C3%B6del": "mödel",
    }.items():
        assert named_model(target, names) == name
    for target in (
        b"/v1/models/Llama",
        b"/v1/models/llama/",
        b"/v1/models/%6clama",
        b"/v1/models/\xff",
        b"/v1/models/..",
    ):
        assert named_model(target, names) is None


def test_a_route_is_the_same_object_wherever_it_is_met() -> None:
    first: Route = match(b"POST", b"/v1/score")
    assert first is match(b"POST", b"/v1/score?again")
    assert first is not match(b"POST", b"/score")
