"""The control listener of one engine: its state, its faults, its log. Never on the serving port."""

import time

import msgspec
from aiohttp import web

from loadgen.engine_server.server import SimulatedEngine
from loadgen.faults import FaultError
from loadgen.sim.sequence import Sequence


class Control:
    """GET /state, /log, /lag; PUT, DELETE and GET /faults; POST /reset, /reset_prefix_cache."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/state", self._state),
                web.get("/log", self._log),
                web.get("/lag", self._lag),
                web.get("/faults", self._show_faults),
                web.put("/faults", self._set_faults),
                web.delete("/faults", self._clear_faults),
                web.post("/reset", self._reset),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the listener."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _state(self, _: web.Request) -> web.Response:
        engine, model = self._engine, self._engine.model
        kv = model.scheduler.kv
        return _json(
            {
                "engine": engine.index,
                "port": engine.port,
                "model": engine.model_name,
                "now_s": time.monotonic(),
                "running": len(model.running),
                "waiting": len(model.waiting),
                "open": len(engine.exchanges),
                "peak": engine.peak,
                "connections": len(engine.listening.connections),
                "malformed": engine.listening.malformed,
                "steps": model.steps,
                "preemptions": model.scheduler.preemptions,
                "blocks": {"total": kv.total, "referenced": kv.referenced, "cached": kv.cached},
                "requests": [_progress(sequence) for sequence in [*model.running, *model.waiting]],
            }
        )

    async def _log(self, request: web.Request) -> web.Response:
        lines = self._engine.log.lines(probes="probes" in request.query)
        return web.Response(body=lines, content_type="application/json")

    async def _lag(self, _: web.Request) -> web.Response:
        lag = self._engine.pacemaker.lag
        return _json(
            {
                "steps": sum(lag.counts),
                "p50_ms": lag.percentile(0.5) * 1e3,
                "p99_ms": lag.percentile(0.99) * 1e3,
                "max_ms": lag.largest_s * 1e3,
            }
        )

    async def _show_faults(self, _: web.Request) -> web.Response:
        return _json({"faults": self._engine.faults.specs()})

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            specs = msgspec.json.decode(await request.read(), type=list[str])
            self._engine.faults.replace(specs)
        except (msgspec.MsgspecError, FaultError) as error:
            return _json({"error": f"want a JSON list of faults: {error}"}, 400)
        return await self._show_faults(request)

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self._engine.faults.replace(())
        return await self._show_faults(request)

    async def _reset(self, request: web.Request) -> web.Response:
        self._engine.reset()
        return _json({})

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        return _json({"cleared": self._engine.reset_prefix_cache()})


def _progress(sequence: Sequence) -> dict[str, object]:
    return {
        "id": sequence.id,
        "state": sequence.state.value,
        "prompt_tokens": sequence.prompt_tokens,
        "computed": sequence.computed,
        "generated": sequence.generated,
        "cached": sequence.cached,
        "preemptions": sequence.preemptions,
    }


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
