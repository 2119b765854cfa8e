"""`forebay replay --config`: what another configuration would have decided, up to the first difference."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.__main__ import application
from gateway.assembly import closed
from gateway.config import load
from gateway.replica import part_of
from policies.types import Settings
from tests.loadgen import journals

TEXT = """\
version: 1
models: {llama: {context_tokens: 8192}, qwen: {context_tokens: 8192}}
pools: {main: {model: llama}, other: {model: qwen}}
endpoints: [{name: e1, url: "http://10.0.0.1:8000", pools: [main]}, {name: e2, url: "http://10.0.0.2:8000", pools: [other]}]
isolation: {salt_secret: "${SALT}"}
admission: {max_queued: 100}
"""
TENANT = "version: 1\nid: t1\nmodels: [{name: llama}, {name: qwen}]\nlimits: {rpm: 60}\n"
STRICTER = TEXT.replace("max_queued: 100", "max_queued: 2")
SHARED = TEXT + "redis: {url: redis://127.0.0.1:1}\n"
SEED, EVENTS = 7, 1200


@pytest.fixture(autouse=True)
def _salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "0123456789abcdef0123456789abcdef")


def written(folder: Path, text: str = TEXT, tenant: str = TENANT) -> Path:
    (folder / "tenants.d").mkdir(parents=True)
    (folder / "tenants.d" / "t1.yaml").write_text(tenant)
    (folder / "forebay.yaml").write_text(text)
    return folder / "forebay.yaml"


def settings(config: Path) -> Settings:
    return load(config, {"SALT": "0123456789abcdef0123456789abcdef"}).settings(SEED)


def recorded(folder: Path, told: Mapping[int, Settings]) -> Path:
    path = folder / "journal.jsonl"
    journals.write(path, seed=3, events=EVENTS, settings=told)
    return path


def replayed(*argv: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(application("replay"), ["replay", *(str(each) for each in argv)])
    return done.exit_code, done.stdout, done.stderr


def reasons(journal: Path) -> set[str]:
    records = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    return {decision["reason"] for record in records for decision in record["decisions"] if "reason" in decision}


def test_the_configuration_of_the_journal_decides_the_same_through_a_drain(tmp_path: Path) -> None:
    config = written(tmp_path)
    journal = recorded(tmp_path, {0: settings(config), 1100: closed(settings(config))})
    assert "draining" in reasons(journal)
    code, out, err = replayed(journal, "--config", config)
    assert (code, out) == (0, f"{journal}: {EVENTS} events, all decisions equal\n")
    assert err == f"warning: {tmp_path}/tenants.d/t1.yaml:1:1: keys: no keys: nobody can use this tenant\n"


def test_one_of_several_processes_decides_the_same_with_its_part_of_the_limits(tmp_path: Path) -> None:
    config = written(tmp_path, SHARED)
    journal = recorded(tmp_path, {0: part_of(settings(config), 4)})
    (tmp_path / "alone").mkdir()
    alone = recorded(tmp_path / "alone", {0: settings(config)})
    assert journal.read_text().splitlines()[2:] != alone.read_text().splitlines()[2:]
    assert replayed(journal, "--config", config)[0] == 0


@pytest.mark.parametrize(
    ("text", "tenant"),
    [
        (STRICTER, TENANT),
        (TEXT, TENANT.replace("rpm: 60", "rpm: 6")),
        (
            TEXT.replace("main: {model: llama}, other: {model: qwen}", "main: {model: qwen}, other: {model: llama}"),
            TENANT,
        ),
        (TEXT.replace("main", "sole"), TENANT),
    ],
)
def test_another_configuration_stops_at_the_first_difference(tmp_path: Path, text: str, tenant: str) -> None:
    journal = recorded(tmp_path, {0: settings(written(tmp_path / "then"))})
    other = written(tmp_path / "other", text, tenant)
    code, out, _ = replayed(journal, "--config", other, "--max-diffs", "10", "--context", "1")
    assert code == 1
    lines = out.splitlines()
    assert [line.split(":")[0].strip() for line in lines[3:5]] == ["recorded", "now"]
    assert "1 event decided differently" in lines[5]
    assert "forebay sim --from-journal" in lines[6]
    assert len(lines) == 7
    first = int(lines[0].split()[1])
    assert replayed(journal, "--config", other, "--until", first - 1)[0] == 0


def test_a_reload_that_was_recorded_is_not_taken_over(tmp_path: Path) -> None:
    before, after = written(tmp_path / "before"), written(tmp_path / "after", STRICTER)
    journal = recorded(tmp_path, {0: settings(before), 600: settings(after)})
    assert replayed(journal)[0] == 0
    assert replayed(journal, "--config", before, "--until", "599")[0] == 0
    code, out, _ = replayed(journal, "--config", before)
    assert code == 1
    assert int(out.split("the first is seq ")[1].split()[0]) > 600


def test_settings_that_are_equal_but_for_the_seed_decide_the_same(tmp_path: Path) -> None:
    config = written(tmp_path)
    journal = recorded(tmp_path, {0: replace(settings(config), seed=12345)})
    assert replayed(journal, "--config", config)[0] == 0


@pytest.mark.parametrize(
    ("text", "tenant", "words"),
    [
        (TEXT + "admision: {}\n", TENANT, "forebay.yaml:7:1: admision: "),
        (TEXT, TENANT + "limit: {rpm: 1}\n", "tenants.d/t1.yaml:5:1: limit: "),
    ],
)
def test_a_configuration_that_is_not_valid_is_refused_as_everywhere(
    tmp_path: Path, text: str, tenant: str, words: str
) -> None:
    config = written(tmp_path, text, tenant)
    code, out, err = replayed(tmp_path / "nowhere", "--config", config)
    assert (code, out) == (2, "")
    assert words in err
    checked = CliRunner().invoke(application("config"), ["config", "check", str(config)])
    assert (checked.exit_code, checked.stderr) == (2, err)


def test_a_configuration_that_is_not_there_is_refused_as_everywhere(tmp_path: Path) -> None:
    code, out, err = replayed(tmp_path / "journal.jsonl", "--config", tmp_path / "forebay.yaml")
    assert (code, out) == (2, "")
    assert "forebay.yaml" in err
