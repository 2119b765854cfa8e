"""What a server does with requests: the ways in (http.md 3.3), and which of them lead to an engine.

head (checked) -> route -> tenant -> media type, declared length    here, before the body is read
body -> dialect -> facts -> core -> engine -> answer                `run.py`
"""

import time
from typing import Final, cast

import msgspec

from gateway import describe, usage
from gateway.callers import Caller
from gateway.describe import Wishes
from gateway.dialects.answers import model_answer, models_answer
from gateway.dialects.routes import Kind, in_anthropic, match, named_model
from gateway.errors import GatewayError
from gateway.http.exchange import Exchange
from gateway.http.head import Head
from gateway.run import Run
from gateway.services import Services
from gateway.tenants.identify import expired
from policies.decisions import Reason

_LOCAL: Final = Kind.LOCAL
_TEXT: Final = Kind.TEXT
_OPEN: Final = frozenset({"livez", "readyz"})  # no key is asked for
USAGE_EVERY_S: Final = 1.0  # for each key
_JSON: Final = b"application/json"
_PLAIN: Final = b"content-type: text/plain\r\ncache-control: no-store\r\n"


class Pipeline:
    """Handles the requests of a server."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._usage_told: dict[tuple[str, str], float] = {}  # when, by tenant and key

    def opened(self, exchange: Exchange, head: Head) -> None:
        """A head has come: everything that can be refused before the body is read is refused here."""
        services = self.services
        wishes: Wishes | None = head.meaning
        if wishes is None:
            route = match(head.method, head.path)
            if b"anthropic-version" in head.fields:
                route = in_anthropic(route)
            wishes = head.meaning = describe.wishes(head, route, services.given)
            wishes.record.client = services.client_address(exchange)
        run = exchange.context = Run(services, exchange, wishes)
        if wishes.route.kind is _LOCAL:
            if wishes.route.name not in _OPEN:
                run.caller = self._identify(run, head)
                run.is_known = True
            return
        if services.refusing:
            raise GatewayError(Reason.DRAINING)
        caller = wishes.caller
        if caller is None or wishes.book is not services.tenants.book or caller.expires_s is not None:
            caller = self._identify(run, head)
        run.accept(caller)
        if wishes.odd is not None:
            services.tenants.note(wishes.odd)
        if wishes.route.kind is _TEXT and wishes.route.name not in caller.routes:
            raise GatewayError(Reason.ROUTE_FORBIDDEN)
        if not wishes.media_checked:
            _check_media_type(head)
            wishes.media_checked = True
        if exchange.content_length is not None and exchange.content_length > services.body_bytes:
            raise GatewayError(Reason.BODY_TOO_LARGE)

    def _identify(self, run: Run, head: Head) -> Caller:
        """Who asks; kept with the head, so that it is asked once while the same book of keys is in force and the key
        cannot expire. Raises GatewayError."""
        services, wishes = self.services, run.wishes
        book = services.tenants.book
        caller = wishes.caller
        if caller is None or wishes.book is not book or expired(caller):
            caller = services.tenants.identify(head, wishes.record.client)
            wishes.belong(caller, book, services.given.bands)
            run.record.tenant, run.record.key, run.record.band = caller.tenant, caller.key, wishes.band
        return caller

    def received(self, exchange: Exchange) -> None:
        """A request is complete."""
        run: Run = exchange.context
        if run.route.kind is _LOCAL:
            self._answer_here(exchange, run)
        else:
            run.start()

    def refuse(self, exchange: Exchange, error: GatewayError, *, close: bool) -> None:
        """A request is refused before all of it was read, or because of how it was written."""
        run = exchange.context if exchange.context is not None else Run(self.services, exchange, None)
        if exchange.head is None:
            self.services.events.limited("info", error.reason, "a message was refused", reason=error.reason)
        # Its traceback leads to the reader of the connection, which keeps it: a cycle for each bad key, and the collector took a
        # tenth of the time of a flood of them, 7 ms at once.
        run.refuse(error.with_traceback(None), close=close)

    def vanished(self, exchange: Exchange, *, stalled: bool) -> None:
        """The client left before its answer was complete."""
        if exchange.context is not None:
            exchange.context.gone(stalled)

    def _answer_here(self, exchange: Exchange, run: Run) -> None:
        name = run.route.name
        if name == "livez":
            exchange.respond(200, _PLAIN + run.about(), b"ok")
        elif name == "readyz":
            ready = self.services.ready
            exchange.respond(200 if ready else 503, _PLAIN + run.about(), b"ok" if ready else b"not ready")
        elif name == "usage":
            self._answer_usage(exchange, run)
        else:
            self._answer_models(exchange, run)

    def _answer_usage(self, exchange: Exchange, run: Run) -> None:
        caller, now = run.caller, time.monotonic()
        wait_s = self._usage_told.get((caller.tenant, caller.key), -USAGE_EVERY_S) + USAGE_EVERY_S - now
        if wait_s > 0:
            message = "Usage is told once a second."
            run.refuse(GatewayError(Reason.QUOTA_REQUESTS, message, param="usage", retry_after_s=wait_s))
            return
        self._usage_told[caller.tenant, caller.key] = now
        told = usage.of_caller(self.services.dispatcher.core.metering, caller.tenant, caller.key)
        lines = b"content-type: application/json\r\ncache-control: no-store\r\n" + run.about() + run.limit_lines()
        exchange.respond(200, lines, msgspec.json.encode(told))
        run.end(200, "", "")

    def _answer_models(self, exchange: Exchange, run: Run) -> None:
        dialect, names = run.route.dialect, list(run.caller.models)
        name = "" if run.route.name == "models" else named_model(cast(Head, exchange.head).path, names)
        if name is None:
            run.refuse(GatewayError(Reason.MODEL_UNKNOWN, param="model"))
            return
        body = model_answer(dialect, name) if name else models_answer(dialect, names)
        exchange.respond(200, b"content-type: application/json\r\n" + run.about() + run.limit_lines(), body)
        run.end(200, "", "")


def _check_media_type(head: Head) -> None:
    coding = head.fields.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise GatewayError(Reason.CONTENT_CODING)
    given = head.fields.get(b"content-type", b"")
    if given == _JSON:
        return
    kind, _, parameter = given.lower().replace(b" ", b"").partition(b";")
    if kind != _JSON or parameter.replace(b'"', b"") not in (b"", b"charset=utf-8"):
        raise GatewayError(Reason.MEDIA_TYPE)
