"""T24: guessing keys gets nobody anywhere and hurts nobody, and no secret is seen where it should not be (faults.md 4; C103)."""

import asyncio
import gc
import json
import os
import random
import string
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.http.client import ClientConnection
from gateway.tenants import Tenants, Throttle
from tests.gateway.test_tenants import BLOCKED, DISABLED, Wire, book, head, loaded
from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Launch
from tests.kit.guessers import guessed
from tests.kit.processes import until
from tests.kit.raw_client import Connection, connect, exchange
from tests.kit.sizes import NIGHTLY, patience, sized
from tests.kit.stage import Stage, quantile, stage
from tests.kit.tenants import bearer, key, secret, tenant

pytestmark = pytest.mark.timeout(patience(120, 600))

SALT = "canary-salt-0123456789abcdef0123"
GUESSES = sized(5_000, 100_000)
GUESSERS = 16


@asynccontextmanager
async def on_core(core: int | None) -> AsyncIterator[None]:
    """This process and those that it starts meanwhile stay there."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def good(made: Stage, seconds: float, ended: asyncio.Event) -> list[float]:
    """One after the other on a kept connection; how long each took. All of them are served."""
    took: list[float] = []
    until_s = time.monotonic() + seconds
    async with await connect(made.gateway.port) as connection:
        while not ended.is_set() and time.monotonic() < until_s:
            began_s = time.monotonic()
            await connection.send(made.message("chat", "x", extra=[bearer("acme"), ("x-forwarded-for", "203.0.0.0")]))
            assert (await connection.response(5)).status == 200
            took.append(time.monotonic() - began_s)
            await asyncio.sleep(0.01)
    return took


async def test_c103_a_flood_of_guesses_opens_nothing_and_good_keys_pass_beside_it(tmp_path: Path) -> None:
    """Who guesses is another process: this one only measures. At night the gateway has a core, and all others have one."""
    listen = {"trusted_proxies": ["127.0.0.0/8"]}
    facts = {"tenants": [tenant("acme")], "listen": listen, "launch": Launch(core=0 if NIGHTLY else None)}
    async with on_core(1 if NIGHTLY else None), stage(tmp_path, **facts) as made, made.holding():
        alone = await good(made, 2.0 if not NIGHTLY else 60.0, asyncio.Event())
        ended = asyncio.Event()
        beside = asyncio.create_task(good(made, 3600.0, ended))
        try:
            found = await guessed(made.gateway.port, GUESSES, GUESSERS)
        finally:
            ended.set()
        took = await beside
        assert set(found) == {401, 429}
        assert 10 * GUESSES // 100 <= found[401] <= 0.3 * GUESSES  # ten at once from an address, and what a minute lets
        assert len(made.engine.seen) == len(alone) + len(took) and len(took) > 10
        causes = (await made.gateway.metrics()).by("forebay_auth_failures_total", "cause")
        assert causes["unknown"] == GUESSES
        if NIGHTLY:  # on an idle machine: clients, engine and gateway share two cores
            p99_s, before_s = quantile(took, 0.99), quantile(alone, 0.99)
            assert p99_s < 1.05 * before_s + 0.002, (
                f"{1000 * p99_s:.1f} ms beside the flood, {1000 * before_s:.1f} alone"
            )


# -- how much work a refusal is ----------------------------------------------------------------------------------------


def steps(tenants: Tenants, present: str) -> int:
    """Bytecodes that the gateway runs to judge a key: what it does, whatever else the machine does."""
    taken = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return trace

    presented = head(("x-api-key", present))
    sys.settrace(trace)
    try:
        tenants.identify(presented, "")
    except Exception:  # the refusal
        pass
    finally:
        sys.settrace(None)
    return taken


def test_c103_how_much_of_a_key_is_right_makes_no_difference() -> None:
    right = secret("good")
    wrong = {
        length: right[:length] + "".join("x" if letter != "x" else "y" for letter in right[length:])
        for length in range(len(right))
    }
    made = book(BLOCKED, DISABLED)
    counts = {length: steps(Tenants(made, Throttle()), presented) for length, presented in wrong.items()}
    assert len(set(counts.values())) == 1 and 0 < counts[0] < 500


REFUSED = {
    "unknown": (
        b"POST /v1/chat/completions",
        b"x-api-key: fbk-0123456789ab-0123456789012345678901234567890123456789012",
    ),
    "missing": (b"POST /v1/chat/completions", b"x-other: 1"),
    "no such route": (b"POST /v1/nothing", b"x-api-key: %b" % secret("good").encode()),
    "malformed": (b"POST /v1/chat/completions", b"host: twice"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_leaves_nothing_to_the_garbage_collector(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each of a flood left forty objects in a cycle: a look at 20,000 of them took 7 ms, every 70 ms."""
    line, field = REFUSED[kind]
    message = b"%b HTTP/1.1\r\nhost: h\r\n%b\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}" % (
        line,
        field,
    )
    gateway = Gateway(loaded(tenant("good")))

    async def refused() -> bytes:
        connection, wire = ClientConnection(gateway._shared), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.data_received(message)
        await asyncio.sleep(0)  # it is written at the end of this turn
        connection.connection_lost(None)
        return wire.written

    assert (await refused()).startswith(b"HTTP/1.1 4")
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await refused()
        assert gc.collect() == 0
    finally:
        gc.enable()
        gateway._lines.close()
    assert capfd.readouterr().out.count('"reason":') > 10


# -- where a secret may not stand --------------------------------------------------------------------------------------

PAGES = (
    "/health", "/admin/v1/fleet", "/admin/v1/queues", "/admin/v1/tenants", "/admin/v1/tenants/acme", "/admin/v1/usage",
    "/admin/v1/tenants/acme/usage", "/admin/v1/keys", "/admin/v1/config", "/metrics", "/livez", "/readyz",
)  # fmt: skip


async def test_c103_no_secret_is_in_any_log_metric_error_or_file(tmp_path: Path, seed: int) -> None:
    word = "canary" + "".join(random.Random(seed).choices(string.ascii_letters, k=20))
    engine_key, presented = f"{word}-engine-key", f"{word}-presented-key-of-nobody"
    telemetry = {"log_level": "debug", "journal": str(tmp_path / "journal.jsonl")}
    acme = tenant("acme", key("acme"), key("old", state="blocked"), limits={"rpm": 1000, "tpm": 1_000_000})
    facts = {
        "endpoint": {"api_key": engine_key}, "isolation": {"salt_secret": f"{SALT}{word}"}, "telemetry": telemetry,
        "length": {"state_file": str(tmp_path / "lengths.json")},
    }  # fmt: skip
    async with stage(tmp_path, tenants=[acme], **facts) as made:
        errors: list[bytes] = []
        ids: list[str] = []
        for one in bad_and_good(made, word, presented):
            answer = await exchange(made.gateway.port, one)
            ids.append(answer.header("x-forebay-request-id") or "")
            if answer.status != 200:
                errors.append(answer.body + b"".join(name + value for name, value in answer.headers))
        await broken_in_the_middle(made, word)
        pages = [json.dumps(await page(made, path)).encode() for path in PAGES]
        for one_id in filter(None, ids):
            explained = await made.gateway.get(
                f"/admin/v1/explain/{one_id}", port=made.gateway.admin_port, token=ADMIN_TOKEN
            )
            pages.append(explained.body)
        engine_saw = b"".join(seen.head for seen in made.engine.seen)
    files = {path: path.read_bytes() for path in (tmp_path / "journal.jsonl", tmp_path / "lengths.json")}
    assert all(files.values())
    seen = [*errors, *pages, made.gateway.output(), *files.values()]
    hidden = [word, secret("acme"), secret("old"), ADMIN_TOKEN, SALT, key("acme")["sha256"]]
    assert not [(canary, text[:200]) for canary in hidden for text in seen if canary.encode() in text]
    assert len(errors) >= 6 and secret("acme").encode() not in engine_saw and engine_key.encode() in engine_saw


def bad_and_good(made: Stage, word: str, presented: str) -> list[bytes]:
    """Requests with a secret in every place that a client can put one, good and bad."""
    acme = [bearer("acme")]
    return [
        made.message("chat", word, extra=acme),
        made.message("chat", word, stream=True, extra=acme),
        made.message("messages", word, extra=acme),
        made.message("completions", word, extra=acme, max_tokens=-1),
        made.message("chat", word, extra=acme, messages=word),
        made.message("chat", word, extra=[("authorization", f"Bearer {presented}")]),
        made.message("chat", word, extra=[("authorization", f"Basic {presented}")]),
        made.message("chat", word, extra=[bearer("old")]),
        made.message("chat", word, extra=[*acme, ("x-unknown", word)]),
        wire.request("/v1/chat/completions", f'{{"model": "m", "messages": [{{"content": "{word}'.encode(), extra=acme),
        made.message("chat", word, extra=[*acme, ("content-encoding", word)]),
    ]


async def broken_in_the_middle(made: Stage, word: str) -> None:
    """An engine that fails with the prompt in its words, and a client that leaves."""
    told = {"error": {"message": f"cannot serve {word}", "type": "x", "code": 500}}
    made.engine.once = [[wire.json_answer(told, status=500)], [wire.json_answer(told, status=500)]]
    failed = await exchange(made.gateway.port, made.message("chat", word, extra=[bearer("acme")]))
    assert failed.status >= 500 and word.encode() not in failed.body
    leaving: Connection = await made.begin("chat", word, stream=True, extra=[bearer("acme")])
    leaving.reset()
    before = len(made.gateway.access())
    await exchange(made.gateway.port, made.message("chat", word, extra=[bearer("acme")]))
    await until(lambda: len(made.gateway.access()) > before, 5, "no line")


async def page(made: Stage, path: str) -> str:
    answer = await made.gateway.get(path, port=made.gateway.admin_port, token=ADMIN_TOKEN)
    assert answer.status == 200, path
    return answer.body.decode()
