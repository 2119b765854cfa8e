"""The admin application: health, metrics, queues, drain. A listener of its own; nothing joins it to the data plane."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from gateway import usage
from gateway.admin import answers
from gateway.admin.access import Access
from gateway.admin.fleet import fleet, member
from gateway.admin.operations import Operations, Role
from gateway.config.effective import tenant_in_force
from gateway.telemetry import render

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_BODY_BYTES = 64 * 1024
_NO_TENANT = "There is no such tenant."

OPERATIONS = web.AppKey("operations", Operations)
ACCESS = web.AppKey("access", Access)
VERSION = web.AppKey("version", str)
STARTED_S = web.AppKey("started_s", float)


def bare_app() -> web.Application:
    """An application without a path, whose errors are JSON and which says nothing of its making."""
    app = web.Application(middlewares=[_as_json], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(_name_no_versions)
    return app


def make_app(operations: Operations, access: Access, *, version: str = "", summed: bool = False) -> web.Application:
    """The application over a running gateway. `summed`: a supervisor asks, and adds its numbers to those of others."""
    app = bare_app()
    app[OPERATIONS] = operations
    app[ACCESS] = access
    app[VERSION] = version
    app[STARTED_S] = time.monotonic()
    app.router.add_get("/livez", _livez)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _open_unless_asked(_metrics))
    if summed:
        app.router.add_get("/snapshot", _open_unless_asked(_snapshot))
    app.router.add_get("/health", _guarded("read", _health))
    app.router.add_get("/admin/v1/queues", _guarded("read", _queues))
    app.router.add_get("/admin/v1/fleet", _guarded("read", _fleet))
    app.router.add_get("/admin/v1/explain/{request_id}", _guarded("read", _explain))
    app.router.add_get("/admin/v1/config", _guarded("read", _config))
    app.router.add_post("/admin/v1/reload", _guarded("operate", _reload))
    app.router.add_get("/admin/v1/tenants", _guarded("read", _tenants))
    app.router.add_get("/admin/v1/tenants/{tenant}", _guarded("read", _tenant))
    app.router.add_get("/admin/v1/usage", _guarded("read", _usages))
    app.router.add_get("/admin/v1/tenants/{tenant}/usage", _guarded("read", _usage))
    app.router.add_get("/admin/v1/keys", _guarded("read", _keys))
    app.router.add_post("/admin/v1/keys/{key}/block", _guarded("operate", _block))
    app.router.add_post("/admin/v1/fleet/{endpoint}/drain", _guarded("operate", _drain_endpoint))
    app.router.add_post("/admin/v1/fleet/{endpoint}/undrain", _guarded("operate", _undrain_endpoint))
    app.router.add_post("/admin/v1/drain", _guarded("operate", _drain))
    return app


def _guarded(role: Role, handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        return request.app[ACCESS].refusal(request, role) or await handler(request)

    return guarded


def _open_unless_asked(handler: Handler) -> Handler:
    """As `_guarded`, but only with `admin.metrics_auth`."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        access = request.app[ACCESS]
        return (access.refusal(request, "read") if access.metrics_auth else None) or await handler(request)

    return guarded


async def _name_no_versions(request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers["server"] = "forebay"


async def _livez(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _readyz(request: web.Request) -> web.Response:
    ready = request.app[OPERATIONS].phase() == "serving"
    return web.Response(text="ok" if ready else "not ready", status=200 if ready else 503)


async def _metrics(request: web.Request) -> web.StreamResponse:
    pieces = []
    for piece in request.app[OPERATIONS].render_metrics():
        pieces.append(piece)
        await asyncio.sleep(0)  # let the loop serve others between two pieces
    return web.Response(body=b"".join(pieces), headers={"content-type": render.CONTENT_TYPE})


async def _snapshot(request: web.Request) -> web.StreamResponse:
    return web.Response(body=request.app[OPERATIONS].snapshot())


async def _health(request: web.Request) -> web.Response:
    uptime_s = time.monotonic() - request.app[STARTED_S]
    return answers.json_answer(answers.health(request.app[OPERATIONS], request.app[VERSION], uptime_s))


async def _queues(request: web.Request) -> web.Response:
    return answers.json_answer(answers.queues(request.app[OPERATIONS]))


async def _fleet(request: web.Request) -> web.Response:
    return answers.json_answer(fleet(request.app[OPERATIONS]))


async def _drain_endpoint(request: web.Request) -> web.Response:
    return _turned(request, request.app[OPERATIONS].drain_endpoint)


async def _undrain_endpoint(request: web.Request) -> web.Response:
    return _turned(request, request.app[OPERATIONS].undrain_endpoint)


def _turned(request: web.Request, turn: Callable[[str, str], bool]) -> web.Response:
    name = request.match_info["endpoint"]
    if not turn(name, _who(request)):
        return answers.error_answer(404, "unknown_endpoint", "There is no such endpoint.")
    return answers.json_answer(member(request.app[OPERATIONS], name))


async def _explain(request: web.Request) -> web.Response:
    found = request.app[OPERATIONS].explain(request.match_info["request_id"])
    if found is None:
        return answers.error_answer(404, "unknown_request", _UNKNOWN)
    return answers.json_answer(found)


async def _config(request: web.Request) -> web.Response:
    # In a thread: a thousand tenants are megabytes.
    body = await asyncio.to_thread(answers.config, request.app[OPERATIONS].configured())
    return answers.json_answer(body)


async def _reload(request: web.Request) -> web.Response:
    operations = request.app[OPERATIONS]
    if operations.phase() != "serving":
        return answers.error_answer(409, "not_serving", "The gateway is starting or shutting down.")
    outcome = await asyncio.shield(operations.reload(_who(request)))  # also when the caller leaves
    return answers.json_answer(answers.reloaded(outcome), 422 if outcome.errors else 200)


async def _tenants(request: web.Request) -> web.Response:
    # In a thread: there may be a thousand.
    body = await asyncio.to_thread(answers.tenants, request.app[OPERATIONS].configured().config)
    return answers.json_answer(body)


async def _tenant(request: web.Request) -> web.Response:
    found = (request.app[OPERATIONS].configured().config.tenants or {}).get(request.match_info["tenant"])
    if found is None:
        return answers.error_answer(404, "unknown_tenant", _NO_TENANT)
    return answers.json_answer(tenant_in_force(found))


async def _usages(request: web.Request) -> web.StreamResponse:
    """Tenant by tenant: for a thousand of them neither the loop nor the collector has much to do at once."""
    operations = request.app[OPERATIONS]
    metering, seen = operations.metering(), usage.seen(operations.queues(), operations.shares())
    answer = web.StreamResponse(headers=answers.FIXED)
    answer.content_type = "application/json"
    await answer.prepare(request)
    before = b'{"tenants":['
    for name in operations.configured().config.tenants or ("default",):
        if metering.mode_of(name) is not None:
            await answer.write(before + msgspec.json.encode(usage.of_tenant(metering, name, seen)))
            before = b","
        await asyncio.sleep(0)  # let the loop serve others between two
    await answer.write((before if before != b"," else b"") + b"]}\n")
    return answer


async def _usage(request: web.Request) -> web.Response:
    operations, tenant = request.app[OPERATIONS], request.match_info["tenant"]
    metering = operations.metering()
    if metering.mode_of(tenant) is None:
        return answers.error_answer(404, "unknown_tenant", _NO_TENANT)
    seen = usage.seen(operations.queues(), operations.shares())
    return answers.json_answer(usage.of_tenant(metering, tenant, seen))


async def _keys(request: web.Request) -> web.Response:
    operations = request.app[OPERATIONS]
    # In a thread: there may be ten thousand.
    return answers.json_answer(await asyncio.to_thread(lambda: answers.keys(operations.keys())))


async def _block(request: web.Request) -> web.Response:
    if not request.app[OPERATIONS].block_key(request.match_info["key"], _who(request)):
        return answers.error_answer(404, "unknown_key", "There is no key with this id.")
    return web.Response(status=204)


def _who(request: web.Request) -> str:
    token = request.app[ACCESS].token(request)
    return token.id if token else "local"


async def _drain(request: web.Request) -> web.Response:
    request.app[OPERATIONS].start_drain(_who(request))
    return answers.json_answer({"phase": request.app[OPERATIONS].phase()}, 202)


_UNKNOWN = (
    "Nothing is known of this request: it did not get as far as the scheduler, or too many came after it."
    " The id is that of x-forebay-request-id."
)
_CODES = {404: ("not_found", "No such path."), 405: ("method", "This path does not take that method.")}


@web.middleware
async def _as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as refused:
        code, message = _CODES.get(refused.status, ("refused", "The request was refused."))
        allow = {"allow": refused.headers["allow"]} if "allow" in refused.headers else None
        return answers.error_answer(refused.status, code, message, allow)
    except Exception as error:
        context = {"message": f"admin request {request.method} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        return answers.error_answer(500, "internal", "The gateway failed to answer. This is a bug.")
