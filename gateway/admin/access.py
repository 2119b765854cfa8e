"""Who may do what on the admin listener.

With tokens configured, every path but the two health checks and (unless `metrics_auth`) the metrics asks for one;
`operate` includes `read`. Missing, malformed and unknown tokens get the same bytes. Tokens are compared by digest, all
of them, in constant time.

Without tokens the listener is on loopback and open, and then the danger is a web page in an operator's browser: a name
in `host` (DNS rebinding) and a foreign `origin` (a form that posts) are refused. A foreign origin always is.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web

from gateway.admin.answers import error_answer
from gateway.admin.operations import Role, Token

_SCHEME = "bearer "


class Access:
    """Decides over requests by the configured tokens."""

    def __init__(self, tokens: Sequence[Token], *, metrics_auth: bool = False) -> None:
        self.change(tokens, metrics_auth=metrics_auth)

    def change(self, tokens: Sequence[Token], *, metrics_auth: bool) -> None:
        """These are the tokens from the next request on. `metrics_auth`: one is asked for on `/metrics` too."""
        self._tokens = [(token, token.sha256.lower().encode()) for token in tokens]
        self.metrics_auth = metrics_auth

    def refusal(self, request: web.Request, role: Role) -> web.Response | None:
        """The answer to a request that may not use a path of `role`, None if it may."""
        if _from_a_foreign_page(request, trust_names=bool(self._tokens)):
            return error_answer(403, "cross_origin", "Requests from web pages of other origins are not served.")
        if not self._tokens:
            return None
        token = self.token(request)
        if token is None:
            challenge = {"www-authenticate": 'Bearer realm="forebay admin"'}
            return error_answer(401, "unauthorized", "A valid admin token is required.", challenge)
        if role == "operate" and token.role != "operate":
            return error_answer(403, "forbidden", "This token may read, not operate.")
        return None

    def token(self, request: web.Request) -> Token | None:
        """The configured token a request carries."""
        given = request.headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() != _SCHEME:
            return None
        secret = given[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(secret).hexdigest().encode()
        found = None
        for token, expected in self._tokens:
            if hmac.compare_digest(digest, expected):
                found = token
        return found


def _from_a_foreign_page(request: web.Request, *, trust_names: bool) -> bool:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        return True
    return not trust_names and not _is_local_name(request.host)


def _is_local_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
