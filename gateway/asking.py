"""What a request is to the core: read by its dialect, of a model, with its sizes; and, under a new configuration, anew."""

from collections.abc import Mapping
from copy import copy

from gateway import describe
from gateway.callers import Caller, ServedModel, urgency
from gateway.clock import monotonic
from gateway.dialects.call import read
from gateway.request import Request
from gateway.telemetry.units import ms
from policies.types import Band, InferenceRequest


class Asking(Request):
    """A request that asks for a place."""

    deadline_s = 0.0  # on time.monotonic()
    _model: ServedModel

    def _describe(self) -> InferenceRequest:
        exchange, record, wishes = self.exchange, self.record, self.wishes
        record.bytes_in = exchange.body_bytes
        pieces = exchange.body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()  # the call holds it now; it stays counted until the answer begins
        self._call = call = read(self.route, body, self.caller.rules)
        record.stream, record.stripped = call.stream, call.stripped
        self._model = model = self.caller.model(call)
        record.model = model.name
        if call.prompt_bytes > model.most_prompt_bytes:
            raise describe.too_long(model)
        if call.stream and not call.wants_usage:
            self.strips_usage = True
        received_s = exchange.received_s
        self.deadline_s = deadline_s = received_s + wishes.total_s
        self._arrived_s = arrived_s = self.services.tenants.used_s[self.caller.key] = monotonic()
        record.read_ms = ms(arrived_s - received_s)
        self.count()
        counted = self.services.dispatcher.core.metering.counts_tokens
        facts = (record.request_id, self.caller, counted, received_s, deadline_s)
        return describe.request(call, model, wishes, facts)

    def is_of(self, caller: Caller, bands: Mapping[str, Band]) -> bool:
        """Whether it is what it would be if it came now from this caller. Raises GatewayError: it would be refused."""
        call, known = self._call, self.caller
        if call is None or caller.model(call) != self._model:
            return False
        band = urgency(self.wishes.asked_band, caller, bands).band
        return (caller.partition, caller.salt, band) == (known.partition, known.salt, self.wishes.band)

    def _described_anew(self, caller: Caller) -> InferenceRequest:
        call, record = self._call, self.record
        if call is None:
            raise RuntimeError("a request whose answer has begun does not wait")
        self.caller = caller
        self.wishes = copy(self.wishes)  # those of the head stay what they were
        self.wishes.belong(caller, self.services.tenants.book, self.services.given.bands)
        record.band = self.wishes.band
        self._model = model = caller.model(call)
        if call.prompt_bytes > model.most_prompt_bytes:
            raise describe.too_long(model)
        counted = self.services.dispatcher.core.metering.counts_tokens
        facts = (record.request_id, caller, counted, self.exchange.received_s, self.deadline_s)
        return describe.request(call, model, self.wishes, facts)
