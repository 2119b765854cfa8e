"""From a target to the bytes of its requests: heads are made once, bodies when they are about to be sent."""

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from loadgen.client.exchange import Request
from loadgen.client.pool import Pool
from loadgen.client.values import OTHERS, LengthControl, Target
from loadgen.workload.bodies import PATHS, Terms, answer_tokens, body
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import Prose

ANTHROPIC_VERSION = "2023-06-01"
_OTHER = re.compile(r"[^A-Za-z0-9._-]")  # what no header of the gateway's may hold
Origin = tuple[str, str, int]


class Pools:
    """One pool of connections for each server."""

    def __init__(self, connect_s: float) -> None:
        """None yet; `connect_s` bounds each attempt to open a connection."""
        self._connect_s = connect_s
        self._pools: dict[Origin, Pool] = {}

    def of(self, target: Target) -> Pool:
        """The pool of the target's server."""
        parts = urlsplit(target.url)
        tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if tls else 80)
        found = self._pools.get((parts.scheme, host, port))
        if found is None:
            found = self._pools[parts.scheme, host, port] = Pool(host, port, tls=tls, connect_s=self._connect_s)
        return found

    @property
    def local_failures(self) -> dict[str, int]:
        """What this machine refused, by name of the error."""
        return dict(sum((pool.local_failures for pool in self._pools.values()), Counter()))

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()


class Route:
    """Makes the requests to one target. `endpoint` names it where several are taken in turn."""

    def __init__(self, target: Target, pools: Pools, control: LengthControl = "none", endpoint: str = "") -> None:
        """Nothing is opened here."""
        self.endpoint = endpoint
        self._terms = Terms(model=target.model, api=target.api, control=control)
        self._target = target
        self._pool = pools.of(target)
        self._base = urlsplit(target.shown).path.removesuffix("/v1")
        self._post = self._head("POST", PATHS[target.api])

    def planned(self, planned: Planned, prose: Prose, answers: Mapping[int, str] | None) -> Request:
        """A request of a schedule. `answers`: the texts received so far in its session, by turn."""
        about = f"x-forebay-priority: {_token(planned.priority)}\r\n" if planned.priority else ""
        if planned.session:
            about += f"x-forebay-session: {_token(planned.session)}\r\n"
        return self._request(about.encode(), body(self._terms, planned, prose, answers), keep=False)

    def answer_tokens(self, planned: Planned) -> int:
        """How long its answer is to be, of what is planned."""
        return answer_tokens(self._terms, planned)

    def question(self, fields: Mapping[str, object]) -> Request:
        """A request by itself, with those fields of the body; its answer is kept."""
        return self._request(b"", msgspec.json.encode({"model": self._target.model, **fields}), keep=True)

    def get(self, path: str) -> Request:
        """GET `path` below `/v1`; its answer is kept."""
        return Request(pool=self._pool, head=self._head("GET", f"/v1/{path}") + b"\r\n", body=b"", api=None, keep=True)

    def _request(self, about: bytes, content: bytes, *, keep: bool) -> Request:
        head = b"%b%bcontent-length: %d\r\n\r\n" % (self._post, about, len(content))
        return Request(pool=self._pool, head=head, body=content, api=self._target.api, keep=keep)

    def _head(self, method: str, path: str) -> bytes:
        target = self._target
        lines = {"host": urlsplit(target.shown).netloc, "user-agent": "forebay-bench"}
        if method == "POST":
            lines["content-type"] = "application/json"
        if target.key and target.api == "messages":
            lines |= {"x-api-key": target.key}
        elif target.key:
            lines["authorization"] = f"Bearer {target.key}"
        elif target.userinfo:
            lines["authorization"] = f"Basic {b64encode(target.userinfo.encode()).decode()}"
        if target.api == "messages":
            lines["anthropic-version"] = ANTHROPIC_VERSION
        lines |= {name.lower(): value for name, value in target.headers.items()}
        head = f"{method} {self._base}{path} HTTP/1.1\r\n"
        return (head + "".join(f"{name}: {value}\r\n" for name, value in lines.items())).encode("latin-1")


def routes_to(targets: Sequence[Target], pools: Pools, control: LengthControl) -> list[Route]:
    """The routes to targets that are taken in turn."""
    return [Route(target, pools, control, target.server if len(targets) > 1 else "") for target in targets]


class Routes:
    """Which target a tenant's next request goes to: its own in turn, else those of all others in turn."""

    def __init__(self, routes: Mapping[str, Sequence[Route]], first: int = 0) -> None:
        """`first`: which one of several begins."""
        self._routes = routes
        self._next = dict.fromkeys(routes, first)

    def take(self, tenant: str) -> Route:
        """The route of the tenant's next request."""
        name = tenant if tenant in self._routes else OTHERS
        routes, number = self._routes[name], self._next[name]
        self._next[name] = number + 1
        return routes[number % len(routes)]


def _token(name: str) -> str:
    return _OTHER.sub(".", name)
