"""The compiled wheel: it builds, decides as the interpreted core does, and serves real clients as the interpreted gateway does."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import openai
import pytest

from tests.journeys.served import said, words
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.processes import ROOT
from tests.loadgen import journals

HEADER = Path(sysconfig.get_path("include")) / "Python.h"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (shutil.which("cc") and HEADER.exists()), reason="needs a C compiler and Python's headers"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, beside nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["make", "wheel"], cwd=ROOT, env={**os.environ, "DIST": str(folder)}, check=True)
    (wheel,) = folder.glob("forebay-*.whl")
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True)
    return target


def test_the_compiled_core_replays_a_journal_of_the_interpreted_one_to_equal_decisions(
    installed: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.jsonl"
    journals.write(journal, seed=3)
    env = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import gateway.run as g, policies.core as p; print(g.__file__, p.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout.split()
    assert len(found) == 2
    assert all(file.startswith(str(installed)) and file.endswith(".so") for file in found)
    replay = [sys.executable, "-m", "gateway", "replay", str(journal)]
    replayed = subprocess.run(replay, cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


async def test_the_compiled_gateway_answers_an_official_client_as_the_interpreted_one_does(
    installed: Path, tmp_path: Path
) -> None:
    launches = {"interpreted": Launch(), "compiled": Launch(env={"PYTHONPATH": str(installed)})}
    told: dict[str, list[object]] = {}
    async with Engine(tmp_path, arguments=("--served-model-name", "m", "--allow-markers")) as engine:
        for name, launch in launches.items():
            async with Gateway(config([engine.url], timeouts={"scale": 1}), tmp_path, launch=launch, name=name) as one:
                told[name] = await _conversation(one.url)
    assert told["compiled"] == told["interpreted"]
    assert len(told["compiled"]) == 10


async def _conversation(url: str) -> list[object]:
    """What a client is told: whole answers, streams, refusals, and of a route that is none."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="tenant-key", max_retries=0) as client:
        told: list[object] = [model.id for model in (await client.models.list()).data]
        for text in ("[[fb out=12 canary=first]]", "[[fb out=12 canary=first]]", "[[fb out=9]] " + "long " * 20_000):
            whole = await client.chat.completions.create(model="m", messages=said(text))  # type: ignore[call-overload]
            told.append((whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.prompt_tokens))
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            model="m", messages=said("[[fb out=40]]"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        told.append(words([chunk.choices[0].delta.content for chunk in chunks if chunk.choices]))
        told.append(chunks[-1].usage.completion_tokens)
        for model, more in (("none", {}), ("m", {"max_tokens": -1})):
            with pytest.raises(openai.APIStatusError) as refused:
                await client.chat.completions.create(model=model, messages=said("word"), **more)  # type: ignore[call-overload]
            told.append((refused.value.status_code, refused.value.code, refused.value.message))
        with pytest.raises(openai.NotFoundError) as missing:
            await client.post("/nothing", cast_to=object)
        told.append((missing.value.status_code, missing.value.code))
        return told
