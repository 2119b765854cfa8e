"""The fleet on the admin listener: what is shown of each endpoint, over real sockets."""

import hashlib
import json
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Gateway, config
from tests.kit.http_reader import Response
from tests.kit.processes import free_ports, until, until_async
from tests.kit.script_engine import Wait
from tests.kit.stage import Stage, stage

READ = "kit-read-token"
TOKENS = [
    {"id": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "role": role}
    for name, secret, role in (("kit", ADMIN_TOKEN, "operate"), ("eye", READ, "read"))
]
QUICK = {"upstream": {"probe_s": 0.5, "scrape_s": 0.1}}
DOWN, UNWRITABLE = "endpoint down", "the journal cannot be written"
PAGE = b"""\
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 1
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
"""


async def members(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """The fleet by name."""
    return {each["name"]: each for each in (await gateway.admin("/admin/v1/fleet"))["endpoints"]}


async def asked(gateway: Gateway, method: str, path: str, token: str) -> tuple[int, str]:
    """Status and error code of an admin path."""
    answer: Response = await gateway.get(path, port=gateway.admin_port, token=token, method=method)
    return answer.status, json.loads(answer.body).get("error", {}).get("code", "")


def unix_s(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


async def until_state(one: Stage, name: str, state: str) -> dict[str, Any]:
    async def reached() -> bool:
        return bool((await members(one.gateway))[name]["state"] == state)

    await until_async(reached, 10.0, f"{name} is not {state}")
    return (await members(one.gateway))[name]


@pytest.mark.serial  # one late probe of its engines, which live in this process, would be shown
async def test_every_endpoint_is_shown_with_what_is_configured_found_and_outstanding(tmp_path: Path) -> None:
    began_s = time.time()
    async with stage(tmp_path, engines=2, endpoint={"max_seqs": 32, "max_prefill_tokens": 4096}, **QUICK) as one:
        looks = count(1)
        one.engine.metrics = lambda: [wire.answer(PAGE.replace(b"} 1\n", b"} %d\n" % next(looks)))]  # figures that move
        one.engines[1].metrics = lambda: [wire.answer(b"", status=404)]
        for engine in one.engines:
            engine.answer = lambda seen: [Wait(30.0), *wire.echo(seen)]

        async def found() -> bool:
            both = await members(one.gateway)
            return both["e0"]["found"]["kv_tokens"] == 16_000 and both["e1"]["load"] is None

        await until_async(found, 10.0, "what it told is not shown")
        connection = await one.begin("chat", "a long one " * 800)

        async def computes() -> bool:
            outstanding = [each["outstanding"] for each in (await members(one.gateway)).values()]
            return sum(each["sequences"] for each in outstanding) == 1 and any(
                each["prefill_tokens"] > 1000 for each in outstanding
            )

        await until_async(computes, 10.0, "what runs is not shown", every_s=0.01)
        both = await members(one.gateway)
        connection.close()
        first, second = both["e0"], both["e1"]
        assert first["url"] == one.engine.url and second["url"] == one.engines[1].url
        assert (first["engine"], first["pools"], first["partition"]) == ("vllm", ["main", "emb"], "shared")
        told = (first["state"], first["healthy"], first["suspected"], first["last_failure"])
        assert told == ("up", True, False, None)
        assert began_s - 1.0 < unix_s(first["since"]) < time.time() + 1.0
        assert {each["outstanding"]["max_seqs"] for each in both.values()} == {32}
        assert {each["outstanding"]["max_prefill_tokens"] for each in both.values()} == {4096}
        assert 0.0 <= first["load"].pop("age_s") < 5.0
        assert first["load"].pop("waiting") > 0
        assert first["load"] == {"running": 3, "kv_usage": 0.25}
        assert first["found"] == {"context_tokens": None, "kv_tokens": 16_000, "block_tokens": 16}
        assert (second["load"], second["stale"]) == (None, True)
        assert second["found"] == {"context_tokens": None, "kv_tokens": None, "block_tokens": None}


async def test_the_last_failure_stays_to_be_read_when_the_endpoint_is_back(tmp_path: Path) -> None:
    async with stage(tmp_path, **QUICK) as one:
        up = (await members(one.gateway))["e0"]
        one.engine.healthy = False
        down = await until_state(one, "e0", "down")
        assert down["since"] > up["since"]
        assert down["last_failure"]["cause"] == "status 503"
        assert (down["outstanding"], down["load"]) == (None, None)
        one.engine.healthy = True
        back = await until_state(one, "e0", "up")
        assert back["since"] > back["last_failure"]["at"] >= down["since"]
        assert back["last_failure"]["cause"] == "status 503"


async def test_the_log_says_once_what_the_files_name_and_is_not_there(tmp_path: Path) -> None:
    journal = str(tmp_path / "none" / "journal.jsonl")
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    gateway = Gateway(config([nowhere], telemetry={"journal": journal}, upstream={"probe_s": 0.5}), tmp_path)
    await gateway.start(up=0)

    def said() -> dict[str, list[dict[str, Any]]]:
        lines = [json.loads(line) for line in gateway.stderr().splitlines()]
        return {event: [line for line in lines if line["event"] == event] for event in (DOWN, UNWRITABLE)}

    try:
        await until_probed_failed(gateway, 6)
        await gateway.admin("/admin/v1/fleet/e0/drain", method="POST")  # something more for the journal
        await until(lambda: all(said().values()), 10.0, "it is not said")
    finally:
        await gateway.stop()
    ((down,), (unwritable,)) = said().values()
    assert (down["level"], down["endpoint"], down["cause"]) == ("warning", "e0", "not connected")
    assert (unwritable["file"], unwritable["cause"]) == (journal, "No such file or directory")


async def until_probed_failed(gateway: Gateway, times: int) -> None:
    async def probed() -> bool:
        return (await gateway.metrics()).sum("forebay_probes_total", result="failed") >= times

    await until_async(probed, 10.0, f"not {times} probes have failed")


@pytest.mark.parametrize(
    ("method", "path", "nobody", "read", "operate"),
    [
        ("GET", "/admin/v1/fleet", (401, "unauthorized"), (200, ""), (200, "")),
        ("POST", "/admin/v1/fleet/e0/drain", (401, "unauthorized"), (403, "forbidden"), (200, "")),
        ("POST", "/admin/v1/fleet/e0/undrain", (401, "unauthorized"), (403, "forbidden"), (200, "")),
    ],
)
async def test_each_path_asks_for_its_role(
    tmp_path: Path, method: str, path: str, nobody: object, read: object, operate: object
) -> None:
    async with stage(tmp_path, admin={"tokens": TOKENS}) as one:
        found = [await asked(one.gateway, method, path, token) for token in ("", READ, ADMIN_TOKEN)]
        assert found == [nobody, read, operate]
        assert (await one.gateway.get(path, token=ADMIN_TOKEN, method=method)).status == 404, "on the data listener"
