"""The files of a configuration, read: forebay.yaml, and beside it `tenants.d` with one file for each tenant.

Where the folder is there, keys are asked for, even if it is empty: a folder that lost its last file must not open the
gateway to everybody. Names that begin with a dot are none of ours (editors, and Kubernetes' `..data`). Only regular files
are read: to open a named pipe would wait for its writer, at the start and in the thread of a reload for ever.
"""

import os
import stat as kinds
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.kinds import MIB
from gateway.config.problems import ConfigError, ConfigErrors

MAX_BYTES = MIB
FOLDER = "tenants.d"
SUFFIX = ".yaml"
Stamp = tuple[object, ...]
_KINDS = {kinds.S_IFIFO: "a named pipe", kinds.S_IFCHR: "a device", kinds.S_IFBLK: "a device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What was read, by file name. `main` None: unreadable, `errors` says why. `tenants` None: there is no folder."""

    file: str
    main: str | None
    tenants: dict[str, str] | None
    errors: tuple[ConfigError, ...] = ()


def gather(path: Path) -> Texts:
    """Every file of the configuration at `path`."""
    errors: list[ConfigError] = []
    main = _read(path, errors)
    paths = list(_tenant_files(path.parent / FOLDER, errors))
    tenants = {str(file): text for file in paths if (text := _read(file, errors)) is not None}
    there = (path.parent / FOLDER).is_dir()
    return Texts(file=str(path), main=main, tenants=tenants if there else None, errors=tuple(errors))


def stamp(path: Path, besides: Sequence[Path] = ()) -> Stamp:
    """By what a change of any of these files shows, and of those `besides`. Links are followed: a Kubernetes volume changes where one leads.

    It is taken every second beside the requests, of a thousand files where there are as many tenants: no `Path` is made of any.
    """
    folder = path.parent / FOLDER
    try:
        with os.scandir(folder) as entries:
            tenants = sorted([(entry.name, *_figures(entry)) for entry in entries if _is_tenants(entry.name)])
    except OSError:
        tenants = []
    return (folder.is_dir(), *tenants, *((str(name), *_figures(name)) for name in (path, *besides)))


def _figures(file: Path | os.DirEntry[str]) -> tuple[int, ...]:
    try:
        seen = file.stat()
    except OSError:
        return ()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns  # the last: of its rights and owner


def _is_tenants(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


def _tenant_files(folder: Path, errors: list[ConfigError]) -> Iterator[Path]:
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        errors.append(_whole(folder, f"cannot be read: {error.strerror or error}"))
        return
    for path in found:
        if _is_tenants(path.name):
            yield path
        elif path.suffix.lower() in (".yml", SUFFIX) and not path.name.startswith("."):
            errors.append(_whole(path, f"would not be read: name it {path.stem.lower()}{SUFFIX}"))


def _read(path: Path, errors: list[ConfigError]) -> str | None:
    try:
        return read_text(path)
    except ConfigErrors as error:
        errors += error.errors
        return None


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a regular file; raises OSError, also where something else has that name."""
    with open(path, "rb", opener=_without_waiting) as file:
        must_be_regular(os.fstat(file.fileno()))
        return file.read(most)


def must_be_regular(seen: os.stat_result) -> None:
    """Raise OSError for what is no file, as the system does for what is not there."""
    if not kinds.S_ISREG(seen.st_mode):
        raise OSError(f"{_KINDS.get(kinds.S_IFMT(seen.st_mode), 'something else')}, not a file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read_text(path: Path) -> str:
    """The text of a file; raises ConfigErrors."""
    try:
        data = read_bytes(path, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigErrors([_whole(path, f"cannot be read: {error.strerror or error}")]) from None
    if len(data) > MAX_BYTES:
        raise ConfigErrors([_whole(path, "larger than 1 MiB")])
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        wrong = ConfigError(file=str(path), line=line, column=column, path="", message="not UTF-8")
        raise ConfigErrors([wrong]) from None


def _whole(path: Path, message: str) -> ConfigError:
    return ConfigError(file=str(path), line=0, column=0, path="", message=message)
