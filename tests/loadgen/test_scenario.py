"""The scenario loader is strict, and the demo's scenario says what the documentation says."""

import json
import re
from pathlib import Path

import pytest

from loadgen.scenario import Scenario, ScenarioError, Tenant, about, load, names, schema, seconds, standard
from loadgen.schedule import build
from loadgen.workload.arrivals import Sessions
from loadgen.workload.recipes import ToolResults
from loadgen.workload.summary import quantile
from loadgen.workload.trace import Trace
from tests.kit.shared import trace_file

GOOD = """
version: 1
name: small
seed: 7
warmup: 500ms
duration: 10s
slo: {ttft: {base_ms: 400}, tpot_ms: 100, stall_ms: 400}
prefixes: {sys: {count: 20, tokens: 800, zipf: 1.1}}
tenants:
  - name: chat
    priority: interactive
    arrivals: {kind: gamma, rate: 8.8, cv: 1.5}
    input: {kind: lognormal, median: 600, sigma: 0.8, min: 30, max: 3999}
    output: {kind: fixed, value: 20}
    prompt: {prefix: sys}
"""


def test_a_scenario_reads_as_written() -> None:
    scenario = load(GOOD)
    assert (scenario.warmup_s, scenario.duration_s, scenario.rate) == (0.5, 10, 8.8)
    assert scenario.tenants[0].cancel is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 7", "seed: 7\nsed: 8", r"bad\.yaml:5:1: sed: there is no such field"),
        ("seed: 7", "seed: seven", r"bad\.yaml:4:7: seed: Expected `int`, got `str`"),
        ("cv: 1.5", "cv: 1.5, tail: 3", "tail"),
        ("cv: 1.5", "cv: 0", r"bad\.yaml:12:4[0-9]: tenants\[0\]\.arrivals\.cv"),
        ("rate: 8.8", "rate: -1", r"arrivals\.rate"),
        ("kind: gamma", "kind: gauss", "gauss"),
        ("zipf: 1.1", "zips: 1.1", "zips"),
        ("prefix: sys", "prefix: other", r"tenants\[0\]\.prompt\.prefix: no prefix is called other"),
        ("warmup: 500ms", "warmup: 500", r"bad\.yaml:5:9: warmup"),
        ("warmup: 500ms", "warmup: 5h", "warmup"),
        ("seed: 7", "seed: 7\nseed: 8", "'seed' is there twice"),
        ("version: 1", "version: 2", "version"),
        ("duration: 10s", "duration: 0s", r"bad\.yaml:6:11: duration: more than 0"),
        ("base_ms: 400", "base_ms: .nan", r"bad\.yaml:7:23: slo\.ttft\.base_ms: nan is no limit"),
        ("rate: 8.8", "rate: .inf", r"arrivals\.rate: Expected `float` <= "),
        ("min: 30, max: 3999", "min: 30, max: 3", "`min` is above `max`"),
        (
            "{kind: gamma, rate: 8.8, cv: 1.5}",
            "{kind: ramp, stages: [{at: 5s, rate: 1}, {at: 2s, rate: 2}]}",
            "later than",
        ),
        ("{kind: gamma, rate: 8.8, cv: 1.5}", "{kind: closed, users: 0, think: {kind: fixed, value: 2}}", "users"),
        ("prompt: {prefix: sys}", "max_tokens: {kind: ratio, value: 0.5}", r"max_tokens\.value"),
        ("prompt: {prefix: sys}", "weight: 0", r"tenants\[0\]\.weight"),
        ("prompt: {prefix: sys}", "prompt: {tools: sys}\n    slo: {all: {tpot_ms: -1}}", r"slo\.all\.tpot_ms: -1"),
        ("seed: 7", "seed: 7\nsalt: ''", "salt"),
        ("seed: 7", "seed: 7\nlength_control: magic", "length_control"),
        ("base_ms: 400", "base_s: 400", "base"),
        ("name: small", "name: [", r"bad\.yaml:\d+:\d+: not YAML: "),
        ("priority: interactive", "prio: interactive", "prio"),
        (
            "priority: interactive",
            "priority: hihg",
            r"tenants\[0\]\.priority: 'hihg' is not one of batch, critical, interactive, standard$",
        ),
        ("seed: 7", "seed: 7\nclasses: {short: {max_total_tokens: 9}}", "one of them takes requests of any length"),
        ("seed: 7", "seed: 7\nclasses: {short: {max_tokens: 9}}", "max_tokens"),
        ("prompt: {prefix: sys}", "slo: {short: {target: 0.5}}", "no class is called short"),
        (
            "prompt: {prefix: sys}",
            "slo: {all: {target: 1.5}}",
            r"tenants\[0\]\.slo\.all\.target: Expected `float` <= 1",
        ),
        ("prompt: {prefix: sys}", "prompt: {tools: api}", "no prefix is called api"),
        ("output: {kind: fixed, value: 20}", "", r"tenants\[0\]: `output` is missing"),
        ("{kind: gamma, rate: 8.8, cv: 1.5}", "{kind: trace, file: f}", "lengths and prompts come from the trace"),
        ("{kind: gamma, rate: 8.8, cv: 1.5}", "{kind: trace, file: f, speed: 2}", "speed"),
        (
            "{kind: gamma, rate: 8.8, cv: 1.5}",
            "{kind: sessions, turns: {kind: fixed, value: 2}, think: {kind: fixed, value: 2}}",
            "either `rate` or `users`",
        ),
    ],
)
def test_what_is_wrong_is_refused_and_named(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        load(GOOD.replace(old, new, 1), "bad.yaml")
    assert re.search(said, str(caught.value)), str(caught.value)


ARRIVALS = "constant, poisson, gamma, weibull, step, ramp, spike, closed, sessions, trace"
LENGTHS = "fixed, uniform, normal, lognormal, quantiles, empirical"
TENANT = "tenants[0]"


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        (
            "kind: gamma",
            "kind: gama",
            "12:22",
            f"{TENANT}.arrivals.kind: 'gama' is not one of {ARRIVALS}; did you mean 'gamma'?",
        ),
        ("kind: gamma", "kind: 7", "12:22", f"{TENANT}.arrivals.kind: 7 is not one of {ARRIVALS}"),
        ("kind: gamma, ", "", "12:15", f"{TENANT}.arrivals: `kind` is missing, one of {ARRIVALS}"),
        (
            "kind: lognormal",
            "kind: log-normal",
            "13:19",
            f"{TENANT}.input.kind: 'log-normal' is not one of {LENGTHS}; did you mean 'lognormal'?",
        ),
        (
            "priority: interactive",
            "priority: Batch",
            "11:15",
            f"{TENANT}.priority: 'Batch' is not one of batch, critical, interactive, standard; did you mean 'batch'?",
        ),
        (
            "seed: 7",
            "seed: 7\nlength_control: ignore-eos",
            "5:17",
            "length_control: 'ignore-eos' is not one of auto, ignore_eos, marker, min_tokens, none; did you mean 'ignore_eos'?",
        ),
        (
            "prompt: {prefix: sys}",
            "prompt: {tool_results: {tokens: {kind: fixd, value: 9}}}",
            "15:44",
            f"{TENANT}.prompt.tool_results.tokens.kind: 'fixd' is not one of {LENGTHS}; did you mean 'fixed'?",
        ),
        (
            "prompt: {prefix: sys}",
            "prompt: {tool_results: {tokens: {kind: fixed, value: 9}, noise: id}}",
            "15:69",
            f"{TENANT}.prompt.tool_results.noise: 'id' is not one of ids, key_order, none, timestamps, whitespace; did you mean 'ids'?",
        ),
        (
            "prompt: {prefix: sys}",
            "max_tokens: {kind: abs}",
            "15:24",
            f"{TENANT}.max_tokens.kind: 'abs' is not one of fixed, ratio, exact, absent",
        ),
        (
            "{kind: gamma, rate: 8.8, cv: 1.5}",
            "{kind: trace, file: f, dequantise: on}",
            "12:50",
            f"{TENANT}.arrivals.dequantise: 'on' is not one of auto, even, off, uniform",
        ),
        ("cv: 1.5", "cb: 1.5", "12:40", f"{TENANT}.arrivals.cb: there is no such field; there are kind, rate, cv"),
        (
            "{kind: gamma, rate: 8.8, cv: 1.5}",
            "{kind: poisson, rate: 8, burst: 2}",
            "12:40",
            f"{TENANT}.arrivals.burst: there is no such field; there are kind, rate",
        ),
        ("warmup: 500ms", "warmup: 30", "5:9", "warmup: 30 is no duration like 500ms, 30s or 10m"),
        (
            "seed: 7",
            "seed: 7\nclasses: {long: {}, short: {max_token: 9}}",
            "5:29",
            "classes.short.max_token: there is no such field; did you mean 'max_total_tokens'?",
        ),
        (
            "prefixes: {sys: {",
            "prefixes: {a: {count: 1, tokens: 8}, b: {count: none, tokens: 9}, sys: {",
            "8:49",
            "prefixes.b.count: Expected `int`, got `str`",
        ),
    ],
)
def test_what_could_stand_there_is_told_with_the_place(old: str, new: str, place: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        load(GOOD.replace(old, new, 1), "bad.yaml")
    assert str(caught.value) == f"bad.yaml:{place}: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`, got `null`"),
        ("# nothing\n", "Expected `object`, got `null`"),
        ("- a\n", "Expected `object`, got `array`"),
        ("word\n", "Expected `object`, got `str`"),
        ("version: 1\ntenants: [3]\n", "tenants[0]: Expected `object`, got `int`"),
        ("version: 1\ntenants: {a: 3}\n", "tenants: Expected `array`, got `object`"),
        ("version: 1\nclasses: 3\n", "classes: Expected `object`, got `int`"),
        (
            "version: 1\nclasses: {a: {b: 1}, c: [3]}\n",
            "classes.a.b: there is no such field; there are max_total_tokens",
        ),
        ("version: 1\nclasses: {a: {}, c: [3]}\n", "classes.c: Expected `object`, got `array`"),
        ("version: 1\nslo: [1]\n", "slo: Expected `object`, got `array`"),
        (
            "version: 1\ntenants: [{name: a, arrivals: [poisson]}]\n",
            "tenants[0].arrivals: Expected `object`, got `array`",
        ),
        ("version: 1\ntenants: [{name: a, arrivals: {rate: 3}}]\n", "tenants[0].arrivals: `kind` is missing, one of "),
        ("version: 1\ntenants: [{name: a, arrivals: {kind: }}]\n", "tenants[0].arrivals.kind: nothing is not one of "),
    ],
)
def test_a_document_of_another_shape_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(text, "bad.yaml")
    assert re.match(rf"bad\.yaml:\d+:\d+: {re.escape(said)}", str(caught.value)), str(caught.value)


def test_two_tenants_of_one_name_are_refused() -> None:
    tenant = GOOD[GOOD.index("  - name: chat") :]
    with pytest.raises(ScenarioError, match="chat is there twice"):
        load(GOOD + tenant)


@pytest.mark.parametrize(("text", "value"), [("500ms", 0.5), ("30s", 30), ("1.5s", 1.5), ("10m", 600)])
def test_durations_carry_their_unit(text: str, value: float) -> None:
    assert seconds(text) == value


def test_the_demo_offers_seven_requests_a_second_in_three_classes_under_the_standard_slo() -> None:
    demo = standard("demo")
    assert demo.rate == pytest.approx(7.0)
    assert {tenant.priority for tenant in demo.tenants} == {"interactive", "standard", "batch"}
    assert (demo.slo.ttft.base_ms, demo.slo.ttft.per_token_ms, demo.slo.ttft.free_tokens) == (400, 0.25, 2048)
    assert (demo.slo.tpot_ms, demo.slo.stall_ms) == (100, 400)


def test_every_demo_request_fits_the_engines_context() -> None:
    for tenant in standard("demo").tenants:
        assert tenant.input.max + 320 + 4 + tenant.output.max <= 32768  # type: ignore[union-attr]


@pytest.mark.parametrize(("total", "warmup"), [(6, 0.6), (20, 2), (60, 5), (600, 5)])
def test_a_tenth_of_the_time_is_warm_up_and_five_seconds_at_most(total: float, warmup: float) -> None:
    lasting = standard("demo").lasting(total)
    assert lasting.warmup_s == pytest.approx(warmup)
    assert lasting.warmup_s + lasting.duration_s == pytest.approx(total)


def test_one_tenant_can_be_scaled_alone() -> None:
    demo = standard("demo")
    more = demo.scaled(3, only="docs")
    assert more.rate == pytest.approx(demo.rate + 2 * 1.1)


def test_there_is_no_scenario_of_another_name() -> None:
    with pytest.raises(
        ScenarioError, match=r"no scenario is called smok; there .* a file \(.yaml\); did you mean 'smoke'\?"
    ):
        standard("smok")
    with pytest.raises(ScenarioError, match="no scenario is called rush; there are agent-tools, agents"):
        standard("rush")


def test_a_rate_keeps_the_mix() -> None:
    demo = standard("demo")
    faster = demo.at_rate(14)
    assert faster.rate == pytest.approx(14)
    assert [t.arrivals.rate / 2 for t in faster.tenants] == pytest.approx([t.arrivals.rate for t in demo.tenants])


def test_tools_too_small_for_a_definition_are_refused() -> None:
    text = GOOD.replace("tokens: 800", "tokens: 8").replace("prefix: sys}", "tools: sys}")
    with pytest.raises(
        ScenarioError, match=r"tenants\[0\]\.prompt\.tools: definitions of tools take 48 tokens at least"
    ):
        load(text)


def test_every_scenario_of_the_design_is_there() -> None:
    named = (
        "chat code agent-tools agents mixed-lengths long-chat conversation-ttl noisy-neighbour spike tenants reasoning"
    )
    assert set(named.split()) | {"headline", "smoke"} <= set(names())


def test_the_json_schema_is_json_and_knows_every_field() -> None:
    made = json.loads(json.dumps(schema(), allow_nan=False))
    defined = made["$defs"]
    for kind in (Scenario, Tenant, Trace, Sessions, ToolResults):
        fields = defined[kind.__name__]["properties"]
        assert set(fields) == set(kind.__struct_encode_fields__) | ({"kind"} if kind in (Trace, Sessions) else set())
        assert defined[kind.__name__]["additionalProperties"] is False
    kinds = defined["Tenant"]["properties"]["arrivals"]["discriminator"]["mapping"]
    assert {"closed", "sessions", "trace", "spike"} <= kinds.keys()


def test_caps_say_what_clients_send_and_the_telling_ones_are_known() -> None:
    one = load(GOOD)
    for text, sent, telling in (
        ("", None, False),
        ("max_tokens: {kind: absent}", None, False),
        ("max_tokens: {kind: fixed}", 2048, False),
        ("max_tokens: {kind: exact}", 20, True),
        ("max_tokens: {kind: ratio, value: 1.51}", 31, True),
    ):
        one = load(GOOD + f"    {text}\n")
        assert {row.max_tokens for row in build(one, 7).requests} == {sent}
        assert one.telling == (["chat"] if telling else [])


@pytest.mark.parametrize("name", names())
def test_each_scenario_says_what_it_is_in_a_sentence(name: str) -> None:
    said = about(name)
    assert 20 < len(said) < 200 and said[0].isupper() and said[-1] in ".?"


def table() -> dict[str, list[str]]:
    """The rows of the standard scenarios in the documentation, by name."""
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page[: page.index("## Fields")], re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in rows}


@pytest.mark.parametrize("name", sorted(table()))
def test_the_documentation_has_the_figures_of_each_scenario(name: str) -> None:
    if name == "conversation-ttl":
        one = standard(name).with_trace(trace_file("mooncake_conversation"))
    else:
        one = standard(name)
    summary = build(one, one.seed).summary()
    prompt, answer = (f"{quantile(of, 0.5):,} / {quantile(of, 0.99):,}" for of in (summary.inputs, summary.outputs))
    share = summary.totals().ideal_share
    _, rate, *figures = table()[name]
    assert figures == [prompt, answer, f"{share * 100:.0f} %" if share else "-"]
    told = [float(number) for number in re.findall(r"[\d.]+", rate)]
    assert one.closed or len(told) > 1 or told[0] == pytest.approx(one.rate, rel=0.05)
