"""Which requests exist: a closed table of method and path, compared as raw bytes and never decoded.

The query string is cut off and dropped. Whatever is not spelled exactly as here is another path and thus a 404; a known
path under another method is a 405. The path sent upstream is a constant of the row (http.md 1.2 and 2).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from gateway.errors import GatewayError
from policies.decisions import Reason


class Kind(StrEnum):
    """What a route costs: tokens in and out, tokens in, the engine's API process only, or nothing upstream."""

    GENERATE = "generate"
    PREFILL = "prefill"
    TEXT = "text"  # closed unless granted (`allow.routes`)
    LOCAL = "local"


class Dialect(StrEnum):
    """Whose error bodies, events and fields a route speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """One row, the same object wherever it is met. `name` is the label of metrics and of `allow.routes`; `upstream_path` is empty on local routes."""

    name: str
    method: str
    path: str
    upstream_path: bytes
    kind: Kind
    dialect: Dialect


def _post(name: str, path: str, kind: Kind, dialect: Dialect = Dialect.OPENAI, upstream: str = "") -> Route:
    sent = (upstream or path).encode()
    return Route(name=name, method="POST", path=path, upstream_path=sent, kind=kind, dialect=dialect)


def _local(name: str, path: str) -> Route:
    return Route(name=name, method="GET", path=path, upstream_path=b"", kind=Kind.LOCAL, dialect=Dialect.OPENAI)


MODELS: Final = _local("models", "/v1/models")
MODEL: Final = _local("model", "/v1/models/{id}")
_IN_ANTHROPIC: Final = {route: replace(route, dialect=Dialect.ANTHROPIC) for route in (MODELS, MODEL)}

ROUTES: Final = (
    _post("chat", "/v1/chat/completions", Kind.GENERATE),
    _post("completions", "/v1/completions", Kind.GENERATE),
    _post("responses", "/v1/responses", Kind.GENERATE),
    _post("messages", "/v1/messages", Kind.GENERATE, Dialect.ANTHROPIC),
    _post("embeddings", "/v1/embeddings", Kind.PREFILL),
    _post("rerank", "/v1/rerank", Kind.PREFILL),
    _post("rerank", "/rerank", Kind.PREFILL, upstream="/v1/rerank"),
    _post("score", "/v1/score", Kind.PREFILL),
    _post("score", "/score", Kind.PREFILL, upstream="/v1/score"),
    _post("tokenize", "/tokenize", Kind.TEXT),
    _post("detokenize", "/detokenize", Kind.TEXT),
    _post("count_tokens", "/v1/messages/count_tokens", Kind.TEXT, Dialect.ANTHROPIC),
    MODELS,
    MODEL,
    _local("usage", "/v1/usage"),
    _local("livez", "/livez"),
    _local("readyz", "/readyz"),
)

_MODEL_PREFIX: Final = b"/v1/models/"
_TABLE: Final = {(route.method.encode(), route.path.encode()): route for route in ROUTES if route is not MODEL}
_METHODS: Final = {route.path.encode(): route.method for route in ROUTES if route is not MODEL}


def match(method: bytes, target: bytes) -> Route:
    """The route of a request line. Raises GatewayError: not_found, or method with `allow` set."""
    path = _path(target)
    route = _TABLE.get((method, path))
    return route if route is not None else _rest(method, path)


def in_anthropic(route: Route) -> Route:
    """The same route for a client that says `anthropic-version`: lists of models have two dialects."""
    return _IN_ANTHROPIC.get(route, route)


def named_model(target: bytes, names: Iterable[str]) -> str | None:
    """Which of `names` the target `/v1/models/{id}` asks for, if any.

    The target is not decoded: it is compared with each name as it stands and as the SDKs spell it (`/` as `%2F`).
    """
    asked = _path(target)[len(_MODEL_PREFIX) :]
    for name in names:
        if asked in (name.encode(), quote(name, safe="").encode(), quote(name).encode()):
            return name
    return None


def _path(target: bytes) -> bytes:
    cut = target.find(b"?")
    return target if cut < 0 else target[:cut]


def _rest(method: bytes, path: bytes) -> Route:
    if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
        if method == b"GET":
            return MODEL
        raise GatewayError(Reason.METHOD, allow="GET")
    allow = _METHODS.get(path)
    if allow is None:
        raise GatewayError(Reason.NOT_FOUND)
    raise GatewayError(Reason.METHOD, allow=allow)
