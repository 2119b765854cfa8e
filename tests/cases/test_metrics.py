"""Cases C090 to C094: what is counted is bounded, true, and never in the way of traffic.

Left to later issues: 1,000 tenants (C090), removed endpoints and two processes (C091), budgets (C093), Redis and reload
(C094). A long mixed run with random faults is T25.
"""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cases.beside import delays, lag_p99_s, paced_stream, probed
from tests.cases.streams import stream_of, tokens
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, Metrics, config
from tests.kit.invariants import holding
from tests.kit.processes import until, until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import FIN, HANG, RST, ScriptEngine, Seen, Step, Wait
from tests.kit.sockets import rss_bytes
from tests.kit.stage import PATHS, Stage, gathered, quantile, stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]

MIB = 1024 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    endpoint = {"max_seqs": 256, "max_prefill_tokens": 1_000_000}
    models = {"m": {"context_tokens": 10_000_000}}
    directory = tmp_path_factory.mktemp("metrics")
    async with stage(directory, endpoint=endpoint, models=models, timeouts={"scale": 1}) as made:
        for route in PATHS:
            await made.ask(route, "warm", stream=route in wire.ROUTES)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def one(house: Stage) -> AsyncIterator[Stage]:
    house.reset()
    async with house.holding():
        yield house
        house.reset()


# C090


def odd_requests(at: int) -> list[bytes]:
    """Requests in which everything a client may choose has a value nobody has used before."""
    name = f"value-{at:06}"
    ids = [("x-request-id", name), ("x-forebay-session", name), ("x-forebay-priority", name), ("user-agent", name)]
    chat, messages = wire.request_body("chat", name), wire.request_body("messages", name)
    return [
        wire.request(PATHS["chat"], {**chat, "model": name, "user": name}, extra=ids),
        wire.request(PATHS["messages"], {**messages, "metadata": {"user_id": name}, name: 1}, extra=ids),
        wire.request(f"/v1/{name}", b"{}", extra=ids),
        wire.request(PATHS["chat"], {"model": "m", name: 1}, extra=[("authorization", f"Bearer {name}")]),
    ]


@pytest.mark.parametrize("count", [1_000, pytest.param(25_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
async def test_c090_nothing_a_client_chooses_makes_a_series(one: Stage, count: int) -> None:
    """Four requests with `count` values each, on eight connections."""

    async def flood(numbers: range) -> None:
        client = await connect(one.gateway.port)
        for message in itertools.chain.from_iterable(map(odd_requests, numbers)):
            await client.send(message)
            answer = await client.response()
            client.pieces.clear()
            if answer.header("connection") == "close":
                client.close()
                client = await connect(one.gateway.port)
        client.close()

    await flood(range(200))
    before, memory = await one.gateway.metrics(), rss_bytes(one.gateway.pid)
    share = count // 8
    await asyncio.gather(*(flood(range(1000 + lane * share, 1000 + (lane + 1) * share)) for lane in range(8)))
    after = await one.gateway.metrics()
    assert set(after.samples) == set(before.samples)
    assert b"value-" not in after.text.encode()
    assert rss_bytes(one.gateway.pid) - memory < 20 * MIB
    ended = "forebay_requests_ended_total"
    assert grown(before, after, ended, model="unknown", outcome="rejected", reason="model_unknown") == count // 8 * 8
    assert grown(before, after, "forebay_http_refused_total", reason="not_found") == count // 8 * 8
    assert grown(before, after, ended, outcome="completed") == count // 8 * 8  # those of `messages`
    assert grown(before, after, ended, outcome="rejected", reason="invalid_parameter") == count // 8 * 8
    one.engine.clear()


def grown(before: Metrics, after: Metrics, name: str, **labels: str) -> float:
    return after.sum(name, **labels) - before.sum(name, **labels)


# C091


async def test_c091_gauges_fall_to_zero_when_traffic_stops(one: Stage) -> None:
    one.engine.answer = lambda seen: [HANG]
    clients = [await one.begin("chat", f"n{at}", stream=at % 2 == 0) for at in range(20)]
    await until(lambda: one.engine.active == 20, 5, "not at the engine")
    busy = await one.gateway.metrics()
    assert busy.sum("forebay_endpoint_sequences") == 20 and busy.sum("forebay_requests_inflight") == 20
    for client in clients:
        client.close()
    await until(lambda: one.engine.active == 0, 2, "the engine goes on")
    idle = await one.gateway.metrics()
    falling = ["forebay_endpoint_sequences", "forebay_endpoint_prefill_tokens", "forebay_endpoint_kv_tokens", "forebay_requests_inflight", "forebay_requests_queued", "forebay_queue_requests", "forebay_queue_bytes", "forebay_queue_oldest_seconds", "forebay_attempts_open"]  # fmt: skip
    assert {name: idle.sum(name) for name in falling} == dict.fromkeys(falling, 0.0)


async def test_c091_the_series_of_a_queue_goes_with_its_last_request(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint={"max_seqs": 1}, timeouts={"scale": 1}) as made, made.holding():
        made.engine.answer = lambda seen: [HANG]
        clients = [await made.begin("chat", f"n{at}", stream=True) for at in range(3)]

        async def queued() -> bool:
            return (await made.gateway.metrics()).sum("forebay_queue_requests") == 2

        await until_async(queued, 2, "not queued")
        assert (await made.gateway.metrics()).sum("forebay_queue_oldest_seconds") > 0
        for client in reversed(clients):
            client.close()
        await until(lambda: made.engine.active == 0, 2, "the engine goes on")
        assert not [key for key in (await made.gateway.metrics()).samples if key[0].startswith("forebay_queue_re")]


# C092

GIANTS = """
import itertools, json, socket, sys, time
sizes = itertools.cycle([6 << 20, 10 << 20])
for _ in range(20):
    began = time.monotonic()
    body = json.dumps({"model": "giant", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * next(sizes)}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n"
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
        client.sendall(head % len(body) + body)
        assert b" 200 " in client.recv(65536)[:20]
    time.sleep(max(0.0, began + 0.15 - time.monotonic()))
"""


@pytest.mark.serial
async def test_c092_scrapes_and_giant_prompts_are_not_felt(tmp_path: Path) -> None:
    """/metrics at 10 Hz, prompts of 6 MB (1.5 M tokens) and of 10 MB, beside ten streams and probes.

    The giants have a client and an engine of their own, as processes: this one must have time to read the others.
    """
    flags = ("--profile", "noop", "--served-model-name", "giant", "--max-model-len", "10000000")
    async with Engine(tmp_path, arguments=flags) as engine, ScriptEngine(paced_stream) as scripted:
        settings = config([scripted.url, engine.url], timeouts={"scale": 1})
        settings["endpoints"][1]["pools"] = ["giant"]
        settings["models"]["giant"] = {"context_tokens": 10_000_000}
        settings["pools"]["giant"] = {"model": "giant"}
        async with Gateway(settings, tmp_path) as gateway, holding(gateway):
            one = Stage(gateway, [scripted])
            felt = await felt_beside_giants(one)
            for _ in range(2):  # other work on the machine may spoil a run, a fault spoils all three
                felt = felt and await felt_beside_giants(one)
            assert felt == {}


async def felt_beside_giants(one: Stage) -> dict[str, tuple[float, float]]:
    """What is over its limit, with the limit; seconds."""
    alone = quantile(await delays(one, 10), 0.99)
    before, over = await one.gateway.metrics(), asyncio.Event()
    beside, probes = asyncio.create_task(delays(one, 10, over)), asyncio.create_task(probed(one, over))
    scrapes = asyncio.create_task(scraped(one, over))
    giants = await asyncio.create_subprocess_exec(sys.executable, "-c", GIANTS, str(one.gateway.port))
    assert await giants.wait() == 0
    over.set()
    found = {"beside": quantile(await beside, 0.99), "probes": quantile(await probes, 0.95), "scrapes": quantile(await scrapes, 0.95)}  # fmt: skip
    found["lag"] = lag_p99_s(before, await one.gateway.metrics())
    limits = {"beside": alone * 1.1 + 0.08, "probes": 0.05, "scrapes": 0.05, "lag": 0.1}
    return {name: (value, limits[name]) for name, value in found.items() if value > limits[name]}


async def scraped(stage: Stage, until_: asyncio.Event) -> list[float]:
    """How long `/metrics` takes, ten times a second."""
    took: list[float] = []
    while not until_.is_set():
        began = time.monotonic()
        assert (await stage.gateway.get("/metrics", port=stage.gateway.admin_port)).status == 200
        took.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, began + 0.1 - time.monotonic()))
    return took


# C093


def model_like(seen: Seen) -> Iterator[Step]:
    """0.5 s of prefill, then 100 tokens 20 ms apart by the clock; or one token."""
    words = ["w"] * (1 if b"just one" in seen.body else 100)
    head, role, *rest = wire.stream(stream_of("chat", words, usage=True))
    yield Wait(0.5)
    yield head + role
    began = time.monotonic()
    for at in range(len(words)):
        yield Wait(max(0.0, began + at * 0.02 - time.monotonic()))
        yield rest[at]
    yield b"".join(step for step in rest[len(words) :] if isinstance(step, bytes))


def holds(seen: Seen) -> list[Step]:
    return [Wait(1.0), *wire.echo(seen)]


@pytest.mark.serial
async def test_c093_times_mean_what_they_say(tmp_path: Path) -> None:
    """1 s of queue, 0.5 s of prefill, 100 tokens 20 ms apart, then an answer of one token."""
    async with stage(tmp_path, endpoint={"max_seqs": 1}, timeouts={"scale": 1}) as made, made.holding():
        await made.ask("chat", "warm")
        made.engine.answer = lambda seen: holds(seen) if b"holder" in seen.body else model_like(seen)
        holder = asyncio.create_task(made.ask("chat", "holder"))
        await until(lambda: made.engine.active == 1, 2, "not at the engine")
        before = await made.gateway.metrics()
        answer = await made.ask("chat", "measured", stream=True)
        await holder
        after = await made.gateway.metrics()
        assert answer.clean
        ttft = mean(before, after, "forebay_time_to_first_token_seconds", 1)
        assert abs(ttft - 1.5) <= 0.03
        assert abs(mean(before, after, "forebay_time_per_output_token_seconds", 1) - 0.020) <= 0.001
        await until(lambda: len(made.gateway.access()) == 3, 2, "no line")
        line = next(line for line in made.gateway.access() if line["output_tokens"] == 100)
        assert abs(line["queue_ms"] - 1000) <= 30 and abs(line["ttft_ms"] - ttft * 1e3) < 0.1
        seen = made.engine.seen[-1]
        engine_ms = (seen.answered_s - seen.complete_s) * 1e3
        assert 0 <= line["duration_ms"] - line["queue_ms"] - engine_ms <= 20
        await made.ask("chat", "just one", stream=True)
        last = await made.gateway.metrics()
        name = "forebay_time_per_output_token_seconds_count"
        assert grown(after, last, name) == 0 and grown(after, last, "forebay_request_duration_seconds_count") == 1


def mean(before: Metrics, after: Metrics, name: str, count: int) -> float:
    """Of what a histogram has seen in between, which must be so many values."""
    assert grown(before, after, f"{name}_count") == count
    return grown(before, after, f"{name}_sum") / count


# C094


def sometimes(r: random.Random) -> Any:
    """Answers of many sizes; some break off, some are refused. What each tells of its tokens is known."""

    def answer(seen: Seen) -> list[Step]:
        words = ["w"] * r.randrange(1, 30)
        route, kind = wire.NAMES[seen.target], r.random()
        if not seen.json.get("stream"):
            whole = wire.json_answer(wire.body(route, wire.prompt_of(seen.json), prompt=50, output=len(words)))
            return [whole] if kind < 0.8 else [wire.json_answer({"error": {"message": "bad"}}, status=400)]
        steps: list[Step] = [*wire.stream(stream_of(route, words, prompt=50, usage=True))]
        if kind < 0.7:
            return steps
        return [*steps[:4], Wait(0.002), RST if kind < 0.85 else FIN]

    return answer


async def test_c094_counts_and_tokens_are_those_of_engines_and_clients(one: Stage, seed: int) -> None:
    """600 requests of four routes, streamed and not, good, broken, refused and left. C1 is asked for all the while."""
    r = random.Random(seed)
    one.engine.answer = sometimes(r)
    before, spent = await one.gateway.metrics(), await tokens(one)
    lines = len(one.gateway.access())

    async def go(at: int) -> str:
        route, stream = r.choice(list(wire.ROUTES)), r.random() < 0.6
        async with await one.begin(route, f"n{at}", stream=stream) as client:
            try:
                answer = await client.response(r.uniform(0, 0.02) if r.random() < 0.15 else 10)
            except TimeoutError:
                return "left"
        return "completed" if answer.status == 200 and answer.clean else "failed"

    told = await gathered([go(at) for at in range(600)], at_once=12)
    await until_async(lambda: all_written(one, lines + 600), 3, "lines are missing")
    after = await one.gateway.metrics()
    ended = {
        name: grown(before, after, "forebay_requests_ended_total", outcome=name)
        for name in ("completed", "failed", "cancelled")
    }
    assert sum(ended.values()) == grown(before, after, "forebay_requests_received_total") == 600
    for name in ("completed", "failed"):  # who left may have done so when all was over
        assert told.count(name) <= ended[name] <= told.count(name) + told.count("left")
    written = one.gateway.access()[lines:]
    for kind, at in (("prompt_tokens", 0), ("output_tokens", 1)):
        assert sum(line[kind] for line in written) == (await tokens(one))[at] - spent[at]
    good = [line for line in written if line["outcome"] == "completed"]
    assert {line["prompt_tokens"] for line in good} == {50} and all(
        line["output_tokens"] for line in written if line["stage"] == "stream"
    )
    assert len(good) == ended["completed"]


async def all_written(stage: Stage, count: int) -> bool:
    """All lines are there, and at this moment too the sums of C1 hold."""
    metrics = await stage.gateway.metrics()
    queued, inflight = metrics.sum("forebay_requests_queued"), metrics.sum("forebay_requests_inflight")
    received = metrics.sum("forebay_requests_received_total")
    assert received == metrics.sum("forebay_requests_ended_total") + queued + inflight
    return len(stage.gateway.access()) == count


async def test_c094_the_engines_own_token_counts_are_charged_to_the_last_one(one: Stage) -> None:
    """Every answer is completed here: the sum over the engine's answers is the sum in the metrics."""
    r, given = random.Random(7), []

    def answer(seen: Seen) -> list[Step]:
        words, prompt, route = ["w"] * r.randrange(1, 40), r.randrange(1, 5000), wire.NAMES[seen.target]
        given.append((prompt, len(words)))
        if seen.json.get("stream"):
            return list(wire.stream(stream_of(route, words, prompt=prompt, usage=True)))
        return [wire.json_answer(wire.body(route, "x", prompt=prompt, output=len(words)))]

    one.engine.answer = answer
    spent = await tokens(one)
    routes = itertools.cycle(itertools.product(wire.ROUTES, (False, True)))
    jobs = [one.ask(route, f"n{at}", stream=stream) for at, (route, stream) in zip(range(400), routes, strict=False)]
    assert {one.status for one in await gathered(jobs, at_once=10)} == {200}
    now = await tokens(one)
    assert (now[0] - spent[0], now[1] - spent[1]) == (
        sum(prompt for prompt, _ in given),
        sum(output for _, output in given),
    )
