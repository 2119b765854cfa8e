"""Files that lie beside the project, not in it: traces of real services. Tests that need them are skipped without."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def trace(name: str) -> Iterator[dict[str, Any]]:
    """The rows of one trace; skips the test without."""
    with gzip.open(trace_file(name)) as lines:
        return iter([json.loads(line) for line in lines])


def trace_file(name: str) -> Path:
    """One trace of `shared/traces`, which lies beside the project or further up; skips the test without."""
    for folder in Path(__file__).resolve().parents[2].parents:
        path = folder / "shared" / "traces" / f"{name}.jsonl.gz"
        if path.exists():
            return path
    pytest.skip(f"needs ../shared/traces/{name}.jsonl.gz")
