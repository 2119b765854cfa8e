"""Names of client headers that may be passed on to engines (`upstream.forward_headers`), and those that may not."""

import re
from typing import Any

from gateway.config.kinds import Kind
from gateway.config.problems import shown

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]{1,128}")

# http.md 5.2
_HOP_BY_HOP = (
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
)
_WHO_THE_CLIENT_IS = ("authorization", "x-api-key", "cookie", "forwarded", "x-real-ip", "x-priority")
_ENGINES_OBEY = ("x-vllm-priority", "x-data-parallel-rank", "x-session-id", "endpoint-load-metrics-format")
_WRITTEN_BY_THE_GATEWAY = (
    *("host", "content-length", "content-type", "content-encoding", "accept", "accept-encoding", "user-agent"),
    *("x-request-id", "traceparent", "tracestate", "baggage", "anthropic-version", "anthropic-beta"),
)
PROTECTED = frozenset((*_HOP_BY_HOP, *_WHO_THE_CLIENT_IS, *_ENGINES_OBEY, *_WRITTEN_BY_THE_GATEWAY))
PROTECTED_PREFIXES = ("proxy-", "x-forwarded-", "x-tenant-", "x-forebay-", "x-gateway-")


class HeaderName(Kind):
    """A header name that is not protected; lower case in the program."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"must be a header name (no '_': such headers are dropped), not {shown(value)}")
        name = value.lower()
        if name in PROTECTED or name.startswith(PROTECTED_PREFIXES):
            raise ValueError(f"{value} is protected: the gateway sets it or keeps it from engines")
        return name

    def describe(self) -> dict[str, object]:
        return {"type": "string", "pattern": "^[A-Za-z0-9!#$%&'*+.^`|~-]{1,128}$"}
