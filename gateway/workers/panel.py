"""The admin application of the supervisor: one answer for all workers (docs/admin-api.md).

`/livez` and `/readyz` are answered from what is known here. Everything else is asked of the workers, who judge the token,
and made one; a worker that refuses, or that runs and says nothing, decides the answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gateway.admin.answers import error_answer, json_answer
from gateway.admin.app import bare_app
from gateway.telemetry import render
from gateway.workers import merge
from gateway.workers.channels import RELOAD_S, Answer, Channels, worst
from gateway.workers.numbers import Numbers
from gateway.workers.slot import Slot

_PASSED_BACK = ("www-authenticate",)


class Operator(Protocol):
    """What an operator may have done here."""

    def draining(self) -> bool:
        """Whether it goes down."""
        ...

    def drained(self, slots: Sequence[Slot]) -> None:
        """These have been told to drain: all shall."""
        ...


class Panel:
    """The handlers over all workers."""

    def __init__(self, slots: Sequence[Slot], channels: Channels, numbers: Numbers, operator: Operator) -> None:
        self._slots = slots
        self._channels = channels
        self._numbers = numbers
        self._operator = operator

    def app(self) -> web.Application:
        """The application."""
        app = bare_app()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/admin/v1/queues", self._queues)
        app.router.add_get("/admin/v1/fleet", self._fleet)
        app.router.add_get("/admin/v1/explain/{request_id}", self._explain)
        app.router.add_get("/admin/v1/config", self._config)
        app.router.add_get("/admin/v1/tenants", self._tenants)
        app.router.add_get("/admin/v1/tenants/{tenant}", self._tenants)
        app.router.add_get("/admin/v1/usage", self._usages)
        app.router.add_get("/admin/v1/tenants/{tenant}/usage", self._usage)
        app.router.add_get("/admin/v1/keys", self._keys)
        app.router.add_post("/admin/v1/reload", self._reload)
        app.router.add_post("/admin/v1/keys/{key}/block", self._block)
        app.router.add_post("/admin/v1/fleet/{endpoint}/drain", self._turn_endpoint)
        app.router.add_post("/admin/v1/fleet/{endpoint}/undrain", self._turn_endpoint)
        app.router.add_post("/admin/v1/drain", self._drain)
        return app

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        """One worker that serves is enough: the port is open, and the kernel sends nobody to a worker that is not there."""
        ready = not self._operator.draining() and any(slot.state == "serving" for slot in self._slots)
        return web.Response(text="ok" if ready else "not ready", status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        answers = await self._channels.ask(request, "/snapshot")
        refused = next((one for one in answers if one.status >= 400), None)
        if refused is not None:
            return _passed_back(refused)
        for answer in answers:
            if answer.status and answer.slot.pid == answer.pid:
                self._numbers.take(answer.slot.index, answer.body)
        pieces = []
        for piece in self._numbers.chunks(sum(slot.restarts for slot in self._slots)):
            pieces.append(piece)
            await asyncio.sleep(0)  # let the loop look after workers between two pieces
        return web.Response(body=b"".join(pieces), headers={"content-type": render.CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        return await self._merged(request, lambda bodies: {**merge.health(bodies), "workers": self._workers()})

    def _workers(self) -> list[dict[str, Any]]:
        return [
            {"worker": slot.index, "state": slot.state, "pid": slot.pid or None, "restarts": slot.restarts}
            for slot in self._slots
        ]

    async def _queues(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.queues)

    async def _fleet(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.fleet)

    async def _turn_endpoint(self, request: web.Request) -> web.Response:
        """Drained or undrained by all, also by one that has begun to serve meanwhile."""
        while True:
            serving = self._serving()
            answer = await self._merged(request, merge.member)
            if self._serving() <= serving:
                return answer

    def _serving(self) -> set[int]:
        return {slot.pid for slot in self._slots if slot.state == "serving"}

    async def _usage(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.usage)

    async def _tenants(self, request: web.Request) -> web.Response:
        """All have the same files."""
        return await self._merged(request, lambda bodies: dict(bodies[0]))

    async def _usages(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.usages)

    async def _keys(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.keys)

    async def _config(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.config)

    async def _reload(self, request: web.Request) -> web.Response:
        return await self._merged(request, merge.reload, within_s=RELOAD_S)

    async def _explain(self, request: web.Request) -> web.Response:
        """The one that has had the request knows; a refusal of any is a refusal."""
        answers = await self._channels.ask(request, f"/admin/v1/explain/{request.match_info['request_id']}")
        others = [answer for answer in answers if answer.status not in (200, 404)]
        if others or not answers:
            return _decided(others)
        found = min(answers, key=lambda answer: answer.status)
        if found.status != 200:
            return _passed_back(found)
        return json_answer({**msgspec.json.decode(found.body), "worker": found.slot.index})

    async def _block(self, request: web.Request) -> web.Response:
        answers = await self._channels.ask(request, request.path)
        if not answers or worst(answers).status != 204:
            return _decided(answers)
        return web.Response(status=204)

    async def _drain(self, request: web.Request) -> web.Response:
        answers = await self._channels.ask(request, "/admin/v1/drain")
        told = [answer.slot for answer in answers if answer.status == 202]
        if not told:
            return _decided(answers)
        self._operator.drained(told)
        return json_answer({"phase": "draining"}, 202)

    async def _merged(
        self, request: web.Request, join: Callable[[list[Any]], object], *, within_s: float | None = None
    ) -> web.Response:
        path = request.path
        asking = self._channels.ask(request, path, within_s=within_s) if within_s else self._channels.ask(request, path)
        answers = await asking
        if not answers or worst(answers).status != 200:
            return _decided(answers)
        return json_answer(join([msgspec.json.decode(answer.body) for answer in answers]))


def _decided(answers: Sequence[Answer]) -> web.Response:
    """The answer where not all have done what was asked."""
    if not answers:
        return error_answer(503, "no_worker", "No worker runs at the moment; each is started again.")
    answer = worst(answers)
    if not answer.status:
        return error_answer(504, "silent_worker", f"Worker {answer.slot.index} runs and has not answered in time.")
    return _passed_back(answer)


def _passed_back(answer: Answer) -> web.Response:
    """What one worker said, as it said it."""
    given = answer.headers or {}
    headers = {name: value for name, value in given.items() if name.lower() in _PASSED_BACK}
    error = msgspec.json.decode(answer.body)
    return json_answer(error, answer.status, headers)
