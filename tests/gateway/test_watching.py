"""Files that change are noticed within a second or so, however many there are, and many are not looked at without need."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop

from gateway import watching
from gateway.config.files import Stamp, stamp
from gateway.watching import FEW, Watch

P = ParamSpec("P")
MANY = 10 * FEW
SCALE = 0.1  # of a second, so that a fallback of ten takes one


def written(folder: Path, tenants: int) -> Path:
    """A configuration of so many files."""
    (folder / "tenants.d").mkdir()
    path = folder / "forebay.yaml"
    path.write_text("version: 1\n")
    for number in range(tenants):
        (folder / "tenants.d" / f"t{number}.yaml").write_text("id: x\n")
    return path


def in_place(folder: Path) -> None:
    with open(folder / "tenants.d" / "t5.yaml", "a") as file:
        file.write("weight: 2\n")


def replaced(folder: Path) -> None:
    (folder / "tenants.d" / ".new").write_text("id: x\nweight: 2\n")
    os.replace(folder / "tenants.d" / ".new", folder / "tenants.d" / "t5.yaml")


def removed(folder: Path) -> None:
    (folder / "tenants.d" / "t5.yaml").unlink()


def by_rights(folder: Path) -> None:
    (folder / "tenants.d" / "t5.yaml").chmod(0o600)


def of_the_main_file(folder: Path) -> None:
    (folder / "forebay.yaml").write_text("version: 1\n\n")


def of_the_whole_folder(folder: Path) -> None:
    os.rename(folder / "tenants.d", folder / "old")
    (folder / "tenants.d").mkdir()


def by_a_swapped_link(folder: Path) -> None:
    """As a Kubernetes volume changes: the folder of the tenants is a link through `..data`."""
    os.symlink("..second", folder / "..new")
    os.replace(folder / "..new", folder / "..data")


def volume(folder: Path, tenants: int) -> Path:
    """A configuration as Kubernetes mounts it."""
    for name in ("..first", "..second"):
        (folder / name).mkdir()
        written(folder / name, tenants)
    in_place(folder / "..second")
    os.symlink("..first", folder / "..data")
    os.symlink("..data/forebay.yaml", folder / "forebay.yaml")
    os.symlink("..data/tenants.d", folder / "tenants.d")
    return folder / "forebay.yaml"


def on_the_loop_of_the_gateway(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Tests run on asyncio's own loop, which cannot tell of folders."""

    @wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        uvloop.run(test(*given, **named))

    return run


class Looks:
    """How often files were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(path: Path, besides: tuple[Path, ...] = ()) -> Stamp:
            self.count += 1
            return stamp(path, besides)

        monkeypatch.setattr(watching, "stamp", counted)


@pytest.mark.parametrize("tenants", [FEW // 2, MANY])
@pytest.mark.parametrize(
    ("begin", "change"),
    [
        *((written, change) for change in (in_place, replaced, removed, by_rights)),
        *((written, change) for change in (of_the_main_file, of_the_whole_folder)),
        (volume, by_a_swapped_link),
    ],
)
@on_the_loop_of_the_gateway
async def test_a_change_is_noticed_within_two_seconds_and_so_is_the_next(
    tmp_path: Path, tenants: int, begin: Callable[[Path, int], Path], change: Callable[[Path], None]
) -> None:
    path = begin(tmp_path, tenants)
    watch = Watch(path, tuple, stamp(path), SCALE)
    noticed = asyncio.create_task(watch.change())
    await asyncio.sleep(2.5 * SCALE)
    assert not noticed.done()
    change(tmp_path)
    await asyncio.wait_for(noticed, 2 * SCALE + 0.1)  # the latter for a look at a thousand files, twice
    noticed = asyncio.create_task(watch.change())
    await asyncio.sleep(2.5 * SCALE)
    assert not noticed.done()
    (tmp_path / "tenants.d" / "another.yaml").write_text("id: another\n")
    await asyncio.wait_for(noticed, 2 * SCALE + 0.1)
    watch.close()


async def looks_in_ten_seconds(path: Path, monkeypatch: pytest.MonkeyPatch, *besides: Path) -> int:
    watch, looks = Watch(path, lambda: besides, stamp(path, besides), SCALE), Looks(monkeypatch)
    with suppress(TimeoutError):
        await asyncio.wait_for(watch.change(), 10 * SCALE)
    watch.close()
    return looks.count


@on_the_loop_of_the_gateway
async def test_many_files_are_looked_at_when_something_has_changed_and_few_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "few").mkdir()
    few, many = written(tmp_path / "few", FEW // 2), written(tmp_path, MANY)
    assert await looks_in_ten_seconds(many, monkeypatch) == 1  # what has changed before the watch began
    assert 5 <= await looks_in_ten_seconds(few, monkeypatch) <= 10


@on_the_loop_of_the_gateway
async def test_a_change_that_the_kernel_does_not_tell_of_is_noticed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text("id: x\n")
    (tmp_path / "here").mkdir()
    path = written(tmp_path / "here", MANY)
    os.symlink(tmp_path / "elsewhere.yaml", tmp_path / "here" / "tenants.d" / "linked.yaml")
    watch = Watch(path, tuple, stamp(path), SCALE)
    noticed = asyncio.create_task(watch.change())
    await asyncio.sleep(2.5 * SCALE)
    (tmp_path / "elsewhere.yaml").write_text("id: x\nweight: 2\n")
    began = time.monotonic()
    await asyncio.wait_for(noticed, 12 * SCALE + 0.1)
    assert time.monotonic() - began > 3 * SCALE
    watch.close()


async def test_on_a_loop_that_cannot_tell_many_files_are_looked_at_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 4 <= await looks_in_ten_seconds(written(tmp_path, MANY), monkeypatch) <= 10


@on_the_loop_of_the_gateway
async def test_with_a_folder_that_cannot_be_watched_many_files_are_looked_at_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "gone" / "cert.pem"
    looks = await looks_in_ten_seconds(written(tmp_path, MANY), monkeypatch, certificate)
    assert 4 <= looks <= 10
