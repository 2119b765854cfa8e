"""Probes against real sockets: an engine that is well, ill, slow, gone, flapping or hostile."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import get_args

import pytest

from gateway import tasks
from gateway.config.fleet import Endpoint
from gateway.endpoints.directory import Directory
from gateway.endpoints.probe import Prober, ProbeTarget
from gateway.engines import ENGINES

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
BAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
HANG = b""
EVERY_S = 0.1


class Engine:
    """Answers each probe with what `answer` is then. `heads`: the requests seen, `open`: connections now."""

    def __init__(self, answer: bytes = GOOD, port: int = 0) -> None:
        self.answer = answer
        self.port = port
        self.heads: list[bytes] = []
        self.times: list[float] = []
        self.open = 0
        self.most_open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.times.append(time.monotonic())
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
            if self.answer == HANG or b"endless" in self.answer:
                await reader.read()  # until the prober gives up
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


class Probing:
    """A prober over some engines, and the changes it made."""

    def __init__(self, targets: Sequence[ProbeTarget], every_s: float, scale: float) -> None:
        self.changes: list[str] = []
        self.directory = Directory(
            [target.name for target in targets],
            on_up=lambda name: self.changes.append(f"up {name}"),
            on_down=lambda name: self.changes.append(f"down {name}"),
        )
        self.prober = Prober(self.directory, targets, every_s=every_s, scale=scale)

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def until_cause(self, name: str) -> str:
        await self.until(lambda: self.directory.standing(name).cause != "")
        return self.directory.standing(name).cause


@asynccontextmanager
async def probing(*targets: ProbeTarget, every_s: float = EVERY_S, scale: float = 0.1) -> AsyncIterator[Probing]:
    running = Probing(targets, every_s, scale)
    before = tasks.running()
    running.prober.start()
    try:
        yield running
    finally:
        async with asyncio.timeout(2):
            await running.prober.close()
        assert tasks.running() == before


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    await made.stop()


def target(engine: Engine, name: str = "e", api_key: str | None = None) -> ProbeTarget:
    return ProbeTarget(name=name, url=f"http://127.0.0.1:{engine.port}/health", api_key=api_key)


async def test_the_first_probe_comes_at_once_and_one_good_answer_is_up(engine: Engine) -> None:
    began_s = time.monotonic()
    async with probing(target(engine), every_s=30.0, scale=1.0) as running:
        await running.until(lambda: running.changes == ["up e"], 1.0)
    assert time.monotonic() - began_s < 1.0
    assert len(engine.heads) == 1


async def test_a_probe_is_a_plain_get_with_the_endpoints_own_key(engine: Engine) -> None:
    async with probing(target(engine, api_key="engine-key"), every_s=30.0) as running:
        await running.until(lambda: running.changes == ["up e"])
    lines = engine.heads[0].lower().split(b"\r\n")
    assert lines[0] == b"get /health http/1.1"
    assert b"authorization: bearer engine-key" in lines
    assert not any(line.startswith(b"cookie") for line in lines)


async def test_without_a_key_no_authorization_is_sent(engine: Engine) -> None:
    async with probing(target(engine), every_s=30.0) as running:
        await running.until(lambda: running.changes == ["up e"])
    assert b"authorization" not in engine.heads[0].lower()


async def test_probes_repeat_at_their_pace_with_jitter_on_connections_of_their_own(engine: Engine) -> None:
    async with probing(target(engine)) as running:
        await running.until(lambda: len(engine.times) >= 8)
    gaps = [b - a for a, b in zip(engine.times, engine.times[1:], strict=False)]
    assert min(gaps) > EVERY_S * 0.8
    assert max(gaps) - min(gaps) > 0.001
    assert engine.most_open == 1


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (BAD, "status 503"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
        (b"HTTP/1.1 307 Moved\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n", "status 307"),
        (HANG, "timeout"),
        (b"HTTP/1.1 200 OK\r\nx-endless: ", "timeout"),
        (b"\x16\x03\x01 not http\r\n\r\n", "no valid answer"),
        (b"HTTP/1.1 200 OK\r\nbig: " + b"x" * 100_000 + b"\r\n\r\n", "no valid answer"),
    ],
    ids=["503", "404", "204", "redirect", "hang", "half a head", "not http", "huge head"],
)
async def test_anything_but_a_200_in_time_is_a_failure(engine: Engine, answer: bytes, cause: str) -> None:
    engine.answer = answer
    async with probing(target(engine)) as running:
        assert await running.until_cause("e") == cause
        assert running.changes == []
    assert all(b" /other " not in head for head in engine.heads)


async def test_a_body_is_not_waited_for(engine: Engine) -> None:
    engine.answer = b"HTTP/1.1 200 OK\r\nx: endless\r\ncontent-length: 1000000\r\n\r\nabc"
    async with probing(target(engine)) as running:
        await running.until(lambda: running.directory.standing("e").probes_good >= 3)
        assert engine.most_open <= 2
    await running.until(lambda: engine.open == 0)


async def test_a_closed_port_and_an_unknown_name_are_failures() -> None:
    closed = Engine()
    await closed.start()
    await closed.stop()
    nowhere = ProbeTarget(name="n", url="http://no-such-host.invalid:1/health")
    async with probing(target(closed), nowhere, every_s=2.0, scale=1.0) as running:
        assert await running.until_cause("e") == "not connected"
        assert await running.until_cause("n") in ("name not resolved", "timeout")


async def test_a_plain_server_behind_an_https_url_is_a_failure(engine: Engine) -> None:
    engine.answer = GOOD
    secure = ProbeTarget(name="e", url=f"https://127.0.0.1:{engine.port}/health")
    async with probing(secure) as running:
        assert await running.until_cause("e") in ("tls", "timeout")


async def test_one_blip_ejects_nothing_and_a_death_takes_three_probes(engine: Engine) -> None:
    async with probing(target(engine)) as running:
        await running.until(lambda: running.changes == ["up e"])
        engine.answer = BAD
        await running.until(lambda: running.directory.standing("e").failures >= 1)
        engine.answer = GOOD
        await running.until(lambda: running.directory.standing("e").failures == 0)
        assert running.changes == ["up e"]
        failed = running.directory.standing("e").probes_failed
        engine.answer = BAD
        await running.until(lambda: len(running.changes) == 2)
        assert running.changes == ["up e", "down e"]
        assert running.directory.standing("e").probes_failed == failed + 3


async def test_an_engine_that_comes_back_is_up_with_the_next_probe(engine: Engine) -> None:
    async with probing(target(engine)) as running:
        await running.until(lambda: running.changes == ["up e"])
        await engine.stop()
        await running.until(lambda: running.changes == ["up e", "down e"])
        await engine.start()
        await running.until(lambda: running.changes == ["up e", "down e", "up e"], EVERY_S * 1.1 + 1)


async def test_a_flapping_engine_changes_with_every_third_failure_only(engine: Engine) -> None:
    async with probing(target(engine), every_s=0.05) as running:
        for _ in range(3):
            engine.answer = GOOD
            await running.until(lambda: running.directory.standing("e").up)
            engine.answer = BAD
            await running.until(lambda: not running.directory.standing("e").up)
    assert running.changes == ["up e", "down e"] * 3
    assert running.directory.standing("e").probes_failed >= 9


async def test_a_hanging_engine_does_not_delay_the_probes_of_others(engine: Engine) -> None:
    hanging = Engine(HANG)
    await hanging.start()
    async with probing(target(hanging, "h"), target(engine, "e")) as running:
        await running.until(lambda: running.directory.standing("e").probes_good >= 5)
        assert running.directory.standing("h").probes_failed <= 5
    await hanging.stop()


async def test_an_engine_whose_health_takes_its_time_is_given_it_and_no_more(engine: Engine) -> None:
    engine.answer = HANG
    patient = replace(target(engine), health_s=4.0)  # at a tenth of the time
    async with probing(patient) as running:
        began_s = time.monotonic()
        assert await running.until_cause("e") == "timeout"
        assert time.monotonic() - began_s >= 0.35, "four periods, and twice what others are given"
    assert ENGINES["sglang"].health_s >= 10.0 and ENGINES["vllm"].health_s == 0.0


async def test_a_suspected_engine_that_is_dead_is_out_long_before_three_periods(engine: Engine) -> None:
    async with probing(target(engine), every_s=30.0, scale=1.0) as running:
        await running.until(lambda: running.changes == ["up e"])
        await engine.stop()
        began_s = time.monotonic()
        running.directory.suspect("e")  # one failed request is enough
        await running.until(lambda: running.changes == ["up e", "down e"])
        assert time.monotonic() - began_s < 1.5  # 0.75 s: three probes 0.25 s apart


async def test_a_suspected_engine_that_is_well_is_probed_once_and_stays(engine: Engine) -> None:
    async with probing(target(engine), every_s=30.0, scale=1.0) as running:
        await running.until(lambda: running.changes == ["up e"])
        for _ in range(100):
            running.directory.suspect("e")
        await running.until(lambda: running.directory.standing("e").probes_good == 2)
        await asyncio.sleep(0.6)
        assert len(engine.heads) == 2
        assert running.changes == ["up e"]


async def test_a_storm_of_suspicions_probes_no_more_often_than_four_times_a_second(engine: Engine) -> None:
    async with probing(target(engine), every_s=30.0, scale=1.0) as running:
        await running.until(lambda: running.changes == ["up e"])
        end_s = time.monotonic() + 1.2
        while time.monotonic() < end_s:
            running.directory.suspect("e")
            await asyncio.sleep(0.001)
    gaps = [b - a for a, b in zip(engine.times, engine.times[1:], strict=False)]
    assert len(gaps) >= 2
    assert min(gaps) > 0.2
    assert engine.most_open == 1


async def test_close_ends_probes_that_hang_and_leaves_no_connection(engine: Engine) -> None:
    engine.answer = HANG
    async with probing(target(engine), every_s=30.0, scale=1.0) as running:
        await running.until(lambda: engine.open == 1)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 1.0
    await running.until(lambda: engine.open == 0)


async def test_proxies_of_the_environment_are_not_used(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with probing(target(engine)) as running:
        await running.until(lambda: running.changes == ["up e"])


def test_every_engine_of_the_configuration_has_a_row() -> None:
    names = get_args(Endpoint.model_fields["engine"].annotation)
    assert set(names) == set(ENGINES)
    assert all(name == engine.name and engine.health_path.startswith("/") for name, engine in ENGINES.items())


def test_only_what_an_engine_is_known_to_take_is_sent_to_it() -> None:
    assert {name: sorted(engine.salted_routes) for name, engine in ENGINES.items()} == {
        "vllm": ["chat", "completions", "messages", "responses"],
        "sglang": ["chat", "completions"],
        "trtllm": ["chat"],
        "openai": [],
    }
    assert {name: engine.priority for name, engine in ENGINES.items()} == {
        "vllm": 1, "sglang": -1, "trtllm": 0, "openai": 0,
    }  # fmt: skip
    assert ENGINES["trtllm"].metrics_path != "/metrics"  # reading that one drains its statistics


async def test_close_at_the_very_moment_probes_time_out_ends_them_all(engine: Engine) -> None:
    engine.answer = HANG
    timeout_s = 0.1

    async def closed_after(seconds: float) -> None:
        async with probing(target(engine), every_s=timeout_s, scale=1.0):
            await asyncio.sleep(seconds)

    for microseconds in range(-1000, 3000, 50):
        await closed_after(timeout_s + microseconds / 1e6)
