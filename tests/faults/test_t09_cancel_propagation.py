"""T9: a client that leaves frees its place, its slot and its engine, at every stage (faults.md 4; http.md 8; C002).

Counted at the engine: it sees its connection closed at p99 <= 250 ms, and a request that was queued it never sees.
"""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.processes import until, until_async
from tests.kit.script_engine import HANG, Seen, Step
from tests.kit.stage import EVERY_PLACE, PATHS, Stage, quantile, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

STREAMED = ("chat", "completions", "messages", "responses")
CASES = [(route, False) for route in PATHS] + [(route, True) for route in STREAMED]
CLOSED_P99_S = 0.25
EACH = 12
SLOTS = 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    # No timer may do the work of the cancellation: all of them are far longer than the test.
    directory, endpoint = tmp_path_factory.mktemp("t09"), {"max_seqs": SLOTS}
    timeouts, upstream = {"scale": 1}, {"probe_s": 1}
    async with stage(directory, endpoint=endpoint, classes=EVERY_PLACE, timeouts=timeouts, upstream=upstream) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def calm(one: Stage) -> AsyncIterator[Stage]:
    """The stage with nothing seen, and the invariants around the test."""
    one.reset()
    async with one.holding():
        yield one
        one.engine.answer = wire.echo


def prefilling(seen: Seen) -> list[Step]:
    return [HANG]


def decoding(seen: Seen) -> list[Step]:
    """Some of the answer, then silence."""
    route = wire.NAMES.get(seen.target, "other")
    if route != "other" and seen.json.get("stream"):
        return [*wire.stream(wire.events(route, ["a", "b", "c"])[:4], end=False), HANG]
    return [wire.head(extra=[("content-length", "5000")]) + b'{"id": "half', HANG]


async def leave_all(stage: Stage, route: str, streamed: bool) -> list[float]:
    """Let clients come and leave one by one; how long each engine connection lived after its client had left."""
    delays = []
    for at in range(EACH):
        client = await stage.begin(route, f"leaver {at}", stream=streamed)
        await until(lambda at=at: len(stage.engine.seen) == at + 1 and stage.engine.active == 1, 5, "not at the engine")  # type: ignore[misc]
        seen = stage.engine.seen[at]
        await until(lambda seen=seen: seen.written or stage.engine.answer is prefilling, 5, "nothing sent")  # type: ignore[misc]
        if at % 2:
            client.reset()
        else:
            client.close()
        left = time.monotonic()
        await until(lambda seen=seen: seen.aborted, 3, f"the engine goes on for {route}")  # type: ignore[misc]
        delays.append(seen.peer_closed_s - left)
    return delays


@pytest.mark.parametrize(("route", "streamed"), CASES)
async def test_an_engine_in_prefill_is_closed(calm: Stage, route: str, streamed: bool) -> None:
    calm.engine.answer = prefilling
    assert quantile(await leave_all(calm, route, streamed), 0.99) <= CLOSED_P99_S
    await logged(calm, "sent")


@pytest.mark.parametrize(("route", "streamed"), CASES)
async def test_an_engine_in_the_middle_of_its_answer_is_closed(calm: Stage, route: str, streamed: bool) -> None:
    calm.engine.answer = decoding
    assert quantile(await leave_all(calm, route, streamed), 0.99) <= CLOSED_P99_S
    await logged(calm, "stream", "sent")


async def logged(stage: Stage, *stages: str) -> None:
    """The last lines of the log are these clients: 499, with the stage they left at."""

    async def written() -> bool:
        lines = [one for one in stage.gateway.access() if one["status"] == 499][-EACH:]
        return len(lines) == EACH and all(one["outcome"] == "cancelled" and one["stage"] in stages for one in lines)

    await until_async(written, 2, f"log: {stage.gateway.access()[-2:]}")


@pytest.mark.parametrize(
    ("route", "streamed"), [("chat", True), ("chat", False), ("messages", True), ("embeddings", False)]
)
async def test_a_slot_is_free_as_soon_as_its_client_has_left(calm: Stage, route: str, streamed: bool) -> None:
    calm.engine.answer = prefilling
    clients = [await calm.begin(route, "held", stream=streamed) for _ in range(5)]
    await until(lambda: calm.engine.active == 5, 5, "not at the engine")
    for client in clients:
        client.close()
    left = time.monotonic()

    async def free() -> bool:
        queues = await calm.gateway.admin("/admin/v1/queues")
        return not queues["endpoints"][0]["sequences"] and not queues["endpoints"][0]["prefill_tokens"]

    await until_async(free, 1.0, "slots are held", every_s=0.005)
    assert time.monotonic() - left < 1.0


@pytest.mark.parametrize(("route", "streamed"), CASES)
async def test_a_queued_request_that_left_is_never_dispatched(calm: Stage, route: str, streamed: bool) -> None:
    calm.engine.answer = prefilling
    held = [await calm.begin("chat", f"holder {at}") for at in range(SLOTS)]
    await until(lambda: calm.engine.active == SLOTS, 5, "the engine is not full")
    queued = [await calm.begin(route, f"queued {at}", stream=streamed) for at in range(20)]
    await queue_is(calm, 20)
    for client in queued[::2]:
        client.close()
    await queue_is(calm, 10)
    calm.engine.answer = wire.echo
    for client in held:
        client.close()
    for client in queued[1::2]:
        assert (await client.response()).status == 200
        client.close()
    texts = {
        wire.prompt_of(seen.json)
        for seen in calm.engine.seen
        if seen.target != b"/v1/chat/completions" or "queued" in seen.body.decode()
    }
    assert texts == {f"queued {at}" for at in range(1, 20, 2)}


async def queue_is(stage: Stage, count: int) -> None:
    async def there() -> bool:
        return (await stage.gateway.metrics()).sum("forebay_requests_queued") == count

    await until_async(there, 2, f"the queue does not become {count}")


async def test_a_client_that_leaves_while_we_connect_frees_its_slot(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("t09-connect")
    timeouts = {"scale": 1, "connect_s": 30}
    async with stage(directory, timeouts=timeouts, upstream={"probe_s": 30}) as made, made.holding():
        made.engine.drop_connections()
        made.engine.jam()
        for route, streamed in (("chat", True), ("chat", False), ("messages", False)):
            client = await made.begin(route, "connecting", stream=streamed)
            await inflight_is(made, 1)
            client.close()
            left = time.monotonic()
            await inflight_is(made, 0)
            assert time.monotonic() - left < 0.5
        await until(lambda: len(made.gateway.access()) == 3, 2, "three lines are not written")
        assert [(one["status"], one["stage"]) for one in made.gateway.access()] == [(499, "connect")] * 3
        assert made.engine.seen == []


async def inflight_is(stage: Stage, count: int) -> None:
    async def there() -> bool:
        return (await stage.gateway.metrics()).sum("forebay_requests_inflight") == count

    await until_async(there, 2, f"inflight does not become {count}", every_s=0.005)
