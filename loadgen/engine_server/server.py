"""One simulated engine on its port: routes, refusals, and the model behind them.

Routes are those of its dialect that generate, and its probes. Any other path is a trap: 404, and in the log.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from loadgen.engine_server import tokens
from loadgen.engine_server.answer import Limits, plan
from loadgen.engine_server.ask import Ask, Refusal, decoded
from loadgen.engine_server.dialects import DIALECTS
from loadgen.engine_server.exchange import JSON, Choice, Exchange, Served
from loadgen.engine_server.faults import Faults
from loadgen.engine_server.http import Request
from loadgen.engine_server.kv_events import Publisher, ToldCache, blocks
from loadgen.engine_server.listening import Listening
from loadgen.engine_server.log import Entry, RequestLog
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import Pacemaker
from loadgen.engine_server.probes import NOT_ALLOWED
from loadgen.engine_server.striking import Striking
from loadgen.faults import Fault
from loadgen.sim.engine import EngineModel
from loadgen.sim.profile import load
from loadgen.sim.sequence import Sequence

UNAUTHORIZED = Refusal(401, "Unauthorized", raw={"error": "Unauthorized"})
NOT_FOUND = b'{"detail":"Not Found"}'


class SimulatedEngine:
    """One engine; `start` listens, `stop` ends it as SIGTERM does."""

    def __init__(self, options: EngineOptions, index: int) -> None:
        profile = load(options.profile)
        profile = profile.with_fp8_kv() if options.fp8_kv else profile
        self.options = options
        self.dialect = DIALECTS[options.dialect]
        self.index = index
        self.profile = profile
        self.model_name = options.served_model_name or profile.model
        self.model = EngineModel(profile, options.settings, options.seed + index)
        self.faults = Faults(options.faults, options.seed + index)
        self._publisher = self._open_cache()
        self.pacemaker = Pacemaker(self.model, self._emit)
        self.log = RequestLog(index, options.log)
        self.metrics = self.dialect.metrics(self.model_name, options)
        self.shows_cached = options.shows_cached
        self.stream_interval = options.stream_interval
        self.exchanges: set[Exchange] = set()
        self.peak = 0
        self.stopping = False
        self.emitted_s = 0.0  # when a token was given out last
        self._in_haste = False
        self._probes = self.dialect.probes(self)
        self._striking = Striking(self)
        self._requests = 0
        self._limits = Limits(context=options.settings.max_model_len, seed=options.seed, room=self.dialect.room)
        self.listening = Listening(options.host, options.port + index if options.port else 0, self._handle, self.faults)
        self.listening.keep_alive_s = options.keep_alive_s

    async def start(self) -> None:
        """Listen on the engine's port, and publish on another if it was asked to."""
        if self._publisher is not None:
            self._publisher.open()
        await self.listening.open()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.listening.port

    async def stop(self) -> None:
        """As on SIGTERM: streams in flight may end within the shutdown timeout, then they end with `abort`."""
        self.stopping = True
        deadline = time.monotonic() + self.options.shutdown_timeout_s
        while self.exchanges and time.monotonic() < deadline and not self._in_haste:
            await asyncio.sleep(0.01)
        self.pacemaker.stop()
        for exchange in list(self.exchanges):
            exchange.cut_short()
        await self.listening.close()
        if self._publisher is not None:
            await self._publisher.close()
        self.log.shut()

    def hurry(self) -> None:
        """Wait for nothing any more while stopping."""
        self._in_haste = True

    def reset(self) -> None:
        """Forget log, lag and faults; requests in flight go on."""
        self.log.clear()
        self.pacemaker.lag = type(self.pacemaker.lag)()
        self.faults.replace(())
        self.peak = len(self.exchanges)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached text, unless a request holds some of it; whether that was done."""
        cleared = self.model.scheduler.kv.clear()
        if self._publisher is not None:
            self._publisher.flush()
        return cleared

    def over(self, exchange: Exchange, how: str) -> None:
        """An exchange ended: stop what still runs for it, soon or at once, and book it."""
        self.exchanges.discard(exchange)
        left, open_s = how == "client left", time.monotonic() - exchange.entry.accepted_s
        lag_s = self.dialect.abort_lag_s(exchange.ask.stream, open_s) if left else 0.0
        if not left or self.faults.find("ignore_abort") is None:
            for choice in exchange.choices:
                self._abort(choice.sequence, lag_s)
        self._book(exchange, how)

    def _abort(self, sequence: Sequence, lag_s: float) -> None:
        if lag_s:
            asyncio.get_running_loop().call_later(lag_s, self.pacemaker.abort, sequence)
        else:
            self.pacemaker.abort(sequence)

    def _book(self, exchange: Exchange, how: str) -> None:
        entry, choices, now = exchange.entry, exchange.choices, time.monotonic()
        entry.cached_tokens = sum(choice.sequence.cached or 0 for choice in choices)
        entry.output_tokens = sum(choice.given for choice in choices)
        entry.preemptions = sum(choice.sequence.preemptions for choice in choices)
        started = [choice.sequence.started_s for choice in choices if choice.sequence.started_s is not None]
        entry.started_s = min(started, default=None)
        self.log.close(entry, how, now)
        reasons = [choice.answer.finish if how == "finished" else "abort" for choice in choices]
        self.metrics.ended(entry, reasons, now)

    def _emit(self, sequences: list[Sequence]) -> None:
        shrunk = self.faults.find("kv_shrink")
        self.model.shrink_kv(0.0 if shrunk is None else shrunk.amount)
        self.metrics.stepped(self.model)
        if sequences:
            self.emitted_s = time.monotonic()
        for sequence in sequences:
            if isinstance(sequence, Served):
                sequence.choice.token()
        if self._publisher is not None:
            self._publisher.flush()

    def _open_cache(self) -> Publisher | None:
        """Have the model's cache write down what it does, for whoever publishes that."""
        if self.options.kv_events is None:
            return None
        scheduler = self.model.scheduler
        scheduler.kv = cache = ToldCache(scheduler.kv.total, self.options.settings.block_size)
        return Publisher(self.options.kv_events, self.index, cache, self.faults, self.dialect.kv_batch)

    def _hashes(self, text: bytes, salt: bytes) -> list[int]:
        hashes = tokens.chain(text, salt, self.options.settings.block_size)
        return hashes if self._publisher is None else blocks(text, hashes, self.options.settings.block_size)

    def _handle(self, request: Request) -> None:
        """One whole request from a connection."""
        path, probes = request.path, self._probes
        route = self.dialect.routes.get(path)
        generates = route is not None and request.method == b"POST"
        kind = "generate" if generates else "trap"
        text = self.dialect.texts.get(path) if request.method == b"POST" else None
        if path in probes.paths:
            kind = "admin" if path in probes.admin else "probe"
        elif text is not None:
            kind = "text"
        entry = self.log.open(request, kind)
        if not self._has_key(request):
            self._say(request, entry, 401, self.dialect.error_body(UNAUTHORIZED, route or ""))
        elif generates and route is not None:
            self._generate(route, request, entry)
        elif path in probes.paths:
            probes.handle(request, entry)
        elif text is not None:
            self._text(request, entry, text)
        else:
            known = route is not None or path in self.dialect.texts
            self._say(request, entry, 405 if known else 404, NOT_ALLOWED if known else NOT_FOUND)

    def _text(self, request: Request, entry: Entry, answer: Callable[[dict[str, Any], int], dict[str, Any]]) -> None:
        """Answer what needs no model."""
        try:
            self._check_head(request)
            data = decoded(request.body)
            self._check_model(str(data.get("model", self.model_name)))
            body = msgspec.json.encode(answer(data, self.options.settings.max_model_len))
            self._say(request, entry, 200, body)
        except Refusal as refusal:
            route = "messages" if request.path.startswith(b"/v1/messages") else ""
            self._say(request, entry, refusal.status, self.dialect.error_body(refusal, route))

    def _check_model(self, name: str) -> None:
        if self.dialect.knows_models and name != self.model_name:
            raise Refusal(404, f"The model `{name}` does not exist.", "NotFoundError", "model")

    def _has_key(self, request: Request) -> bool:
        key = self.options.api_key
        right = request.header(b"authorization") == b"Bearer " + key.encode()
        return not key or right or not self.dialect.needs_key(request.path)

    def _say(self, request: Request, entry: Entry, status: int, body: bytes) -> None:
        entry.status = status
        self.log.close(entry, "answered", time.monotonic())
        request.connection.answer(status, [JSON], body)

    def _generate(self, route: str, request: Request, entry: Entry) -> None:
        try:
            self._check_head(request)
            asked = self.dialect.read(route, request.body, self.options.markers)
            self._note(entry, asked, request)
            facts = {"path": entry.path, "model": asked.model, "salt": asked.salt}
            self._striking.die_of(request, facts)
            if not self._striking.struck(request, entry, facts):
                self._answer(request, entry, asked, self._striking.of_stream(asked, facts))
        except Refusal as refusal:
            self._say(request, entry, refusal.status, self.dialect.error_body(refusal, route))

    def _check_head(self, request: Request) -> None:
        kind = (request.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")

    def _note(self, entry: Entry, asked: Ask, request: Request) -> None:
        header = request.header(b"x-vllm-priority") if self.dialect.reads_headers else None  # wins over the body
        if header is not None and header.lstrip(b"-").isdigit():
            asked.priority = int(header)
        entry.model, entry.stream, entry.cache_salt = asked.model, asked.stream, asked.salt
        entry.priority, entry.canary = asked.priority, asked.marker.canary
        entry.sequences, entry.max_tokens = asked.n, asked.max_tokens

    def _answer(self, request: Request, entry: Entry, asked: Ask, faults: list[Fault]) -> None:
        self._check_model(asked.model)
        exchange = Exchange(self, request, asked, entry, self._name(request, asked))
        choices = self._choices(exchange)
        refusal = self._full(choices)
        if refusal is not None and (self.dialect.head_at_once or not asked.stream):
            raise refusal
        entry.faults = tuple(fault.name for fault in faults)
        entry.prompt_tokens = sum(choice.answer.prompt_tokens for choice in choices[:: asked.n])
        self.exchanges.add(exchange)
        self.peak = max(self.peak, len(self.exchanges))
        exchange.start(choices, faults)
        if refusal is not None:
            exchange.fail(refusal)
        elif self.stopping and self.dialect.empties_itself:
            exchange.cut_short()
        elif self.faults.find("health_lie") is None:
            self.pacemaker.submit([choice.sequence for choice in choices])

    def _name(self, request: Request, asked: Ask) -> str:
        """The id of a request: the client's own where the dialect listens to that."""
        self._requests += 1
        header = request.header(b"x-request-id") if self.dialect.reads_headers else None
        if header is not None:
            return header.decode("latin-1")
        return asked.id or f"{self.index:x}{self._requests:08x}"

    def _choices(self, exchange: Exchange) -> list[Choice]:
        asked = exchange.ask
        namespace = asked.namespace.encode()
        choices: list[Choice] = []
        for prompt in asked.prompts:
            for copy in range(asked.n):
                answer = plan(asked, prompt, copy, self.profile, self._limits)
                sequence = Served(
                    f"{exchange.id}-{len(choices)}",
                    prompt_tokens=answer.prompt_tokens,
                    output_tokens=len(answer.pieces),
                    hashes=self._hashes(prompt + answer.text, namespace),
                    priority=asked.priority,
                )
                sequence.reads_cache = asked.reads_cache
                sequence.max_new_tokens = asked.max_tokens
                sequence.choice = Choice(exchange, len(choices), answer, sequence)
                choices.append(sequence.choice)
        return choices

    def _full(self, choices: list[Choice]) -> Refusal | None:
        """Why the queue has no place for them, unless one of less importance gives up its own."""
        first = choices[0].sequence
        while (reason := self.model.would_refuse(len(choices), first.prompt_tokens)) is not None:
            victim = self.dialect.victim(self.model, first)
            if not isinstance(victim, Served):
                self.metrics.refused[reason] += 1
                return self.dialect.full(reason)
            loser = victim.choice.exchange
            loser.fail(Refusal(503, "The request is aborted by a higher priority request.", "SERVICE_UNAVAILABLE"))
            for choice in loser.choices:
                self.pacemaker.abort(choice.sequence)
        return None
