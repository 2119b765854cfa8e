"""T15 and T22, the parts that fit into CI: a thousand slow heads, too few descriptors, two thousand streams (C012, C096)."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.gateway import Launch
from tests.kit.processes import until_async
from tests.kit.raw_client import Crowd
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.sockets import cpu_s, rss_bytes, without_core_s
from tests.kit.stage import Stage, quantile, stage

pytestmark = [pytest.mark.serial, pytest.mark.timeout(90)]

HALF_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: forebay\r\nx-half"
HALF_BODY = wire.request("/v1/chat/completions", {"model": "m"})[:-5]
HEAD_S = 1.0  # 10 s at a tenth, as for the silence in a body
MIB = 1024 * 1024


async def good_traffic(stage: Stage, count: int) -> list[float]:
    """How long each of so many requests took; all of them are served."""
    took = []
    for at in range(count):
        began = time.monotonic()
        assert (await stage.ask("chat", f"good {at}")).status == 200
        took.append(time.monotonic() - began)
    return took


@pytest.mark.parametrize(("sent", "told"), [(HALF_HEAD, b"HTTP/1.1 408 "), (b"", b""), (HALF_BODY, b"HTTP/1.1 408 ")])
async def test_c096_a_thousand_slow_messages_are_closed_by_their_timer_and_hold_up_nobody(
    sent: bytes, told: bytes, tmp_path: Path
) -> None:
    async with stage(tmp_path) as made, made.holding():
        before = rss_bytes(made.gateway.pid)
        crowd = await Crowd.connect(made.gateway.port, 1000)
        began = time.monotonic()
        if sent:
            crowd.send(sent)
        took = await good_traffic(made, 40)
        await crowd.watch(HEAD_S + 1.0)
        assert not crowd.open()
        assert max(member.ended_at for member in crowd.members) - began < HEAD_S + 1.0
        assert all(member.received.startswith(told) for member in crowd.members)
        crowd.close()
        assert quantile(took, 0.99) < 0.25
        assert rss_bytes(made.gateway.pid) - before < 64 * MIB


async def test_with_too_few_descriptors_it_neither_spins_nor_dies(tmp_path: Path) -> None:
    async with stage(tmp_path, launch=Launch(files=256), timeouts={"scale": 1}) as made, made.holding():
        cpu = cpu_s(made.gateway.pid)
        crowd = await Crowd.connect(made.gateway.port, 1000)
        began = time.monotonic()
        await crowd.watch(1.5, until_closed=False)
        assert 16 <= len(crowd.open()) <= 256 * 0.4
        assert cpu_s(made.gateway.pid) - cpu < 0.5 * (time.monotonic() - began)
        assert (await made.gateway.get("/livez", port=made.gateway.admin_port)).status == 200
        crowd.close()

        async def served() -> bool:
            try:
                return (await made.ask("chat", "after", timeout_s=1)).status == 200
            except (OSError, TimeoutError):
                return False

        await until_async(served, 5, "it does not serve again")


def slow(seen: Seen) -> Iterator[Step]:
    """A stream of about 5 s, two chunks a second."""
    for step in wire.stream(wire.events("chat", ["a"] * 6)):
        yield step
        yield Wait(0.5)


@pytest.mark.nightly
async def test_two_thousand_streams_all_complete_and_probes_stay_fast(tmp_path: Path) -> None:
    endpoint = {"max_seqs": 4096, "max_prefill_tokens": 1_000_000}
    async with stage(tmp_path, endpoint=endpoint, timeouts={"scale": 1}) as made, made.holding():
        made.engine.answer = slow
        before = rss_bytes(made.gateway.pid)
        crowd = await Crowd.connect(made.gateway.port, 2000)
        crowd.send(made.message("chat", "long", stream=True))
        probes, most = [], 0
        deadline = time.monotonic() + 25
        while not all(b"[DONE]" in member.received for member in crowd.members) and time.monotonic() < deadline:
            await crowd.watch(0.1)
            most = max(most, rss_bytes(made.gateway.pid))
            probes.append(await probed(made))
        assert sum(b"[DONE]" in member.received for member in crowd.members) == 2000
        assert made.engine.peak == 2000
        crowd.close()
        assert (most - before) / 2000 <= 40 * 1024, f"{(most - before) / 2000 / 1024:.1f} KiB per stream"
        assert quantile(probes, 0.9) < 0.05, (
            f"probes {quantile(probes, 0.9) * 1e3:.0f} ms, of which some is this client's"
        )


async def probed(stage: Stage) -> float:
    """How long `/livez` takes on a machine that has a core for it. From a thread: this loop is busy with 2,000 sockets."""
    before_s = without_core_s(stage.gateway.pid)
    took_s = await asyncio.to_thread(_probe, stage.gateway.port)
    return took_s - (without_core_s(stage.gateway.pid) - before_s)


def _probe(port: int) -> float:
    began = time.monotonic() - without_core_s()
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nhost: forebay\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in sock.recv(4096)
    return time.monotonic() - without_core_s() - began
