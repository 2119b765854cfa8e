"""One simulated engine on its port: routes, refusals, and the model behind them.

Routes are those of the `vllm` dialect that generate, and its probes. Any other path is a trap: 404, and in the log.
"""

import asyncio
import time
from collections.abc import Callable

from loadgen.engine_server import ask as asks
from loadgen.engine_server import tokens
from loadgen.engine_server.answer import Limits, plan
from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.exchange import JSON, Choice, Exchange, Served
from loadgen.engine_server.faults import Faults
from loadgen.engine_server.http import Request
from loadgen.engine_server.kv_events import Publisher, ToldCache, blocks
from loadgen.engine_server.listening import Listening
from loadgen.engine_server.log import Entry, RequestLog
from loadgen.engine_server.metrics import EngineMetrics
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import Pacemaker
from loadgen.engine_server.probes import Probes
from loadgen.engine_server.whole import WholeAnswer
from loadgen.faults import Fault, FaultError, Stage
from loadgen.sim.engine import EngineModel
from loadgen.sim.profile import load
from loadgen.sim.sequence import Sequence

GENERATE = {b"/v1/chat/completions": "chat", b"/v1/completions": "completions", b"/v1/messages": "messages"}
UNAUTHORIZED = Refusal(401, "Unauthorized", raw={"error": "Unauthorized"})
NOT_FOUND = b'{"detail":"Not Found"}'
NOT_ALLOWED = b'{"detail":"Method Not Allowed"}'


class SimulatedEngine:
    """One engine; `start` listens, `stop` ends it as SIGTERM ends vLLM."""

    def __init__(self, options: EngineOptions, index: int) -> None:
        profile = load(options.profile)
        profile = profile.with_fp8_kv() if options.fp8_kv else profile
        self.options = options
        self.index = index
        self.profile = profile
        self.model_name = options.served_model_name or profile.model
        self.model = EngineModel(profile, options.settings, options.seed + index)
        self.faults = Faults(options.faults, options.seed + index)
        self._publisher = self._open_cache()
        self.pacemaker = Pacemaker(self.model, self._emit)
        self.log = RequestLog(index, options.log)
        self.metrics = EngineMetrics(self.model_name, time.time())
        self.shows_cached = options.shows_cached
        self.stream_interval = options.stream_interval
        self.exchanges: set[Exchange] = set()
        self.peak = 0
        self.refusing = False  # shutting down: new requests are answered empty
        self._probes = Probes(self)
        self._requests = 0
        self._limits = Limits(context=options.settings.max_model_len, seed=options.seed)
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
        self.refusing = True
        deadline = time.monotonic() + self.options.shutdown_timeout_s
        while self.exchanges and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.pacemaker.stop()
        for exchange in list(self.exchanges):
            exchange.cut_short()
        await self.listening.close()
        if self._publisher is not None:
            await self._publisher.close()
        self.log.shut()

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
        """An exchange ended: stop what still runs for it, and book it."""
        self.exchanges.discard(exchange)
        ignores = how == "client left" and self.faults.find("ignore_abort") is not None
        for choice in exchange.choices:
            if not ignores:
                self.pacemaker.abort(choice.sequence)
        self._book(exchange, how)

    def _book(self, exchange: Exchange, how: str) -> None:
        entry, choices, now = exchange.entry, exchange.choices, time.monotonic()
        entry.cached_tokens = sum(choice.sequence.cached or 0 for choice in choices)
        entry.output_tokens = sum(choice.given for choice in choices)
        self.log.close(entry, how, now)
        for choice in choices:
            reason = choice.answer.finish if how == "finished" else "abort"
            self.metrics.finished["stop" if reason == "tool_calls" else reason] += 1
        if entry.first_s is not None:
            self.metrics.ttft.observe(entry.first_s - entry.accepted_s)
        self.metrics.e2e.observe(now - entry.accepted_s)

    def _emit(self, sequences: list[Sequence]) -> None:
        shrunk = self.faults.find("kv_shrink")
        self.model.shrink_kv(0.0 if shrunk is None else shrunk.amount)
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
        return Publisher(self.options.kv_events, self.index, cache, self.faults)

    def _hashes(self, text: bytes, salt: bytes) -> list[int]:
        hashes = tokens.chain(text, salt, self.options.settings.block_size)
        return hashes if self._publisher is None else blocks(text, hashes, self.options.settings.block_size)

    def _handle(self, request: Request) -> None:
        """One whole request from a connection."""
        route = GENERATE.get(request.path)
        if route is not None and request.method == b"POST":
            self._generate(route, request)
        elif request.path in self._probes.paths:
            self._probes.handle(request)
        else:
            entry = self.log.open(request, "trap")
            known = route is not None
            self._say(request, entry, 405 if known else 404, NOT_ALLOWED if known else NOT_FOUND)

    def _say(self, request: Request, entry: Entry, status: int, body: bytes) -> None:
        entry.status = status
        self.log.close(entry, "answered", time.monotonic())
        request.connection.answer(status, [JSON], body)

    def _generate(self, route: str, request: Request) -> None:
        entry = self.log.open(request, "generate")
        try:
            self._check_head(request)
            asked = asks.read(route, request.body, self.options.markers)
            self._note(entry, asked, request)
            facts = {"path": entry.path, "model": asked.model, "salt": asked.salt}
            if not self._struck(request, entry, facts):
                self._answer(request, entry, asked, self._stream_faults(asked, facts))
        except Refusal as refusal:
            self._say(request, entry, refusal.status, refusal.body(route))

    def _check_head(self, request: Request) -> None:
        key = self.options.api_key
        if key and request.header(b"authorization") != b"Bearer " + key.encode():
            raise UNAUTHORIZED
        kind = (request.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")

    def _note(self, entry: Entry, asked: Ask, request: Request) -> None:
        header = request.header(b"x-vllm-priority")  # wins over the body
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
        request.connection.answer(status, headers, refusal.body(GENERATE[request.path]))

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
        if asked.model != self.model_name:
            raise Refusal(404, f"The model `{asked.model}` does not exist.", "NotFoundError", "model")
        self._requests += 1
        header = request.header(b"x-request-id")
        request_id = f"{self.index:x}{self._requests:08x}" if header is None else header.decode("latin-1")
        exchange = Exchange(self, request, asked, entry, request_id)
        choices = self._choices(exchange, request_id)
        entry.faults = tuple(fault.name for fault in faults)
        entry.prompt_tokens = sum(choice.answer.prompt_tokens for choice in choices[:: asked.n])
        self.exchanges.add(exchange)
        self.peak = max(self.peak, len(self.exchanges))
        exchange.start(choices, faults)
        if self.refusing:
            exchange.cut_short()
        elif self.faults.find("health_lie") is None:
            self.pacemaker.submit([choice.sequence for choice in choices])

    def _choices(self, exchange: Exchange, request_id: str) -> list[Choice]:
        asked = exchange.ask
        salt = f"{asked.salt}\0{asked.model}".encode()
        choices: list[Choice] = []
        for prompt in asked.prompts:
            for copy in range(asked.n):
                answer = plan(asked, prompt, copy, self.profile, self._limits)
                sequence = Served(
                    f"{request_id}-{len(choices)}",
                    prompt_tokens=answer.prompt_tokens,
                    output_tokens=len(answer.pieces),
                    hashes=self._hashes(prompt + answer.text, salt),
                    priority=asked.priority,
                )
                sequence.reads_cache = asked.reads_cache
                sequence.choice = Choice(exchange, len(choices), answer, sequence)
                choices.append(sequence.choice)
        self._check_queue(choices)
        return choices

    def _check_queue(self, choices: list[Choice]) -> None:
        reason = self.model.would_refuse(len(choices), choices[0].answer.prompt_tokens)
        if reason is not None:
            self.metrics.refused[reason] += 1
            raise Refusal(503, f"The request queue is full ({reason}).", "Service Unavailable")
