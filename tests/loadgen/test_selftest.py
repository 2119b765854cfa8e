"""`forebay bench selftest`: its figures, what it remembers, and that a plan beyond half of that is warned of."""

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.bench import ceiling
from loadgen.bench.__main__ import app
from loadgen.bench.ceiling import Costs
from loadgen.bench.selftest_loads import Figure, Load, lag_ms, resident_bytes, sent, ttft_ms
from loadgen.report.record import Outcome
from tests.kit import wire
from tests.kit.script_engine import ScriptEngine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forebay" / "selftest.json"


@pytest.mark.parametrize(
    ("value", "least", "most", "holds"),
    [(5.0, None, 5.0, True), (5.1, None, 5.0, False), (99.5, 99.5, None, True), (99.4, 99.5, None, False),
     (44.9, 45.0, 55.0, False), (55.0, 45.0, 55.0, True), (None, None, 5.0, False), (math.nan, None, 5.0, False)],
)  # fmt: skip
def test_a_figure_holds_within_its_bounds_and_never_when_it_was_not_measured(
    value: float | None, least: float | None, most: float | None, holds: bool
) -> None:
    assert Figure(name="x", value=value, unit="ms", least=least, most=most).holds is holds


async def test_a_load_is_sent_and_its_costs_are_known() -> None:
    async with ScriptEngine() as engine:
        ran = await sent(Load(rate=200, count=40), [engine.url])
        whole = len(engine.seen)
        streams = await sent(Load(rate=200, count=10, tokens=2000, answer=3, stream=True), [engine.url])
        body = engine.seen[-1].json
    assert whole == 40 and ran.achieved == 1.0 and 0 < ran.cpu_s < 5
    assert ran.p(0.99, lag_ms) >= 0 and math.isnan(ran.p(0.5, ttft_ms)) and streams.p(0.5, ttft_ms) > 0
    assert len(wire.prompt_of(body)) == 8000 and body["max_tokens"] == 3 and streams.reads >= 10
    assert (ran.growth is None) is (resident_bytes() is None)


async def test_failures_are_not_achieved() -> None:
    async with ScriptEngine(lambda seen: [wire.json_answer({}, status=503)]) as engine:
        ran = await sent(Load(rate=200, count=10), [engine.url])
    assert ran.achieved == 0.0 and {one.outcome for one in ran.samples} == {Outcome.REJECTED_CAPACITY}


def test_the_ceiling_is_what_the_cpu_limit_leaves_room_for() -> None:
    costs = Costs(request_us=85.0, chunk_us=17.0)
    assert (costs.requests_per_s, costs.chunks_per_s) == pytest.approx((10_000, 50_000))
    assert costs.share(1000, 20_000) == pytest.approx(0.5)


def test_without_a_selftest_nothing_is_warned_of(cache: Path) -> None:
    assert ceiling.remembered() is None
    assert ceiling.warning(1e9, 1e9, 1) is None
    cache.parent.mkdir()
    cache.write_text('{"schema": "forebay.selftest/9", "costs": {"request_us": 1, "chunk_us": 1}}')
    assert ceiling.remembered() is None
    cache.write_text("no json")
    assert ceiling.remembered() is None


def test_a_plan_beyond_half_of_the_ceiling_is_warned_of(cache: Path) -> None:
    assert ceiling.remember(Costs(request_us=85.0, chunk_us=17.0)) == cache
    assert ceiling.warning(1000, 19_000, 1) is None
    told = ceiling.warning(1000, 30_000, 1)
    assert told is not None and "70 % of what 1 worker of" in told
    assert ceiling.warning(1000, 30_000, 2) is None


def test_its_options_are_told() -> None:
    told = CliRunner().invoke(app, ["selftest", "--help"])
    assert told.exit_code == 0 and "--quick" in told.output and "--json" in told.output
