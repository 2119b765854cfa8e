"""The gateway put together: what is built, in which order it starts, and how it goes down (http.md 12)."""

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version as installed_version

import uvloop

from gateway import assembly, blocking, tasks
from gateway.admin.access import Access
from gateway.admin.app import make_app
from gateway.admin.listener import Listener, listen, listen_privately
from gateway.admin.operations import Configured, Phase, Reloaded
from gateway.backends import Backends
from gateway.config import Loaded
from gateway.dispatcher import Dispatcher
from gateway.explain import Explain
from gateway.http.server import Server
from gateway.http.shared import Shared
from gateway.pipeline import Pipeline
from gateway.reload import Live, Reloader
from gateway.replica import Line, Replica, replicas
from gateway.roster import Roster
from gateway.services import Services
from gateway.telemetry import families, live, snapshot
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.lag import LagSampler
from gateway.telemetry.metrics import Metrics
from gateway.tenants import KeyView, Tenants, Throttle, listing
from gateway.usage import Sums
from policies.core import Core
from policies.decisions import Reason
from policies.events import LengthsRestored, SettingsChanged
from policies.metering import Metering
from policies.state.views import EndpointView, FlowView, ShareView, Totals

EVICT_BEFORE_END_S = 5.0  # what still waits so long before the end of the grace has no hope of finishing
LAST_WORDS_S = 1.0
GARBAGE = 20_000  # objects; a request leaves no cycles behind, so there is little to find


def serve(loaded: Loaded, replica: Replica | None = None) -> int:
    """Run a gateway until it is told to stop; returns the exit status. `replica`: it is one of several on its port."""
    assembly.raise_fd_limit()
    gc.freeze()  # what is loaded by now stays: collections need not walk it
    gc.set_threshold(GARBAGE, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Gateway(loaded, replica).run())


class Gateway:
    """One gateway process."""

    def __init__(self, loaded: Loaded, replica: Replica | None = None) -> None:
        self._loaded = loaded
        self._replica, self._line = replica, Line(replica)
        self._began = assembly.prepare(loaded.config, replicas(replica))
        self._version = installed_version("forebay")
        self._phase: Phase = "starting"
        self._stop, self._now = asyncio.Event(), asyncio.Event()  # a second signal: no more grace
        self._build()

    def _build(self) -> None:
        config = self._began.config
        self._lines, self._notes, self._events = assembly.open_logs(config, self._replica)
        self._metrics = Metrics(
            models=list(config.models),
            version=self._version,
            tenants=config.telemetry.tenant_labels,
            bands=self._began.settings.bands,
        )
        self._core = Core()
        self._recorder, self._explain = assembly.open_journal(config, self._events, self._replica), Explain()
        self._dispatcher = Dispatcher(self._core, assembly.recorded(self._recorder, self._explain))
        self._lengths = assembly.length_file(config, self._core, self._events, self._replica)
        roster = Roster(config, self._began.timers, self._dispatcher, self._events, self._replica)
        self._syncer = assembly.open_store(self._began, self._dispatcher, self._events, self._metrics, roster.divide)
        self._roster, self._backends = roster, Backends(config, self._version, roster.suspect)
        self._services = Services(
            dispatcher=self._dispatcher,
            backends=self._backends,
            tenants=Tenants(self._began.terms.book, Throttle(config.timeouts.scale)),
            metrics=self._metrics,
            access_log=AccessLog(self._lines, config.telemetry.log_format),
            events=self._events,
            terms=self._began.terms,
        )
        self._shared = Shared(
            handler=Pipeline(self._services),
            limits=self._began.limits,
            timers=self._began.timers,
            bounds=self._began.bounds,
            outbox=self._backends.outbox,
            high_water_bytes=config.limits.stream_buffer_bytes,
        )
        self._server = Server(self._shared)
        self._access = Access(config.admin.tokens, metrics_auth=config.admin.metrics_auth)
        self._tls = config.listen.tls.context() if config.listen.tls is not None else None
        keys = blocking.Blocking(self._services, self._syncer)
        parts = Live(
            services=self._services, shared=self._shared, roster=self._roster, access=self._access, tls=self._tls
        )
        parts.syncer, parts.follow_keys = self._syncer, keys.follow
        self.block_key = keys.block
        self._reloader = Reloader(self._loaded, self._began, parts)
        self.standings, self.reports = roster.standings, roster.reports
        self.drain_endpoint, self.undrain_endpoint = roster.drain, roster.undrain
        self._watch()

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop, then drain. Returns the exit status."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._report_exception)
        self._dispatcher.handle(SettingsChanged(settings=self._began.settings))
        self._dispatcher.tell_the_time()
        if self._lengths is not None:
            self._lengths.restore(lambda state: self._dispatcher.handle(LengthsRestored(state=state)))
        self._roster.start()
        listener = await self._listen()
        if listener is None:
            await self._roster.close()
            self._line.close()
            self._close_logs()
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.ask, "SIGHUP")
        for part in (self._reloader, self._lengths, self._syncer):
            if part is not None:
                part.start()
        sweeper = tasks.start(self._sweep(), "sweep")
        sampler = LagSampler(self._metrics.loop_lag.observe)
        self._phase, self._services.ready = "serving", True
        self._line.watch(lambda: self.start_drain("the end of the supervisor"))
        self._line.say("serving")
        self._roster.recall()  # who was drained while this process started was not told to it
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            sweeper.cancel()
            sampler.cancel()
            await self._shut(listener)
        return 0

    async def _listen(self) -> Listener | None:
        config = self._began.config
        try:
            listener = await self._listen_to_operators()
        except OSError as error:
            assembly.cannot_listen(self._loaded, "admin", error)
            return None
        if self._replica is not None:
            await self._roster.look()  # others serve meanwhile, and know the engines
        try:
            shared = self._replica is not None
            await self._server.listen(config.listen.host, config.listen.port, self._tls, shared_port=shared)
        except OSError as error:
            await listener.close()
            assembly.cannot_listen(self._loaded, "listen", error)
            return None
        self._events.info(
            "listening",
            data=f"{config.listen.host}:{config.listen.port}",
            admin=listener.where,
            version=self._version,
        )
        return listener

    async def _listen_to_operators(self) -> Listener:
        """On the admin port, or for the supervisor that has it."""
        admin, replica = self._began.config.admin, self._replica
        app = make_app(self, self._access, version=self._version, summed=replica is not None)
        return await (listen_privately(app, replica.address) if replica else listen(app, admin.host, admin.port))

    async def _sweep(self) -> None:
        late = False
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(self._services.timers.sweep_s)
            now = time.monotonic()
            late = not late and now - slept_s > 2 * self._services.timers.sweep_s
            if not late:  # who stood still reads first what has come meanwhile
                self._look_at_timers(now)

    def _look_at_timers(self, now: float) -> None:
        # Not in the loop above: its frame would keep the last request it has seen.
        self._server.sweep(now)
        for run in list(self._services.runs):
            run.check(now)
        self._backends.sweep(now)
        self._roster.sweep()
        self._dispatcher.tell_the_time()

    # -- going down ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Nobody refused, nothing cut that can end within the grace, and out in time."""
        began_s = time.monotonic()
        await self._reloader.close()
        timers, scale = self._services.timers, self._began.config.timeouts.scale
        evict_at_s = began_s + max(timers.drain_lag_s, timers.drain_grace_s - EVICT_BEFORE_END_S * scale)
        end_s = began_s + timers.drain_grace_s
        self._events.info("draining", running=len(self._services.runs), grace_s=timers.drain_grace_s)
        silent_s = min(timers.drain_idle_s, timers.keepalive_idle_s)
        self._server.see_off(replace(timers, keepalive_idle_s=silent_s, first_byte_of_connection_s=silent_s))
        await self._wait(began_s + timers.drain_lag_s, until_idle=False)
        await self._server.stop_accepting()
        await self._wait(evict_at_s, until_idle=True)
        self._services.refusing = True
        self._dispatcher.handle(SettingsChanged(settings=assembly.closed(self._reloader.current.settings)))
        await self._wait(end_s, until_idle=True)
        left = len(self._services.runs)
        for run in list(self._services.runs):
            run.interrupt(Reason.GATEWAY_SHUTDOWN)
        self._now.clear()
        await self._wait(time.monotonic() + LAST_WORDS_S * scale, until_idle=True)
        self._events.info("drained", cut=left, took_s=round(time.monotonic() - began_s, 3))

    async def _wait(self, until_s: float, *, until_idle: bool) -> None:
        """Until a moment, the end of all work where that is enough, or a second signal."""
        while (left_s := until_s - time.monotonic()) > 0 and not self._now.is_set():
            if until_idle and not self._services.runs and not self._shared.connections:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._now.wait(), min(left_s, 0.02))

    async def _shut(self, listener: Listener) -> None:
        self._services.ready = False
        self._line.close()
        await self._server.stop_accepting()
        self._server.abort()
        await self._roster.close()
        for part in (self._lengths, self._syncer):
            if part is not None:
                await part.close()
        await listener.close()
        self._backends.close()
        self._dispatcher.close()
        await asyncio.sleep(0)  # connections closed above say goodbye in the next turn of the loop
        if self._recorder is not None and not self._recorder.close():
            self._events.warning("the journal is incomplete", dropped=self._recorder.dropped)
        self._close_logs()

    def _close_logs(self) -> None:
        self._lines.close()
        self._notes.close()

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._now.set()
        else:
            self.start_drain("signal")

    # -- what the admin listener sees ------------------------------------------------------------------------------

    def phase(self) -> Phase:
        """Where in its life the gateway is."""
        return self._phase

    def totals(self) -> Totals:
        """Requests by what came of them."""
        queued = self._core.totals().queued
        return self._metrics.totals(queued=queued, inflight=len(self._services.runs) - queued)

    def queues(self) -> Sequence[FlowView]:
        """Every queue that holds something."""
        return self._core.flows()

    def shares(self) -> Sequence[ShareView]:
        """What tenants were served lately."""
        return self._core.shares(time.monotonic())

    def endpoints(self) -> Sequence[EndpointView]:
        """Every endpoint the core knows."""
        return self._core.endpoints()

    async def reload(self, by: str) -> Reloaded:
        """Take over what the files say now."""
        return await self._reloader.reload(by)

    def configured(self) -> Configured:
        """What is in force."""
        return self._reloader.configured()

    def metering(self) -> Metering:
        """What limits tenants, and how far it is used."""
        return self._core.metering

    def keys(self) -> Iterator[KeyView]:
        """Every key, and when it was last used."""
        return listing(self._reloader.current.config, self._services.tenants)

    def explain(self, request_id: str) -> Mapping[str, object] | None:
        """What became of a request."""
        return self._explain.find(request_id)

    def start_drain(self, by: str) -> None:
        """Begin to go down."""
        if self._phase != "draining":
            self._events.info("drain asked for", by=by)
            self._phase, self._services.ready = "draining", False
            self._line.say("draining")
            self._stop.set()

    def render_metrics(self) -> Iterator[bytes]:
        """The exposition, in pieces."""
        return self._metrics.chunks()

    def snapshot(self) -> bytes:
        """The same, to be added up."""
        return snapshot.encode(self._metrics.snapshot())

    def _watch(self) -> None:
        metrics, services = self._metrics, self._services
        live.watch_reloads(metrics, self._reloader, lambda: self._reloader.current.checksum)
        live.watch_callers(metrics, services.tenants)
        live.watch_flows(metrics, self._core.flows)
        live.watch_endpoints(metrics, self._core.endpoints, self._core.saturations)
        live.watch_probes(metrics, self._roster.standings)
        live.watch_engines(metrics, self._roster.reports)
        live.watch_feeds(metrics, self._roster.feeds)
        live.watch_store(metrics, self._syncer, self._core.metering.leasing)
        live.watch_quotas(metrics, Sums(self._core.metering, metrics.tenant_label).of)
        # In flight is whatever was received, has not ended and is not queued: C1 then holds at every instant, also in
        # the turn of the loop between the core's decision about a request and the end of its task.
        metrics.watch_value(families.REQUESTS_QUEUED, lambda: self._core.totals().queued)
        metrics.watch_value(families.REQUESTS_INFLIGHT, lambda: len(services.runs) - self._core.totals().queued)
        metrics.watch_value(families.ATTEMPTS_OPEN, metrics.attempts_open)
        metrics.watch_value(families.CLIENT_CONNECTIONS, lambda: len(self._shared.connections))
        metrics.watch_value(families.BODY_HELD, lambda: self._shared.held_bytes)
        live.watch_upstream(metrics, self._backends.counts)
        live.watch_readiness(metrics, lambda: services.ready)
        live.watch_logs(metrics, {"access": self._lines, "events": self._notes})
        metrics.watch_value(families.JOURNAL_DROPPED, lambda: self._recorder.dropped if self._recorder else 0)
        metrics.watch_value(families.TASKS, tasks.running)

    def _report_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._events.failure(str(context.get("message")), error)
        else:
            self._events.error(str(context.get("message")))
