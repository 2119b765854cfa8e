"""The memory of lengths over restarts: what is read, what is written, and what is left aside."""

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from gateway.lengths import MOST_BYTES, LengthFile
from gateway.telemetry.log import EventLog
from tests.kit.processes import until_async
from tests.kit.stage import stage


class Lines:
    """An event log's sink."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)


def file_of(path: Path, state: str = "", scale: float = 1.0) -> tuple[LengthFile, Lines]:
    lines = Lines()
    return LengthFile(path, lambda: [state], EventLog(lines), scale), lines  # type: ignore[arg-type]


def refuse(state: str) -> None:
    raise ValueError("version 9, not 1")


def test_what_was_written_is_handed_back(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("learned: ü")
    taken: list[str] = []
    file, lines = file_of(path)
    file.restore(taken.append)
    assert (taken, lines.lines) == (["learned: ü"], [])


def test_a_file_that_is_not_there_yet_is_nothing_to_talk_about(tmp_path: Path) -> None:
    file, lines = file_of(tmp_path / "lengths")
    file.restore(refuse)
    assert lines.lines == []


def test_a_pipe_in_its_place_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lengths")
    file, lines = file_of(tmp_path / "lengths")
    file.restore(refuse)
    (line,) = map(json.loads, lines.lines)
    assert (line["level"], line["cause"]) == ("warning", "a named pipe, not a file")


@pytest.mark.parametrize("content", [b"{}", b"", b"\xff"])
def test_a_file_that_is_not_understood_is_one_warning(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lengths"
    path.write_bytes(content)
    file, lines = file_of(path)
    file.restore(refuse)
    (line,) = map(json.loads, lines.lines)
    assert (line["level"], line["event"], line["file"]) == ("warning", "lengths begin anew", str(path))
    assert path.read_bytes() == content


def test_a_directory_or_a_file_without_end_is_one_too(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, MOST_BYTES + 1)
    for path in (tmp_path, huge):
        file, lines = file_of(path)
        file.restore(refuse)
        assert len(lines.lines) == 1


async def test_it_is_written_again_and_again_and_at_the_end_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    states = iter(range(1000))
    lines = Lines()
    file = LengthFile(path, lambda: [str(next(states))], EventLog(lines), 0.0005)  # type: ignore[arg-type]
    old = os.umask(0)
    try:
        file.start()
        async with asyncio.timeout(5):
            while not path.exists() or int(path.read_text()) < 2:
                await asyncio.sleep(0.01)
        before = int(path.read_text())
        await file.close()
    finally:
        os.umask(old)
    assert int(path.read_text()) > before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert lines.lines == []


async def test_a_link_left_beside_it_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "lengths", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "lengths.new").symlink_to(victim)
    file, _ = file_of(path, "state")
    file.start()
    await file.close()
    assert (path.read_text(), victim.read_text()) == ("state", "precious")


async def test_a_directory_that_is_not_there_is_a_warning_and_no_more(tmp_path: Path) -> None:
    file, lines = file_of(tmp_path / "none" / "lengths")
    file.start()
    await file.close()
    (line,) = map(json.loads, lines.lines)
    assert (line["event"], line["cause"]) == ("lengths cannot be written", "No such file or directory")


async def test_a_gateway_remembers_over_a_restart_what_it_learned(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    async with stage(tmp_path, length={"state_file": str(path)}) as made, made.holding():
        for _ in range(5):
            assert (await made.ask("chat", "how long?", stream=True)).status == 200
    first = json.loads(path.read_text())
    assert first["version"] == 1
    assert "default" in first["tenants"]
    async with stage(tmp_path, name="again", length={"state_file": str(path)}) as made, made.holding():
        assert (await made.ask("chat", "how long?")).status == 200
        assert b"lengths begin anew" not in made.gateway.stderr()
    second = json.loads(path.read_text())
    assert [node["learned"] for node in second["tenants"]["default"]] > [
        node["learned"] for node in first["tenants"]["default"]
    ]


async def test_a_gateway_serves_with_a_memory_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text('{"version": 99}')
    async with stage(tmp_path, length={"state_file": str(path)}) as made, made.holding():
        assert (await made.ask("chat", "hello")).status == 200

        async def told() -> bool:
            return b"lengths begin anew" in made.gateway.stderr()

        await until_async(told, 5.0, "no warning")
    assert json.loads(path.read_text())["version"] == 1
