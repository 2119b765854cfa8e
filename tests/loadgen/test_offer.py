"""What options make of a scenario, and what is said of it before anything is sent."""

from pathlib import Path

import msgspec
import pytest

from loadgen import offer
from loadgen.report.record import TokenCost
from loadgen.scenario import Scenario, ScenarioError, standard
from loadgen.schedule import build


def changed(*changes: str) -> Scenario:
    return offer.changed(standard("mixed-lengths"), [offer.parsed(one) for one in changes])


def test_one_field_changes_and_nothing_else() -> None:
    one = changed(
        "tenants.docs.arrivals.rate=5",
        "slo.target=0.5",
        "tenants.chat.prompt.tool_results.tokens={kind: fixed, value: 9}",
    )
    assert one.tenants[1].arrivals.rate == 5  # type: ignore[union-attr]
    assert one.slo.target == 0.5
    assert one.tenants[0].prompt.tool_results is not None
    assert one.tenants[0].input == standard("mixed-lengths").tenants[0].input
    assert changed() == standard("mixed-lengths")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("duration", "--set duration: expected a.b.c=value"),
        ("duration=[", "--set duration=["),
        ("tenants.nobody.weight=3", "--set tenants.nobody.weight: there is no nobody"),
        ("name.first=3", "--set name.first: there is no such field"),
        ("tenants.chat.arrivals.rate=fast", r"--set: tenants[0].arrivals.rate: Expected `float`, got `str`"),
        ("slo.zap=3", "--set: slo.zap: there is no such field"),
    ],
)
def test_a_change_that_cannot_be_is_named(change: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        changed(change)
    assert str(caught.value).startswith(said)


def test_a_report_counts_tokens_at_the_cost_of_its_scenario() -> None:
    one = changed("cost.output=3", "warmup=0s", "duration=1s", "tail=0s")
    assert offer.basis(one, build(one, 7), []).cost == TokenCost(input=1.0, cached=0.1, output=3.0)


def test_off_is_a_word_and_no_number() -> None:
    assert offer.parsed("a.dequantise=off") == ("a.dequantise", "off")
    assert offer.parsed("a.stream=false") == ("a.stream", False)


def test_rate_then_scale_then_single_tenants() -> None:
    one = offer.scaled(standard("mixed-lengths"), rate=20, scale=0.5, tenants=["docs=3"])
    assert [tenant.arrivals.mean_rate(100) for tenant in one.tenants] == pytest.approx([8.8, 3.6])


@pytest.mark.parametrize("text", ["docs", "docs=", "docs=fast", "docs=-1", "docs=inf", "docs=nan", "nobody=2"])
def test_a_tenant_is_scaled_by_a_number_above_nothing(text: str) -> None:
    with pytest.raises(ScenarioError, match="--scale-tenant"):
        offer.scaled(standard("mixed-lengths"), tenants=[text])


def test_a_scenario_is_found_by_name_or_in_a_file(tmp_path: Path) -> None:
    assert offer.named("smoke") == standard("smoke")
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\nname: [\n")
    with pytest.raises(ScenarioError, match=r"mine\.yaml:\d+:\d+: not YAML"):
        offer.named(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match=r"mine\.yaml: "):
        offer.named(str(path))
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: No such file"):
        offer.named("nowhere.yaml")


def test_what_would_be_offered_is_told_with_its_lengths_sharing_and_tenants() -> None:
    one = offer.changed(
        standard("long-chat").lasting(120), [("salt", "none"), ("tenants.chat.max_tokens", {"kind": "exact"})]
    )
    plan = build(one, 7)
    text = offer.described(one, plan)
    for said in (
        f"{plan.totals.requests:,} requests, {plan.measured:,} of them measured in 115 s",
        f"{plan.totals.ideal_cached_tokens:,} (",
        "a measured request mean ",
        "sessions: ",
        "s before a later request, on average",
        "salt: none; a run may find",
        "max_tokens tells the length of the answer for chat",
        f"schedule: sha256 {plan.digest()}",
    ):
        assert said in text
    both = msgspec.structs.replace(one, tenants=(*one.tenants, standard("smoke").tenants[1]))
    plan = build(both, 7)
    each = sum(bool(one.session) for one in plan.requests) / plan.totals.sessions
    assert each < len(plan.requests) / plan.totals.sessions - 1, "many belong to no conversation"
    assert f"sessions: {plan.totals.sessions}, {each:.1f} requests each" in offer.described(both, plan)
    several = offer.described(standard("smoke"), build(standard("smoke"), 7))
    assert "tenants: 2; chat 70.0%, jobs 30.0%" in several
    assert "at most, in a closed loop" in offer.described(
        standard("agents").lasting(30), build(standard("agents").lasting(30), 7)
    )
