"""Cases C001 to C008 and C014: connections, departures and sick engines. What needs budgets, breakers, ramps and the
quarantine of poison comes with a later issue; here stands what holds without them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cases.streams import stream_of
from tests.kit import wire
from tests.kit.http_reader import Response
from tests.kit.processes import until, until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import FIN, HANG, Script, ScriptEngine, Seen, Step, Wait
from tests.kit.stage import Stage, error_of, gathered, paced, quantile, stage

pytestmark = pytest.mark.timeout(90)


@asynccontextmanager
async def held(directory: Path, **named: Any) -> AsyncIterator[Stage]:
    """A stage with the invariants around what is done on it."""
    async with stage(directory, **named) as made, made.holding():
        yield made


@dataclass(frozen=True, slots=True)
class Took:
    began: float
    seconds: float
    response: Response


async def load(stage: Stage, rate: float, seconds: float, *, stream: bool = False) -> list[Took]:
    """Requests at a fixed rate, whatever becomes of earlier ones."""

    async def one(at: int) -> Took:
        began = time.monotonic()
        response = await stage.ask("chat", f"n{at}", stream=stream)
        return Took(began, time.monotonic() - began, response)

    running = [asyncio.create_task(one(at)) async for at in paced(rate, seconds)]
    return list(await asyncio.gather(*running))


def texts(engines: Iterable[ScriptEngine]) -> Counter[str]:
    """How often the engines saw each prompt."""
    return Counter(wire.prompt_of(seen.json) for engine in engines for seen in engine.seen)


# C001: 500 POSTs around this and two other edges, that are not streamed, are T18.


async def test_c001_streams_and_other_routes_around_an_engines_idle_limit(tmp_path: Path, seed: int) -> None:
    """The engine closes after 0.50 s; gaps of 0.49 to 0.51 s on 20 connections, 5 each."""
    r, lanes, each = random.Random(seed), 20, 5
    kinds = [("chat", True), ("messages", True), ("messages", False), ("responses", True), ("completions", False)]
    async with held(tmp_path, engines=lanes, own_models=True, upstream={"probe_s": 30}) as made:
        for engine in made.engines:
            engine.idle_close_s = 0.5

        async def lane(at: int) -> list[int]:
            found = []
            async with await connect(made.gateway.port) as client:
                for number in range(each):
                    route, stream = kinds[(at + number) % len(kinds)]
                    await client.send(made.message(route, f"lane {at} number {number}", stream=stream, model=f"m{at}"))
                    answer = await client.response()
                    found.append(answer.status if answer.clean else -1)
                    await asyncio.sleep(0.5 + r.uniform(-0.01, 0.01))
            return found

        statuses = await asyncio.gather(*(lane(at) for at in range(lanes)))
        assert {status for one in statuses for status in one} == {200}
        assert set(texts(made.engines).values()) == {1} and len(texts(made.engines)) == lanes * each


# C002: other stages and routes are T9.


@pytest.mark.serial
@pytest.mark.parametrize("stream", [True, False])
async def test_c002_a_client_that_leaves_a_silent_engine_is_noticed(tmp_path: Path, stream: bool) -> None:
    """100 times each: the engine needs 30 s to its first byte, the client leaves 0.05 s after sending."""
    async with held(tmp_path, endpoint={"max_seqs": 16}, timeouts={"scale": 1}) as made:
        made.engine.answer = lambda seen: [Wait(30)]
        left: dict[str, float] = {}

        async def leave(at: int) -> None:
            client = await made.begin("chat", f"leaver {at}", stream=stream)
            await asyncio.sleep(0.05)
            client.close()
            left[f"leaver {at}"] = time.monotonic()

        await gathered([leave(at) for at in range(100)], at_once=10)
        await until(lambda: len(made.engine.aborted()) == 100, 3, "the engine goes on")
        took = [seen.peer_closed_s - left[wire.prompt_of(seen.json)] for seen in made.engine.aborted()]
        assert quantile(took, 0.99) <= 0.25 and max(took) <= 1.0
        await until_async(lambda: freed(made), 1, "a slot is held")
        await until(lambda: len(made.gateway.access()) == 100, 2, "no lines")
        assert {(line["status"], line["outcome"]) for line in made.gateway.access()} == {(499, "cancelled")}


async def freed(stage: Stage) -> bool:
    queues = await stage.gateway.admin("/admin/v1/queues")
    return not any(one["sequences"] or one["prefill_tokens"] for one in queues["endpoints"])


# C003: that nobody else feels it is T10; a link that goes down needs a network namespace (T19, nightly).


def five_then_nothing(seen: Seen) -> list[Step]:
    return [*wire.stream(stream_of("chat", list("abcdefgh")))[:6], HANG]


@pytest.mark.parametrize(
    ("fault", "stream"), [(lambda seen: [HANG], True), (lambda seen: [HANG], False), (five_then_nothing, True)]
)
async def test_c003_hung_requests_end_at_their_timer_and_give_back_their_slots(
    tmp_path: Path, fault: Script, stream: bool
) -> None:
    """3 engines, 100 rps: E1 accepts and never answers, or sends 5 chunks and then nothing."""
    timeouts = {"first_byte_s": 10, "idle_s": 10, "total_s": 15}
    async with held(tmp_path, engines=3, timeouts=timeouts, retries={"max_attempts": 1}) as made:
        made.engine.answer = fault
        took = await load(made, 100, 1.0, stream=stream)
        limit_s = 1.0 if stream else 1.5
        hung = [one for one in took if one.seconds > 0.9]
        assert hung and max(one.seconds for one in hung) <= limit_s + 1.0
        for one in hung:
            told = (
                one.response.status == 504
                if fault is not five_then_nothing
                else b'"backend_stall"' in one.response.body
            )
            assert told and (one.response.status == 504) == one.response.clean
        assert {one.response.status for one in took if one not in hung} == {200}
        await until_async(lambda: freed(made), 2, "a slot is held")
        assert len(made.engine.aborted()) == len(hung)


# C004


@pytest.mark.serial  # a hundredth of a second tells
async def test_c004_an_engine_that_misses_its_first_byte_costs_one_attempt(tmp_path: Path) -> None:
    """200 requests; E1 accepts and is silent, the limit is 0.1 s, E2 is well: all answer 200 from E2."""
    async with held(tmp_path, engines=2, timeouts={"first_byte_s": 1}, endpoint={"max_seqs": 128}) as made:
        made.engine.answer = lambda seen: [HANG]
        took = await gathered([made.ask("chat", f"n{at}", stream=True) for at in range(200)], at_once=10)
        assert {(one.status, one.clean) for one in took} == {(200, True)}
        first, second = made.engines
        assert texts([second]) == Counter({f"n{at}": 1 for at in range(200)}) and max(texts([first]).values()) == 1
        assert {one.header("x-forebay-attempts") for one in took} == {"1", "2"}
        again = {wire.prompt_of(seen.json): seen for seen in second.seen}
        # The last end of a connection may be read after the last answer.
        await until(lambda: all(seen.aborted for seen in first.seen), 1, "an attempt is open")
        for seen in first.seen:  # never two at a time for one request, seen from one event loop
            assert seen.aborted and seen.peer_closed_s <= again[wire.prompt_of(seen.json)].complete_s + 0.01


@pytest.mark.serial
@pytest.mark.parametrize("stream", [True, False])
async def test_c004_an_engine_that_refuses_connections_costs_next_to_nothing(tmp_path: Path, stream: bool) -> None:
    async with held(tmp_path, engines=2, upstream={"probe_s": 60}, endpoint={"max_seqs": 128}) as made:
        alone = await load(made, 100, 1.0, stream=stream)
        for engine in made.engines:
            engine.clear()
        made.engine.stop_listening()
        made.engine.drop_connections()
        took = await load(made, 100, 2.0, stream=stream)
        assert {(one.response.status, one.response.clean) for one in took} == {(200, True)} and len(took) == 200
        assert quantile([one.seconds for one in took], 0.99) <= quantile([one.seconds for one in alone], 0.99) + 0.05
        assert set(texts([made.engines[1]]).values()) == {1} and made.engine.seen == []
        assert max(int(one.response.header("x-forebay-attempts") or 0) for one in took) == 2
        await made.engine.start()


@pytest.mark.parametrize("after", [0, 3])
async def test_c004_nothing_is_placed_again_once_a_byte_has_reached_the_client(tmp_path: Path, after: int) -> None:
    async with held(tmp_path, engines=2) as made:
        for engine in made.engines:
            engine.answer = lambda seen: [*wire.stream(stream_of("chat", list("abcde")))[: 1 + after], Wait(0.02), FIN]
        answer = await made.ask("chat", "x", stream=True)
        assert (answer.status, answer.clean) == ((200, False) if after else (502, True))
        assert sum(texts(made.engines).values()) == (1 if after else 2)


# C005: the budget of retries and `x-should-retry: false` when it is dry come later. What the client is told holds now.


def full(retry_after: int) -> Script:
    return lambda seen: [
        wire.json_answer({"error": {"message": "full"}}, status=503, extra=[("retry-after", str(retry_after))])
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_c005_the_wait_is_the_least_that_the_engines_ask_for_now(tmp_path: Path, stream: bool) -> None:
    async with held(tmp_path, engines=3, retries={"max_attempts": 3}) as made:
        for waits in ((7, 7, 7), (3, 3, 3), (9, 4, 6), (6, 9, 4), (5, 60, 9)):
            for engine, wait in zip(made.engines, waits, strict=True):
                engine.answer = full(wait)
            for route, status in (("chat", 503), ("messages", 529)):
                answer = await made.ask(route, "x", stream=stream)
                assert (answer.status, answer.header("retry-after")) == (status, str(min(waits)))
                assert min(waits) * 1000 <= int(answer.header("retry-after-ms") or 0) <= min(waits) * 1250
        assert sum(texts(made.engines).values()) == 5 * 2 * 3


async def test_c005_tries_are_bounded_and_all_is_well_once_the_engines_are(tmp_path: Path) -> None:
    async with held(tmp_path, engines=3) as made:
        for engine in made.engines:
            engine.answer = full(1)
        took = await load(made, 200, 1.0)
        assert {one.response.status for one in took} == {503}
        assert sum(texts(made.engines).values()) <= 2 * len(took)
        for engine in made.engines:
            engine.answer = wire.echo
        assert {one.response.status for one in await load(made, 200, 0.5)} == {200}


# C006


async def test_c006_a_thousand_refused_prompts_eject_nobody(tmp_path: Path) -> None:
    """Beside them another caller is served every time; the engine's own words reach the first one."""
    refusal = {
        "error": {"message": "maximum context length", "type": "BadRequestError", "param": "input_tokens", "code": 400}
    }

    def judge(seen: Seen) -> list[Step]:
        return [wire.json_answer(refusal, status=400)] if b"too long" in seen.body else list(wire.echo(seen))

    async with held(tmp_path, engines=2) as made:
        for engine in made.engines:
            engine.answer = judge

        async def bad() -> set[tuple[int, str | None, bool]]:
            found = set()
            async with await connect(made.gateway.port) as client:
                for at in range(125):
                    await client.send(made.message("chat", "too long", stream=at % 2 == 0))
                    answer = await client.response()
                    found.add((answer.status, answer.header("x-should-retry"), error_of(answer) == refusal["error"]))
            return found

        others = asyncio.create_task(load(made, 60, 2.0))
        found = await asyncio.gather(*(bad() for _ in range(8)))
        good = await others
        assert set().union(*found) == {(400, "false", True)}
        assert {one.response.status for one in good} == {200}
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_endpoint_up") == 2
        assert (
            all(texts([engine])["too long"] > 100 for engine in made.engines)
            and texts(made.engines)["too long"] == 1000
        )


# C007: half-open and its one trial come later. An endpoint that was down serves after one good probe, whoever leaves.


@pytest.mark.serial
async def test_c007_an_endpoint_comes_back_though_its_first_client_leaves(tmp_path: Path) -> None:
    async with held(tmp_path, engines=1, upstream={"probe_s": 1}) as made:
        for _ in range(20):
            made.engine.stop_listening()
            made.engine.drop_connections()
            await made.gateway.wait_up(0)
            await made.engine.start()
            await made.gateway.wait_up(1)
            made.engine.answer = lambda seen: [HANG]
            made.engine.clear()
            trial = await made.begin("chat", "trial", stream=True)
            await until(lambda: made.engine.active == 1, 2, "the trial has not come")
            trial.close()
            await until(lambda: made.engine.active == 0, 0.3, "its place is held")
            made.engine.answer = wire.echo
            assert (await made.ask("chat", "next")).status == 200


# C008: ejection by failures, its bound of half the fleet, and the ramp come later.


@pytest.mark.serial
async def test_c008_a_dead_engine_is_out_within_a_second_and_nobody_notices(tmp_path: Path) -> None:
    """4 engines at 100 rps; one dies. Real timers: no request fails, and after a second none is even tried there."""
    async with held(tmp_path, engines=4, timeouts={"scale": 1}, upstream={"probe_s": 1}) as made:
        running = asyncio.create_task(load(made, 100, 3.0))
        await asyncio.sleep(0.7)
        died = time.monotonic()
        made.engine.stop_listening()
        made.engine.drop_connections()
        took = await running
        assert {one.response.status for one in took} == {200}
        late = [one for one in took if one.began > died + 1.0]
        assert {one.response.header("x-forebay-attempts") for one in late} == {"1"} and len(late) > 100
        await made.engine.start()
        await made.gateway.wait_up(4, 2.5)  # one good probe
        made.engine.clear()
        assert {one.response.status for one in await load(made, 100, 1.0)} == {200} and made.engine.seen


async def test_c008_one_failed_probe_ejects_nobody(tmp_path: Path) -> None:
    async with held(tmp_path, engines=2, timeouts={"scale": 1}, upstream={"probe_s": 0.5}) as made:
        for _ in range(3):
            probes = made.engine.probes
            made.engine.healthy = False
            await until(lambda probes=probes: made.engine.probes > probes, 2, "no probe")  # type: ignore[misc]
            made.engine.healthy = True
            assert (await made.gateway.metrics()).sum("forebay_endpoint_up") == 2
            await until(lambda probes=probes: made.engine.probes > probes + 1, 2, "no probe")  # type: ignore[misc]
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_endpoint_up") == 2 and metrics.sum("forebay_probes_total", result="failed") >= 3


# C014: the quarantine of a fingerprint over several requests comes later, and with ejection the 99.9 % of the others:
# until the probes have taken them out, a request may meet both dead engines.


@pytest.mark.serial
async def test_c014_one_request_kills_two_engines_at_most(tmp_path: Path) -> None:
    async with held(tmp_path, engines=5, timeouts={"scale": 1}, upstream={"probe_s": 0.5}) as made:

        def fragile(engine: ScriptEngine) -> Script:
            def answer(seen: Seen) -> list[Step]:
                if b"POISON" not in seen.body:
                    return list(wire.echo(seen))
                engine.stop_listening()
                asyncio.get_running_loop().call_soon(engine.drop_connections)
                return [HANG]

            return answer

        for engine in made.engines:
            engine.answer = fragile(engine)
        others = asyncio.create_task(load(made, 60, 1.5))
        await asyncio.sleep(0.3)
        async with openai.AsyncOpenAI(base_url=made.gateway.url + "/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "POISON"}])
        assert caught.value.status_code == 502 and texts(made.engines)["POISON"] == 2
        assert {one.response.status for one in await others} <= {200, 502}
        await made.gateway.wait_up(3)
        assert {one.response.status for one in await load(made, 60, 1.0)} == {200}
