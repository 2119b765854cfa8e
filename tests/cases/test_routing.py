"""Cases C057, C058, C059 and C062: true counts, no herding, and models that exist but have nobody to serve them.

C060 and C061 are judged in virtual time on the core; what scrapes and probes may do to counts is judged here.
"""

import asyncio
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.processes import until, until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import FIN, RST, Seen, Step, Wait, load_page
from tests.kit.stage import PATHS, Stage, error_of, gathered, paced, stage

pytestmark = pytest.mark.timeout(90)


class Gate:
    """Engines that hold everything until told to go on."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def answer(self, seen: Seen) -> Iterator[Step]:
        while not self.open.is_set():
            yield Wait(0.02)
        yield from wire.echo(seen)


# C057


@pytest.mark.serial
async def test_c057_our_counts_are_the_engines_in_every_sample_with_probes_and_scrapes_all_the_time(
    tmp_path: Path,
) -> None:
    async with (
        stage(tmp_path, engines=15, upstream={"probe_s": 1, "scrape_s": 0.2}, timeouts={"scale": 1}) as made,
        made.holding(),
    ):
        for engine in made.engines:
            engine.answer = lambda seen: [Wait(0.5), *wire.echo(seen)]
        jobs, apart = [], []
        async for at in paced(200, 2):
            jobs.append(asyncio.create_task(made.ask("chat", f"n{at}")))
            if at % 40 == 39:
                apart.append(await difference(made))
        answers = await asyncio.gather(*jobs)
        assert {answer.status for answer in answers} == {200}
        assert max(apart) <= 4  # what is on the wire at that moment
        assert all(engine.probes > 6 for engine in made.engines)
        counts = [len(engine.seen) for engine in made.engines]
        assert max(counts) <= 1.25 * statistics.mean(counts) + 2


async def difference(made: Stage) -> float:
    """How far our count of an endpoint's sequences is from what that engine has, at the worst endpoint."""
    ours = (await made.gateway.metrics()).by("forebay_endpoint_sequences", "endpoint")
    return max(abs(ours[f"e{at}"] - engine.active) for at, engine in enumerate(made.engines))


ENDINGS: dict[str, Callable[[Seen], list[Step]]] = {
    "success": wire.echo,
    "500": lambda seen: [wire.json_answer({"error": {"message": "x", "code": 500}}, status=500)],
    "503": lambda seen: [wire.json_answer({"error": {"message": "x", "code": 503}}, status=503)],
    "reset": lambda seen: [RST],
    "cut": lambda seen: [*wire.stream(wire.events("chat", ["a", "b"]), end=False)[:3], FIN],
    "garbage": lambda seen: [b"SSH-2.0-OpenSSH_9.2\r\n", FIN],
    "bad request": lambda seen: [wire.json_answer({"error": {"message": "x", "code": 400}}, status=400)],
}


async def test_c057_however_requests_end_nothing_is_counted_twice_or_left(tmp_path: Path, seed: int) -> None:
    """The invariants that hold around it are the case: nothing held, nothing negative, attempts as seen."""
    r = random.Random(seed)
    async with stage(tmp_path, engines=3, upstream={"probe_s": 0.5, "scrape_s": 0.5}) as made, made.holding() as held:
        for engine in made.engines:
            engine.answer = lambda seen: ENDINGS[r.choice(list(ENDINGS))](seen)
        for at in range(200):
            if at % 8 == 7:
                client = await made.begin("chat", f"n{at}", stream=True)
                client.close()
            else:
                await made.ask("chat", f"n{at}", stream=at % 2 == 0)
            if at % 20 == 0:
                await held.sample()
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_endpoint_sequences") == metrics.sum("forebay_endpoint_prefill_tokens") == 0


# C058


@pytest.mark.parametrize("ordering", ["by_length", "edf", "fcfs"])
@pytest.mark.parametrize("route", ["chat", "completions", "responses", "messages", "embeddings"])
async def test_c058_every_route_counts_under_every_ordering(route: str, ordering: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "endpoint": {"max_seqs": 128, "max_prefill_tokens": 1_000_000},
        "admission": {"ordering": ordering},
        "classes": {"standard": {"slo": {"ttft_ms": 600_000}}},
        "timeouts": {"scale": 1},  # so many connects at once take their time
    }
    async with stage(tmp_path, engines=8, **changes) as made, made.holding():
        gate = Gate()
        for engine in made.engines:
            engine.answer = gate.answer
        jobs = [asyncio.create_task(made.ask(route, f"n{at} " + "long " * 40, timeout_s=60)) for at in range(480)]
        await until(lambda: sum(engine.active for engine in made.engines) == 480, 30, "not all are there")
        held = [engine.active for engine in made.engines]
        gate.open.set()
        assert {answer.status for answer in await asyncio.gather(*jobs)} == {200}
        assert max(held) <= 1.25 * statistics.mean(held)


async def test_c058_a_path_that_is_not_in_the_table_reaches_nobody(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        assert (await made.gateway.get("/v1/engines")).status == 404
        assert not made.engine.seen


# C059


async def test_c059_between_two_scrapes_our_own_count_decides(tmp_path: Path) -> None:
    """Engines say 0 and 1; eight requests come before they say anything else."""
    async with stage(tmp_path, engines=2, upstream={"scrape_s": 30}) as made, made.holding():
        made.engines[1].metrics = lambda: [load_page(1)]
        gate = Gate()
        for engine in made.engines:
            engine.answer = gate.answer
        jobs = [asyncio.create_task(made.ask("chat", f"n{at}")) for at in range(8)]
        await until(lambda: sum(engine.active for engine in made.engines) == 8, 10, "not all are there")
        held = sorted(engine.active for engine in made.engines)
        gate.open.set()
        await asyncio.gather(*jobs)
        assert held in ([4, 4], [3, 5])


@pytest.mark.serial  # its engines live in this process: held up for a second, none is up
async def test_c059_a_newcomer_gets_no_stampede(tmp_path: Path) -> None:
    patient = {"standard": {"slo": {"ttft_ms": 600_000}}}  # three engines are too few for this load
    often = {"probe_s": 1.0, "scrape_s": 0.5}  # half a second a probe is too short for a busy machine
    async with stage(tmp_path, engines=4, classes=patient, upstream=often) as made, made.holding():
        newcomer = made.engines[3]
        newcomer.healthy = False
        await made.gateway.wait_up(3)
        for engine in made.engines:
            engine.answer = lambda seen: [Wait(0.3), *wire.echo(seen)]
        jobs = []
        async for at in paced(100, 3):
            jobs.append(asyncio.create_task(made.ask("chat", f"n{at}")))
            if at == 100:
                newcomer.healthy = True
        answers = await asyncio.gather(*jobs)
        assert {answer.status for answer in answers} == {200}, [answer for answer in answers if answer.status != 200][
            :1
        ]
        assert newcomer.seen
        first_s = newcomer.seen[0].first_byte_s
        within = [sum(first_s <= seen.first_byte_s < first_s + 1.0 for seen in engine.seen) for engine in made.engines]
        assert within[3] <= 1.5 * sum(within) / 4 + 8  # it starts empty: so many make it as full as the others are


async def test_c059_a_prompt_counts_from_its_dispatch_not_from_its_first_byte(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, upstream={"scrape_s": 0.5}) as made, made.holding():
        gate = Gate()
        for engine in made.engines:
            engine.answer = gate.answer
        text = "word " * 8000  # more than a bound: one at a time on each
        jobs = [asyncio.create_task(made.ask("chat", f"{at} {text}", stream=True)) for at in range(2)]
        await until(lambda: [engine.active for engine in made.engines] == [1, 1], 5, "both went to one")
        gate.open.set()
        await asyncio.gather(*jobs)


# C062


@pytest.mark.serial
async def test_c062_a_model_nobody_serves_now_is_not_a_model_nobody_knows(tmp_path: Path) -> None:
    async with stage(tmp_path, upstream={"probe_s": 0.5}) as made, made.holding():
        made.engine.healthy = False
        await made.gateway.wait_up(0)
        unknown = await made.ask("chat", "x", model="nobody")
        assert (unknown.status, error_of(unknown)["code"]) == (404, "model_not_found")
        down = await made.ask("chat", "x")
        assert (down.status, error_of(down)["code"]) == (503, "no_endpoint")
        assert any(name.lower() == b"retry-after" for name, _ in down.headers)
        made.engine.healthy = True

        async def served() -> bool:
            return (await made.ask("chat", "x")).status == 200

        await until_async(served, 1.0, "it does not serve again")


async def test_an_answer_names_the_pool_and_the_class_it_was_given(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        for asked, given in (("batch", b"batch"), ("CRITICAL", b"critical"), ("vip", b"standard")):
            answer = await made.ask("chat", "x", extra=[("x-forebay-priority", asked)])
            headers: dict[bytes, Any] = dict(answer.headers)
            assert (headers[b"x-forebay-class"], headers[b"x-forebay-pool"]) == (given, b"main")


async def test_why_a_request_went_where_it_went_can_be_asked(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2) as made, made.holding():
        made.engine.answer = made.engines[1].answer = ENDINGS["503"]
        first = await made.ask("chat", "x" * 400, stream=True)
        own = dict(first.headers)[b"x-forebay-request-id"].decode()
        found = await made.gateway.admin(f"/admin/v1/explain/{own}")
        assert found["request"]["id"] == own
        assert found["request"]["text_bytes"] > 400
        assert [step["what"] for step in found["steps"]] == ["dispatch", "bounced", "dispatch", "bounced", "fail"]
        assert {step["endpoint"] for step in found["steps"] if step["what"] == "dispatch"} == {"e0", "e1"}
        assert found["steps"][0]["why"]["pool"] == "main"
        assert found["steps"][-1]["reason"] == "backend_saturated"
        for one in made.engines:
            one.answer = wire.echo
        gathered_ids = [
            dict(answer.headers)[b"x-forebay-request-id"].decode()
            for answer in await gathered([made.ask("chat", f"n{at}") for at in range(20)], at_once=5)
        ]
        for name in gathered_ids:
            steps = (await made.gateway.admin(f"/admin/v1/explain/{name}"))["steps"]
            assert (steps[0]["what"], steps[-1]["what"]) == ("dispatch", "finished")
        with pytest.raises(RuntimeError, match="404"):
            await made.gateway.admin("/admin/v1/explain/nobody")


async def test_what_an_engine_says_of_itself_is_known_and_shown(tmp_path: Path) -> None:
    """A simulated engine in a process of its own, as vLLM would say it."""
    async with Engine(tmp_path, arguments=["--max-model-len", "4096", "--served-model-name", "m"]) as engine:
        settings = config([engine.url], upstream={"scrape_s": 0.5})
        async with Gateway(settings, tmp_path) as gateway:

            async def known() -> bool:
                (endpoint,) = (await gateway.admin("/health"))["endpoints"]
                said = endpoint["engine"]
                return bool(said["kv_tokens"] and said["context_tokens"] == 4096 and said["running"] == 0)

            await until_async(known, 5, "the engine is not known")
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2000, "stream": True}
            client = await connect(gateway.port)
            await client.send(wire.request(PATHS["chat"], body))

            async def busy() -> bool:
                metrics = await gateway.metrics()
                return metrics.sum("forebay_engine_running") == 1 and metrics.sum("forebay_engine_kv_usage") > 0

            await until_async(busy, 5, "the engine is not busy")
            client.close()
            assert gateway.stderr().count(b'"endpoint known"') == 2  # its context, then its cache
