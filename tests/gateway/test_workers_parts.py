"""Several workers as one: numbers and answers joined, the wait before a restart, what is refused; without processes."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Loaded
from gateway.config.changes import fixed_checksum
from gateway.config.load import read
from gateway.replica import Replica, own_file, part_of
from gateway.telemetry import families, snapshot
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.sink import Sink
from gateway.telemetry.snapshot import Table
from gateway.workers import merge
from gateway.workers.backoff import MOST_S, STEADY_S, Backoff
from gateway.workers.needed import missing
from gateway.workers.numbers import Numbers
from policies.types import Fleet
from tests.kit.gateway import Metrics as Scrape
from tests.kit.gateway import config
from tests.kit.invariants import conserved
from tests.policies.given import settings

ROOT = Path(__file__).parents[2]


def worker(*, completed: int, open_: int, tenant: str = "acme") -> Metrics:
    """The numbers of a worker that has so many requests behind it and so many in hand."""
    metrics = Metrics(models=["m"], version="1", tenants=10)
    for at in range(completed + open_):
        record = RequestRecord(tenant=tenant, model="m")
        lane = metrics.received(record)
        metrics.attempt_started()
        if at < completed:
            record.outcome, record.duration_ms = "completed", 40.0
            metrics.ended(record, lane)
            metrics.attempt("finished")
    metrics.watch_value(families.REQUESTS_QUEUED, lambda: 0)
    metrics.watch_value(families.REQUESTS_INFLIGHT, lambda: open_)
    metrics.watch_value(families.ATTEMPTS_OPEN, lambda: open_)
    metrics.watch_value(families.READY, lambda: True)
    metrics.watch_value(families.WORKERS, lambda: True)
    metrics.watch(families.ENDPOINT_UP, lambda: [(("e0",), completed > 2)])
    return metrics


def data(metrics: Metrics) -> bytes:
    return snapshot.encode(metrics.snapshot())


def scrape(numbers: Numbers, restarts: int = 0) -> Scrape:
    return Scrape(b"".join(numbers.chunks(restarts)).decode())


def test_one_workers_numbers_are_its_own_exposition() -> None:
    metrics = worker(completed=3, open_=2)
    table: Table = snapshot.decode(data(metrics))
    again = Scrape(b"".join(snapshot.chunks(table)).decode())
    own = Scrape(metrics.render().decode())
    moving = {"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"}
    assert {key: value for key, value in again.samples.items() if key[0] not in moving} == {
        key: value for key, value in own.samples.items() if key[0] not in moving
    }


def test_counts_and_histograms_are_added_and_gauges_joined_as_their_family_says() -> None:
    numbers = Numbers()
    numbers.take(0, data(worker(completed=3, open_=2)))
    numbers.take(1, data(worker(completed=1, open_=0, tenant="initech")))
    both = scrape(numbers, restarts=4)
    assert both.sum("forebay_requests_received_total") == 6
    assert both.sum("forebay_requests_received_total", tenant="initech") == 1
    assert both.sum("forebay_request_duration_seconds_count") == 4
    assert both.sum("forebay_request_duration_seconds_bucket", le="0.04") == 4
    assert both.sum("forebay_requests_inflight") == 2
    assert both.sum("forebay_workers") == 2
    assert both.sum("forebay_ready") == 1
    assert both.sum("forebay_endpoint_up") == 0, "one of them finds it down"
    assert both.sum("forebay_build_info") == 1
    assert both.sum("forebay_worker_restarts_total") == 4
    assert conserved(both) == []


def test_no_count_falls_when_a_worker_dies_and_what_it_had_in_hand_has_failed() -> None:
    numbers = Numbers()
    numbers.take(0, data(worker(completed=3, open_=2)))
    numbers.take(1, data(worker(completed=1, open_=1)))
    before = scrape(numbers)
    numbers.ended(0)
    numbers.ended(0)  # again is harmless
    dead = scrape(numbers)
    numbers.take(0, data(worker(completed=5, open_=0)))
    after = scrape(numbers)
    for one in (before, dead, after):
        assert conserved(one) == []
    received = [one.sum("forebay_requests_received_total") for one in (before, dead, after)]
    assert received == [7, 7, 12]
    assert dead.sum("forebay_requests_inflight") == 1
    assert dead.sum("forebay_requests_ended_total", outcome="failed", reason="worker_lost") == 2
    assert dead.sum("forebay_attempts_total", result="broken") == 2
    counts = {family.name for family in families.FAMILIES if family.kind == "counter"}
    falling = [key for key, value in before.samples.items() if key[0] in counts and dead.samples.get(key, 0.0) < value]
    assert falling == []


def test_what_limits_held_for_the_requests_of_a_dead_worker_is_given_back() -> None:
    labels = ("acme", "tenant", "tpm")
    values = {"reserved": 900.0, "extra": 40.0, "refunded": 100.0, "settled": 640.0, "written_off": 5.0}
    table: Table = {f"forebay_quota_{name}_units_total": {labels: value} for name, value in values.items()}
    table["forebay_quota_held_units"] = {labels: 200.0}
    left = snapshot.after_death(table)
    assert "forebay_quota_held_units" not in left
    assert left["forebay_quota_refunded_units_total"] == {labels: 300.0}
    assert {name: left[f"forebay_quota_{name}_units_total"][labels] for name in values if name != "refunded"} == {
        name: value for name, value in values.items() if name != "refunded"
    }


def test_a_dead_worker_is_started_at_once_and_one_that_dies_again_and_again_waits() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert [backoff.after(1.0) for _ in range(8)][-1] == MOST_S
    assert backoff.after(STEADY_S) == 0.1


def endpoint(**changes: Any) -> dict[str, Any]:
    outstanding = {"sequences": 1, "max_seqs": 32, "prefill_tokens": 70, "max_prefill_tokens": 4096}
    made = {"name": "e0", "up": True, "suspected": False, "failures": 0, "cause": "", "outstanding": outstanding}
    return {**made, "engine": {"age_s": 0.4, "running": 3}, **changes}


def test_health_adds_up_what_is_counted_and_shows_what_worries_most() -> None:
    base = {"version": "1", "requests": {"received": 3, "completed": 3}}
    one = {**base, "phase": "draining", "uptime_s": 9.0, "endpoints": [endpoint()]}
    engine = {"age_s": 0.1, "running": 4}
    down = endpoint(up=False, suspected=True, failures=3, cause="timeout", outstanding=None, engine=engine)
    other = {**base, "phase": "serving", "uptime_s": 3.0, "endpoints": [down]}
    both = merge.health([one, other])
    assert (both["phase"], both["uptime_s"]) == ("serving", 9.0)
    assert both["requests"] == {"received": 6, "completed": 6}
    assert both["endpoints"] == [{**down, "outstanding": endpoint()["outstanding"]}]


def member(**changes: Any) -> dict[str, Any]:
    outstanding = {"sequences": 1, "max_seqs": 32, "prefill_tokens": 70, "max_prefill_tokens": 4096}
    made = {"name": "e0", "url": "http://h:1", "engine": "vllm", "pools": ["main"], "partition": "shared"}
    standing = {"state": "up", "since": "2026-01-01", "healthy": True, "suspected": False, "last_failure": None}
    told = {"load": {"running": 3, "age_s": 0.4}, "stale": False, "found": {"kv_tokens": None, "block_tokens": 16}}
    return {**made, **standing, "outstanding": outstanding, **told, **changes}


def test_a_fleet_adds_up_what_runs_and_is_as_well_as_the_worker_that_finds_it_worst() -> None:
    failure = {"at": "2026-01-02", "cause": "timeout"}
    down = member(
        state="down", since="2026-01-02", healthy=False, last_failure=failure, outstanding=None, load=None, stale=True
    )
    newer = member(
        since="2026-01-03",
        suspected=True,
        load={"running": 4, "age_s": 0.1},
        found={"kv_tokens": 9, "block_tokens": 16},
    )
    (both,) = merge.fleet([{"endpoints": [newer]}, {"endpoints": [member()]}])["endpoints"]
    doubled = {name: 2 * value for name, value in member()["outstanding"].items()}
    assert both == {**newer, "outstanding": doubled}
    (worse,) = merge.fleet([{"endpoints": [member()]}, {"endpoints": [down]}])["endpoints"]
    assert worse == {**member(), "state": "down", "since": "2026-01-02", "healthy": False, "last_failure": failure}
    drained = member(state="draining", since="2026-01-01")
    assert merge.fleet([{"endpoints": [down]}, {"endpoints": [drained]}])["endpoints"][0]["state"] == "draining"
    well = {"name": "e0", "state": "up", "since": "2", "replicas": {"here": 1, "live": 3}}
    worst = {"name": "e0", "state": "down", "since": "1", "replicas": {"here": 1, "live": 1}}
    assert merge.member([well, worst]) == {**worst, "replicas": {"here": 2, "live": 3}}
    assert merge.member([worst, worst])["replicas"] == {"here": 2, "live": 2}


def test_queues_of_one_tenant_are_one_queue() -> None:
    flow = {"pool": "main", "tenant": "acme", "class": "batch", "queued": 2, "queued_bytes": 100, "oldest_s": 1.5}
    load = {"name": "e0", "up": True, "sequences": 3, "max_seqs": 32, "prefill_tokens": 7, "max_prefill_tokens": 4096}
    one = {"queued": 2, "queued_bytes": 100, "flows": [flow], "endpoints": [load]}
    other = {**one, "flows": [{**flow, "oldest_s": 4.0}], "endpoints": [{**load, "up": False}]}
    both = merge.queues([one, other])
    assert both["flows"] == [{**flow, "queued": 4, "queued_bytes": 200, "oldest_s": 4.0}]
    assert both["endpoints"] == [
        {"name": "e0", "up": False, "sequences": 6, "max_seqs": 64, "prefill_tokens": 14, "max_prefill_tokens": 8192}
    ]
    assert both["queued"] == 4


def test_usage_adds_up_what_is_counted_and_shows_how_full_the_fullest_sight_is() -> None:
    counts = dict.fromkeys(["held", "reserved", "extra", "refunded", "settled", "written_off"], 1.5)
    limit = {"scope": "tenant.tpm", "limit": 600, "period": "minute", "capacity": 300, "used": 40.0, "left": 260.0}
    meter = {**limit, "reset_s": 4.0, **counts, "denied": {"enforce": 3, "shadow": 0}}
    waits = {"queued": 1, "queued_bytes": 10}
    queue = {**waits, "max_queued": 256, "max_queued_bytes": 1000, "classes": {"standard": waits}}
    slots = {"scope": "tenant", "limit": 64, "used": 7}
    one = {
        "tenant": "acme",
        "mode": "enforce",
        "degraded": False,
        "replicas": {"here": 1, "live": 4},
        "limits": [meter],
        "budgets": [],
        "concurrency": [slots],
        "queue": queue,
        "shares": [],
    }
    fuller = {**meter, "used": 50.0, "left": 250.0, "reset_s": 5.0}
    key = {**meter, "scope": "key.tpm", "of": "k1"}
    other_queue = {**queue, "classes": {"batch": waits}}
    both = merge.usage([one, {**one, "limits": [fuller, key], "queue": other_queue, "degraded": True}])
    assert both["degraded"] is True
    assert both["replicas"] == {"here": 2, "live": 4}
    doubled = dict.fromkeys(counts, 3.0)
    assert both["limits"] == [{**fuller, **doubled, "denied": {"enforce": 6, "shadow": 0}}, key]
    assert both["concurrency"] == [{**slots, "used": 14}]
    classes = {"standard": waits, "batch": waits}
    assert both["queue"] == {**queue, "queued": 2, "queued_bytes": 20, "classes": classes}
    assert merge.usage([one, one])["queue"]["classes"] == {"standard": {"queued": 2, "queued_bytes": 20}}


def test_shares_are_of_what_all_workers_served_also_where_one_never_had_the_tenant() -> None:
    base = {"pool": "main", "class": "standard"}
    one = {**base, "cost": 300.0, "of": 400.0, "share": 0.75, "fair_share": 0.5}
    none = {**base, "cost": 0.0, "of": 600.0, "share": 0.0, "fair_share": None}
    more = {**base, "cost": 0.0, "of": 0.0, "share": 0.0, "fair_share": 0.25}
    assert merge.shares([{"shares": [one]}, {"shares": [none]}]) == [{**one, "of": 1000.0, "share": 0.3}]
    assert merge.shares([{"shares": [one]}, {"shares": [more]}, {"shares": []}]) == [{**one, "fair_share": 0.25}]
    assert merge.shares([{"shares": [none]}]) == [none]


def test_a_reload_has_changed_what_it_changed_anywhere() -> None:
    assert merge.reload([{"checksum": "a", "changed": []}, {"checksum": "a", "changed": ["models.m"]}]) == {
        "checksum": "a",
        "changed": ["models.m"],
    }


def test_a_configuration_that_is_not_the_same_everywhere_shows() -> None:
    one = {"checksum": "a", "last_failure": None, "config": {}}
    other = {"checksum": "b", "last_failure": {"at": "now"}, "config": {}}
    assert merge.config([one, one]) == one
    assert merge.config([one, other]) == {**one, "last_failure": {"at": "now"}, "checksums": ["a", "b"]}


def loaded(**changes: Any) -> Loaded:
    text = yaml.safe_dump(config(["http://127.0.0.1:9"], **changes), sort_keys=False)
    return read(text, "forebay.yaml", {})


def test_what_workers_must_share_is_asked_for_with_its_place() -> None:
    assert missing(loaded(), 1) == []
    (said,) = missing(loaded(), 2)
    assert str(said).startswith("forebay.yaml:1:1: redis: required with --workers 2: the store")
    shared = {"redis": {"url": "redis://h:1"}, "isolation": {"salt_secret": "s" * 40}}
    assert missing(loaded(**shared), 2) == []


def test_the_number_of_replicas_is_known_from_the_start() -> None:
    known = replace(settings(), fleet=Fleet(sync_s=0.1, replicas=1))
    assert part_of(known, 1) is known
    part = part_of(known, 4)
    assert part == replace(known, fleet=Fleet(sync_s=0.1, replicas=4))
    more = part_of(replace(known, fleet=Fleet(sync_s=0.1, replicas=8)), 4)
    assert more.fleet is not None and more.fleet.replicas == 8


def test_the_command_refuses_workers_that_would_share_no_limits(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(yaml.safe_dump(config(["http://127.0.0.1:9"]), sort_keys=False))
    argv = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--workers", "2"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert f"{file}:1:1: redis: required with --workers 2" in done.stderr
    helped = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "--workers" in helped.stdout and "--worker " not in helped.stdout


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"admission": {"max_queued": 7}}, True),
        ({"listen": {"port": 8081}}, False),
        ({"admin": {"port": 9091}}, False),
        ({"isolation": {"salt_secret": "t" * 40}}, False),
        ({"telemetry": {"journal": "/tmp/j"}}, False),
    ],
)
def test_what_only_a_restart_takes_over_has_a_checksum(changes: dict[str, Any], same: bool) -> None:
    salted: dict[str, Any] = {"isolation": {"salt_secret": "s" * 40}}
    before, after = (fixed_checksum(loaded(**one).config) for one in (salted, {**salted, **changes}))
    assert (before == after) is same


def test_a_worker_reads_what_its_supervisor_has_written_and_has_files_of_its_own() -> None:
    replica = Replica(1, 4, 7, "c0ffee", Path("/tmp/a:b"))
    assert Replica.parse(str(replica)) == replica
    assert replica.address == Path("/tmp/a:b/1.sock")
    assert own_file("/var/j.jsonl", replica) == Path("/var/j.jsonl.w1")
    assert own_file("/var/j.jsonl", None) == Path("/var/j.jsonl")


@pytest.mark.parametrize("stuck", [False, True])
def test_workers_that_share_a_pipe_tear_no_line_of_each_other(stuck: bool) -> None:
    reader, writer = os.pipe()
    lines = [[b"%d" % at + bytes([97 + who]) * 300 + b"\n" for at in range(1500)] for who in range(2)]
    sinks = [Sink(writer, name=f"w{who}", shared=True) for who in range(2)]
    for pair in zip(*lines, strict=True):
        for sink, line in zip(sinks, pair, strict=True):
            sink.write(line)
    got = bytearray()
    while len(got) < sum(map(len, lines[0] + lines[1])):
        if stuck:
            time.sleep(0.0005)  # the pipe is full: writers wait in the middle of what they write
        got += os.read(reader, 3000)
    for sink in sinks:
        sink.close()
    os.close(reader)
    os.close(writer)
    assert sorted(bytes(got).splitlines(keepends=True)) == sorted(lines[0] + lines[1])
