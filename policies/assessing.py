"""What is thought of a request when it comes: may it come, how long is it, where does it belong, may it wait?"""

from collections.abc import Sequence
from random import Random
from typing import Final

from policies import admission, classes, ordering, pool
from policies.decisions import Reason
from policies.eligibility import eligible
from policies.events import Finished, Outcome
from policies.length import Lengths
from policies.saturation import service_s
from policies.state.books import Books
from policies.state.claims import Claim
from policies.state.invariants import InvariantError
from policies.state.ledger import Attempt
from policies.state.queues import PoolQueue
from policies.state.tickets import Ticket
from policies.types import Band, InferenceRequest, Settings

_COMPLETED: Final = Outcome.COMPLETED  # a member found in its class costs as much as a call
CONFIRM_AFTER_S: Final = 1.0  # a shorter answer renews nothing in the prefix index: its dispatch has just done so


class Assessing:
    """Reads the books; makes tickets, and counts what they ask for."""

    def __init__(self, books: Books, lengths: Lengths | None) -> None:
        self._books = books
        self._given = lengths
        self._settings: Settings | None = None
        self._arrivals = 0
        self.lengths = lengths or Lengths()

    def change(self, settings: Settings) -> None:
        """The settings are these now. What was learned of lengths stays, unless they are to be got otherwise."""
        before, self._settings = self._settings, settings
        if self._given is None and (before is None or before.length != settings.length):
            self.lengths = Lengths(settings.length)

    def refuses(self, request: InferenceRequest, queues: Sequence[PoolQueue], now: float) -> Reason | None:
        """Why a request is refused whatever room there is."""
        if not self._current.admitting:
            return Reason.DRAINING
        if request.deadline_s <= now:
            return Reason.DEADLINE_EXCEEDED
        for queue in queues:
            if queue.up:
                return None
        return Reason.PARTITION_UNAVAILABLE if request.tenant in self._books.closed else Reason.NO_ENDPOINT

    def ticket(
        self, request: InferenceRequest, queues: Sequence[PoolQueue], now: float, claim: Claim | None = None
    ) -> Ticket:
        """How long it is, what is cached of it, where it belongs."""
        lengths = self.lengths
        band = self._current.bands.get(request.band) or _least_urgent(self._current)
        self._arrivals += 1
        ticket = Ticket(request, queues[0], self._arrivals, band)
        ticket.tokens = ticket.weight = lengths.prompt_tokens(request)
        ticket.output = lengths.predict(request)
        ticket.weight -= self._books.find_cached(ticket, now)
        if len(queues) > 1:
            ticket.pool = pool.choose(queues, ticket, lengths)
        ticket.long = 0 < ticket.pool.long_from < ticket.weight
        ticket.pool.work.came(ticket.weight, ticket.long)
        share = ticket.share = ticket.pool.shares[band.name]
        if now >= share.renew_s:
            classes.came(ticket.pool, share, now)
        if ticket.pool.lenders:
            self._promise(ticket)
        if claim is not None:
            ticket.take_claim(claim, claim.terms)
        return ticket

    def expect(self, ticket: Ticket) -> None:
        """When the first token of one that may have to wait is due, and when it is expected."""
        self._promise(ticket)
        ticket.ttft_s = admission.expected_s(ticket.pool, ticket)

    def may_not_wait(self, ticket: Ticket, random: Random, now: float) -> Reason | None:
        """Why a request for which there is no room may not join the queue."""
        reason = self._may_not_wait(ticket, random, now)
        if reason is not None:
            self._books.victims = []  # nobody leaves for one that is refused
        return reason

    def _may_not_wait(self, ticket: Ticket, random: Random, now: float) -> Reason | None:
        settings = self._current
        if not settings.queueing:
            return Reason.DRAINING
        if ticket.expires_s <= now:
            return Reason.QUEUE_TIMEOUT
        if ticket.claim is not None and (reason := ticket.claim.may_not_wait(ticket.request.body_bytes)) is not None:
            return reason
        if not self._finds_place(ticket):
            return Reason.OVERLOADED
        match admission.on_late(ticket, ticket.share.forecasts[ticket.long], now):
            case "reject":
                return Reason.OVERLOADED
            case "downgrade":
                self._downgrade(ticket)
                if not self._finds_place(ticket):
                    return Reason.OVERLOADED
        if settings.shed == "off" or not ticket.band.sheddable:
            return None
        return Reason.OVERLOADED if admission.is_shed(ticket, settings, random.random()) else None

    def has_place(self, ticket: Ticket) -> bool:
        """Whether the queue takes one more of its band."""
        if not self._current.queueing or self._books.full(ticket.request, ticket.band, self._current):
            return False
        return ticket.claim is None or ticket.claim.may_not_wait(ticket.request.body_bytes) is None

    def _finds_place(self, ticket: Ticket) -> bool:
        """The same, or somebody less urgent may leave for it."""
        self._books.victims = []
        return self.has_place(ticket) or self._books.make_room(ticket, self._current)

    def _downgrade(self, ticket: Ticket) -> None:
        """It cannot be in time: it waits with the next less urgent class."""
        lower = [band for band in self._current.bands.values() if band.rank > ticket.band.rank]
        if lower:
            ticket.band = min(lower, key=lambda band: band.rank)
            ticket.share = ticket.pool.shares[ticket.band.name]
            self._promise(ticket)
            ticket.note = "downgraded"

    @staticmethod
    def _promise(ticket: Ticket) -> None:
        ticket.due_s = ordering.due_s(ticket.band, ticket.request.arrived_s, ticket.tokens)

    def stand_in_line(self, ticket: Ticket) -> None:
        """Give it its place in its line."""
        up = ticket.pool.up or list(self._books.loads.values())
        ordering.place(ticket, self._current.ordering, up[0])

    def move_on(self) -> None:
        """Who waits in a pool that has no engine any more goes to one of its model that has."""
        books = self._books
        for ticket in [each for queue in books.pools.values() if not queue.up for each in queue.waiting()]:
            others = [queue for queue in books.queues_of(ticket.request) if queue.up]
            if books.belongs(ticket) and others:
                books.dequeue(ticket)
                self._move(ticket, others)
                self.stand_in_line(ticket)
                books.enqueue(ticket)

    def came_back(self, ticket: Ticket) -> None:
        """It may have to wait now, if it never did. If it was at every engine of its pool and may try again, it goes to a pool of
        its model that has another."""
        self._promise(ticket)
        if len(ticket.tried) < self._current.max_attempts and not eligible(ticket.pool.up, ticket.tried):
            others = [queue for queue in self._books.queues_of(ticket.request) if eligible(queue.up, ticket.tried)]
            if others and self._books.belongs(ticket):
                self._move(ticket, others)

    def _move(self, ticket: Ticket, others: Sequence[PoolQueue]) -> None:
        ticket.pool = pool.choose(others, ticket, self.lengths)
        ticket.long = 0 < ticket.pool.long_from < ticket.weight
        if ticket.band.name not in ticket.pool.shares:
            ticket.band = _least_urgent(self._current)  # its class was gone before that pool came
        ticket.share = ticket.pool.shares[ticket.band.name]

    def reestimate(self, ticket: Ticket, attempt: Attempt, now: float) -> None:
        """Its answer is longer than was thought: reserve what one that has become so long may still become."""
        generated = int((now - attempt.sent_s) / attempt.load.endpoint.decode_s)
        ticket.output = self.lengths.given(ticket.request, generated)
        attempt.reestimates += 1
        prompt = ticket.tokens - attempt.cached
        attempt.reserve(max(attempt.kv_tokens, prompt + int(ticket.output.held) * ticket.sequences))

    def first_token(self, ticket: Ticket, attempt: Attempt, now: float) -> None:
        """Learn how long it really took, from the arrival and from the dispatch."""
        pool = ticket.pool
        ticket.share.forecasts[ticket.long].learn(ticket.ttft_s, now - ticket.request.arrived_s)
        pool.services[ticket.long].learn(service_s(attempt.load, attempt.tokens), now - attempt.sent_s)

    def finished(self, ticket: Ticket, attempt: Attempt, event: Finished, now: float) -> None:
        """Take what the engine counted."""
        request, lengths, answer_tokens = ticket.request, self.lengths, event.output_tokens
        if event.prompt_tokens:
            lengths.learn_prompt(request, event.prompt_tokens)
        completed = event.outcome is _COMPLETED
        if answer_tokens is not None and request.max_output_tokens:
            natural = completed and answer_tokens < request.max_output_tokens * ticket.sequences
            lengths.learn(request, answer_tokens, natural)
        prefixes, name = self._books.prefixes, attempt.load.name
        if prefixes is None:
            return
        prefixes.used(name, attempt.tokens + (answer_tokens or 0), now)
        if completed and now - attempt.sent_s > CONFIRM_AFTER_S:
            prefixes.confirm(name, request, now)
        if event.cached_tokens is not None and attempt.matched:
            prefixes.reported(name, attempt.matched, event.cached_tokens)

    @property
    def _current(self) -> Settings:
        if self._settings is None:
            raise InvariantError("the first event must be SettingsChanged")
        return self._settings


def expiry(ticket: Ticket, now: float) -> Reason:
    """Why one that waited is dropped when its time is over."""
    if ticket.request.deadline_s <= now:
        return Reason.DEADLINE_EXCEEDED
    if not eligible(ticket.pool.up, ticket.tried):
        return Reason.NO_ENDPOINT
    return Reason.QUEUE_TIMEOUT


def _least_urgent(settings: Settings) -> Band:
    """For a request whose band the operator has just removed."""
    return max(settings.bands.values(), key=lambda band: band.rank)
