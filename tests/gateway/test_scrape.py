"""Scrapes against real sockets: engines that tell their load, nonsense, nothing, or only for a while."""

import asyncio
import json
import random
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway import tasks
from gateway.endpoints.exposition import Load
from gateway.endpoints.scrape import STALE_PERIODS, Facts, Report, Scraper, ScrapeTarget
from gateway.engines import ENGINES
from gateway.http.pool import engine_tls
from loadgen.engine_server.server import SimulatedEngine
from tests.gateway.test_exposition import VLLM_LOAD, VLLM_PAGE
from tests.gateway.test_tls import certificate
from tests.loadgen.simulated import simulated

EVERY_S = 0.05
MODELS = json.dumps({"object": "list", "data": [{"id": "base", "max_model_len": 4096}, {"id": "lora"}]}).encode()
HANG = (0, b"")


class Engine:
    """Answers each path with what `pages` holds for it then. `heads`: the requests seen."""

    def __init__(self) -> None:
        self.pages: dict[bytes, tuple[int, bytes]] = {b"/metrics": (200, VLLM_PAGE), b"/v1/models": (200, MODELS)}
        self.heads: list[bytes] = []
        self.open = 0
        self.port = 0

    def asked(self, path: bytes) -> int:
        return sum(head.startswith(b"GET %b " % path) for head in self.heads)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            status, body = self.pages.get(self.heads[-1].split(b" ")[1], (404, b""))
            if status:
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
                await writer.drain()
            else:
                await reader.read()  # until the scraper gives up
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


class Scraping:
    """A scraper over one engine, and what it was told."""

    def __init__(self, target: ScrapeTarget, every_s: float) -> None:
        self.scraper = Scraper([target], every_s=every_s)
        self.loads: list[Load] = []
        self.facts: list[Facts] = []
        self.scraper.on_load = lambda name, seen_s, load: self.loads.append(load)
        self.scraper.on_facts = lambda name, facts: self.facts.append(facts)

    @property
    def report(self) -> Report:
        (report,) = self.scraper.reports()
        return report


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def target_of(port: int, engine: str = "vllm", served_as: str = "base") -> ScrapeTarget:
    row = ENGINES[engine]
    return ScrapeTarget(
        name="e",
        host="127.0.0.1",
        port=port,
        tls=False,
        authority=f"127.0.0.1:{port}",
        served_as=frozenset({served_as}),
        metrics_path=row.metrics_path,
        gauges=row.gauges,
        api_key="k",
    )


@asynccontextmanager
async def scraping(target: ScrapeTarget, every_s: float = EVERY_S) -> AsyncIterator[Scraping]:
    before = tasks.running()
    made = Scraping(target, every_s)
    made.scraper.start()
    try:
        yield made
    finally:
        await made.scraper.close()
        assert tasks.running() == before


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
        await until(lambda: made.open == 0)
    finally:
        server.close()
        await server.wait_closed()


async def test_an_engine_is_asked_while_it_is_up_and_only_then() -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        await asyncio.sleep(3 * EVERY_S)
        assert not one.heads
        made.scraper.up("e")
        await until(lambda: len(made.loads) >= 3)
        assert set(made.loads) == {VLLM_LOAD}
        assert made.report.counts["good"] >= 3
        made.scraper.down("e")
        await asyncio.sleep(EVERY_S)
        seen = len(one.heads)
        await asyncio.sleep(3 * EVERY_S)
        assert len(one.heads) == seen
        assert made.report.load is None
        assert not made.report.stale


async def test_what_an_engine_is_becomes_known_once_and_anew_after_each_return() -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        made.scraper.up("e")
        await until(lambda: len(made.loads) >= 3)
        assert made.facts == [Facts(context_tokens=4096), Facts(context_tokens=4096, kv_tokens=32_000, block_tokens=16)]
        assert one.asked(b"/v1/models") == 1
        made.scraper.down("e")
        one.pages[b"/v1/models"] = (200, MODELS.replace(b"4096", b"8192"))
        made.scraper.up("e")
        await until(lambda: len(made.facts) == 4)
        assert made.facts[-1] == Facts(context_tokens=8192, kv_tokens=32_000, block_tokens=16)
        one.pages[b"/metrics"] = (200, VLLM_PAGE.replace(b'"1000"', b'"500"'))
        await until(lambda: made.facts[-1].kv_tokens == 16_000)


async def test_a_scrape_asks_for_plain_bytes_with_the_endpoints_key() -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        made.scraper.up("e")
        await until(lambda: bool(made.loads))
        head = one.heads[-1].lower()
        assert head.startswith(b"get /metrics http/1.1")
        assert b"accept-encoding: identity\r\n" in head
        assert b"authorization: bearer k\r\n" in head


@pytest.mark.parametrize(
    ("page", "result"),
    [
        ((404, b""), "failed"),
        ((500, b""), "failed"),
        (HANG, "failed"),
        ((200, b""), "invalid"),
        ((200, b"<html>"), "invalid"),
        ((200, VLLM_PAGE.replace(b" 3.0", b" NaN")), "invalid"),
        ((200, VLLM_PAGE.replace(b"num_requests_waiting{", b"queued{")), "invalid"),
        ((200, b"x" * 100_000), "invalid"),
        ((302, b""), "failed"),
    ],
)
async def test_what_is_no_load_is_no_news_and_the_endpoint_stale_until_there_is_one(
    page: tuple[int, bytes], result: str
) -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        made.scraper.up("e")
        await until(lambda: bool(made.loads))
        one.pages[b"/metrics"] = page
        await until(lambda: made.report.counts[result] > 0)
        heard = len(made.loads)
        await until(lambda: made.report.stale)
        assert len(made.loads) == heard
        assert made.report.load is None
        one.pages[b"/metrics"] = (200, VLLM_PAGE)
        await until(lambda: len(made.loads) > heard and made.report.load == VLLM_LOAD and not made.report.stale)


async def test_a_busy_engine_whose_figures_do_not_move_is_frozen_and_an_idle_one_is_not() -> None:
    idle = VLLM_PAGE.replace(b" 3.0", b" 0").replace(b" 4.0", b" 0").replace(b" 2.0", b" 0").replace(b" 1e1", b" 0")
    async with engine() as one, scraping(target_of(one.port)) as made:
        made.scraper.up("e")
        await until(lambda: made.report.counts["frozen"] > 1 and made.report.stale)
        assert made.report.load is None
        heard = len(made.loads)
        await asyncio.sleep(2 * EVERY_S)
        assert len(made.loads) == heard
        one.pages[b"/metrics"] = (200, VLLM_PAGE.replace(b" 0.75", b" 0.76"))
        await until(lambda: len(made.loads) > heard)
        assert not made.report.stale
        one.pages[b"/metrics"] = (200, idle)
        await until(lambda: made.report.load is not None and made.report.load.running == 0)
        frozen = made.report.counts["frozen"]
        await asyncio.sleep(8 * EVERY_S)
        assert made.report.counts["frozen"] == frozen
        assert not made.report.stale


async def test_nobody_listening_is_a_failed_scrape() -> None:
    async with scraping(replace(target_of(1), port=1)) as made:
        made.scraper.up("e")
        await until(lambda: made.report.counts["failed"] > 1 and made.report.stale)
        assert not made.facts


async def test_an_engine_without_metrics_is_asked_for_its_models_and_never_stale() -> None:
    async with engine() as one, scraping(target_of(one.port, "openai")) as made:
        made.scraper.up("e")
        await until(lambda: made.facts == [Facts(context_tokens=4096)])
        await asyncio.sleep(6 * EVERY_S)
        assert len(one.heads) == 1
        assert not made.report.stale
        assert not made.report.has_metrics


@pytest.mark.parametrize(
    "models", [(404, b""), (200, b"[]"), (200, b'{"data":[{"id":"base","max_model_len":"4k"}]}'), (200, b'{"data":[]}')]
)
async def test_a_model_list_that_tells_nothing_is_asked_for_once(models: tuple[int, bytes]) -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        one.pages[b"/v1/models"] = models
        made.scraper.up("e")
        await until(lambda: len(made.loads) >= 3)
        assert one.asked(b"/v1/models") == 1
        assert made.facts == [Facts(kv_tokens=32_000, block_tokens=16)]


async def test_a_model_list_that_does_not_come_is_asked_for_again() -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        one.pages[b"/v1/models"] = (503, b"")
        made.scraper.up("e")
        await until(lambda: one.asked(b"/v1/models") >= 2)
        one.pages[b"/v1/models"] = (200, MODELS)
        await until(lambda: made.report.facts.context_tokens == 4096)


async def test_the_simulated_engine_tells_what_it_is_and_what_it_does() -> None:
    async with simulated() as simulator:
        assert isinstance(simulator, SimulatedEngine)
        async with scraping(target_of(simulator.port, served_as=simulator.model_name)) as made:
            made.scraper.up("e")
            await until(lambda: made.report.load is not None)
            facts, load = made.report.facts, made.report.load
    assert facts.context_tokens == 8192
    assert facts.kv_tokens > 100_000
    assert facts.block_tokens == 16
    assert load == Load(running=0, waiting=0, kv_usage=0.0, kv_tokens=facts.kv_tokens, block_tokens=16)


async def test_a_large_page_does_not_stall_the_loop() -> None:
    many = b"".join(b'vllm:e2e_bucket{engine="0",le="%d",model_name="m"} 1.0\n' % at for at in range(20_000))
    async with engine() as one, scraping(target_of(one.port), every_s=0.5) as made:
        one.pages[b"/metrics"] = (200, many + VLLM_PAGE)
        made.scraper.up("e")
        loop, late = asyncio.get_running_loop(), [0.0]
        while not made.loads:
            began = loop.time()
            await asyncio.sleep(0.001)
            late.append(loop.time() - began - 0.001)
    assert made.loads == [VLLM_LOAD]
    assert sorted(late)[-2] < 0.05  # the engine and its page live in this loop too


async def test_scrapes_of_an_engine_share_a_connection_and_find_another_when_it_is_gone() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                page = VLLM_PAGE.replace(
                    b" 0.75", b" 0.%d" % random.randrange(10, 99)
                )  # figures that stand still are no news
                body = MODELS if b"/v1/models" in head else page
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, scraping(target_of(server.sockets[0].getsockname()[1])) as made:
        made.scraper.up("e")
        await until(lambda: len(made.loads) >= 4)
        assert len(connections) == 1
        connections[0].close()
        heard = len(made.loads)
        await until(lambda: len(made.loads) >= heard + 2)
        assert len(connections) == 2
    for each in connections:
        await each.wait_closed()


async def test_figures_that_come_again_after_a_silence_are_news_however_long_it_was() -> None:
    async with engine() as one, scraping(target_of(one.port)) as made:
        made.scraper.up("e")
        await until(lambda: bool(made.loads))
        one.pages[b"/metrics"] = (500, b"")
        await until(lambda: made.report.counts["failed"] > 0)
        time.sleep(STALE_PERIODS * EVERY_S + EVERY_S)  # a machine that stands still for longer than figures may
        heard = len(made.loads)
        one.pages[b"/metrics"] = (200, VLLM_PAGE)
        await until(lambda: len(made.loads) > heard)
        assert made.report.load == VLLM_LOAD


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
@pytest.mark.parametrize(("trusted", "result"), [(True, "good"), (False, "failed")])
async def test_an_engine_over_tls_is_asked_where_its_certificate_is_trusted(
    trusted: bool, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    engine_tls.cache_clear()
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(cert, key)
    one = Engine()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=shown)
    target = replace(target_of(server.sockets[0].getsockname()[1]), tls=True)
    async with server, scraping(target, every_s=0.5) as made:
        made.scraper.up("e")
        await until(lambda: made.report.counts[result] > 0)
        assert bool(one.heads) is trusted
    engine_tls.cache_clear()
