"""A new configuration for a running gateway: what is taken over, when, and what is not."""

import asyncio
import hashlib
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kit import wire
from tests.kit.gateway import ADMIN_TOKEN, Gateway, merged
from tests.kit.http_reader import Response
from tests.kit.processes import until_async
from tests.kit.raw_client import connect
from tests.kit.script_engine import Seen, Step, Wait
from tests.kit.stage import EVERY_PLACE, Stage, stage

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
ONE = {"max_seqs": 1}


class Gate:
    """Engines whose streams begin and then wait until told to end."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def answer(self, seen: Seen) -> Iterator[Step]:
        steps = list(wire.echo(seen))
        yield from steps[:2]
        while not self.open.is_set():
            yield Wait(0.01)
        yield from steps[2:]


def rewrite(gateway: Gateway, **changes: Any) -> None:
    """Its file says something else now."""
    gateway.settings = merged(gateway.settings, changes)
    gateway.file.write_text(yaml.safe_dump(gateway.settings, sort_keys=False))


async def reloaded(gateway: Gateway) -> Response:
    return await gateway.get("/admin/v1/reload", port=gateway.admin_port, token=ADMIN_TOKEN, method="POST")


async def change(gateway: Gateway, **changes: Any) -> dict[str, Any]:
    """Its file says something else, and it has taken that over."""
    rewrite(gateway, **changes)
    answer = await reloaded(gateway)
    assert answer.status == 200, answer.body
    return dict(json.loads(answer.body))


async def logged(gateway: Gateway, words: str) -> None:
    async def there() -> bool:
        return words.encode() in gateway.stderr()

    await until_async(there, 5.0, f"{words} is not in the log")


def save(made: Stage, *tenants: Mapping[str, Any]) -> None:
    folder = made.gateway.directory / "tenants.d"
    for each in tenants:
        (folder / f"{each['id']}.yaml").write_text(yaml.safe_dump(each, sort_keys=False))


async def take_over(made: Stage, *tenants: Mapping[str, Any]) -> None:
    """These tenants' files are new, or others now."""
    save(made, *tenants)
    answer = await reloaded(made.gateway)
    assert answer.status == 200, answer.body


async def queued(made: Stage, count: int) -> None:
    async def waits() -> bool:
        return (await made.gateway.admin("/admin/v1/queues"))["queued"] == count

    await until_async(waits, 5.0, f"{count} requests do not wait")


# -- how it is asked for, and how it is told ---------------------------------------------------------------------------


async def test_a_changed_value_is_in_force_and_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        before = await made.gateway.admin("/admin/v1/config")
        assert (await made.ask("chat", "x" * 3000)).status == 200
        told = await change(made.gateway, limits={"body_bytes": "1KiB"})
        assert told["changed"] == ["limits.body_bytes"]
        assert (await made.ask("chat", "x" * 3000)).status == 413
        after = await made.gateway.admin("/admin/v1/config")
        assert after["config"]["limits"]["body_bytes"] == 1024
        assert after["checksum"] == told["checksum"] != before["checksum"]
        metrics = await made.gateway.metrics()
        assert metrics.by("forebay_config_info", "checksum") == {told["checksum"]: 1.0}
        assert metrics.sum("forebay_config_reload_failed") == 0


async def test_a_reload_without_a_change_changes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        assert (await change(made.gateway))["changed"] == []


async def test_changed_files_are_noticed(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        rewrite(made.gateway, limits={"body_bytes": "1KiB"})

        async def noticed() -> bool:
            return (await made.ask("chat", "x" * 3000)).status == 413

        await until_async(noticed, 5.0, "nobody has noticed")


async def test_sighup_reloads(tmp_path: Path) -> None:
    async with stage(tmp_path, timeouts={"scale": 1}) as made, made.holding():
        rewrite(made.gateway, limits={"body_bytes": "1KiB"})
        made.gateway.signal(signal.SIGHUP)
        await logged(made.gateway, '"by":"SIGHUP"')
        assert (await made.ask("chat", "x" * 3000)).status == 413


async def test_a_kubernetes_volume_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    """Its files are links through `..data`, which is replaced by a rename."""
    async with stage(tmp_path) as made, made.holding():
        file = made.gateway.file
        volume = file.parent / "volume"
        for name, size in (("one", "16MiB"), ("two", "1KiB")):
            made.gateway.settings = merged(made.gateway.settings, {"limits": {"body_bytes": size}})
            (volume / name).mkdir(parents=True)
            (volume / name / file.name).write_text(yaml.safe_dump(made.gateway.settings))
        (volume / "..data").symlink_to("one")
        file.unlink()
        file.symlink_to(volume / "..data" / file.name)
        assert (await reloaded(made.gateway)).status == 200
        assert (await made.ask("chat", "x" * 3000)).status == 200
        (volume / "..new").symlink_to("two")
        (volume / "..new").replace(volume / "..data")

        async def noticed() -> bool:
            return (await made.ask("chat", "x" * 3000)).status == 413

        await until_async(noticed, 5.0, "nobody has noticed")


async def test_wrong_files_change_nothing_and_everything_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        before = (await made.gateway.admin("/admin/v1/config"))["checksum"]
        good = made.gateway.file.read_text()
        made.gateway.file.write_text(good.replace("probe_s: 30", "probe_s: -1\n  speed: 3"))
        answer = await reloaded(made.gateway)
        assert answer.status == 422
        errors = json.loads(answer.body)["errors"]
        assert [error["path"] for error in errors] == ["upstream.probe_s", "upstream.speed"]
        assert all(error["file"] == str(made.gateway.file) and error["line"] > 1 for error in errors)
        told = await made.gateway.admin("/admin/v1/config")
        assert (told["checksum"], told["last_failure"]["errors"]) == (before, errors)
        metrics = await made.gateway.metrics()
        assert metrics.sum("forebay_config_reload_failed") == 1
        assert metrics.sum("forebay_config_reload_total", result="error") >= 1
        await logged(made.gateway, f"{made.gateway.file}:{errors[0]['line']}")
        assert (await made.ask("chat", "still served")).status == 200
        made.gateway.file.write_text(good)
        assert (await reloaded(made.gateway)).status == 200
        assert (await made.gateway.metrics()).sum("forebay_config_reload_failed") == 0
        assert (await made.gateway.admin("/admin/v1/config"))["last_failure"] is None


async def test_a_head_that_a_connection_knows_is_judged_by_the_new_rules(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        message, kept = made.message("chat", "again"), await connect(made.gateway.port)
        for _ in range(3):
            await kept.send(message)
            assert (await kept.response()).status == 200
        await change(made.gateway, listen={"hosts": ["elsewhere"]})
        await kept.send(message)
        assert (await kept.response()).status == 421
        kept.close()


async def test_a_salt_that_no_file_gives_stays_what_it_was(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        await made.ask("chat", "one")
        await change(made.gateway, admission={"max_queued": 77})
        await made.ask("chat", "two")
        one, two = (seen.json["cache_salt"] for seen in made.engine.seen)
        assert one == two


async def test_admin_tokens_change_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as made, made.holding():
        digest = hashlib.sha256(b"another").hexdigest()
        mine = made.gateway.settings["admin"]["tokens"]
        await change(made.gateway, admin={"tokens": [{"id": "new", "sha256": digest, "role": "operate"}]})
        assert (await reloaded(made.gateway)).status == 401
        rewrite(made.gateway, admin={"tokens": mine})
        answer = await made.gateway.get(
            "/admin/v1/reload", port=made.gateway.admin_port, token="another", method="POST"
        )
        assert answer.status == 200
        assert (await reloaded(made.gateway)).status == 200


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def test_endpoints_come_and_go_and_no_request_is_lost(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=3) as made, made.holding():
        all_three = made.gateway.settings["endpoints"]
        going = True
        statuses: list[int] = []

        async def load() -> None:
            while going:
                statuses.append((await made.ask("chat", "n", stream=len(statuses) % 2 == 0)).status)

        jobs = [asyncio.create_task(load()) for _ in range(8)]
        for _ in range(3):
            await change(made.gateway, endpoints=all_three[:1])
            await made.gateway.wait_up(1)
            await change(made.gateway, endpoints=all_three)
            await made.gateway.wait_up(3)
        going = False
        await asyncio.gather(*jobs)
        assert len(statuses) > 50
        assert set(statuses) == {200}
        assert all(engine.seen for engine in made.engines)


async def test_a_stream_on_a_removed_endpoint_ends_there_and_nothing_new_goes_there(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2, endpoint=ONE, classes=EVERY_PLACE) as made, made.holding():
        gate = Gate()
        for engine in made.engines:
            engine.answer = gate.answer
        both = [await made.begin("chat", f"long {at}", stream=True) for at in range(2)]
        for connection in both:
            await connection.read_until(b"data:")
        removed, kept = made.engines[1], made.engines[0]
        await change(made.gateway, endpoints=made.gateway.settings["endpoints"][:1])
        waiting = await made.begin("chat", "waits for the other", stream=True)
        await queued(made, 1)
        gate.open.set()
        ended = [await connection.response() for connection in (*both, waiting)]
        assert [(answer.status, b"[DONE]" in answer.body) for answer in ended] == [(200, True)] * 3
        assert (len(removed.seen), len(kept.seen)) == (1, 2)
        for connection in (*both, waiting):
            connection.close()
        await until_async(lambda: _none_open(removed), 5.0, "connections to the removed engine stay open")


async def _none_open(engine: Any) -> bool:
    return not engine.open_connections


async def test_another_engine_under_an_old_name_is_probed_before_it_is_used(tmp_path: Path) -> None:
    async with stage(tmp_path, engines=2) as made, made.holding():
        first, second = made.gateway.settings["endpoints"]
        made.engines[1].healthy = False
        await change(made.gateway, endpoints=[{**first, "url": second["url"]}])
        assert (await made.ask("chat", "nobody is up")).status == 503
        made.engines[1].healthy = True
        await made.gateway.wait_up(1)
        assert (await made.ask("chat", "now")).status == 200
        assert len(made.engines[1].seen) == 1


async def test_bounds_of_an_endpoint_change_while_it_works(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint=ONE) as made, made.holding():
        gate = Gate()
        made.engine.answer = gate.answer
        three = [await made.begin("chat", f"{at}", stream=True) for at in range(3)]
        await queued(made, 2)
        [endpoint] = made.gateway.settings["endpoints"]
        await change(made.gateway, endpoints=[{**endpoint, "max_seqs": 2}])
        await queued(made, 1)
        gate.open.set()
        for connection in three:
            assert (await connection.response()).status == 200
            connection.close()


async def test_who_waits_for_a_pool_that_is_gone_finds_another(tmp_path: Path) -> None:
    async with stage(tmp_path, endpoint=ONE) as made, made.holding():
        gate = Gate()
        made.engine.answer = gate.answer
        two = [await made.begin("chat", f"{at}", stream=True) for at in range(2)]
        await queued(made, 1)
        [endpoint] = made.gateway.settings["endpoints"]
        await change(
            made.gateway,
            pools={"main": None, "new": {"model": "m", "max_total_tokens": 100_000}},
            endpoints=[{**endpoint, "pools": ["new", "emb"]}],
        )
        gate.open.set()
        ended = [await connection.response() for connection in two]
        assert [(answer.status, answer.header("x-forebay-pool")) for answer in ended] == [(200, "main"), (200, "new")]
        for connection in two:
            connection.close()
