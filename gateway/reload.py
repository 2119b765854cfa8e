"""A new configuration for a running gateway: read beside the loop, taken over between two events, or not at all.

  files changed, SIGHUP, POST reload  ->  read, judged, prepared: in a thread  ->  `Live.swap`: one call, nothing awaited

Where many tenants change, their limits come into force a few tenants at a time before that, each tenant's at once, so that
the loop has its turn between. Requests in progress keep what they began with. Those that still wait are judged again: who may not any more is refused,
who belongs elsewhere asks anew, a few at a time where they are many. Whatever is wrong with the files, nothing changes, and it is said once.
"""

import asyncio
import gc
import os
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from pathlib import Path

from gateway import tasks
from gateway.admin.access import Access
from gateway.admin.operations import Configured, Failure, Reloaded
from gateway.assembly import Prepared, prepare
from gateway.callers import Caller
from gateway.config import Config, ConfigError, ConfigErrors, Loaded, load_document
from gateway.config.changes import differences, kept, need_restart
from gateway.config.load import let_go
from gateway.errors import GatewayError
from gateway.http.shared import Shared
from gateway.roster import Roster
from gateway.run import Run
from gateway.services import Active, Services
from gateway.syncer import Syncer
from gateway.watching import Watch
from policies.decisions import Reason
from policies.events import SettingsChanged
from policies.types import Pool, Settings

# For so long the reading thread may keep the loop from running. Beside a busy thread a round trip over two sockets of the
# loop took 10.4 ms (p99) with the interpreter's own 5 ms, and 1.3 ms with this.
SWITCH_S = 0.0005
SLICE_S = 0.01  # for so long those that ask anew keep the loop
LOOKS = 500  # requests that are looked at in one step of the loop
PORTION = 50  # tenants whose limits change in one step of the loop
SHOWN = 10  # changes named in a line of the log
Found = tuple[Collection[str], Set[Active]]  # endpoints that are well, requests that are what they were


@dataclass(slots=True, kw_only=True)
class Live:
    """The parts of a running gateway that hold values of its configuration."""

    services: Services
    shared: Shared
    roster: Roster
    access: Access
    tls: ssl.SSLContext | None  # of the listener
    syncer: Syncer | None = None
    follow_keys: Callable[[Config, Config], None] = lambda old, new: None  # keys that an operator has blocked
    again: deque[tuple[Run, Caller]] = field(default_factory=deque)  # who waits to ask anew, in order of arrival

    def renew_certificate(self, config: Config) -> None:
        """Present to new connections what the files of the certificate hold now."""
        if self.tls is not None and config.listen.tls is not None:
            config.listen.tls.load(self.tls)

    async def lead_up_to(self, old: Prepared, new: Prepared) -> None:
        """Have new limits of tenants in force, a portion of them in each turn of the loop."""
        for settings in _on_the_way(old.settings, new.settings):
            self.services.dispatcher.handle(SettingsChanged(settings=settings))
            await asyncio.sleep(0)

    async def look_ahead(self, old: Prepared, new: Prepared) -> set[Active]:
        """Who of those that wait is by the new configuration what it was, looked at a few in each turn of the loop: so that they
        need not be looked at when it is taken over."""
        found: set[Active] = set()
        while self.again:
            await asyncio.sleep(0)
        if old.settings.bands != new.settings.bands:
            return found
        book = new.terms.book.without(self.services.tenants.blocked())
        await asyncio.sleep(0)
        callers, moved = book.callers(), _moved_models(old, new)
        same: dict[int, bool] = {}
        for number, run in enumerate(list(self.services.runs)):
            if number % LOOKS == 0:
                await asyncio.sleep(0)
            if isinstance(run, Run) and run.waiting and run.record.model not in moved:
                known = run.caller
                if id(known) not in same:
                    same[id(known)] = callers.get((known.tenant, known.key)) == known
                if same[id(known)]:
                    found.add(run)
        await asyncio.sleep(0)
        return found

    def swap(self, old: Prepared, new: Prepared, well: Collection[str], same: Set[Active]) -> None:
        """Take over a configuration, from one event to the next. `well`: new endpoints that were found well; `same`: requests
        that are what they were."""
        services, config, dispatcher = self.services, new.config, self.services.dispatcher
        self._ask_again(inf)  # those that a swap a moment ago left
        dispatcher.settle()  # who was given a place goes there, as it was decided
        self.follow_keys(old.config, config)
        services.change(new.terms)
        services.backends.change(config)
        services.metrics.change(list(config.models), new.settings.bands)
        services.access_log.change(config.telemetry.log_format)
        services.events.change(config.telemetry.log_level, config.telemetry.log_format)
        self.shared.change(new.limits, new.timers, new.bounds, config.limits.stream_buffer_bytes)
        self.access.change(config.admin.tokens, metrics_auth=config.admin.metrics_auth)
        if self.syncer is not None and config.redis is not None:
            self.syncer.change(config.redis)
        same_bands = old.settings.bands == new.settings.bands
        self.again.extend(self._judge_who_waits(same, _moved_models(old, new), same_bands))
        dispatcher.settle()  # what was decided about those that stepped out is of no interest
        self.roster.change(config, new.timers, well)
        dispatcher.handle(SettingsChanged(settings=new.settings))
        self._ask_again(SLICE_S)

    def _ask_again(self, most_s: float) -> None:
        """Have them ask anew, for so long; then the loop has its turn."""
        until_s = time.monotonic() + most_s
        while self.again:
            run, caller = self.again.popleft()
            if run.waiting:  # it has neither left nor been given a place as what it was
                run.step_out()
                run.ask_again(caller)
            if self.again and time.monotonic() >= until_s:
                asyncio.get_running_loop().call_soon(self._ask_again, most_s)
                return

    def _judge_who_waits(self, seen: Set[Active], moved: set[str], same_bands: bool) -> list[tuple[Run, Caller]]:
        """Refuse those that may not wait any more. Returns those that are to ask anew, in their order. Who belongs to another
        partition has stepped out already.

        What was reserved for them goes back with their leaving: for the core they have left like any client.
        """
        services = self.services
        waiting = [run for run in services.runs - seen if isinstance(run, Run) and run.waiting]
        if not waiting:
            return []
        callers = services.tenants.book.callers()
        again: list[tuple[Run, Caller]] = []
        same: dict[int, bool] = {}  # whether a caller, by its id, is the same as before
        for run in waiting:
            known = run.caller
            caller = callers.get((known.tenant, known.key))
            if id(known) not in same:
                same[id(known)] = same_bands and caller == known
            if same[id(known)] and run.record.model not in moved:
                continue
            try:
                if caller is None:
                    raise GatewayError(Reason.BAD_KEY)
                if not run.is_of(caller, services.given.bands) or run.record.model in moved:
                    again.append((run, caller))
            except GatewayError as error:
                run.revoke(error)
        for run, caller in again:
            if run.caller.partition != caller.partition:
                run.step_out()
        return sorted(again, key=lambda each: each[0].exchange.received_s)


class Reloader:
    """Looks after the files of a running gateway. `current`: what is in force."""

    def __init__(self, loaded: Loaded, began: Prepared, live: Live) -> None:
        self.current = began
        self.failed = False  # the last time, and since
        self.results = {"ok": 0, "error": 0}
        self._path = Path(loaded.file)
        seen = loaded.stamp if live.tls is None else None
        self._watch = Watch(self._path, self._besides, seen, began.config.timeouts.scale)
        self._live = live
        self._events = live.services.events
        self._loaded_s = time.time()
        self._failure: Failure | None = None
        self._gone: list[object] = []  # was in force before
        self._one = asyncio.Lock()
        self._closed = False
        self._poll: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for changes. Needs a running loop."""
        self._poll = tasks.start(self._look(), "configuration")

    async def close(self) -> None:
        """Take over nothing any more."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
        self._watch.close()

    def ask(self, by: str) -> None:
        """Reload, and have nobody wait for it."""
        tasks.start(self.reload(by), "reload")

    async def reload(self, by: str) -> Reloaded:
        """Take over what the files say now, or keep everything. `by`: who asked, for the log."""
        async with self._one:
            gc.disable()  # it would walk through all that is read: 0.2 s and more for ten thousand keys
            try:
                new, changed = await asyncio.to_thread(self._read)
                well = await self._live.roster.well(new.config)
                same: Set[Active] = set()
                if not self._closed:
                    await self._live.lead_up_to(self.current, new)
                    same = await self._live.look_ahead(self.current, new)
                if self._closed:
                    return Reloaded(checksum=self.current.checksum)
                told = self._take(by, new, changed, (well, same))
                await self._let_go()
                return told
            except ConfigErrors as wrong:
                if wrong.__cause__ is not None:
                    self._events.failure("reload failed", wrong.__cause__)
                return self._keep(by, wrong.errors)
            finally:
                gc.enable()

    async def _let_go(self) -> None:
        """Forget what was in force before, some of it in each turn of the loop."""
        while self._gone:
            del self._gone[-LOOKS:]
            await asyncio.sleep(0)

    def configured(self) -> Configured:
        """What is in force, and what went wrong last."""
        current = self.current
        return Configured(current.config, current.checksum, self._loaded_s, self._failure)

    def _take(self, by: str, new: Prepared, changed: tuple[str, ...], found: Found) -> Reloaded:
        self._live.renew_certificate(new.config)
        if changed:
            old, self.current, self._loaded_s = self.current, new, time.time()
            try:
                self._live.swap(old, new, *found)
            except Exception as error:  # part of it is in force; the next good file sets it right
                raise self._fault(error) from error
            gc.freeze()  # it stays, as what was loaded at the start
            tenants = (old.config.tenants or {}).values(), old.settings.tenants.values()
            self._gone = [*chain(*tenants), *old.terms.book.keys.values()]
        self.results["ok"] += 1
        self.failed, self._failure = False, None
        shown = [*changed[:SHOWN], *([f"{len(changed) - SHOWN} more"] if len(changed) > SHOWN else [])]
        self._events.info("reloaded", by=by, checksum=new.checksum, changed=", ".join(shown))
        return Reloaded(checksum=new.checksum, changed=changed)

    def _keep(self, by: str, errors: Sequence[ConfigError]) -> Reloaded:
        self.results["error"] += 1
        self.failed, self._failure = True, Failure(time.time(), tuple(errors))
        self._events.error("reload failed", by=by, errors=len(errors), first=str(errors[0]))
        return Reloaded(checksum=self.current.checksum, errors=tuple(errors))

    def _read(self) -> tuple[Prepared, tuple[str, ...]]:
        """In a thread: everything that takes time, and everything that can go wrong. Also the names of what is different."""
        old = self.current.config
        try:
            with _giving_way():
                loaded = load_document(self._path, os.environ)
                config = kept(old, loaded.config)
                wrong = [loaded.error(problem) for problem in need_restart(old, config)]
                if wrong:
                    raise ConfigErrors(wrong)
                made = prepare(config, self.current.replicas), differences(old, config)
                documents: list[object] = list(loaded.tenants.values())
                del loaded
                let_go(documents)
                return made
        except ConfigErrors:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> ConfigErrors:
        """A fault of this program over these files."""
        message = f"cannot be taken over: {type(error).__name__}, see the log"
        return ConfigErrors([ConfigError(file=str(self._path), line=0, column=0, path="", message=message)])

    async def _look(self) -> None:
        while True:
            await self._watch.change()
            await self.reload("a change of the files")

    def _besides(self) -> tuple[Path, ...]:
        tls = self.current.config.listen.tls
        return (Path(tls.cert), Path(tls.key)) if tls is not None else ()


@contextmanager
def _giving_way() -> Iterator[None]:
    """Let the loop have the interpreter sooner while a thread works for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _on_the_way(old: Settings, new: Settings) -> Iterator[Settings]:
    """The old settings with the new limits of more and more tenants. Who is gone or goes elsewhere waits for the end."""
    tenants = old.tenants
    changed = [name for name, tenant in new.tenants.items() if tenants.get(name) != tenant]
    staying = [
        name for name in changed if name not in tenants or tenants[name].partition == new.tenants[name].partition
    ]
    for at in range(0, len(staying) if len(staying) > PORTION else 0, PORTION):
        tenants = {**tenants, **{name: new.tenants[name] for name in staying[at : at + PORTION]}}
        yield replace(old, tenants=tenants)


def _moved_models(old: Prepared, new: Prepared) -> set[str]:
    """Models whose pools are others now: who waits for one may belong elsewhere."""

    def pools(prepared: Prepared) -> dict[str, list[Pool]]:
        made: dict[str, list[Pool]] = {}
        for pool in prepared.settings.pools.values():
            made.setdefault(pool.model, []).append(pool)
        return made

    before, after = pools(old), pools(new)
    return {model for model in after if before.get(model) != after[model]}
