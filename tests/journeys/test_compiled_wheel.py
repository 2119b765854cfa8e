"""The wheel with compiled decisions: it builds, and decides as the interpreted core does."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.kit.processes import ROOT
from tests.loadgen import journals

HEADER = Path(sysconfig.get_path("include")) / "Python.h"

pytestmark = pytest.mark.timeout(900)


@pytest.mark.skipif(not (shutil.which("cc") and HEADER.exists()), reason="needs a C compiler and Python's headers")
def test_the_compiled_core_replays_a_journal_of_the_interpreted_one_to_equal_decisions(tmp_path: Path) -> None:
    subprocess.run(["make", "wheel"], cwd=ROOT, env={**os.environ, "DIST": str(tmp_path)}, check=True)
    (wheel,) = tmp_path.glob("forebay-*.whl")
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(pip, check=True)
    journal = tmp_path / "journal.jsonl"
    journals.write(journal, seed=3)

    env = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import policies.core, policies.state.prefixes as p; print(p.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout
    assert found.startswith(str(installed))
    assert found.strip().endswith(".so")
    replay = [sys.executable, "-m", "gateway", "replay", str(journal)]
    replayed = subprocess.run(replay, cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
