"""The simulated engine as the kit drives it: a process with a control listener that sets faults and tells what it saw."""

from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.raw_client import exchange

ARGUMENTS = ("--profile", "noop", "--served-model-name", "m")
MESSAGE = wire.request("/v1/chat/completions", wire.request_body("chat", "hello", max_tokens=4))


async def test_an_engine_serves_logs_and_takes_faults(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=ARGUMENTS) as engine:
        assert (await exchange(engine.port, MESSAGE)).status == 200
        (entry,) = await engine.log()
        assert (entry["path"], entry["status"], entry["model"]) == ("/v1/chat/completions", 200, "m")
        await engine.control("PUT", "/faults", ["status:503"])
        assert (await exchange(engine.port, MESSAGE)).status == 503
        await engine.control("DELETE", "/faults")
        assert (await exchange(engine.port, MESSAGE)).status == 200
        await engine.reset()
        assert await engine.log() == []


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as told:
        await Engine(tmp_path, arguments=("--no-such-flag",)).start()
    assert "no-such-flag" in "".join(told.value.__notes__)
