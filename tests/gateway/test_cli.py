"""The `forebay` command as a process: what it prints, where, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kit.gateway import config
from tests.kit.processes import free_ports

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "examples" / "one-team.yaml"
BROKEN = "version: 2\nlisten: {host: 127.0.0.1, prot: 1}\n"


def forebay(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `forebay` on the source tree; `path` is a further directory to import from."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(part) for part in (path, ROOT) if part),
        "COLUMNS": "120",
    }
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(BROKEN)
    return path


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """A directory that is like an installed package with four commands: a function, an app, and two broken ones."""
    info = tmp_path / "site" / "guest-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[forebay.commands]\n"
        "greet = guest:greet\n"
        "group = guest:group\n"
        "gone = guest_that_is_not_there:run\n"
        "raises = guest_broken:run\n"
        "serve = guest:greet\n"
    )
    (info.parent / "guest.py").write_text(
        "import typer\n"
        "print('guest imported')\n"
        "group = typer.Typer(no_args_is_help=True)\n"
        "@group.command()\n"
        "def one() -> None:\n"
        "    'One.'\n"
        "    print('one')\n"
        "@group.command()\n"
        "def two() -> None:\n"
        "    'Two.'\n"
        "def greet(name: str = 'you') -> None:\n"
        "    '''Greet somebody.\n\n    At length.'''\n"
        "    print('hello', name)\n"
    )
    (info.parent / "guest_broken.py").write_text(
        "def run() -> None:\n    'Runs.'\nraise ValueError('half installed')\n"
    )
    return info.parent


def test_help_names_every_command() -> None:
    done = forebay("--help")
    assert done.returncode == 0
    assert "serve   Run the gateway until SIGTERM, which drains it." in done.stdout
    assert "config  Check, describe and show the configuration." in done.stdout


def test_without_a_command_there_is_help() -> None:
    assert "Usage: forebay" in forebay().stdout + forebay().stderr


def test_a_misspelt_command_gets_a_guess() -> None:
    done = forebay("srve")
    assert done.returncode == 2
    assert "Did you mean 'serve'?" in done.stderr


def test_version_is_printed() -> None:
    done = forebay("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("forebay ")


@pytest.mark.parametrize(
    "arguments",
    [("serve", "--check", "--config"), ("config", "check"), ("config", "check", "--config")],
    ids=lambda arguments: " ".join(arguments),
)
def test_a_good_file_is_ok_and_a_broken_one_ends_with_2_and_every_error(
    arguments: tuple[str, ...], broken: Path
) -> None:
    good = forebay(*arguments, str(EXAMPLE))
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout == (
        f"ok: {EXAMPLE}: 1 model, 1 pool, 2 endpoints; data on 127.0.0.1:8080, admin on 127.0.0.1:9090\n"
    )
    bad = forebay(*arguments, str(broken))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.splitlines() == [
        f"{broken}:1:1: endpoints: required",
        f"{broken}:1:1: models: required",
        f"{broken}:1:1: pools: required",
        f"{broken}:1:10: version: must be 1, not 2",
        f"{broken}:2:27: listen.prot: unknown key; did you mean 'port'?",
    ]


def test_serve_does_not_start_with_a_broken_file(broken: Path) -> None:
    done = forebay("serve", "--config", str(broken))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "listen.prot" in done.stderr


def test_a_missing_file_is_said_in_one_line() -> None:
    done = forebay("serve", "--config", "/nowhere/forebay.yaml")
    assert done.returncode == 2
    assert done.stderr == "/nowhere/forebay.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("arguments", [(), (str(EXAMPLE), "--config", str(EXAMPLE))], ids=["no file", "two files"])
def test_config_check_wants_one_file(arguments: tuple[str, ...]) -> None:
    done = forebay("config", "check", *arguments)
    assert done.returncode == 2
    assert "name one file" in done.stderr


def test_config_schema_is_json() -> None:
    done = forebay("config", "schema")
    assert json.loads(done.stdout)["properties"]["listen"]


def test_config_show_names_the_line_of_each_value() -> None:
    done = forebay("config", "show", "--config", str(EXAMPLE))
    assert forebay("config", "show", "--effective", str(EXAMPLE)).stdout == done.stdout
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if "served_as" in line)
    number = next(n for n, text in enumerate(EXAMPLE.read_text().splitlines(), 1) if "served_as" in text)
    assert line.split("#")[1].strip() == f"{EXAMPLE}:{number}"


def test_commands_of_other_packages_are_listed_without_being_imported(joined: Path) -> None:
    done = forebay("--help", path=joined)
    assert done.returncode == 0
    assert "guest imported" not in done.stdout
    assert [line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("  g")] == [
        ["gone", "(cannot be loaded: no module guest_that_is_not_there)"],
        ["greet", "Greet somebody."],
        ["group", "See forebay group --help."],
    ]
    assert "ignoring the command serve of guest:greet: the name is taken" in done.stderr


def test_a_function_and_an_app_of_another_package_are_commands(joined: Path) -> None:
    assert forebay("greet", "--name", "Ada", path=joined).stdout == "guest imported\nhello Ada\n"
    assert forebay("group", "one", path=joined).stdout == "guest imported\none\n"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("gone", "guest_that_is_not_there:run failed to load: ModuleNotFoundError"),
        ("raises", "guest_broken:run failed to load: ValueError: half installed"),
    ],
)
def test_a_broken_command_says_so_and_harms_no_other(name: str, cause: str, joined: Path) -> None:
    done = forebay(name, "--some", "option", path=joined)
    assert done.returncode == 1
    assert cause in done.stderr
    assert "Traceback" not in done.stderr
    assert forebay("serve", "--check", "--config", str(EXAMPLE), path=joined).returncode == 0


def test_checking_a_file_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['forebay', 'config', 'check', sys.argv[1]]\n"
        "from gateway.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted({'aiohttp', 'rich', 'loadgen', 'httpx', 'uvloop'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]"


SALTED = """\
version: 1
isolation: {salt_secret: 0123456789abcdef0123456789abcdef}
models: {m: {context_tokens: 4096}}
pools: {p: {model: m}}
endpoints: [{name: e0, url: "http://10.0.0.1:8000", pools: [p]}]
"""


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    """A configuration with two tenants, of which one has no key."""
    (tmp_path / "tenants.d").mkdir()
    for name in ("acme", "beta"):
        text = f"version: 1\nid: {name}\nmodels: [{{name: m}}]\n"
        (tmp_path / "tenants.d" / f"{name}.yaml").write_text(text)
    with (tmp_path / "tenants.d" / "acme.yaml").open("a") as file:
        file.write(f"keys: [{{id: k3m9x2p7q1wz, sha256: {'ab' * 32}}}]\n")
    path = tmp_path / "forebay.yaml"
    path.write_text(SALTED)
    return path


def test_warnings_are_said_and_are_errors_where_that_is_asked_for(tenants: Path) -> None:
    warning = f"warning: {tenants.parent}/tenants.d/beta.yaml:1:1: keys: no keys: nobody can use this tenant\n"
    done = forebay("config", "check", str(tenants))
    assert (done.returncode, done.stderr) == (0, warning)
    assert done.stdout.startswith(f"ok: {tenants}: 1 model, 1 pool, 1 endpoint, 2 tenants;")
    strict = forebay("config", "check", "--strict", str(tenants))
    assert (strict.returncode, strict.stdout, strict.stderr) == (2, "", warning)


def test_row_40_serve_ends_with_2_and_the_errors_of_all_files(tenants: Path) -> None:
    folder = tenants.parent / "tenants.d"
    bomb = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9))
    (folder / "beta.yaml").write_text(f"version: 1\nid: beta\nid: beta\nmodels: []\na0: &a0 [x]\n{bomb}")
    (folder / "acme.yaml").write_text("version: 1\nid: acme\nmodels: [{name: m}]\nlimit: {rpm: 0}\nweight: 0\n")
    tenants.write_text(SALTED + "listn: {}\n")
    done = forebay("serve", "--config", str(tenants))
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line.removeprefix(f"{tenants.parent}/") for line in done.stderr.splitlines()]
    assert lines[:6] == [
        "forebay.yaml:6:1: listn: unknown key; did you mean 'listen'?",
        "tenants.d/acme.yaml:4:1: limit: unknown key; did you mean 'limits'?",
        "tenants.d/acme.yaml:5:9: weight: must be a number from 0.1 to 100, not 0",
        "tenants.d/beta.yaml:3:1: id: given twice, first in line 2",
        "tenants.d/beta.yaml:5:1: a0: unknown key",
        "tenants.d/beta.yaml:5:5: a0: anchor &a0: anchors and aliases are not supported",
    ]
    assert all(line.startswith("tenants.d/beta.yaml:") for line in lines[6:])


def test_there_is_a_schema_of_each_kind_of_file() -> None:
    fleet, tenant = (json.loads(forebay("config", "schema", *more).stdout) for more in ((), ("--tenant",)))
    assert "endpoints" in fleet["properties"] and "keys" not in fleet["properties"]
    assert {"id", "models", "keys", "class"} <= set(tenant["properties"])


@pytest.mark.parametrize(
    ("section", "host", "reason"),
    [
        ("listen", "nowhere.invalid", "Name or service not known"),
        ("listen", "192.0.2.1", "Cannot assign requested address"),
        ("admin", "192.0.2.1", "Cannot assign requested address"),
    ],
)
def test_an_address_that_is_not_of_this_machine_is_said_to_be_the_fault(
    tmp_path: Path, section: str, host: str, reason: str
) -> None:
    made = config(["http://127.0.0.1:9"], listen={"port": 1, "allow_anonymous": True}, admin={"port": 2})
    made[section]["host"] = host
    other = "admin" if section == "listen" else "listen"
    made[other]["port"] = free_ports(1)[0]
    file = tmp_path / "forebay.yaml"
    file.write_text(yaml.safe_dump(made))
    done = forebay("serve", "--config", str(file))
    said = f"forebay: cannot listen on {host}:{made[section]['port']}: {reason}.\nSet {section}.host in {file} to "
    assert (done.returncode, done.stderr.startswith(said)) == (1, True), done.stderr
