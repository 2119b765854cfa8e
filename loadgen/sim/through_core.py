"""The real core in front of simulated engines: events in, decisions carried out, as the gateway does it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from loadgen.report.record import Outcome
from loadgen.sim.call import BLOCK_TOKENS, Call
from loadgen.sim.fleet import Member
from loadgen.sim.loop import Floor
from loadgen.sim.policy import Policy
from loadgen.sim.router import Seen
from loadgen.workload.prompts import MARK_TOKENS
from policies.core import Core, PoolView
from policies.decisions import Decision, Dispatch, Reason
from policies.events import (
    Arrived,
    Bounced,
    Cancelled,
    Cause,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    LoadObserved,
    SettingsChanged,
    Tick,
)
from policies.events import Outcome as Ended
from policies.fingerprint import MOST_BYTES, TOKEN_BYTES, block_at, depth_bytes
from policies.types import Endpoint, InferenceRequest

HEAD_TOKENS = 1024  # scheduling.md 3
ENVELOPE_BYTES = 200  # of JSON around the text
CAPACITY = (
    Reason.OVERLOADED,
    Reason.EVICTED,
    Reason.QUEUE_TIMEOUT,
    Reason.BACKEND_SATURATED,
    Reason.NO_ENDPOINT,
    Reason.PARTITION_UNAVAILABLE,
    Reason.DRAINING,
    Reason.DEADLINE_EXCEEDED,
)
QUOTA = (  # the statuses are those of gateway/errors.py: 429
    Reason.QUOTA_REQUESTS,
    Reason.QUOTA_TOKENS,
    Reason.CONCURRENCY,
    Reason.BUDGET,
    Reason.QUEUE_FULL,
)

_BROKEN = {False: (Outcome.ERROR_STREAM, "backend_stream_interrupted"), True: (Outcome.ERROR_STATUS, "backend_refused")}

Recorder = Callable[[float, Event, Sequence[Decision]], None]


class ThroughCore:
    """A front that asks `core`. `record` gets every event with its decisions; `check` audits the core after each."""

    isolates = True  # tenancy.md 7

    def __init__(self, floor: Floor, core: Core, members: Sequence[Member], policy: Policy) -> None:
        self.record: Recorder | None = None
        self.check = False
        self._floor = floor
        self._core = core
        self._members = members
        self._policy = policy
        self._model = members[0].profile.model
        self._context_tokens = max(member.settings.max_model_len for member in members)
        self._numbers = {member.name: number for number, member in enumerate(members)}
        self._endpoints: dict[str, Endpoint] = {}
        self._calls: dict[str, Call] = {}

    def begin(self, endpoints: Iterable[Endpoint]) -> None:
        """Settings and endpoints, before the first request."""
        self._hand_in(SettingsChanged(settings=self._policy.settings), 0.0)
        for endpoint in endpoints:
            self._endpoints[endpoint.name] = endpoint
            self._hand_in(EndpointUp(endpoint=endpoint), 0.0)

    def arrived(self, call: Call, now: float) -> None:
        """Told as `Arrived`."""
        self._calls[call.id] = call
        self._hand_in(Arrived(request=self._request(call)), now)

    def first_token(self, call: Call, now: float) -> None:
        """Told as `FirstToken`."""
        self._hand_in(FirstToken(request_id=call.id, attempt=call.attempt), now)

    def finished(self, call: Call, now: float) -> None:
        """Told as `Finished`, with usage."""
        self._over(call, Ended.COMPLETED, now)

    def left(self, call: Call, now: float) -> None:
        """Told as `Cancelled`."""
        self._calls.pop(call.id, None)
        self._hand_in(Cancelled(request_id=call.id), now)

    def refused(self, call: Call, full: bool, now: float) -> None:
        """A full engine lets the core try again; a prompt that is too long ends there."""
        if full:
            self._hand_in(Bounced(request_id=call.id, attempt=call.attempt, cause=Cause.STATUS_503), now)
            return
        self._floor.refuse(call, Outcome.ERROR_STATUS, Reason.TOO_LONG.value, now)
        self._over(call, Ended.FAILED, now)

    def bounced(self, call: Call, cause: Cause, retry_after_s: float | None, now: float) -> None:
        """Told as `Bounced`: the attempt came back without a byte of an answer."""
        if call.id in self._calls:
            event = Bounced(request_id=call.id, attempt=call.attempt, cause=cause, retry_after_s=retry_after_s)
            self._hand_in(event, now)

    def broke(self, call: Call, refused: bool, now: float) -> None:
        """Told as `Finished`: the answer ended in its middle, or the engine `refused` what was asked for."""
        if self._calls.pop(call.id, None) is not None:
            how = Ended.REFUSED if refused else Ended.FAILED
            self._floor.refuse(call, *_BROKEN[refused], now)
            self._hand_in(Finished(request_id=call.id, attempt=call.attempt, outcome=how), now)

    def well(self, engine: int, well: bool, now: float) -> None:
        """Told as `EndpointUp` or `EndpointDown`."""
        name = self._members[engine].name
        self._hand_in(EndpointUp(endpoint=self._endpoints[name]) if well else EndpointDown(name=name), now)

    def observed(self, seen: Sequence[Seen | None], observed_s: float, now: float) -> None:
        """Told as one `LoadObserved` for each engine."""
        for member, look in zip(self._members, seen, strict=True):
            if look is None:
                continue
            event = LoadObserved(
                endpoint=member.name,
                observed_s=observed_s,
                running=look.running,
                waiting=look.waiting,
                kv_usage=look.kv_usage,
                kv_tokens=member.kv_tokens,
            )
            self._hand_in(event, now)

    def next_wakeup(self) -> float | None:
        """The core's own."""
        return self._core.next_wakeup()

    def tick(self, now: float) -> None:
        """Told as `Tick`."""
        self._hand_in(Tick(), now)

    def pools(self) -> list[PoolView]:
        """How the core sees its pools."""
        return self._core.pools()

    def _over(self, call: Call, outcome: Ended, now: float) -> None:
        self._calls.pop(call.id, None)
        sample = call.sample
        event = Finished(
            request_id=call.id,
            attempt=call.attempt,
            outcome=outcome,
            prompt_tokens=sample.prompt_tokens,
            cached_tokens=sample.cached_tokens,
            output_tokens=sample.output_tokens,
        )
        self._hand_in(event, now)

    def _hand_in(self, event: Event, now: float) -> None:
        decisions = self._core.handle(event, now)
        if self.record is not None:
            self.record(now, event, decisions)
        if self.check:
            self._core.check()
        for decision in decisions:
            self._carry_out(decision, now)

    def _carry_out(self, decision: Decision, now: float) -> None:
        call = self._calls[decision.request_id]
        if isinstance(decision, Dispatch):
            call.attempt = decision.attempt
            self._floor.send(call, self._numbers[decision.endpoint], now)
            return
        del self._calls[call.id]
        self._floor.refuse(call, _outcome(decision.reason), decision.reason.value, now)

    def _request(self, call: Call) -> InferenceRequest:
        planned = call.planned
        text_bytes = planned.input_tokens * TOKEN_BYTES
        room = max(1, self._context_tokens - planned.input_tokens)
        return InferenceRequest(
            id=call.id,
            tenant=planned.tenant,
            model=self._model,
            band=planned.priority,
            route="chat",
            streamed=call.sample.streamed,
            arrived_s=call.arrived_s,
            deadline_s=call.arrived_s + self._policy.total_s,
            prompt_tokens=planned.input_tokens,
            max_output_tokens=min(planned.max_tokens or self._policy.max_output_tokens, room),
            sequences=1,
            session=planned.session,
            body_bytes=text_bytes + ENVELOPE_BYTES,
            prefix=self._prefix(call.hashes),
            text_bytes=text_bytes,
            head=_head(call),
            messages=len(planned.blocks) if self._policy.settings.tenants else 0,
            names_most=planned.max_tokens is not None,
        )

    def _prefix(self, hashes: tuple[int, ...]) -> tuple[int, ...]:
        """The chain at the gateway's block size, taken from the chain at the engine's."""
        affinity = self._policy.settings.affinity
        if affinity is None:
            return ()
        ends = _block_ends(affinity.block_tokens)
        return tuple([hashes[end - 1] for end in ends[: bisect_right(ends, len(hashes))]])


@cache
def _block_ends(block_tokens: int) -> list[int]:
    """Where the gateway's blocks end, in blocks of the engine."""
    most = block_at(MOST_BYTES, block_tokens)
    return [depth_bytes(blocks, block_tokens) // (BLOCK_TOKENS * TOKEN_BYTES) for blocks in range(1, most + 1)]


def _outcome(reason: Reason) -> Outcome:
    if reason in CAPACITY:
        return Outcome.REJECTED_CAPACITY
    return Outcome.REJECTED_QUOTA if reason in QUOTA else Outcome.ERROR_STATUS


def _head(call: Call) -> int:
    """The chain where the system prompt ends, or after `HEAD_TOKENS`; definitions of tools stand before it."""
    blocks = call.planned.blocks
    last = max((place for place, one in enumerate(blocks) if one.role == "system"), default=None)
    if last is None:
        return 0
    until = sum(one.tokens for one in blocks[: last + 1]) + MARK_TOKENS
    full = min(until, HEAD_TOKENS) // BLOCK_TOKENS
    return call.hashes[full - 1] if 0 < full <= len(call.hashes) else 0
