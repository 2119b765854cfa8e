"""Bounds and timers of the gateway itself, each on sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.http import coalesce
from tests.kit import wire
from tests.kit.gateway import Metrics
from tests.kit.http_reader import Response
from tests.kit.processes import until
from tests.kit.raw_client import Connection, connect, exchange
from tests.kit.script_engine import FIN, HANG, Seen, Step, Wait
from tests.kit.stage import error_of
from tests.kit.tenants import bearer, tenant
from tests.limits.given import Served, served, within
from tests.limits.table import holds

CHAT = "/v1/chat/completions"


def message(*, stream: bool = False, text: str = "x", extra: Sequence[tuple[str, str]] = ()) -> bytes:
    return wire.request(CHAT, wire.request_body("chat", text, stream=stream), extra=extra)


async def ask(one: Served, seconds: float = 6.0, **more: Any) -> Response:
    """The whole answer to one request, in time."""
    return await within(seconds, exchange(one.port, message(**more), timeout_s=60), "an answer")


@asynccontextmanager
async def begun(one: Served, **more: Any) -> AsyncIterator[Connection]:
    """A connection on which a stream was asked for, reset at the end."""
    connection = await connect(one.port, rcvbuf=more.pop("rcvbuf", 0))
    try:
        await connection.send(message(stream=True, **more))
        yield connection
    finally:
        connection.reset()


async def soon(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """As `until`, and an assertion."""
    try:
        await until(condition, seconds, what)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds} s") from None


def head_only(seen: Seen) -> list[Step]:
    """A stream that begins and says no more."""
    return [*wire.stream(wire.events("chat", ["a", "b"])[:2], end=False), HANG]


@holds("models.NAME.max_output_tokens")
async def max_output_tokens(directory: Path) -> None:
    async with served(directory, models={"m": {"max_output_tokens": 50}}) as one:
        assert (await ask(one)).status == 200
        assert one.engine.seen[0].json["max_tokens"] == 50


@holds("listen.max_connections")
async def max_connections(directory: Path) -> None:
    async with served(directory, listen={"max_connections": 16}) as one, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(await connect(one.port)) for _ in range(16)]
        for connection in crowd:
            await connection.send(message())
            assert (await within(3, connection.response(), "an answer")).status == 200
        late = await stack.enter_async_context(await connect(one.port))
        await within(2, late.read_to_end(60), "nobody else is let in")
        assert late.received == b"" and late.end != "open"
        crowd[0].close()
        await soon(lambda: len(one.gateway._shared.connections) < 16, 3, "one has left")
        assert (await ask(one)).status == 200


# -- timers ------------------------------------------------------------------------------------------------------------


@holds("timeouts.connect_s", instead=30)
async def connect_timer(directory: Path) -> None:
    async with served(directory, timeouts={"connect_s": 0.3}, upstream={"probe_s": 60}) as one:
        one.engine.jam()
        assert (await ask(one, 5)).status in (502, 503, 504)


@holds("timeouts.first_byte_s")
async def first_byte_timer(directory: Path) -> None:
    async with served(directory, timeouts={"first_byte_s": 0.3}) as one:
        one.engine.answer = lambda seen: [HANG]
        refused = await ask(one, stream=True)
        assert (refused.status, error_of(refused)["code"]) == (504, "backend_timeout")


@holds("timeouts.idle_s")
async def idle_timer(directory: Path) -> None:
    async with served(directory, timeouts={"idle_s": 0.3}) as one:
        one.engine.answer = head_only
        assert b"backend_stall" in (await ask(one, stream=True)).body


@holds("timeouts.total_s")
async def total_timer(directory: Path) -> None:
    def endless(seen: Seen) -> Any:
        yield wire.stream_head()
        while True:
            yield wire.chunk(wire.events("chat", ["a", "b"])[1])
            yield Wait(0.1)

    async with served(directory, timeouts={"total_s": 0.6}) as one:
        one.engine.answer = endless
        assert b'"error"' in (await ask(one, stream=True)).body


@holds("timeouts.upstream_keepalive_s")
async def keepalive_timer(directory: Path) -> None:
    """Of an engine of which nobody knows how long it keeps a connection."""
    more = {"endpoint": {"engine": "openai"}, "upstream": {"probe_s": 60}}
    async with served(directory, timeouts={"upstream_keepalive_s": 0.3}, **more) as one:
        assert (await ask(one)).status == 200
        number = one.engine.seen[0].connection

        def kept() -> bool:
            return any(connection.number == number for connection in one.engine.open_connections)

        assert kept()
        await soon(lambda: not kept(), 2, "an idle connection is closed")


@holds("timeouts.client_header_s")
async def header_timer(directory: Path) -> None:
    async with served(directory, timeouts={"client_header_s": 1}) as one, await connect(one.port) as slow:
        await slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: k")
        await within(3, slow.read_to_end(60), "a head that does not come is given up")


@holds("timeouts.client_body_s")
async def body_timer(directory: Path) -> None:
    """At a tenth: whether it comes fast enough is asked every second then, and after half an hour it is given up anyway."""
    timeouts = {"client_body_s": 3, "scale": 0.1}
    async with served(directory, timeouts=timeouts) as one, await connect(one.port) as slow:
        head, _, _ = message().partition(b"\r\n\r\n")
        await slow.send(head.replace(b"content-length: ", b"content-length: 9") + b"\r\n\r\n")

        async def drip() -> None:
            while slow.end == "open":
                await slow.send(b" ")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        try:
            assert (await within(2.5, slow.response(60), "a body that drips is given up")).status == 408
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


def much(bytes_: int) -> Callable[[Seen], Any]:
    """A stream of so many bytes."""

    def answer(seen: Seen) -> Any:
        yield wire.stream_head()
        event = wire.events("chat", ["x" * 60_000, "b"])[1]
        for _ in range(bytes_ // len(event)):
            yield wire.chunk(event)

    return answer


@holds("timeouts.client_stall_s")
async def stall_timer(directory: Path) -> None:
    """Who reads nothing is cut, and its engine with it."""
    async with served(directory, timeouts={"client_stall_s": 1}) as one:
        one.engine.answer = much(40_000_000)
        async with begun(one, rcvbuf=4096):
            await soon(lambda: bool(one.engine.aborted()), 6, "a client that reads nothing is given up")


@holds("admission.drain_lag_s")
async def drain_lag(directory: Path) -> None:
    """So long after it was told to end it serves who comes, and no longer."""
    async with served(directory, admission={"drain_lag_s": 1, "drain_grace_s": 30}) as one:
        one.engine.answer = head_only  # so that there is something to wait for
        async with begun(one) as running:
            await running.read_until(b"data:")
            one.engine.answer = wire.echo
            one.drain()
            assert (await one.get("/readyz")).status == 503
            assert (await ask(one)).status == 200

            async def refused() -> None:
                while True:
                    try:
                        if (await ask(one)).status != 200:
                            return
                    except OSError:
                        return
                    await asyncio.sleep(0.1)

            await within(3, refused(), "who comes later is refused")


@holds("admission.drain_grace_s")
async def drain_grace(directory: Path) -> None:
    async with served(directory, admission={"drain_lag_s": 0, "drain_grace_s": 1}) as one:
        one.engine.answer = head_only
        async with begun(one) as running:
            await running.read_until(b"data:")
            one.drain()
            assert b"gateway_shutdown" in await within(4, running.read_to_end(60), "what does not end is cut")


@holds("upstream.probe_s", instead=30)
async def probe_period(directory: Path) -> None:
    async with served(directory, upstream={"probe_s": 0.1}) as one:
        before = one.engine.probes
        await soon(lambda: one.engine.probes >= before + 5, 3, "it is probed")


@holds("upstream.scrape_s", instead=30)
async def scrape_period(directory: Path) -> None:
    async with served(directory, upstream={"scrape_s": 0.1}) as one:
        scrapes, usual = 0, one.engine.metrics

        def counted() -> Any:
            nonlocal scrapes
            scrapes += 1
            return usual()

        one.engine.metrics = counted
        await soon(lambda: scrapes >= 5, 3, "it is asked for its metrics")


@holds("upstream.coalesce_s")
async def rest_of_the_loop(directory: Path) -> None:
    """Gateway and engine share a loop here, so only how long it rests can be seen."""
    rests: list[float] = []
    words = [
        Wait(0.001) if at % 2 else step for step in wire.stream(wire.events("chat", ["a"] * 50)) for at in range(2)
    ]
    async with served(directory, upstream={"coalesce_s": 0.004}) as one:
        one.engine.answer = lambda seen: words
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coalesce, "sleep", rests.append)
            assert (await ask(one, stream=True)).status == 200
    assert set(rests) == {0.004}


# -- bounds of messages ------------------------------------------------------------------------------------------------


@holds("limits.body_bytes")
async def body_bytes(directory: Path) -> None:
    async with served(directory, limits={"body_bytes": "1KiB"}) as one:
        assert [(await ask(one, text=text)).status for text in ("x" * 500, "x" * 1500)] == [200, 413]


@holds("limits.header_bytes")
async def header_bytes(directory: Path) -> None:
    async with served(directory, limits={"header_bytes": 256}) as one:
        assert [(await ask(one, extra=[("x-long", "x" * size)])).status for size in (100, 400)] == [200, 431]


@holds("limits.headers")
async def headers(directory: Path) -> None:
    async with served(directory, limits={"headers": 8}) as one:
        many = [(f"x-{number}", "x") for number in range(9)]
        assert [(await ask(one, extra=extra)).status for extra in (many[:3], many)] == [200, 431]


def in_pieces(seen: Seen) -> Any:
    """After a short event the prompt comes back in one, a few hundred bytes at a time."""
    yield wire.chunk(wire.events("chat", ["a", "b"])[0])
    event = wire.events("chat", [wire.prompt_of(seen.json), "b"])[1]
    for at in range(0, len(event), 700):
        yield wire.chunk(event[at : at + 700])
        yield Wait(0.02)
    yield FIN


@holds("limits.sse_line_bytes")
async def sse_line_bytes(directory: Path) -> None:
    async with served(directory, limits={"sse_line_bytes": "2KiB"}) as one:
        one.engine.answer = lambda seen: [wire.stream_head(), *in_pieces(seen)]
        assert b"backend_bad_stream" not in (await ask(one, stream=True, text="x" * 1000)).body
        assert b"backend_bad_stream" in (await ask(one, stream=True, text="x" * 5000)).body


@holds("limits.stream_buffer_bytes", instead="64MiB")
async def stream_buffer_bytes(directory: Path) -> None:
    """For a client that reads nothing no more is taken from the engine than lies in sockets anyway."""
    async with served(directory, limits={"stream_buffer_bytes": "1KiB"}) as one:
        one.engine.answer = much(40_000_000)
        async with begun(one, rcvbuf=4096):
            await soon(lambda: bool(one.engine.seen), 3, "it is asked")
            (seen,), written = one.engine.seen, -1
            while written < seen.written < 30_000_000:
                written = seen.written
                await asyncio.sleep(1.0)
            assert 0 < seen.written < 30_000_000


@holds("limits.sse_keepalive_s")
async def sse_keepalive(directory: Path) -> None:
    async with served(directory, limits={"sse_keepalive_s": 1}) as one:
        one.engine.answer = lambda seen: [HANG]
        async with begun(one) as connection:
            assert b"\n:" in await within(3, connection.read_until(b"\n:", 60), "a comment comes")


@holds("telemetry.tenant_labels")
async def tenant_labels(directory: Path) -> None:
    several = [tenant(f"t{number}") for number in range(3)]
    async with served(directory, several, telemetry={"tenant_labels": 2}) as one:
        for number in range(3):
            assert (await ask(one, extra=[bearer(f"t{number}")])).status == 200
        told = (await one.get("/metrics", admin=True)).body
        assert b'tenant="t1"' in told and b'tenant="other"' in told
        assert b'tenant="t2"' not in told


async def slow_tokens(name: str, directory: Path) -> None:
    """Of two streams one takes longer for a token than its class has promised."""

    def answer(seen: Seen) -> Any:
        pause_s = 0.01 if wire.prompt_of(seen.json) == "slow" else 0.0
        yield wire.stream_head()
        for event in wire.events("chat", ["a", "b", "c"]):
            yield wire.chunk(event)
            yield Wait(pause_s)
        yield FIN

    async with served(directory, classes={name: {"slo": {"itl_ms": 20}}}) as one:
        one.engine.answer = answer
        for text in ("quick", "slow"):
            assert (await ask(one, stream=True, text=text, extra=[("x-forebay-priority", name)])).status == 200
        told = Metrics((await one.get("/metrics", admin=True)).body.decode())
        missed = told.by("forebay_slo_requests_total", "missed")
        assert sum(missed.values()) == told.sum("forebay_slo_requests_total", **{"class": name}) == 2
        assert missed.get("itl", 0) + missed.get("both", 0) == 1


for each in ("critical", "interactive", "standard", "batch"):
    holds(f"classes.{each}.slo.itl_ms")(partial(slow_tokens, each))


@holds("endpoints[].kv_events_ranks")
async def kv_events_ranks(directory: Path) -> None:
    """The second rank publishes one port above the first: somebody comes there to listen."""
    came = asyncio.Event()

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        writer.close()

    second = await asyncio.start_server(met, "127.0.0.1", 0)
    async with second:
        port = second.sockets[0].getsockname()[1]
        feed = {"kv_events": f"tcp://127.0.0.1:{port - 1}", "kv_events_ranks": 2}
        async with served(directory, endpoint=feed):
            await within(3, came.wait(), "the second rank is listened to")
