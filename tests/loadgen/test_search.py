"""The search for the highest rate: brackets, confirmation, probes that are cut."""

import pytest

from loadgen import scenario as scenarios
from loadgen.sim.search import LARGEST, LEAST_REQUESTS, SMALLEST, Probe, Search, shortened
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


def test_there_may_be_no_rate_or_no_limit() -> None:
    assert search(dict.fromkeys((7, 8, 9), 0.0)).run().scale == 0.0
    assert search({7: 1.0, 8: 0.0, 9: 1.0}).run().scale == 0.0
    assert search(dict.fromkeys((7, 8, 9), 1e9)).run().scale == LARGEST
    assert SMALLEST < 0.25 < LARGEST


def test_a_probe_that_cannot_pass_any_more_is_cut() -> None:
    told: list[Probe] = []
    Search(arm("random"), 3, 16.0, 20.0).run(lambda router, probe: told.append(probe))
    failed = [probe for probe in told if probe.cut]
    assert failed
    assert all(probe.why == "attainment" for probe in failed)
    assert all(probe.requests < probe.rate * 24 for probe in failed), "it does not run to its end"


def test_windows_are_as_long_as_it_takes_for_enough_requests() -> None:
    assert shortened(scenario(), 1.0, 60.0).duration_s == 60
    slow = shortened(scenario(), 0.1, 60.0)
    assert slow.duration_s * slow.rate == pytest.approx(LEAST_REQUESTS)


def test_a_load_that_changes_keeps_its_times() -> None:
    made = scenarios.standard("spike")
    assert shortened(made, 2.0, 60.0) == made.scaled(2.0)
