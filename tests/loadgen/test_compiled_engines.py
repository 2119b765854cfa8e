"""The simulated engines compiled, as `make experiments` has them: every figure is that of the interpreted ones."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import ROOT

HEADER = Path(sysconfig.get_path("include")) / "Python.h"
NEEDED = shutil.which("cc") and HEADER.exists() and find_spec("setuptools") and (ROOT / ".venv/bin/mypyc").exists()

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not NEEDED, reason="needs a C compiler, Python's headers and setuptools"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the simulator with compiled engines."""
    folder = tmp_path_factory.mktemp("engines") / "compiled"
    subprocess.run(["make", "-o", ".venv/.ready", f"COMPILED={folder}", f"{folder}/.ready"], cwd=ROOT, check=True)
    assert list(folder.glob("loadgen/sim/kv.*.so")), (folder / "compiled.log").read_text()
    return folder


@pytest.mark.parametrize("fleet", ["ref4-cap512", "ref4-sglang"])
def test_compiled_engines_give_every_figure_of_the_interpreted_ones(compiled: Path, fleet: str, tmp_path: Path) -> None:
    told = [_simulated(folder, fleet, tmp_path) for folder in (ROOT, compiled)]
    assert told[0]["arms"] == told[1]["arms"]
    assert set(told[0]["arms"]) == {"core", "lmetric"}


def _simulated(folder: Path, fleet: str, place: Path) -> Any:
    told = ("--fleet", fleet, "--router", "core,lmetric", "--seeds", "1", "--rate", "9", "--set", "duration=40s")
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    where = [sys.executable, "-P", "-c", "import loadgen.sim.kv as one; print(one.__file__)"]
    found = subprocess.run(where, cwd=place, env=env, check=True, capture_output=True, text=True).stdout
    assert found.startswith(str(folder))
    simulate = [sys.executable, "-P", "-m", "gateway", "sim", "mixed-lengths", *told, "--json", "--no-html", "--quiet"]
    ran = subprocess.run(simulate, cwd=place, env=env, check=False, capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr
    return json.loads(ran.stdout)
