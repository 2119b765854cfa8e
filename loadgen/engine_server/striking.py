"""Where the faults of an engine strike a request: it dies of it, answers otherwise, or spoils the stream."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.dying import die
from loadgen.engine_server.exchange import JSON
from loadgen.engine_server.http import Request
from loadgen.engine_server.log import Entry
from loadgen.engine_server.whole import WholeAnswer
from loadgen.faults import Fault, FaultError, Stage

if TYPE_CHECKING:
    from loadgen.engine_server.server import SimulatedEngine


class Striking:
    """The faults of one engine, applied. `facts` are what faults match: path, model, salt."""

    def __init__(self, engine: "SimulatedEngine") -> None:
        self._engine = engine

    def die_of(self, request: Request, facts: dict[str, str]) -> None:
        """End the process if it cannot bear this request, or so many at once."""
        poison, fragile = self._engine.faults.find("poison"), self._engine.faults.find("fragile")
        if poison is not None and poison.matches(facts) and (poison.value or "").encode() in request.body:
            die(poison)
        if fragile is not None and len(self._engine.exchanges) >= fragile.amount:
            die(fragile)

    def struck(self, request: Request, entry: Entry, facts: dict[str, str]) -> bool:
        """Apply the faults before the first byte; True if they took the request."""
        if self._engine.faults.find("startup") is not None:
            raise Refusal(503, "The engine is starting", "ServiceUnavailableError")
        hit = {fault.name: fault for fault in self._engine.faults.strike(Stage.HEAD, facts)}
        entry.faults = tuple(hit)
        if "status" in hit:
            self._refuse_by_fault(request, entry, hit["status"])
        elif "hang" in hit:
            request.connection.on_closed = self._hung(entry)
        elif "early_close" in hit:
            self._engine.log.close(entry, "fault:early_close", time.monotonic())
            reset = bool(hit["early_close"].number("reset", 0))
            (request.connection.reset if reset else request.connection.close)()
        elif hit:  # the ones that spoil a whole answer
            self._engine.log.close(entry, "fault:" + "+".join(hit), time.monotonic())
            done = request.connection.done
            WholeAnswer(request.connection, list(hit.values()), lambda how: done()).send(200, [JSON], b'{"choices":[]}')
        return bool(hit)

    def of_stream(self, asked: Ask, facts: dict[str, str]) -> list[Fault]:
        """The faults of this request's stream, with that of its marker."""
        hit = self._engine.faults.strike(Stage.STREAM, facts)
        if asked.marker.fault:
            try:
                hit.append(Fault(asked.marker.fault, time.monotonic()))
            except FaultError as error:
                raise Refusal(400, f"marker: {error}", "Bad Request") from error
        return hit

    def _refuse_by_fault(self, request: Request, entry: Entry, fault: Fault) -> None:
        status = int(fault.amount)
        headers = [JSON]
        if "retry_after" in fault.keys:
            headers.append((b"retry-after", fault.keys["retry_after"].encode()))
        kind = {429: "RateLimitError", 503: "ServiceUnavailableError", 500: "InternalServerError"}.get(
            status, "BadRequestError"
        )
        refusal = Refusal(status, f"simulated {status}", kind)
        entry.status = status
        self._engine.log.close(entry, "fault:status", time.monotonic())
        dialect = self._engine.dialect
        request.connection.answer(status, headers, dialect.error_body(refusal, dialect.routes[request.path]))

    def _hung(self, entry: Entry) -> Callable[[], None]:
        def left() -> None:
            entry.abort_seen_s = time.monotonic()
            self._engine.log.close(entry, "client left", time.monotonic())

        return left
