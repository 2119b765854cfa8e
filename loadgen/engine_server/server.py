"""One simulated engine on its port: routes, refusals, and the model behind them.

Routes are those of its dialect that generate, and its probes. Any other path is a trap: 404, and in the log.
"""

import asyncio
import time
from collections.abc import Callable

from loadgen.engine_server import tokens
from loadgen.engine_server.answer import Limits, plan
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.dialects import DIALECTS
from loadgen.engine_server.dying import die
from loadgen.engine_server.exchange import JSON, Choice, Exchange, Served
from loadgen.engine_server.faults import Faults
from loadgen.engine_server.http import Request
from loadgen.engine_server.kv_events import Publisher, ToldCache, blocks
from loadgen.engine_server.listening import Listening
from loadgen.engine_server.log import Entry, RequestLog
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import Pacemaker
from loadgen.engine_server.probes import NOT_ALLOWED
from loadgen.engine_server.whole import WholeAnswer
from loadgen.faults import Fault, FaultError, Stage
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
        if path in probes.paths:
            kind = "admin" if path in probes.admin else "probe"
        entry = self.log.open(request, kind)
        if not self._has_key(request):
            self._say(request, entry, 401, self.dialect.error_body(UNAUTHORIZED, route or ""))
        elif generates and route is not None:
            self._generate(route, request, entry)
        elif path in probes.paths:
            probes.handle(request, entry)
        else:
            known = route is not None
            self._say(request, entry, 405 if known else 404, NOT_ALLOWED if known else NOT_FOUND)

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
            self._die_of(request, facts)
            if not self._struck(request, entry, facts):
                self._answer(request, entry, asked, self._stream_faults(asked, facts))
        except Refusal as refusal:
            self._say(request, entry, refusal.status, self.dialect.error_body(refusal, route))

    def _die_of(self, request: Request, facts: dict[str, str]) -> None:
        """End the process if it cannot bear this request, or so many at once."""
        poison, fragile = self.faults.find("poison"), self.faults.find("fragile")
        if poison is not None and poison.matches(facts) and (poison.value or "").encode() in request.body:
            die(poison)
        if fragile is not None and len(self.exchanges) >= fragile.amount:
            die(fragile)

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

    def _struck(self, request: Request, entry: Entry, facts: dict[str, str]) -> bool:
        """Apply the faults before the first byte; True if they took the request."""
        if self.faults.find("startup") is not None:
            raise Refusal(503, "The engine is starting", "ServiceUnavailableError")
        hit = {fault.name: fault for fault in self.faults.strike(Stage.HEAD, facts)}
        entry.faults = tuple(hit)
        if "status" in hit:
            self._refuse_by_fault(request, entry, hit["status"])
        elif "hang" in hit:
            request.connection.on_closed = self._hung(entry)
        elif "early_close" in hit:
            self.log.close(entry, "fault:early_close", time.monotonic())
            reset = bool(hit["early_close"].number("reset", 0))
            (request.connection.reset if reset else request.connection.close)()
        elif hit:  # the ones that spoil a whole answer
            self.log.close(entry, "fault:" + "+".join(hit), time.monotonic())
            done = request.connection.done
            WholeAnswer(request.connection, list(hit.values()), lambda how: done()).send(200, [JSON], b'{"choices":[]}')
        return bool(hit)

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
        self.log.close(entry, "fault:status", time.monotonic())
        request.connection.answer(status, headers, self.dialect.error_body(refusal, self.dialect.routes[request.path]))

    def _hung(self, entry: Entry) -> Callable[[], None]:
        def left() -> None:
            entry.abort_seen_s = time.monotonic()
            self.log.close(entry, "client left", time.monotonic())

        return left

    def _stream_faults(self, asked: Ask, facts: dict[str, str]) -> list[Fault]:
        hit = self.faults.strike(Stage.STREAM, facts)
        if asked.marker.fault:
            try:
                hit.append(Fault(asked.marker.fault, time.monotonic()))
            except FaultError as error:
                raise Refusal(400, f"marker: {error}", "Bad Request") from error
        return hit

    def _answer(self, request: Request, entry: Entry, asked: Ask, faults: list[Fault]) -> None:
        if self.dialect.knows_models and asked.model != self.model_name:
            raise Refusal(404, f"The model `{asked.model}` does not exist.", "NotFoundError", "model")
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
