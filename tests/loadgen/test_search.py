"""The search for the highest rate: brackets, confirmation, probes that are cut."""

import math

import msgspec
import pytest

from loadgen import scenario as scenarios
from loadgen.sim.arm import run
from loadgen.sim.search import LARGEST, LEAST_REQUESTS, SMALLEST, Probe, Search, probe, shortened, why
from tests.loadgen.simulations import arm, scenario


class Pretended(Search):
    """Passes below a rate that depends on the seed."""

    limits: dict[int, float]

    def _probe(self, scale: float, seed: int) -> Probe:
        why = "" if scale <= self.limits[seed] else "attainment"
        return Probe(
            scale=scale, rate=scale * 10, seed=seed, why=why, attainment=1.0, tokens_per_s=1.0, requests=1, cut=False
        )


def search(limits: dict[int, float], start: float = 0.25) -> Pretended:
    made = Pretended(arm(), 7, start, 60.0)
    made.limits = limits
    return made


@pytest.mark.parametrize("limit", [0.03, 0.2, 0.25, 1.0, 1.7, 30.0])
@pytest.mark.parametrize("start", [0.25, 1.0])
def test_it_comes_within_five_percent_from_below(limit: float, start: float) -> None:
    found = search(dict.fromkeys((7, 8, 9), limit), start).run()
    assert found.scale <= limit < found.failed_scale
    assert found.failed_scale <= found.scale * 1.05 + 1e-9
    assert len(found.probes) <= 16


def test_the_answer_passes_on_all_three_seeds() -> None:
    found = search({7: 1.0, 8: 0.8, 9: 0.9}).run()
    assert 0.8 / 1.05 <= found.scale <= 0.8
    passed = {probe.seed for probe in found.probes if probe.scale == found.scale and probe.passed}
    assert passed == {7, 8, 9}


def test_the_seed_that_fails_is_asked_first_at_the_next_lower_rate() -> None:
    found = search({7: 1.0, 8: 0.6, 9: 1.0}).run()
    assert 0.6 / 1.05 <= found.scale <= 0.6
    lower = [probe for probe in found.probes if 0.6 < probe.scale <= 0.9]
    assert [probe.seed for probe in lower if probe.seed != 7] == [8] * (len(lower))


def single_steps(limits: dict[int, float], low: float) -> tuple[float, int]:
    """What 5 % less and 5 % less comes to, and in how many probes of confirmation: the failed seed is asked first."""
    unsure, probes = [8, 9], 0
    while True:
        for seed in unsure:
            probes += 1
            if low > limits[seed]:
                low, unsure = low / 1.05, [seed, *(one for one in (7, 8, 9) if one != seed)]
                break
        else:
            return low, probes


@pytest.mark.parametrize(
    ("share", "most"),
    [(1.0, 2), (0.96, 4), (0.92, 5), (0.88, 7), (0.8, 9), (0.75, 9), (0.6, 11), (0.5, 11), (0.25, 13), (0.05, 15)],
)
def test_a_seed_that_does_less_is_found_in_few_probes_and_as_exactly(share: float, most: int) -> None:
    alone = search(dict.fromkeys((7, 8, 9), 1.0)).run()
    before = len(alone.probes) - 2
    limits = {7: 1.0, 8: alone.scale * share, 9: 1.0}
    found = search(limits).run()
    scale, steps = single_steps(limits, alone.scale)
    assert found.scale == pytest.approx(scale)
    assert found.failed_scale == pytest.approx(alone.failed_scale if share == 1 else scale * 1.05)
    asked = len(found.probes) - before
    assert asked <= most and asked <= steps + 1


@pytest.mark.parametrize(
    "limits", [(1.0, 0.7, 0.5), (1.0, 0.5, 0.7), (3.1, 3.0, 0.4), (0.3, 0.02, 0.9), (40.0, 39.0, 38.0)]
)
def test_each_seed_that_does_less_lowers_the_answer_to_what_all_hold(limits: tuple[float, float, float]) -> None:
    by_seed = dict(zip((7, 8, 9), limits, strict=True))
    found = search(by_seed).run()
    least = min(limits)
    assert least / 1.05 <= found.scale <= least < found.failed_scale <= found.scale * 1.05 + 1e-9
    assert {probe.seed for probe in found.probes if probe.scale == found.scale and probe.passed} == {7, 8, 9}
    assert any(not probe.passed for probe in found.probes if probe.scale == found.failed_scale)


def test_a_seed_that_nothing_satisfies_is_given_up_soon() -> None:
    found = search({7: 1.0, 8: 0.0, 9: 1.0}).run()
    assert found.scale == 0.0 and SMALLEST <= found.failed_scale <= SMALLEST * 1.05
    assert sum(probe.seed == 8 for probe in found.probes) <= 9


def test_there_may_be_no_rate_or_no_limit() -> None:
    assert search(dict.fromkeys((7, 8, 9), 0.0)).run().scale == 0.0
    assert search({7: 1.0, 8: 0.0, 9: 1.0}).run().scale == 0.0
    assert search(dict.fromkeys((7, 8, 9), 1e9)).run().scale == LARGEST
    for start in (0.25, 0.3):
        most = search(dict.fromkeys((7, 8, 9), 1e9), start).run()
        assert (most.scale, most.failed_scale) == (LARGEST, math.inf), "nothing failed"
    assert SMALLEST < 0.25 < LARGEST


def test_a_probe_that_cannot_pass_any_more_is_cut() -> None:
    told: list[Probe] = []
    Search(arm("random"), 3, 16.0, 20.0).run(lambda router, probe: told.append(probe))
    failed = [probe for probe in told if probe.cut]
    assert failed
    assert all(probe.why == "attainment" for probe in failed)
    assert all(probe.requests < probe.rate * 24 for probe in failed), "it does not run to its end"


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.4])
def test_a_probe_is_judged_by_what_a_whole_report_of_its_run_says(scale: float) -> None:
    made = arm("round_robin")
    found = probe(made, scale, 3, 20.0)
    whole = run(msgspec.structs.replace(made, scenario=shortened(made.scenario, scale, 20.0)), 3).report
    assert whole.totals.times
    assert found.passed == (not why(whole))
    if not found.cut:
        assert (found.why, found.attainment) == (why(whole), whole.totals.attainment)
        assert found.tokens_per_s == whole.totals.output_tokens_per_s


def test_windows_are_as_long_as_it_takes_for_enough_requests() -> None:
    assert shortened(scenario(), 1.0, 60.0).duration_s == 60
    slow = shortened(scenario(), 0.1, 60.0)
    assert slow.duration_s * slow.rate == pytest.approx(LEAST_REQUESTS)


def test_a_load_that_changes_keeps_its_times() -> None:
    made = scenarios.standard("spike")
    assert shortened(made, 2.0, 60.0) == made.scaled(2.0)
