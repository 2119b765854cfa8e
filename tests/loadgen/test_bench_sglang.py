"""`forebay bench` on engines that speak SGLang's dialect, alone and behind the gateway, with their own figures read."""

from pathlib import Path

import pytest

from loadgen.report.folder import read_run
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.loadgen.benching import REQUESTS, bench

pytestmark = pytest.mark.timeout(120)
FLAGS = (
    *("--dialect", "sglang", "--profile", "llama8b-fp8-h200", "--served-model-name", "m", "--allow-markers"),
    *("--enable-metrics", "--enable-cache-report", "--context-length", "8192"),
)


async def test_an_engine_alone_is_measured_with_its_own_figures_beside(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=FLAGS) as engine:
        done = await bench(tmp_path, "--url", engine.url, "--scrape", engine.url)
    assert done.code == 0, done.err + done.out
    assert "lengths of answers: marker" in done.err
    assert {row["outcome"] for row in done.requests} == {"ok"}
    looks = read_run(done.folder).scrapes
    first, last = looks[0], looks[-1]
    rows = done.requests
    for field, counted in (
        ("requests", len(rows)),
        ("prompt_tokens", sum(row["input_tokens"] for row in rows)),
        ("output_tokens", sum(row["output_tokens"] for row in rows)),
        ("cached_tokens", sum(row["cached_tokens"] or 0 for row in rows)),
    ):
        assert getattr(last, field) - getattr(first, field) == counted, field
    assert last.running == last.waiting == 0 and max(look.running or 0 for look in looks) > 0
    assert last.emit_lag_p99_ms is not None


async def test_behind_the_gateway_both_sides_count_the_same(tmp_path: Path) -> None:
    async with Engine(tmp_path, arguments=FLAGS) as engine:
        settings = config([engine.url], endpoint={"engine": "sglang"}, timeouts={"scale": 1}, upstream={"probe_s": 2})
        async with Gateway(settings, tmp_path) as gateway:
            admin = f"http://127.0.0.1:{gateway.admin_port}"
            options = ("--url", gateway.url, "--model", "m", "--scrape", admin, "--scrape", engine.url)
            done = await bench(tmp_path, *options)
    assert done.code == 0, done.err + done.out
    assert done.rule("V10")["state"] == "ok" and done.rule("V6")["state"] == "ok"
    assert len(done.requests) == REQUESTS
    assert sum(row["cached_tokens"] or 0 for row in done.requests) > 0
