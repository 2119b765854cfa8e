"""Case C024, its second half: client close, timer and engine end in one turn of the loop, in all six orders.

The loop is ours here, so the gateway runs in this process, on real sockets; the callbacks that the loop would make are
made by hand, one after another. Each request must end once, and its object must be gone as soon as the turn is over.
"""

import asyncio
import gc
import itertools
import signal
import time
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from gateway.app import Gateway
from gateway.config import load_document
from tests.cases.streams import ROUTES, stream_of
from tests.kit import wire
from tests.kit.gateway import config
from tests.kit.processes import free_ports, until
from tests.kit.raw_client import connect
from tests.kit.script_engine import HANG, ScriptEngine, Seen, Step

EVENTS = ("client", "timer", "engine")
ORDERS = list(itertools.permutations(EVENTS))


class House:
    """A gateway in this process, its engine, and what its loop complained about."""

    def __init__(self, gateway: Gateway, engine: ScriptEngine, port: int) -> None:
        self.gateway, self.engine, self.port = gateway, engine, port
        self.complaints: list[dict[str, Any]] = []

    @property
    def runs(self) -> set[Any]:
        return self.gateway._services.runs

    def totals(self) -> tuple[int, ...]:
        found = self.gateway.totals()
        return found.received, found.completed, found.cancelled, found.failed, found.rejected, found.expired


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    loop = asyncio.get_running_loop()
    gc.freeze()  # what other tests have left in this process is not looked through
    async with ScriptEngine() as engine:
        port, admin = free_ports(2)
        settings = config(
            [engine.url], listen={"port": port}, admin={"port": admin}, timeouts={"scale": 1}, endpoint={"max_seqs": 1}
        )
        file = tmp_path / "forebay.yaml"
        file.write_text(yaml.safe_dump(settings))
        gateway = Gateway(load_document(file, {}))
        made = House(gateway, engine, port)
        running = asyncio.create_task(gateway.run())
        await until(lambda: bool(engine.probes) and gateway.phase() == "serving", 5, "not serving")
        await until(lambda: any(one.up for one in gateway.endpoints()), 5, "the engine is not up")
        loop.set_exception_handler(lambda _, context: made.complaints.append(context))
        yield made
        gateway.start_drain("test")
        gateway._now.set()
        assert await running == 0 and made.complaints == []
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def under_way(streamed: bool, begun: bool, route: str) -> Callable[[Seen], list[Step]]:
    """An engine that has said nothing yet, or the first half of its answer."""

    def answer(seen: Seen) -> list[Step]:
        if not begun:
            return [HANG]
        if streamed:
            return [*wire.stream(stream_of(route, ["a", "b", "c", "d"]))[:5], HANG]
        return [wire.json_answer(wire.body(route, "x" * 100))[:150], HANG]

    return answer


CASES = [(route, streamed, begun) for route in ROUTES for streamed in (True, False) for begun in (True, False)]


@pytest.mark.parametrize("how", ["fin", "end"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_c024_three_ends_in_one_turn_are_one_end(house: House, order: tuple[str, ...], how: str) -> None:
    for route, streamed, begun in CASES:
        house.engine.answer = under_way(streamed, begun, route)
        before = house.totals()
        client = await connect(house.port)
        seen = len(house.engine.seen)
        await client.send(wire.request(wire.ROUTES[route].decode(), wire.request_body(route, "x", stream=streamed)))
        await until(lambda seen=seen: len(house.engine.seen) > seen and bool(house.runs), 3, "not at the engine")  # type: ignore[misc]
        if begun and streamed:
            await client.read_until(b"\r\n\r\n")
        elif begun:
            await until(lambda: bool(house.engine.seen[-1].written), 3, "nothing said")
            await asyncio.sleep(0.02)
        (run,) = house.runs
        reference = weakref.ref(run)
        acts = acts_of(run, how)
        del run
        for name in order:
            acts[name]()
        del acts
        client.close()
        house.engine.drop_connections()  # it does not know what was said in its name
        await until(lambda: not house.runs, 1, "still there")
        received, *ended = (now - then for now, then in zip(house.totals(), before, strict=True))
        assert (received, sum(ended)) == (1, 1), (route, streamed, begun, order)
        await until(lambda reference=reference: gone(reference), 1, f"{route} {streamed} {begun} {order}: kept alive")  # type: ignore[misc]
        (endpoint,) = house.gateway.endpoints()
        assert (endpoint.sequences, endpoint.prefill_tokens) == (0, 0)
        await house_is_well(house)
        assert house.complaints == []


def gone(reference: "weakref.ref[Any]") -> bool:
    if reference() is not None:
        gc.collect()  # a local of the kit may be part of a cycle; the gateway's own must not need this
    return reference() is None


def acts_of(run: Any, how: str) -> dict[str, Callable[[], None]]:
    """What the loop calls when the client's FIN, the timer and the engine's end have all come."""
    client, upstream = run.exchange.connection, run.attempt.connection
    check, far = run.check, time.monotonic() + 1e6
    last = b"data: [DONE]\n\n"

    def client_leaves() -> None:
        if not client.transport.is_closing() and not client.eof_received():
            client.transport.close()

    def engine_ends() -> None:
        if upstream.transport.is_closing():
            return
        if how == "end":
            upstream.data_received(wire.chunk(last) + wire.LAST_CHUNK)
        elif not upstream.eof_received():
            upstream.transport.close()

    return {"client": client_leaves, "timer": lambda: check(far), "engine": engine_ends}


async def house_is_well(house: House) -> None:
    """The one slot is free, and the next caller gets its own answer."""
    house.engine.answer = wire.echo
    async with await connect(house.port) as client:
        await client.send(wire.request("/v1/chat/completions", wire.request_body("chat", "the next one")))
        answer = await client.response(3)
    assert answer.status == 200 and b"the next one" in answer.body
