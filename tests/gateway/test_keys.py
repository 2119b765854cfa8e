"""`forebay keys`: what a key is, what becomes of the file, what the command says."""

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.config import load
from gateway.keys import edit
from gateway.keys.make import BadInput, Wanted, foreign, later, make
from gateway.keys.store import Store
from tests.gateway.test_cli import forebay
from tests.gateway.test_tenant_files import ACME, BETA, ENVIRON, FLEET, KEY
from tests.kit.processes import free_ports

NOW = datetime(2026, 11, 29, 12, 0, 0, 5, tzinfo=UTC)
NEW = "{id: n3m9x2p7q1wz}"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.yaml"
    nobody = f"admin: {{port: {free_ports(1)[0]}}}\n"  # whoever runs at the usual port is not asked
    path.write_text(FLEET.replace("${SALT}", ENVIRON["SALT"]) + nobody)
    (tmp_path / "tenants.d").mkdir()
    (tmp_path / "tenants.d" / "acme.yaml").write_text(ACME)
    (tmp_path / "tenants.d" / "beta.yaml").write_text(BETA)
    return path


def acme(fleet: Path) -> Path:
    return fleet.parent / "tenants.d" / "acme.yaml"


def keys_of(fleet: Path) -> dict[str, str]:
    tenants = load(fleet, ENVIRON).tenants
    assert tenants is not None
    return {key.id: key.sha256 for key in tenants["acme"].keys}


INSERTIONS = {
    "keys: []\n": "keys: [NEW]\n",
    "keys: [  ]  # none yet\nx: 1\n": "keys: [NEW  ]  # none yet\nx: 1\n",
    "keys: [{id: a}]": "keys: [{id: a}, NEW]",
    "keys: [{id: a},]\n": "keys: [{id: a}, NEW]\n",
    "keys:\n  [\n    {id: a},\n    {id: b}\n  ]\n": "keys:\n  [\n    {id: a},\n    {id: b}, NEW\n  ]\n",
    "id: x": "id: x\nkeys:\n  - NEW\n",
    "keys:\n  - {id: a}\n": "keys:\n  - {id: a}\n  - NEW\n",
    "keys:\n- {id: a}\nx: 1\n": "keys:\n- {id: a}\n- NEW\nx: 1\n",
    "keys:\n    - {id: a}  # of alice\n\n# the cache\nx: 1\n": "keys:\n    - {id: a}  # of alice\n    - NEW\n\n# the cache\nx: 1\n",
    "keys:\n  - id: a\n    name: b c\n  # last\n": "keys:\n  - id: a\n    name: b c\n  - NEW\n  # last\n",
    "keys:\n  - {id: a,\n     name: b}": "keys:\n  - {id: a,\n     name: b}\n  - NEW\n",
    "keys:\n  - id: a\n    name: 'ü — x'\nx: [1]\n": "keys:\n  - id: a\n    name: 'ü — x'\n  - NEW\nx: [1]\n",
}


@pytest.mark.parametrize("text", INSERTIONS, ids=repr)
def test_a_record_is_put_in_and_nothing_else_changes(text: str) -> None:
    assert edit.with_key(text, NEW) == INSERTIONS[text].replace("NEW", NEW)


FIELDS = {
    "keys: [{id: a}, {id: b, state: active}]\n": "keys: [{id: a}, {id: b, state: blocked}]\n",
    "keys: [{id: a}, {id: b}]\n": "keys: [{id: a}, {id: b, state: blocked}]\n",
    "keys:\n  - {id: a}\n  - {id: b,}  # c\n": "keys:\n  - {id: a}\n  - {id: b, state: blocked}  # c\n",
    "keys:\n  - {id: a}\n  - state: 'active' # c\n    id: b\n": "keys:\n  - {id: a}\n  - state: blocked # c\n    id: b\n",
    "keys:\n- {id: a}\n- id: b # c\nx: 1": "keys:\n- {id: a}\n- id: b # c\n  state: blocked\nx: 1",
}


@pytest.mark.parametrize("text", FIELDS, ids=repr)
def test_a_field_of_a_record_is_set_and_nothing_else_changes(text: str) -> None:
    assert edit.with_field(text, 1, "state", "blocked") == FIELDS[text]


@pytest.mark.parametrize("text", ["", "keys: [{id: a} # c\n]", "keys: [*a]", "- 1"])
def test_what_it_does_not_know_is_not_edited(text: str) -> None:
    with pytest.raises(edit.CannotEdit):
        edit.with_field(text, 1, "state", "blocked")
    if "#" in text:
        with pytest.raises(edit.CannotEdit):
            edit.with_key(text, NEW)


def test_a_new_key_has_a_public_id_and_a_secret_of_256_bits() -> None:
    made = make(Wanted(), (), NOW)
    assert re.fullmatch(r"fbk-[0-9a-z]{12}-[0-9A-Za-z]{43}", made.secret)
    assert made.secret[4:16] == made.id
    digest = hashlib.sha256(made.secret.encode()).hexdigest()
    assert f'sha256: "{digest}", created: 2026-11-29}}' in made.record
    assert made.secret not in made.record
    assert len({make(Wanted(), (), NOW).secret for _ in range(100)}) == 100


def test_what_is_said_of_a_new_key_stands_in_its_record() -> None:
    wanted = Wanted(name='the "ci", ü', expires=later("90d", NOW), class_ceiling="batch", foreign="sk-" + "x" * 20)
    made = make(wanted, (), NOW)
    assert made.secret == "sk-" + "x" * 20
    assert (
        'name: "the \\"ci\\", ü", created: 2026-11-29, expires: 2027-02-27T12:00:00Z, class_ceiling: batch}'
        in made.record
    )
    for bad in (Wanted(class_ceiling="urgent"), Wanted(name=""), Wanted(name="a\nb")):
        with pytest.raises(BadInput):
            make(bad, (), NOW)


@pytest.mark.parametrize("text", ["", "x" * 19, "x" * 257, "with a space in the middle", "täglich-" + "x" * 20])
def test_a_foreign_key_is_printable_and_long_enough(text: str) -> None:
    with pytest.raises(BadInput):
        foreign(text + "\n")
    assert foreign("x" * 20 + "\r\n") == "x" * 20


def test_an_end_is_a_duration_or_a_time_with_its_offset() -> None:
    start = NOW.replace(microsecond=0)
    assert later("24h", NOW) - start == timedelta(hours=24)
    assert later("2w", NOW) - start == timedelta(weeks=2)
    assert later("2027-02-01T01:00:00+01:00", NOW) == datetime(2027, 2, 1, tzinfo=UTC)
    for bad in ("", "0d", "90", "1y", "2027-02-01", "2027-02-01T00:00:00", "-1d", "9999-12-31T23:59:59-23:59"):
        with pytest.raises(BadInput):
            later(bad, NOW)


def test_new_prints_the_secret_alone_and_writes_its_record_where_it_belongs(fleet: Path) -> None:
    os.chmod(acme(fleet), 0o640)
    before = acme(fleet).read_text()
    arguments = ("keys", "new", "--config", str(fleet), "--tenant", "acme", "--name", "ci", "--expires", "90d")
    only_shown = forebay(*arguments)
    assert only_shown.returncode == 0 and acme(fleet).read_text() == before
    assert "or use --write" in only_shown.stderr
    done = forebay(*arguments, "--class-ceiling", "batch", "--write")
    assert done.returncode == 0, done.stderr
    (secret,) = done.stdout.splitlines()
    assert keys_of(fleet)[secret[4:16]] == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in done.stderr + acme(fleet).read_text()
    after = acme(fleet).read_text()
    assert after.startswith(before[: before.index(KEY) + len(KEY)]) and after.endswith("}]\n")
    assert stat.S_IMODE(acme(fleet).stat().st_mode) == 0o640
    assert sorted(path.name for path in acme(fleet).parent.iterdir()) == ["acme.yaml", "beta.yaml"]


def test_a_key_is_replaced_with_a_time_in_which_both_work(fleet: Path) -> None:
    arguments = ("keys", "new", "--config", str(fleet), "--tenant", "acme", "--replaces", "k3m9x2p7q1wz", "--write")
    assert forebay(*arguments, "--grace", "2h").returncode == 0
    end = Store(fleet, ENVIRON).find("k3m9x2p7q1wz").key.expires
    assert end is not None and timedelta(hours=1.9) < end - datetime.now(UTC) <= timedelta(hours=2)
    assert forebay(*arguments, "--grace", "24h").returncode == 0
    assert Store(fleet, ENVIRON).find("k3m9x2p7q1wz").key.expires == end  # it ended earlier
    assert len(keys_of(fleet)) == 3
    other = forebay(*arguments[:4], "--tenant", "beta", "--replaces", "k3m9x2p7q1wz", "--write")
    assert (other.returncode, other.stdout) == (2, "")
    assert other.stderr.endswith("forebay keys: k3m9x2p7q1wz is a key of acme\n")


def test_a_key_is_blocked_once_and_listed_with_its_state(fleet: Path) -> None:
    done = forebay("keys", "disable", "--config", str(fleet), "k3m9x2p7q1wz")
    assert (done.returncode, done.stderr) == (0, f"written: {acme(fleet)}\n")
    assert acme(fleet).read_text() == ACME.replace(KEY, f"{KEY[:-1]}, state: blocked}}")
    again = forebay("keys", "disable", "--config", str(fleet), "k3m9x2p7q1wz")
    assert (again.returncode, again.stderr) == (0, "k3m9x2p7q1wz of acme is blocked already\n")
    acme(fleet).write_text(acme(fleet).read_text().replace("blocked", "active, expires: 2026-01-01T00:00:00Z"))
    table = forebay("keys", "list", "--config", str(fleet))
    assert table.stdout == (
        "tenant  id            state    created  expires               name\n"
        "acme    k3m9x2p7q1wz  expired  -        2026-01-01T00:00:00Z  k3m9x2p7q1wz\n"
        "beta    a3m9x2p7q1wz  active   -        -                     a3m9x2p7q1wz\n"
    )
    listed = json.loads(forebay("keys", "list", "--config", str(fleet), "--tenant", "beta", "--json").stdout)
    assert listed == [
        {
            "tenant": "beta",
            "id": "a3m9x2p7q1wz",
            "name": "a3m9x2p7q1wz",
            "state": "active",
            "created": None,
            "expires": None,
        }
    ]


def test_what_cannot_be_done_is_said_and_nothing_is_written(fleet: Path) -> None:
    on = ("--config", str(fleet))
    cases = {
        (
            "new",
            *on,
            "--tenant",
            "nobody",
        ): "there is no tenant 'nobody' (there are: acme, beta): write tenants.d/nobody.yaml first",
        ("new", *on, "--tenant", "acme", "--expires", "soon"): "'soon' is neither a duration",
        ("new", *on, "--tenant", "acme", "--grace", "1h"): "--grace does nothing without --replaces",
        ("new", *on, "--tenant", "acme", "--class-ceiling", "urgent", "--write"): "class_ceiling: ",
        ("disable", *on, "000000000000"): "there is no key '000000000000'",
    }
    for arguments, words in cases.items():
        done = forebay("keys", *arguments)
        assert (done.returncode, done.stdout) == (2, "") and f"forebay keys: {words}" in done.stderr, done.stderr
    acme(fleet).write_text(ACME.replace("models", "modles"))
    broken = forebay("keys", "list", *on)
    assert broken.returncode == 2 and f"{acme(fleet)}:3:1: modles: unknown key" in broken.stderr
    acme(fleet).write_text(ACME.replace(f"[{KEY}]", f"[{KEY} # mine\n]"))
    odd = forebay("keys", "new", *on, "--tenant", "acme", "--write")
    assert (odd.returncode, odd.stdout) == (1, "") and "cannot change the file for you" in odd.stderr
    assert (fleet.parent / "tenants.d" / "beta.yaml").read_text() == BETA


def test_a_key_that_cannot_be_printed_is_said_to_be_lost(fleet: Path) -> None:
    command = [sys.executable, "-m", "gateway", "keys", "new", "--config", str(fleet), "--tenant", "acme", "--write"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("forebay keys: cannot write the key to stdout: No space left on device\n"), done.stderr


def test_a_file_behind_a_link_is_changed_where_it_is(fleet: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.yaml"
    acme(fleet).rename(real)
    acme(fleet).symlink_to(real)
    store = Store(fleet, ENVIRON)
    store.block("k3m9x2p7q1wz")
    assert store.write() == [str(acme(fleet))]
    assert acme(fleet).is_symlink() and "state: blocked" in real.read_text()
