"""Bytes -> Config, or every error in them at once, each with its place.

Form (document.py), fields (pydantic, with the kinds of kinds.py) and contradictions (checks.py) are judged one after
the other over the same tree; what each finds is put in the order of the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.checks import contradictions
from gateway.config.document import Document, Place, Plain, Unreadable, parse
from gateway.config.kinds import MIB
from gateway.config.problems import ConfigError, ConfigErrors, Path, Problem, did_you_mean, shown, written
from gateway.config.schema import at
from gateway.config.tree import Config

MAX_BYTES = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid file: its Config and, for `forebay config show`, where each value stands."""

    file: str
    document: Document
    config: Config


def load(path: FilePath, environ: Mapping[str, str]) -> Config:
    """The Config of a file; raises ConfigErrors with everything that is wrong. `environ` fills in `${NAME}`."""
    return load_document(path, environ).config


def load_document(path: FilePath, environ: Mapping[str, str]) -> Loaded:
    """As `load`, with the tree the Config was made from."""
    return read(_text(path), str(path), environ)


def read(text: str, file: str, environ: Mapping[str, str]) -> Loaded:
    """As `load_document`, of a text; `file` names it in errors."""
    try:
        document = parse(text)
    except Unreadable as error:
        whole = (error.place, Problem(path=(), message=error.message))
        raise ConfigErrors(_error(file, place, problem) for place, problem in [*error.problems, whole]) from None
    plain = document.root.plain()
    config, problems = _validate(plain, environ)
    wrong = {problem.path for problem in problems}
    problems += [problem for problem in contradictions(plain) if problem.path not in wrong]
    found = [*document.problems, *_placed(problems, document)]
    if found or config is None:
        raise ConfigErrors(_error(file, place, problem) for place, problem in found)
    return Loaded(file=file, document=document, config=config)


def _text(path: FilePath) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, "larger than 1 MiB")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        place = Place(line=line, column=column)
        raise ConfigErrors([_error(str(path), place, Problem(path=(), message="not UTF-8"))]) from None


def _unreadable(path: FilePath, message: str) -> ConfigErrors:
    return ConfigErrors([ConfigError(file=str(path), line=0, column=0, path="", message=message)])


def _error(file: str, place: Place, problem: Problem) -> ConfigError:
    path = written(problem.path)
    return ConfigError(file=file, line=place.line, column=place.column, path=path, message=problem.message)


def _placed(problems: list[Problem], document: Document) -> Iterator[tuple[Place, Problem]]:
    for problem in problems:
        if not _never_learned(problem.path, document):
            yield document.root.locate(problem.path, problem.at_key), problem


def _never_learned(path: Path, document: Document) -> bool:
    return any(path[:length] in document.unknown for length in range(len(path) + 1))


def _validate(plain: Plain, environ: Mapping[str, str]) -> tuple[Config | None, list[Problem]]:
    try:
        return Config.model_validate(plain, context={"environ": environ}), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [_problem(detail) for detail in details if detail["type"] != "default_factory_not_called"]


def _problem(detail: ErrorDetails) -> Problem:
    path: Path = detail["loc"]
    if path and path[-1] == "[key]":
        return Problem(path=path[:-1], message=_words(detail), at_key=True)
    return Problem(path=path, message=_words(detail), at_key=detail["type"] == "extra_forbidden")


def _words(detail: ErrorDetails) -> str:
    value: Any = detail["input"]
    path: Path = detail["loc"]
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "missing":
            return "required"
        case "extra_forbidden":
            return f"unknown key{did_you_mean(str(path[-1]), list(at(path[:-1]).get('properties', ())))}"
        case "model_type" | "dict_type":
            return f"must be a mapping of fields, not {shown(value)}"
        case "tuple_type":
            return f"must be a list, not {shown(value)}"
        case "too_short":
            return "must not be empty"
        case "bool_type":
            return f"must be true or false, not {shown(value)}"
        case "literal_error":
            return f"must be {detail['ctx']['expected']}, not {shown(value)}"
        case _:
            return detail["msg"]
