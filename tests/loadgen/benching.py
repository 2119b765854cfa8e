"""`forebay bench` as a process, and a scenario that is over in a second and a half."""

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.engines import Engine
from tests.kit.processes import Child, python

# On a machine that is busy with other tests the client may be late: what these rules say is tested elsewhere.
BUSY = ("--allow", "V1", "--allow", "V2", "--allow", "V3", "--allow", "V4", "--allow", "V9")
KEYS = {"KEY_CHAT": "key-of-chat-0123456789", "KEY_JOBS": "key-of-jobs-0123456789"}
TINY = """
version: 1
name: tiny
seed: 7
warmup: 150ms
duration: 1250ms
tail: 100ms
slo: {ttft: {base_ms: 3000}, tpot_ms: 1000, stall_ms: 3000, target: 0.9}
prefixes: {sys: {count: 2, tokens: 64}}
tenants:
  - name: chat
    priority: interactive
    key_env: KEY_CHAT
    arrivals: {kind: poisson, rate: 88}
    input: {kind: uniform, min: 20, max: 200}
    output: {kind: uniform, min: 5, max: 20}
    max_tokens: {kind: fixed, value: 64}
    prompt: {prefix: sys}
  - name: jobs
    priority: batch
    key_env: KEY_JOBS
    arrivals: {kind: constant, rate: 12}
    input: {kind: fixed, value: 100}
    output: {kind: fixed, value: 10}
    max_tokens: {kind: fixed, value: 64}
"""

REQUESTS = 3 * (88 + 12) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How it ended and what it said; `folder` is its --out."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        """report.json."""
        return dict(json.loads((self.folder / "report.json").read_bytes()))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """requests.jsonl."""
        return [json.loads(line) for line in (self.folder / "requests.jsonl").read_bytes().splitlines()]

    def rule(self, name: str) -> dict[str, Any]:
        """What the report says of a validity rule; KeyError where it says nothing."""
        return {rule["id"]: rule for rule in self.report["validity"]["rules"]}[name]

    def everything(self) -> bytes:
        """All that was written anywhere."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return (self.out + self.err).encode() + b"".join(path.read_bytes() for path in files)


def started(directory: Path, *arguments: str, env: dict[str, str] | None = None, scenario: str = TINY) -> Child:
    """The command on a scenario, its --out in `directory`/out."""
    file = directory / "tiny.yaml"
    file.write_text(scenario)
    argv = python("-m", "gateway", "bench", str(file), "--out", str(directory / "out"), *arguments)
    return Child(argv, directory, "bench", {"COLUMNS": "120", **(KEYS if env is None else env)})


async def ended(child: Child, directory: Path, timeout_s: float = 60.0) -> Done:
    """Wait for it; it is gone afterwards in any case."""
    try:
        code = await child.wait(timeout_s)
    finally:
        child.kill()
    return Done(code=code, out=child.out.read_text(), err=child.err.read_text(), folder=directory / "out")


async def bench(directory: Path, *arguments: str, env: dict[str, str] | None = None, scenario: str = TINY) -> Done:
    """Run it to its end, loose about what a busy machine does, and without the page, whose plots take seconds."""
    return await ended(started(directory, *arguments, *BUSY, "--no-html", env=env, scenario=scenario), directory)


async def command(directory: Path, *arguments: str, timeout_s: float = 60.0) -> Done:
    """Any other command of `forebay bench`."""
    name = f"command-{secrets.token_hex(3)}"
    return await ended(Child(python("-m", "gateway", "bench", *arguments), directory, name), directory, timeout_s)


@contextmanager
def simulated(directory: Path, *arguments: str) -> Iterator[Engine]:
    """A simulated engine, for a fixture that lasts longer than an event loop."""
    engine = Engine(directory, f"engine-{secrets.token_hex(3)}", arguments=arguments)
    asyncio.run(engine.start())
    try:
        yield engine
    finally:
        asyncio.run(engine.stop())
