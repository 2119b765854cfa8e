"""Tenants, keys and partitions that change under load: who may stay, who is asked anew, who is refused."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.config.files import stamp
from tests.gateway.test_reload import ONE, SALT, Gate, change, queued, reloaded, save, take_over
from tests.kit import wire
from tests.kit.processes import until_async
from tests.kit.raw_client import Connection, connect
from tests.kit.stage import EVERY_PLACE, Stage, error_of, stage
from tests.kit.tenants import bearer, key, tenant

FLEET: dict[str, Any] = {"isolation": SALT, "classes": EVERY_PLACE}


async def begin(made: Stage, who: str, text: str, *extra: tuple[str, str], **more: Any) -> Connection:
    """That key's request has been sent, on a connection of its own."""
    connection = await connect(made.gateway.port)
    await connection.send(made.message("chat", text, extra=[bearer(who), *extra], stream=True, **more))
    return connection


async def full(made: Stage, who: str, waiting: int, *, running: int = 0) -> tuple[Gate, list[Connection]]:
    """Every place is taken by streams that go on until the gate opens, and so many wait."""
    gate = Gate()
    for engine in made.engines:
        engine.answer = gate.answer
    streams = [await begin(made, who, f"runs {at}") for at in range(running or len(made.engines))]
    for connection in streams:
        await connection.read_until(b"data:")
    rest = [await begin(made, who, f"waits {at}") for at in range(waiting)]
    await queued(made, waiting)
    return gate, [*streams, *rest]


async def answers(connections: list[Connection]) -> list[tuple[int, str]]:
    """Status, and the code of an error."""
    told = []
    for connection in connections:
        answer = await connection.response()
        told.append((answer.status, "" if answer.status == 200 else str(error_of(answer)["code"])))
        connection.close()
    return told


async def one(made: Stage, who: str, text: str) -> tuple[int, str]:
    return (await answers([await begin(made, who, text)]))[0]


# -- tenants and keys --------------------------------------------------------------------------------------------------


async def test_row_42_a_deleted_tenant_is_refused_where_it_waits_and_its_streams_end_well(tmp_path: Path) -> None:
    acme = tenant("acme", limits={"rpm": 24, "tpd": 1_000_000})

    async def sums() -> dict[str, dict[str, float]]:
        told = await made.gateway.admin("/admin/v1/tenants/acme/usage")
        return {each["scope"].removeprefix("tenant."): each for each in told["limits"] + told["budgets"]}

    async with (
        stage(tmp_path, engines=3, tenants=[acme, tenant("beta")], endpoint=ONE, **FLEET) as made,
        made.holding(),
    ):
        first_s = time.monotonic()
        gate, connections = await full(made, "acme", 20)
        began_s = time.monotonic()
        held = (await sums())["tpd"]["held"]
        (tmp_path / "tenants.d" / "acme.yaml").unlink()
        assert (await reloaded(made.gateway)).status == 200
        assert await answers(connections[3:]) == [(401, "invalid_api_key")] * 20
        assert await one(made, "acme", "later") == (401, "invalid_api_key")
        gate.open.set()
        assert await answers(connections[:3]) == [(200, "")] * 3
        await asyncio.sleep(max(0.0, began_s + 5.0 - time.monotonic()))
        await take_over(made, acme)
        left = await sums()
        most, least = (3 - 24 / 60 * passed_s for passed_s in (5.0, time.monotonic() - first_s))
        assert left["rpm"]["refunded"] == 20 and left["rpm"]["settled"] == 3 and left["rpm"]["held"] == 0
        assert max(0.0, least) <= left["rpm"]["used"] <= most < 1.1
        assert (left["tpd"]["used"], left["tpd"]["settled"], left["tpd"]["held"]) == (30, 30, 0)  # no drain
        assert left["tpd"]["refunded"] == held - 30
        assert await one(made, "acme", "restored") == (200, "")
        assert await one(made, "beta", "untouched") == (200, "")
        assert sum(len(engine.seen) for engine in made.engines) == 5


@pytest.mark.parametrize(
    "after",
    [
        tenant("acme", key("acme", state="blocked")),
        tenant("acme", state="disabled"),
        tenant("acme", key("other")),
    ],
    ids=["blocked", "disabled", "removed"],
)
async def test_a_key_that_is_gone_is_refused_on_a_connection_that_knows_it(
    tmp_path: Path, after: Mapping[str, Any]
) -> None:
    async with stage(tmp_path, tenants=[tenant("acme")], endpoint=ONE, **FLEET) as made, made.holding():
        kept = await begin(made, "acme", "first")
        assert (await kept.response()).status == 200
        message = made.message("chat", "again", extra=[bearer("acme")], stream=True)
        for _ in range(3):
            await kept.send(message)
            assert (await kept.response()).status == 200
        gate, connections = await full(made, "acme", 2)
        await take_over(made, after)
        assert await answers(connections[1:]) == [(401, "invalid_api_key")] * 2
        await kept.send(message)
        assert (await kept.response()).status == 401
        kept.close()
        gate.open.set()
        assert await answers(connections[:1]) == [(200, "")]


async def test_a_model_that_is_taken_from_a_tenant_is_not_found_by_those_that_wait_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[tenant("acme")], endpoint=ONE, **FLEET) as made, made.holding():
        gate, connections = await full(made, "acme", 2)
        await take_over(made, tenant("acme", models=[{"name": "emb"}]))
        assert await answers(connections[1:]) == [(404, "model_not_found")] * 2
        gate.open.set()
        assert await answers(connections[:1]) == [(200, "")]


async def test_those_that_wait_move_to_the_class_they_may_have_now(tmp_path: Path) -> None:
    before = tenant("acme")
    async with stage(tmp_path, tenants=[before], endpoint=ONE, **FLEET) as made, made.holding():
        gate, connections = await full(made, "acme", 2)
        await take_over(made, tenant("acme", **{"class": "batch"}))
        flows = (await made.gateway.admin("/admin/v1/queues"))["flows"]
        assert [(flow["class"], flow["queued"]) for flow in flows] == [("batch", 2)]
        gate.open.set()
        assert await answers(connections) == [(200, "")] * 3


async def test_what_does_not_concern_those_that_wait_leaves_them_where_they_are(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[tenant("acme")], endpoint=ONE, **FLEET) as made, made.holding():
        gate, connections = await full(made, "acme", 2)
        before = await made.gateway.metrics()
        await take_over(made, tenant("acme", weight=7), tenant("beta"))
        explain = await made.gateway.admin("/admin/v1/queues")
        assert explain["queued"] == 2
        assert (await made.gateway.metrics()).sum("forebay_requests_ended_total") == before.sum(
            "forebay_requests_ended_total"
        )
        gate.open.set()
        assert await answers(connections) == [(200, "")] * 3


async def test_a_folder_that_vanishes_opens_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[tenant("acme")], **FLEET) as made, made.holding():
        (tmp_path / "tenants.d").rename(tmp_path / "elsewhere")
        answer = await reloaded(made.gateway)
        assert answer.status == 422
        assert "tenants.d" in json.loads(answer.body)["errors"][0]["message"]
        assert (await made.ask("chat", "without a key")).status == 401


# -- hard partitions ---------------------------------------------------------------------------------------------------

BANK = tenant("bank", partition="finance")
SHARED = tenant("acme")


async def test_what_is_no_file_stops_no_reload_for_good(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants=[tenant("acme")], **FLEET) as made, made.holding():
        pipe = made.gateway.directory / "tenants.d" / "pipe.yaml"
        os.mkfifo(pipe)  # a thread that opened it would wait for a writer
        answer = await asyncio.wait_for(reloaded(made.gateway), 5.0)
        errors = json.loads(answer.body)["errors"]
        assert (answer.status, errors[0]["file"], len(errors)) == (422, str(pipe), 1)
        pipe.unlink()
        await take_over(made, tenant("acme"), tenant("beta"))
        assert await one(made, "beta", "served") == (200, "")


def test_a_file_that_may_be_read_at_last_is_a_changed_one(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text("version: 1\n")
    path.chmod(0)
    before = stamp(path)
    path.chmod(0o600)
    assert stamp(path) != before


def finance(made: Stage) -> list[dict[str, Any]]:
    """The fleet with its last endpoint in the partition."""
    endpoints = made.gateway.settings["endpoints"]
    return [*endpoints[:-1], {**endpoints[-1], "partition": "finance"}]


async def divide(made: Stage) -> None:
    """`acme` has the first engines, `bank` the last."""
    save(made, SHARED, BANK)
    await change(made.gateway, endpoints=finance(made), partitions={"finance": {"tenants": ["bank"]}})
    await made.gateway.wait_up(len(made.engines))


async def test_a_partition_serves_its_tenants_and_nobody_else(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, tenants=[SHARED, tenant("bank")], **FLEET) as made, made.holding():
        await divide(made)
        for at in range(6):
            assert (
                await answers([await begin(made, "acme", f"{at}"), await begin(made, "bank", f"{at}")])
                == [(200, "")] * 2
            )
        salts = [{seen.json["cache_salt"] for seen in engine.seen} for engine in made.engines]
        assert [len(engine.seen) for engine in made.engines] == [6, 6]
        assert [len(each) for each in salts] == [1, 1]
        assert salts[0] != salts[1]


async def test_row_31_a_partition_that_is_down_is_unavailable_whatever_is_idle_elsewhere(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, engines=3, tenants=[SHARED, tenant("bank")], upstream={"probe_s": 0.5}, **FLEET) as made,
        made.holding(),
    ):
        await divide(made)
        made.engines[2].healthy = False
        await made.gateway.wait_up(2)
        for at in range(20):
            assert await one(made, "bank", f"{at}") == (503, "partition_unavailable")
        connection = await begin(made, "bank", "with a session", ("x-forebay-session", "s"))
        assert (await connection.response()).header("retry-after") == "5"
        connection.close()
        await change(made.gateway, admission={"max_queued": 99})
        assert await one(made, "bank", "after a reload") == (503, "partition_unavailable")
        assert [len(engine.seen) for engine in made.engines] == [0, 0, 0]
        made.engines[2].healthy = True
        await made.gateway.wait_up(3)
        assert await one(made, "bank", "back") == (200, "")
        assert [len(engine.seen) for engine in made.engines] == [0, 0, 1]


async def test_row_31_a_retry_stays_in_the_partition(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, tenants=[SHARED, tenant("bank")], **FLEET) as made, made.holding():
        await divide(made)
        made.engines[1].answer = lambda seen: [wire.answer(b"{}", status=503)]
        assert (await answers([await begin(made, "bank", "refused")]))[0][0] == 503
        assert [len(engine.seen) for engine in made.engines] == [0, 1]


async def test_who_waits_when_its_tenant_moves_goes_to_the_new_partition_with_another_salt(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, engines=2, tenants=[SHARED, tenant("bank")], endpoint=ONE, **FLEET) as made,
        made.holding(),
    ):
        both = finance(made)
        await change(made.gateway, endpoints=both[:1])
        gate, connections = await full(made, "bank", 2, running=1)
        save(made, BANK)
        await change(made.gateway, endpoints=both, partitions={"finance": {"tenants": ["bank"]}})
        await queued(made, 1)  # the other one runs, on the endpoint that has just come
        gate.open.set()
        assert await answers(connections) == [(200, "")] * 3
        first, second = ([seen.json["cache_salt"] for seen in engine.seen] for engine in made.engines)
        assert (len(first), len(second)) == (1, 2)
        assert first[0] != second[0] == second[1]


async def test_an_endpoint_that_changes_its_partition_is_drained_first(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, engines=2, tenants=[SHARED, tenant("bank")], endpoint=ONE, **FLEET) as made,
        made.holding(),
    ):
        gate, running = await full(made, "acme", 0)
        await divide(made)
        assert await one(made, "bank", "too early") == (503, "partition_unavailable")
        gate.open.set()
        assert await answers(running) == [(200, "")] * 2

        async def served() -> bool:
            return await one(made, "bank", "now") == (200, "")

        await until_async(served, 5.0, "the partition gets no endpoint")
