"""`forebay sim` as people call it: options, outputs, exit codes, errors."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gateway.__main__ import application
from gateway.config.schema import schema
from loadgen.__main__ import sim
from loadgen.bench.again import report_again
from loadgen.report import document
from loadgen.report.compare_command import CompareOptions, compare_command
from loadgen.schedule import build
from loadgen.sim import inputs, tenancy
from loadgen.sim.command import SimOptions
from loadgen.sim.policy import PASSED_OVER, Document, PolicyError, policy
from policies.core import Core, InvariantError
from policies.types import Model, Pool, Settings, Tenant
from tests.loadgen.simulations import TEXT, scenario

APP = typer.Typer()
APP.command()(sim)
POOLS = {"main": Pool(name="main", model="m")}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs are left under the folder one is in
    monkeypatch.setattr("loadgen.report.outputs.find_spec", lambda name: None)  # a page takes seconds to draw


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return str(path)


def called(*argv: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(APP, list(argv))
    return done.exit_code, done.stdout, done.stderr


def test_it_prints_a_table_with_every_arm_and_cell(small: str) -> None:
    code, out, err = called(small, "--router", "core,round_robin")
    assert code == 0
    for word in ("core", "round_robin", "long docs batch", "short chat interactive", "TTFT", "stationary", "Simulated"):
        assert word in out
    assert "core, seed 3:" in err


def test_json_is_the_same_each_time_but_for_its_run_block(small: str) -> None:
    told = []
    for _ in range(2):
        code, out, err = called(small, "--json", "--seeds", "2", "--quiet")
        assert (code, err) == (0, "")
        told.append(json.loads(out))
    ran = [one.pop("run") for one in told]
    assert told[0] == told[1]
    assert told[0]["schema"] == "forebay.arms/1"
    assert [one["seed"] for one in told[0]["arms"]["core"]["runs"]] == [3, 4]
    assert {cell["class"] for cell in told[0]["arms"]["core"]["cells"]} == {"short", "long"}
    assert len(ran[0]["each"]) == 2


def test_runs_are_left_as_live_ones_are_and_can_be_compared(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (small, "--router", "core,round_robin", "--quiet", "--json", "--seeds", "1", "--out", str(tmp_path / "runs"))
    arms = json.loads(called(*argv)[1])["arms"]
    for name in ("core", "round_robin"):
        report = document.read(tmp_path / "runs" / f"{name}-3" / "report.json")
        (simulated,) = arms[name]["runs"]
        for figure in ("offered", "ok", "good", "attainment", "output_tokens_per_s", "ttft_p50_ms", "stall_p99_ms"):
            assert getattr(report.totals, figure) == pytest.approx(simulated["totals"][figure], abs=1e-3)
        assert report.schedule == simulated["schedule"] and report.validity.valid
    folders = (tmp_path / "runs" / "core-3", tmp_path / "runs" / "round_robin-3")
    assert compare_command(CompareOptions(files=folders, metrics=("attainment",))) in (0, 1)
    assert "compared in pairs" in capsys.readouterr().out


def test_runs_are_five_and_have_a_folder_of_their_own_unless_the_requests_are_given(small: str, tmp_path: Path) -> None:
    code, out, err = called(small, "--json", "--no-html")
    assert code == 0
    assert [one["seed"] for one in json.loads(out)["arms"]["core"]["runs"]] == [3, 4, 5, 6, 7]
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}T\d{6}Z-small-[0-9a-f]{6}", folder.name)
    assert err.splitlines()[-1] == f"Files: runs/{folder.name}"
    assert sorted(one.name for one in folder.iterdir()) == [f"core-{seed}" for seed in (3, 4, 5, 6, 7)]
    assert (folder / "core-7" / "requests.csv").is_file() and not (folder / "core-7" / "report.html").exists()
    again = ("--schedule", str(folder / "core-5" / "schedule.jsonl.gz"), "--json", "--quiet", "--out", "again")
    assert len(json.loads(called(small, *again)[1])["arms"]["core"]["runs"]) == 1
    assert [one.name for one in (tmp_path / "again").iterdir()] == ["core-3"]
    code, _, err = called(small, "--out", str(tmp_path / "small.yaml" / "x"))
    assert (code, "name a folder that can be made and written" in err) == (2, True)


def test_the_report_of_a_simulated_run_made_again_is_the_same(small: str, tmp_path: Path) -> None:
    assert called(small, "--seeds", "1", "--out", "runs", "--no-html", "--quiet")[0] == 0
    folder = tmp_path / "runs" / "core-3"
    before = (folder / "report.json").read_bytes()
    assert report_again(folder, json=True) == 0
    assert (folder / "report.json").read_bytes() == before


def test_what_has_no_runs_leaves_no_folder(small: str, tmp_path: Path) -> None:
    assert called(small, "--dry-run")[0] == 0
    assert called(small, "--find-max-rate", "--probe-seconds", "10", "--start", "4", "--quiet")[0] == 0
    assert called(small, "--router", "nope")[0] == 2
    assert not (tmp_path / "runs").exists()


FILES = """\
version: 1
models: {llama: {context_tokens: 16384}}
pools: {main: {model: llama}}
endpoints: [{name: e1, url: "http://10.0.0.1:8000", pools: [main]}]
isolation: {salt_secret: "0123456789abcdef0123456789abcdef"}
tenant_defaults: {models: [{name: llama}], class_ceiling: interactive}
"""


def configured(folder: Path, **tenants: str) -> str:
    (folder / "tenants.d").mkdir()
    (folder / "forebay.yaml").write_text(FILES)
    for name, more in tenants.items():
        (folder / "tenants.d" / f"{name}.yaml").write_text(f"version: 1\nid: {name}\n{more}\n")
    return str(folder / "forebay.yaml")


def by_gateway(*argv: str) -> tuple[int, str, str]:
    """The command as `forebay` has it, with the loader of the configuration."""
    done = CliRunner().invoke(application("sim"), ["sim", *argv])
    return done.exit_code, done.stdout, done.stderr


def test_the_tenants_beside_the_configuration_have_their_limits(small: str, tmp_path: Path) -> None:
    config = configured(
        tmp_path, chat="limits: {rpm: 240, burst_s: 1}", docs="models: [{name: llama, limits: {tpm: 30000}}]"
    )
    _, out, err = by_gateway(small, "--config", config, "--json", "--seeds", "1", "--check")
    run = json.loads(out)["arms"]["core"]["runs"][0]
    assert "without limits" not in err
    refused = dict.fromkeys(("chat", "docs"), 0)
    for cell in run["cells"]:
        refused[cell["tenant"]] += cell["rejected_quota"]
    assert refused["chat"] > 100, "12 a second come, 4 are let in"
    assert refused["docs"] > 10, "its model has fewer tokens for it"
    totals = run["totals"]
    assert totals["offered"] == totals["ok"] + totals["rejected_quota"]


def test_a_tenant_without_a_file_and_what_means_nothing_here_is_named(small: str, tmp_path: Path) -> None:
    config = configured(tmp_path, chat=f"keys: [{{id: k3m9x2p7q1wz, sha256: '{'ab' * 32}', limits: {{rpm: 5}}}}]")
    code, _, err = by_gateway(small, "--config", config, "--seeds", "1")
    assert code == 0
    assert "no file in tenants.d, and so without limits: docs" in err
    assert "without effect in the simulator: tenants.d/chat: limits of keys" in err


def test_with_files_of_tenants_the_configuration_is_judged_as_by_serve(small: str, tmp_path: Path) -> None:
    config = configured(tmp_path, chat="limits: {rmp: 240}", docs="")
    code, out, err = by_gateway(small, "--config", config)
    assert (code, out) == (2, "")
    assert "chat.yaml:3" in err and "unknown key" in err


def test_weights_of_tenants_are_the_cores() -> None:
    served = Settings(
        pools={}, bands={}, max_queued=1, max_queued_bytes=1, max_attempts=1, seed=0,
        tenants={"chat": Tenant(id="chat", weight=3.0, partition="bank")}, models={"llama": Model(name="llama")},
    )  # fmt: skip
    made = tenancy.with_tenants(policy({}, POOLS), served, "llama", "m").settings
    assert (made.tenants["chat"].weight, made.tenants["chat"].partition) == (3.0, "shared")
    assert made.models["m"].name == "m"
    with pytest.raises(PolicyError, match="one model, and here their pools have a, b"):
        tenancy.model_of({"pools": {"main": {"model": "a"}, "long": {"model": "b"}}}, ("main", "long"))


def test_a_missed_target_and_a_run_too_small_have_their_exit_codes(small: str) -> None:
    assert called(small, "--set", "slo.ttft.base_ms=1", "--quiet")[0] == 1
    code, _, err = called(small, "--rate", "0.5", "--quiet")
    assert code == 3
    assert "INVALID" in err


def test_a_core_that_contradicts_itself_is_an_internal_error(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def contradict(self: Core) -> None:
        raise InvariantError("lost somebody")

    monkeypatch.setattr(Core, "check", contradict)
    code, _, err = called(small, "--check")
    assert code == 5
    assert "lost somebody" in err


def test_an_interrupted_run_says_so(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Core) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Core, "check", interrupt)
    assert called(small, "--check")[0] == 130


def test_a_dry_run_says_what_would_be_offered(small: str) -> None:
    code, out, _ = called(small, "--dry-run", "--scale", "2")
    assert code == 0
    digest = build(scenario().scaled(2), 3).digest()
    assert digest in out
    code, out, err = called(small, "--dry-run", "--scale", "2", "--json")
    assert (code, err) == (0, "") and json.loads(out)["schedule"] == digest


def test_a_saved_schedule_is_what_was_drawn(small: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl.gz"
    build(scenario(), 3).write(path)
    drawn = json.loads(called(small, "--json", "--quiet", "--seeds", "1")[1])["arms"]
    assert json.loads(called(small, "--json", "--quiet", "--schedule", str(path))[1])["arms"] == drawn


def test_a_journal_is_a_schedule_for_another_policy(small: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert called(small, "--journal", str(path), "--check", "--quiet")[0] == 0
    code, out, _ = called(small, "--from-journal", str(path), "--router", "core,least_requests", "--json", "--quiet")
    assert code == 0
    arms = json.loads(out)["arms"]
    assert arms["core"]["totals"]["offered"] == arms["least_requests"]["totals"]["offered"] > 200


def test_the_search_finds_a_rate_that_passes(small: str) -> None:
    code, out, _ = called(small, "--find-max-rate", "--probe-seconds", "10", "--start", "4", "--quiet", "--json")
    assert code == 0
    found = json.loads(out)["arms"]["core"]
    assert 1 < found["scale"] < found["failed_scale"] <= found["scale"] * 1.06
    passed = {probe["seed"] for probe in found["probes"] if probe["scale"] == found["scale"] and not probe["why"]}
    assert passed == {3, 4, 5}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--router", "nope"], "no router is called nope"),
        (["--router", "core,core"], "each arm once"),
        (["--fleet", "nope"], "no fleet 'nope'; shipped are"),
        (["--set", "slo.zap=3"], "zap"),
        (["--set", "tenants.nobody.weight=3"], "there is no nobody"),
        (["--set", "slo"], "expected a.b.c=value"),
        (["--scale-tenant", "nobody=2"], "no tenant is called nobody"),
        (["--set", "fleet.engines.e.flags.zap=1"], "zap"),
        (["--set", "config.admission.ordering=lifo"], "'lifo' is not one of by_length, edf, fcfs"),
        (["--set", "config.classes.batch.rank=0"], "two with the same rank"),
        (["--journal", "x", "--seeds", "2"], "one run of the core"),
        (["--from-journal", "x", "--rate", "5"], "the requests are given"),
        (["--from-journal", "/nope"], "/nope: No such file"),
        (["--schedule", "/nope"], "/nope: No such file"),
        (["--config", "/nope"], "/nope: "),
        (["--poll-interval", "5x"], "'5x' is no duration"),
        (["--poll-interval=-1"], "'-1' is not at least 0 s"),
        (["--poll-delay", "nan"], "'nan' is not at least 0 s"),
        (["--timeout", "50ms"], "'50ms' is not at least 0.1 s"),
    ],
)
def test_an_option_that_cannot_be_is_named(small: str, flags: list[str], message: str) -> None:
    code, out, err = called(small, *flags)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("flags", "timing"),
    [
        (["--poll-interval", "250ms", "--poll-delay", "20ms", "--timeout", "15m"], (0.25, 0.02, 900.0)),
        (["--poll-interval", "0.25", "--poll-delay", "0", "--timeout", "900"], (0.25, 0.0, 900.0)),
        ([], (0.1, 0.005, 120.0)),
    ],
)
def test_a_time_is_a_duration_or_a_number_of_seconds(
    small: str, flags: list[str], timing: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SimOptions] = []

    def sim_command(options: SimOptions) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr("loadgen.sim.command.sim_command", sim_command)
    assert called(small, *flags)[0] == 0
    told = asked[0].timing
    assert (told.poll_s, told.poll_delay_s, told.patience_s) == timing


def test_unknown_lengths_and_scenarios_are_named() -> None:
    assert called("chat", "--lengths", "guess")[0] == 2
    code, _, err = called("nope")
    assert code == 2
    assert "no scenario is called nope" in err


def test_set_changes_scenario_fleet_and_configuration() -> None:
    changes = ["tenants.chat.arrivals.rate=3.5", "fleet.engines.e.count=3", "config.affinity.block_tokens=32"]
    given = inputs.read("mixed-lengths", "ref4", None, changes)
    assert given.scenario.tenants[0].arrivals.rate == 3.5  # type: ignore[union-attr]
    assert list(given.scenario.classes) == ["short", "long"], "the order of classes is their meaning"
    assert given.fleet.engines[0].count == 3
    assert given.policy.settings.affinity is not None
    assert given.policy.settings.affinity.block_tokens == 32


def test_the_policy_of_no_file_is_the_built_in_one() -> None:
    settings = policy({}, POOLS).settings
    ranks = {name: band.rank for name, band in settings.bands.items()}
    assert ranks == {"critical": 0, "interactive": 1, "standard": 2, "batch": 3}
    assert [settings.bands[name].slo_ttft_s for name in ranks] == [0.4, 0.4, 2.0, 0.0]
    assert [settings.bands[name].queue_timeout_s for name in ranks] == [30, 30, 60, 300]
    assert settings.affinity is not None


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "listen: {port: 1}\nendpoints: []\nclasses: {batch: {max_queued: 7, ceiling: 0.5}, bulk: {rank: 9, "
        "queue_timeout_s: 5}}\nadmission: {max_queued_bytes: 2MiB, drain_lag_s: 3, shed: off}\naffinity: {enabled: false}\n"
    )
    given = inputs.read("mixed-lengths", None, path, [])
    settings = given.policy.settings
    assert settings.bands["batch"].max_queued == 7
    assert settings.bands["batch"].ceiling == 0.5
    assert settings.bands["batch"].queue_timeout_s == 300
    assert settings.bands["bulk"].rank == 9
    assert settings.max_queued_bytes == 2 << 20
    assert settings.affinity is None
    assert settings.shed == "off"
    assert given.without_effect == ("admission.drain_lag_s",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"admission": {"zap": 1}}, "zap"),
        ({"admision": {"max_queued": 1}}, "admision: there is no such section"),
        ({"admission": {"max_queued_bytes": "2MB"}}, "not a size like"),
        ({"affinity": {"block_tokens": 24}}, "block_tokens"),
        ({"classes": {"new": {"rank": 7}}}, "queue_timeout_s"),
        ({"pools": {"other": {}}}, "the configuration has no main"),
        ({"pools": {"main": {"lanes": "wide"}}}, "'wide' is not one of"),
        ({"length": {"kind": "oracle"}}, "'oracle' is not one of"),
    ],
)
def test_a_wrong_configuration_is_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(raw, POOLS)


def test_every_section_of_the_gateway_is_read_or_passed_over() -> None:
    assert set(schema()["properties"]) == PASSED_OVER | set(Document.__struct_fields__)
