"""Others, beside whom something unpleasant happens: what they and the probes feel of it."""

import asyncio
import re
import time
from collections.abc import Iterator

from tests.cases.streams import compact
from tests.kit import wire
from tests.kit.gateway import Metrics
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import Stage

STAMP = re.compile(rb'"content":"([0-9.]+)"')


def text_event(text: str) -> bytes:
    """A chat event with that text, spelled as vLLM does."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return compact(
        wire.event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
    )


def paced_stream(seen: Seen) -> Iterator[Step]:
    """20 chunks 10 ms apart, each with the time at which it was written."""
    yield wire.stream_head()
    for _ in range(20):
        yield wire.chunk(text_event(f"{time.monotonic():.6f}"))
        yield Wait(0.01)
    yield wire.chunk(wire.DONE) + wire.LAST_CHUNK


async def delays(stage: Stage, streams: int, until_: asyncio.Event | None = None) -> list[float]:
    """Seconds from the engine to the client, of every chunk of that many streams at a time; once, or until told to stop."""
    found: list[float] = []

    async def lane(at: int) -> None:
        while True:
            async with await stage.begin("chat", f"paced {at}", stream=True) as client:
                answer = await client.response()
                assert (answer.status, answer.end) == (200, "chunked")
                found.extend(piece.at - float(stamp) for piece in client.pieces for stamp in STAMP.findall(piece.data))
            if until_ is None or until_.is_set():
                return

    await asyncio.gather(*(lane(at) for at in range(streams)))
    assert len(found) >= 20 * streams
    return found


async def probed(stage: Stage, until_: asyncio.Event, every_s: float = 0.05) -> list[float]:
    """How long `/livez` of the data listener takes, again and again until told to stop."""
    took: list[float] = []
    while not until_.is_set():
        began = time.monotonic()
        assert (await stage.gateway.get("/livez")).status == 200
        took.append(time.monotonic() - began)
        await asyncio.sleep(every_s)
    return took


def lag_p99_s(before: Metrics, after: Metrics) -> float:
    """The upper bound of the bucket in which the 99th percentile of the event loop's lag lies."""
    name = "forebay_event_loop_lag_seconds_bucket"
    grown = {
        float(dict(labels)["le"]): value - before.samples.get((found, labels), 0.0)
        for (found, labels), value in after.samples.items()
        if found == name
    }
    total = max(grown.values())
    return min(bound for bound, count in grown.items() if count >= 0.99 * total)
