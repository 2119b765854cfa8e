"""Rates and budgets through the core: the rows of tenancy.md 12 that are about them, and the table of 3.3."""

from dataclasses import replace
from typing import Any

import pytest

from policies.decisions import Evict, Fail, Reason
from policies.events import Cause, Outcome, SettingsChanged, WallClock
from policies.types import Budget, Cost, Limits, Model, Reserve
from tests.policies import given
from tests.policies.tenants import Quotas, acme, limited


def test_row_1_two_of_five_fit_and_three_are_told_when_they_would() -> None:
    world = Quotas(acme(tpm=100))
    assert [world.told(f"r{number}") for number in range(5)] == ["ok", "ok", *["quota_tokens"] * 3]
    refused = world.refused("r5")
    assert refused.retry_after_s == 12.0
    assert refused.shortage is not None
    assert (refused.shortage.scope, refused.shortage.limit) == ("tenant.tpm", 100)
    assert (refused.shortage.left, refused.shortage.need) == (20, 40)


def test_row_2_a_stream_and_a_whole_answer_settle_the_same() -> None:
    for streamed in (True, False):
        world = Quotas(acme(tpm=1000))
        world.ask("r", streamed=streamed)
        if streamed:
            world.token("r", 0.0)
        world.end("r", 0.0, prompt_tokens=12, output_tokens=7)
        assert world.used("tpm", 0.0) == 19


@pytest.mark.parametrize(("weight", "units"), [(1.0, 10_000), (0.1, 2_800), (0.0, 2_000)])
def test_row_3_cached_input_counts_as_its_weight_says(weight: float, units: int) -> None:
    world = Quotas(acme(tpm=100_000, cost=Cost(cached=weight)))
    world.ask("r", tokens=10_000, max_output=0)
    assert world.used("tpm", 0.0) == 10_000
    world.end("r", 0.0, prompt_tokens=10_000, cached_tokens=8_000, output_tokens=0)
    assert world.used("tpm", 0.0) == units


def test_no_more_of_a_prompt_is_paid_for_as_cached_than_there_is_of_it() -> None:
    for weight, units in ((1.0, 15), (0.5, 10), (0.0, 5)):
        world = Quotas(acme(tpm=100_000, cost=Cost(cached=weight)))
        world.ask("r")
        world.end("r", 0.0, prompt_tokens=10, cached_tokens=999, output_tokens=5)
        assert world.used("tpm", 0.0) == units


def test_row_4_and_c045_rates_of_requests_and_of_tokens_do_not_disturb_each_other() -> None:
    world = Quotas(acme(rpm=60, tpm=6000))
    for number in range(270):  # 5 minutes at 90 % of both
        at = number / 0.9
        assert world.told(f"r{number}", at, tokens=60, max_output=40) == "ok"
        world.end(f"r{number}", at, prompt_tokens=60, output_tokens=40)


def test_row_5_the_eleventh_waits_for_the_fraction_that_is_missing() -> None:
    world = Quotas(acme(rpm=60, burst_s=10))
    assert {world.told(f"r{number}") for number in range(10)} == {"ok"}
    refused = world.refused("late", 0.4)
    assert refused.reason is Reason.QUOTA_REQUESTS
    assert refused.retry_after_s == pytest.approx(0.6)
    assert world.told("again", 1.0) == "ok"


def test_row_6_and_c046_a_refusal_changes_nothing() -> None:
    """Neither the limit that refuses nor any other, however often it refuses."""
    key, model = {"k": Limits(rpm=60, tpm=1000)}, {"llama": Limits(rpm=60, tpm=1000)}
    world = Quotas(acme(tpm=100, rpm=60, itpm=500, keys=key, models=model))
    world.ask("first", key="k")
    before = [replace(view, denied=0) for view in world.core.metering.meters(0.0)]
    for number in range(11):
        assert world.told(f"large {number}", tokens=40, max_output=40, key="k") == "quota_tokens"
        assert [replace(view, denied=0) for view in world.core.metering.meters(0.0)] == before
    assert world.used("tpm", 0.0) == 40
    assert world.told("fits", tokens=10, max_output=40, key="k") == "ok"
    assert world.used("tpm", 0.0) == 90


def test_row_7_and_c046_no_fraction_of_the_refill_is_lost_by_asking_often() -> None:
    world = Quotas(acme(rpm=600, burst_s=1))
    told = []
    for step in range(400):
        for name in (f"{step}a", f"{step}b"):
            told.append(world.told(name, step * 0.15))
            world.end(name, step * 0.15)
    assert 607 <= told.count("ok") <= 609


def test_row_8_and_c048_what_can_never_fit_is_refused_for_good_or_held_to_the_limit() -> None:
    world = Quotas(acme(tpm=100))
    refused = world.refused("large", tokens=10, max_output=91)
    assert (refused.reason, refused.retry_after_s) == (Reason.EXCEEDS_LIMIT, None)
    assert refused.shortage is not None
    assert refused.shortage.fits_output == 90
    clamped = Quotas(acme(tpm=100, reserve=Reserve(oversize="clamp")))
    assert clamped.told("large", tokens=10, max_output=91) == "ok"
    assert clamped.used("tpm", 0.0) == 100
    clamped.end("large", 0.0, prompt_tokens=10, output_tokens=91)
    assert clamped.used("tpm", 0.0) == 101
    assert clamped.told("another", 1.0, tokens=10, max_output=91) == "quota_tokens"
    clamped.told("small", 61.0, tokens=0, max_output=1)
    assert clamped.told("beside one unit", 61.0, tokens=10, max_output=91) == "quota_tokens"
    assert clamped.told("at nothing used", 61.6, tokens=10, max_output=91) == "ok"


@pytest.mark.parametrize(
    ("limits", "tokens", "sequences", "fits"),
    [
        ({"tpm": 100}, 10, 2, 45),
        ({"tpm": 100, "otpm": 60}, 10, 1, 60),
        ({"tpm": 300, "otpm": 200, "budgets": (Budget(id="day", amount=50),)}, 10, 4, 10),
        ({"tpm": 100, "itpm": 5}, 10, 1, 0),
        ({"tpm": 100}, 101, 1, 0),
    ],
)
def test_who_asks_for_what_is_said_to_fit_is_not_refused_for_good_again(
    limits: dict[str, Any], tokens: int, sequences: int, fits: int
) -> None:
    world = Quotas(acme(**limits))
    shortage = world.refused("a", tokens=tokens, max_output=500, sequences=sequences).shortage
    assert shortage is not None
    assert shortage.fits_output == fits
    if fits:
        assert (
            world.refused("b", tokens=tokens, max_output=fits + 1, sequences=sequences).reason is Reason.EXCEEDS_LIMIT
        )
        assert world.told("c", tokens=tokens, max_output=fits, sequences=sequences) == "ok"


def test_row_9_what_was_not_needed_is_there_for_the_next_at_once() -> None:
    world = Quotas(acme(tpm=10_000))
    said = [world.told(f"r{number}", tokens=100, max_output=4096) for number in range(3)]
    assert said == ["ok", "ok", "quota_tokens"]
    assert world.used("tpm", 0.0) == 8392
    world.end("r0", 0.0, prompt_tokens=100, output_tokens=50)
    assert world.used("tpm", 0.0) == 8392 - 4046
    assert world.told("r3", tokens=100, max_output=4096) == "ok"


def test_row_10_and_c048_who_names_no_most_blocks_no_more_than_a_quarter_and_nothing_is_estimated_without_a_token_limit() -> (
    None
):
    world = Quotas(acme(tpm=2000))
    world.ask("r", tokens=0, max_output=8192, names_most=False)
    assert world.used("tpm", 0.0) == 500
    requests_only = Quotas(acme(rpm=60), seqs=1)
    for name in ("runs", "waits"):  # nothing is estimated: neither is held for a token
        requests_only.ask(name, max_output=8192, names_most=False)
        claim = requests_only.core._books.tickets[name].claim
        assert claim is not None
        assert (claim.holds, claim.input_tokens, claim.output_tokens) == (True, 0, 0)
    assert not requests_only.core.metering.counts_tokens
    assert [view.metric for view in requests_only.core.metering.meters(0.0)] == ["rpm"]


def test_row_11_who_leaves_in_the_middle_pays_for_the_prompt_and_what_was_seen() -> None:
    world = Quotas(acme(tpm=10_000, max_concurrency=1))
    world.ask("r", tokens=100, max_output=1000)
    world.token("r", 1.0)
    world.leave("r", 1.0, seen=500)
    meter = world.meter("tpm", 1.0)
    assert (meter.settled, meter.refunded) == (600, 500)
    assert world.told("next", 1.0) == "ok"


@pytest.mark.parametrize(
    ("told", "units"), [({"prompt_tokens": 80, "cached_tokens": 60}, 76), ({"prompt_tokens": 80}, 130)]
)
def test_who_leaves_after_the_engine_has_counted_the_prompt_pays_for_that(told: dict[str, int], units: int) -> None:
    world = Quotas(acme(tpm=10_000, cost=Cost(cached=0.1)))
    world.ask("r", tokens=100, max_output=1000)
    world.leave("r", 1.0, seen=50, **told)
    assert world.meter("tpm", 1.0).settled == units


def test_row_12_a_dead_engine_is_paid_for_what_was_seen() -> None:
    world = Quotas(acme(tpm=10_000))
    world.ask("r", tokens=100, max_output=1000)
    world.token("r", 1.0)
    world.end("r", 1.0, Outcome.FAILED, seen_tokens=10)
    meter = world.meter("tpm", 1.0)
    assert (meter.settled, meter.refunded) == (110, 990)


def test_row_13_who_leaves_the_queue_gets_everything_back() -> None:
    world = Quotas(acme(rpm=600, tpm=100_000), seqs=1)
    for number in range(5):
        world.ask(f"r{number}")
    for number in range(1, 5):
        world.leave(f"r{number}", 0.0)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 40)


def test_row_14_what_no_engine_answered_costs_nothing() -> None:
    world = Quotas(acme(rpm=60, tpm=1000))
    world.up(given.endpoint("y", seqs=500, prefill=10_000_000))
    world.ask("r")
    world.come_back("r", 0.0)
    [failed] = world.come_back("r", 0.0, attempt=2)
    assert isinstance(failed, Fail)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (0, 0)
    assert world.meter("tpm", 0.0).refunded == 40


def test_row_16_a_shadow_counts_its_refusals_and_lets_everybody_pass() -> None:
    world = Quotas(acme(rpm=60, burst_s=10, mode="shadow"))
    assert {world.told(f"r{number}") for number in range(15)} == {"ok"}
    meter = world.meter("rpm", 0.0)
    assert (meter.used, meter.denied_shadow, meter.denied) == (10, 5, 0)
    for number in range(15):
        world.end(f"r{number}", 0.0, prompt_tokens=10, output_tokens=1)
    assert world.meter("rpm", 0.0).settled == 10


def test_row_17_debt_is_bounded_and_the_wait_for_it_is_told_truly() -> None:
    world = Quotas(acme(tpm=100))
    world.ask("r")
    world.end("r", 0.0, prompt_tokens=400, output_tokens=100)
    meter = world.meter("tpm", 0.0)
    assert (meter.used, meter.written_off, meter.left) == (200, 300, 0)
    assert world.refused("next").retry_after_s == 84.0


def test_row_41_and_c045_a_new_limit_holds_at_once_and_what_is_used_stays_used() -> None:
    world = Quotas(acme(rpm=60, burst_s=10))
    for number in range(10):
        world.ask(f"r{number}")
    assert world.told("full") == "quota_requests"
    world.change(limited(acme(rpm=60, burst_s=20)), 0.0)
    assert {world.told(f"s{number}") for number in range(10)} == {"ok"}
    assert world.told("full again") == "quota_requests"
    lowered = Quotas(acme(rpm=60, burst_s=10))
    for number in range(10):
        lowered.ask(f"r{number}")
    lowered.change(limited(acme(rpm=60, burst_s=5)), 0.0)
    assert lowered.refused("r").retry_after_s == 6.0
    assert lowered.told("later", 6.0) == "ok"


def test_row_42_a_tenant_that_comes_back_has_used_what_it_had_used() -> None:
    world = Quotas(acme(rpm=60, burst_s=20))
    for number in range(10):
        world.ask(f"r{number}")
    world.change(limited(), 0.0)
    world.end("r0", 0.0)
    world.change(limited(acme(rpm=60, burst_s=20)), 5.0)
    assert world.used("rpm", 5.0) == 5


def test_a_limit_that_was_taken_away_begins_anew_when_it_comes_back() -> None:
    world = Quotas(acme(rpm=60, tpm=1000))
    world.ask("r")
    world.change(limited(acme(tpm=1000)), 0.0)
    world.change(limited(acme(rpm=60, tpm=1000)), 0.0)
    world.ask("s")
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 80)


# ---- table 3.3


def test_an_answer_without_usage_is_paid_for_by_the_estimate() -> None:
    world = Quotas(acme(tpm=1000))
    world.ask("r")
    world.end("r", 0.0, seen_tokens=7)
    assert world.used("tpm", 0.0) == 17
    world.ask("empty", tokens=0, max_output=0)
    world.end("empty", 0.0)
    assert world.used("tpm", 0.0) == 18


def test_what_the_engine_refuses_counts_as_a_request_and_costs_no_token() -> None:
    world = Quotas(acme(rpm=60, tpm=1000))
    world.ask("r")
    world.end("r", 0.0, Outcome.REFUSED)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 0)


def test_who_leaves_before_the_head_is_written_pays_nothing_and_before_the_first_byte_the_prompt() -> None:
    world = Quotas(acme(rpm=60, tpm=1000))
    world.ask("connecting")
    world.leave("connecting", 0.0, sent=False)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (0, 0)
    world.ask("sent")
    world.leave("sent", 0.0)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 10)


def test_what_waited_too_long_is_refunded() -> None:
    world = Quotas(acme(rpm=60, tpm=1000), seqs=1)
    world.ask("runs")
    world.ask("waits")
    [expired] = world.happen(SettingsChanged(settings=limited(acme(rpm=60, tpm=1000), queueing=False)), 0.0)
    assert isinstance(expired, Evict)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 40)


def test_what_is_refused_after_it_was_reserved_is_refunded() -> None:
    world = Quotas(acme(rpm=60, tpm=1000), seqs=1, max_queued=1)
    assert [world.told(f"r{number}") for number in range(3)] == ["ok", "queued", "overloaded"]
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (2, 80)


def test_one_reservation_serves_all_attempts() -> None:
    world = Quotas(acme(rpm=60, tpm=1000, max_concurrency=1))
    world.up(given.endpoint("y", seqs=500, prefill=10_000_000))
    world.ask("r")
    world.come_back("r", 0.0, cause=Cause.CONNECT)
    assert (world.used("rpm", 0.0), world.used("tpm", 0.0)) == (1, 40)
    assert world.told("other") == "queued"


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED])
def test_who_left_an_engine_that_was_read_to_its_end_has_left_and_pays_once_for_what_it_said(outcome: Outcome) -> None:
    world = Quotas(acme(tpm=1000))
    world.ask("r")
    world.end("r", 0.0, outcome, prompt_tokens=12, output_tokens=7, left=True)
    world.leave("r", 0.0, seen=3)
    assert world.used("tpm", 0.0) == 19
    totals = world.core.totals()
    assert (totals.received, totals.cancelled, totals.completed, totals.failed) == (1, 1, 0, 0)


def test_an_end_that_is_told_twice_is_settled_once() -> None:
    world = Quotas(acme(tpm=1000))
    world.ask("r")
    world.end("r", 0.0, prompt_tokens=10, output_tokens=20)
    world.end("r", 0.0, prompt_tokens=10, output_tokens=20)
    world.leave("r", 0.0)
    assert world.meter("tpm", 0.0).settled == 30


# ---- scopes, estimates, budgets


def test_all_limits_hold_at_once_and_the_tightest_is_named() -> None:
    tenant = acme(rpm=600, tpm=1000, keys={"k1": Limits(rpm=2, tpm=500)}, models={"llama": Limits(tpm=100)})
    world = Quotas(tenant, models=[Model(name="llama", limits=Limits(rpm=10))])
    assert [world.told(f"r{number}", key="k1") for number in range(2)] == ["ok", "ok"]
    refused = world.refused("r2", key="k1")
    assert refused.shortage is not None
    assert refused.shortage.scope == "key.rpm"  # 30 s, and the model's tokens only 12
    assert refused.retry_after_s == 30.0
    other_key = world.refused("r3", key="k2")
    assert other_key.shortage is not None
    assert other_key.shortage.scope == "tenant_model.tpm"
    assert world.used("rpm", 0.0, "model") == world.used("rpm", 0.0) == 2


def test_a_model_counts_plain_tokens_of_all_tenants() -> None:
    world = Quotas(acme(cost=Cost(input=5.0, output=5.0)), models=[Model(name="llama", limits=Limits(tpm=100))])
    assert world.told("a") == "ok"
    assert world.told("b", tenant="another") == "ok"
    assert world.told("c", tenant="third") == "quota_tokens"


def test_a_shadow_tenant_is_held_to_what_all_share() -> None:
    world = Quotas(acme(rpm=1, mode="shadow"), models=[Model(name="llama", limits=Limits(rpm=2))])
    assert [world.told(f"r{number}") for number in range(3)] == ["ok", "ok", "quota_requests"]


def test_input_and_output_are_limited_apart() -> None:
    world = Quotas(acme(itpm=100, otpm=1000))
    world.ask("r", tokens=60, max_output=500)
    assert (world.used("itpm", 0.0), world.used("otpm", 0.0)) == (60, 500)
    refused = world.refused("s", tokens=60, max_output=10)
    assert refused.shortage is not None
    assert refused.shortage.scope == "tenant.itpm"


def test_an_estimate_counts_bytes_messages_and_media_and_every_sequence() -> None:
    world = Quotas(acme(tpm=100_000))
    world.ask("r", text_bytes=3001 + 2 * 4096, messages=3, media=2, sequences=4, max_output=100)
    assert world.used("tpm", 0.0) == 1001 + 12 + 2048 + 400


def test_the_bytes_of_a_token_are_learned_for_each_tenant_and_model_and_stay_cautious() -> None:
    world = Quotas(acme(tpm=10_000_000))
    for number in range(1500):
        world.ask(f"r{number}", text_bytes=4000, max_output=0)
        world.end(f"r{number}", 0.0, prompt_tokens=1000, output_tokens=0)
    before = world.used("tpm", 0.0)
    world.ask("r", text_bytes=4000, max_output=0)
    assert 1100 < world.used("tpm", 0.0) - before < 1200  # 0.9 x 4 bytes, most of the way from 3
    before = world.used("tpm", 0.0)
    world.ask("first", tenant="acme", model="llama", text_bytes=0, tokens=7, max_output=0)
    assert world.used("tpm", 0.0) - before == 7


def test_an_answer_fits_into_the_context() -> None:
    world = Quotas(acme(tpm=100_000), models=[Model(name="llama", context_tokens=1000)])
    world.ask("r", tokens=900, max_output=4096)
    assert world.used("tpm", 0.0) == 1000
    world.ask("full", tokens=1000, max_output=4096)
    assert world.used("tpm", 0.0) == 2001


def test_a_budget_that_is_used_up_says_so_until_its_day_is_over() -> None:
    world = Quotas(acme(budgets=(Budget(id="tpd", amount=100),)))
    world.happen(WallClock(offset_s=86_400.0 * 10 - 60), 0.0)
    assert [world.told(f"r{number}") for number in range(3)] == ["ok", "ok", "budget"]
    refused = world.refused("r3")
    assert refused.retry_after_s is None
    assert refused.shortage is not None
    assert refused.shortage.scope == "tenant.tpd"
    assert world.told("tomorrow", 60.0) == "ok"
    world.end("r0", 60.0, prompt_tokens=10, output_tokens=30)
    assert world.used("tpd", 60.0) == 40  # what belongs to yesterday stays there


def test_a_client_is_told_the_tightest_limit_of_each_kind_and_budgets_that_run_low() -> None:
    tenant = acme(
        rpm=600, tpm=1000, keys={"k1": Limits(tpm=50)}, budgets=(Budget(id="month", amount=50, period="month"),)
    )
    world = Quotas(tenant)
    world.ask("r", key="k1")
    standing = world.core.metering.standing(("acme", "k1", "llama"), 0.0, apart=True)
    assert standing is not None
    assert {metric: (level.scope, level.limit, level.left) for metric, level in standing.levels.items()} == {
        "rpm": ("tenant.rpm", 600, 599),
        "tpm": ("key.tpm", 50, 10),
    }
    assert standing.levels["rpm"].reset_s == pytest.approx(0.1)
    assert standing.budgets == ("month",)


def test_a_tenant_without_limits_holds_nothing_beside_one_with_limits() -> None:
    world = Quotas(acme(rpm=1))
    world.ask("r", tenant="free")
    assert world.core.metering.standing(("free", "", "llama"), 0.0, apart=True) is None
    assert world.core.metering.meters(0.0) == []


def test_live_requests_are_counted_under_the_limits_of_a_new_configuration() -> None:
    world = Quotas(seqs=2)
    world.ask("a")
    world.ask("b")
    world.ask("c")
    world.change(limited(acme(max_concurrency=1, max_queued=5)), 0.0)
    world.end("a", 1.0)
    assert world.core.totals().inflight == 1  # b runs; c waits for its slot
    world.end("b", 1.0)
    assert world.core.totals().queued == 0
    world.change(replace(limited(), tenants={}), 2.0)
    world.end("c", 2.0)
