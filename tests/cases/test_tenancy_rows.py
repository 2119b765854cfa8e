"""Rows of the tenancy table that need a crowd or whole files: 13, 15 and 40; and that every row and every case has a test."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from gateway.config import ConfigErrors, read
from tests.gateway.test_cli import forebay
from tests.gateway.test_reload import Gate, queued, reloaded
from tests.kit import wire
from tests.kit.raw_client import connect
from tests.kit.stage import stage
from tests.kit.tenants import bearer, tenant

SALT = {"salt_secret": "0123456789abcdef0123456789abcdef"}
ROWS = range(1, 46)


def test_every_row_of_the_tenancy_table_has_a_test_with_its_number() -> None:
    """`test_row_7_...`, `test_rows_12_and_14_...`. Of 15 and 33 what is about replayed answers comes with these."""
    text = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    named = re.findall(r"def test_rows?_([0-9]+)(?:_and_([0-9]+))?_", text)
    found = {int(number) for numbers in named for number in numbers if number}
    assert found == set(ROWS)


CASES = {*range(38, 57), *range(85, 90), *range(95, 105)}  # fairness, quota, redis, config, security


def test_every_case_of_these_areas_has_a_test_with_its_id() -> None:
    """`test_c038_...`, `test_row_6_and_c046_...`."""
    text = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    found = {
        int(number) for name in re.findall(r"def test_(\w+)", text) for number in re.findall(r"c([0-9]{3})_", name)
    }
    assert set(CASES) <= found


@pytest.mark.timeout(90)
async def test_row_13_half_of_a_queue_leaves_and_costs_nothing(tmp_path: Path) -> None:
    limits = {"rpm": 60_000, "tpm": 1_000_000, "max_queued": 1000, "max_concurrency": 1}
    async with stage(tmp_path, tenants=[tenant("acme", limits=limits)], isolation=SALT) as made, made.holding():
        gate = Gate()
        made.engine.answer = gate.answer

        async def ask(text: str):  # type: ignore[no-untyped-def]
            connection = await connect(made.gateway.port)
            body = {"model": "m", "prompt": list(range(10)), "max_tokens": 30, "stream": True, "user": text}
            await connection.send(wire.request("/v1/completions", body, extra=[bearer("acme")]))
            return connection

        running = await ask("runs")
        await running.read_until(b"data:")
        waiting = [await ask(f"waits {number}") for number in range(500)]
        await queued(made, 500)
        for connection in waiting[::2]:
            connection.close()
        await queued(made, 250)
        metrics = await made.gateway.metrics()
        refunded = "forebay_quota_refunded_units_total"
        assert (metrics.sum(refunded, metric="rpm"), metrics.sum(refunded, metric="tpm")) == (250, 250 * 40)
        gate.open.set()
        answers = await asyncio.gather(running.response(30), *(connection.response(30) for connection in waiting[1::2]))
        assert {answer.status for answer in answers} == {200}
        assert len(made.engine.seen) == 251
        for connection in (running, *waiting[1::2]):
            connection.close()


FLEET = """\
version: 1
listen: {host: 127.0.0.1}
models: {m: {context_tokens: 4096}}
pools: {main: {model: m}}
endpoints: [{name: e0, url: "http://127.0.0.1:8000", pools: [main]}]
isolation: {salt_secret: "0123456789abcdef0123456789abcdef"}
"""


def errors(fleet: str, acme: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(fleet, "forebay.yaml", {}, {"tenants.d/acme.yaml": acme})
    return [str(error) for error in caught.value.errors]


def test_row_15_answers_are_not_replayed_yet_and_who_asks_for_it_is_told() -> None:
    assert errors(FLEET + "dedup: {replay: true}\n", "version: 1\nid: acme\nmodels: []\ndedup: {replay: true}\n") == [
        "forebay.yaml:7:1: dedup: unknown key",
        "tenants.d/acme.yaml:4:1: dedup: unknown key",
    ]


def test_row_40_whatever_is_wrong_is_listed_at_once_with_file_and_line() -> None:
    shares = "classes: {standard: {min_share: 0.5}, batch: {min_share: 0.1}}\nadmision: {}\n"
    acme = "version: 1\nid: acme\nid: acme\nmodels: [{name: m}]\nlimits: {rpm: 0}\non_store_down: open\n"
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    found = errors(FLEET + shares, acme + bomb)
    for place in (
        "forebay.yaml:7:10: classes: min_share of all classes is 0.6",
        "forebay.yaml:8:1: admision: unknown key",
    ):
        assert any(error.startswith(place) for error in found), found
    for place in ("3:1: id: given twice", "5:15: limits.rpm: must be", "6:16: on_store_down: means nothing without redis",
                  "7:4: a: anchor &a"):  # fmt: skip
        assert any(error.startswith(f"tenants.d/acme.yaml:{place}") for error in found), found


async def test_row_40_a_start_ends_with_2_and_a_reload_is_refused_with_the_same_list(tmp_path: Path) -> None:
    """Every kind that the row names, but for GPUs: this gateway is told of none."""
    acme = "version: 1\nid: acme\nid: acme\nmodels: [{name: m}]\nlimits: {rpm: 0}\non_store_down: open\nwieght: 2\n"
    acme += "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    async with stage(tmp_path, tenants=[tenant("acme")], isolation=SALT) as made, made.holding():
        before = (await made.gateway.admin("/admin/v1/config"))["checksum"]
        (tmp_path / "tenants.d" / "acme.yaml").write_text(acme)
        shares = "classes: {standard: {min_share: 0.5}, batch: {min_share: 0.1}}\nadmision: {}\n"
        made.gateway.file.write_text(made.gateway.file.read_text() + shares)
        answer = await reloaded(made.gateway)
        assert answer.status == 422
        told = [
            f"{Path(each['file']).relative_to(tmp_path)}:{each['line']}:{each['column']}: "
            + (f"{each['path']}: " if each["path"] else "")
            + each["message"]
            for each in json.loads(answer.body)["errors"]
        ]
        for part in ("acme.yaml:3:1: id: given twice", "acme.yaml:5:15: limits.rpm: must be", "wieght: unknown key", "a: anchor &a",
                     "acme.yaml:6:16: on_store_down: means nothing", "min_share of all classes is 0.6", "admision: unknown key"):  # fmt: skip
            assert any(part in line for line in told), (part, told)
        started = await asyncio.to_thread(forebay, "serve", "--config", str(made.gateway.file))
        assert started.returncode == 2
        assert [line.removeprefix(f"{tmp_path}/") for line in started.stderr.splitlines()] == told
        assert (await made.gateway.admin("/admin/v1/config"))["checksum"] == before
        assert (await made.ask("chat", "still", extra=[bearer("acme")])).status == 200
