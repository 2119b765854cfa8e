"""Texts -> Config, or every error of every file at once, each with its place.

A file is judged in three steps over the same tree, and what each finds is put in the order of the file: form
(document.py), fields (pydantic, with the kinds of kinds.py), contradictions (checks.py, tenant_checks.py). A tenant's
fields are judged with those of `tenant_defaults` beneath; an error that came from there is said there, once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import checks, partition_checks, tenant_checks
from gateway.config.document import Document, Node, Place, Plain, Unreadable, parse
from gateway.config.files import MAX_BYTES, Stamp, Texts, gather, stamp
from gateway.config.inherit import is_inherited, merged
from gateway.config.problems import ConfigError, ConfigErrors, Path, Problem, did_you_mean, shown, written
from gateway.config.schema import at
from gateway.config.section import Section
from gateway.config.tenant import CLASSES, Tenant
from gateway.config.tree import Config

__all__ = ["MAX_BYTES", "Loaded", "load", "load_document", "read"]

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid configuration: its Config and, for `forebay config show` and `forebay keys`, where each value stands.

    `warnings`: what is legal, but does not do what somebody may have meant. `tenants`: file and tree by tenant id.
    `stamp`: of the files when they were read.
    """

    file: str
    document: Document
    config: Config
    tenants: Mapping[str, tuple[str, Document]] = field(default_factory=dict)
    warnings: tuple[ConfigError, ...] = ()
    stamp: Stamp = ()

    def error(self, problem: Problem) -> ConfigError:
        """Something wrong with forebay.yaml that shows only where it is to be used."""
        return _error(self.file, self.document.root.locate(problem.path, problem.at_key), problem)


def load(path: FilePath, environ: Mapping[str, str]) -> Config:
    """The Config of a file and of `tenants.d` beside it; raises ConfigErrors with everything that is wrong.

    `environ` fills in `${NAME}`.
    """
    return load_document(path, environ).config


def load_document(path: FilePath, environ: Mapping[str, str]) -> Loaded:
    """As `load`, with the trees the Config was made from."""
    seen = stamp(path)  # before anything is read: what changes from now on shows
    return replace(judge(gather(path), environ), stamp=seen)


def read(text: str, file: str, environ: Mapping[str, str], tenants: Mapping[str, str] | None = None) -> Loaded:
    """As `load_document`, of texts; `file` and the keys of `tenants` name them in errors."""
    return judge(Texts(file=file, main=text, tenants=dict(tenants) if tenants is not None else None), environ)


def judge(texts: Texts, environ: Mapping[str, str]) -> Loaded:
    """As `load_document`, of what was read."""
    judging = _Judging(texts, environ)
    config = judging.config()
    if config is None or judging.main.document is None:
        raise ConfigErrors(judging.errors())
    made = Loaded(
        file=texts.file,
        document=judging.main.document,
        config=config,
        tenants={part.stem: (part.file, part.document) for part in judging.parts if part.document is not None},
        warnings=tuple(judging.warnings()),
    )
    let_go(judging.parts)
    return made


def let_go(things: list[Any]) -> None:
    """Forget them one by one: while all of a thousand go at once no other thread can run."""
    while things:
        things.pop()


class _Part:
    """One file under judgement."""

    def __init__(self, file: str, text: str | None) -> None:
        self.file = file
        self.stem = FilePath(file).stem
        self.problems: list[tuple[Place, Problem]] = []
        self.document = self._parse(text) if text is not None else None
        self.plain: Plain = self.document.root.plain() if self.document is not None else {}
        self._wrong: set[Path] = set()

    def _parse(self, text: str) -> Document | None:
        try:
            document = parse(text)
        except Unreadable as error:
            self.problems += [*error.problems, (error.place, Problem(path=(), message=error.message))]
            return None
        self.problems += document.problems
        return document

    def validate(
        self, model: type[S], plain: Plain, environ: Mapping[str, str], defaults: Node | None = None
    ) -> S | None:
        """The section that `plain` makes. None: something is wrong, here or, if inherited, in `defaults`."""
        try:
            return model.model_validate(plain, context={"environ": environ})
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                if detail["type"] != "default_factory_not_called":
                    self.blame(_problem(detail, model), defaults)
            return None

    def blame(self, problem: Problem, defaults: Node | None = None) -> None:
        """Something is wrong at a place of this file."""
        document = self.document
        if document is None or is_inherited(problem.path, document.root, defaults):
            return
        self._wrong.add(problem.path)
        if not _never_learned(problem.path, document):
            self.problems.append((document.root.locate(problem.path, problem.at_key), problem))

    def contradict(self, problem: Problem, defaults: Node | None = None) -> None:
        """The same, where nothing else was wrong with that very value."""
        if problem.path not in self._wrong:
            self.blame(problem, defaults)

    def errors(self) -> list[ConfigError]:
        return [_error(self.file, place, problem) for place, problem in self.problems]


class _Judging:
    """All files of one configuration, each step over all of them before the next."""

    def __init__(self, texts: Texts, environ: Mapping[str, str]) -> None:
        self._texts, self._environ = texts, environ
        self.main = _Part(texts.file, texts.main)
        self.parts = [_Part(file, text) for file, text in sorted((texts.tenants or {}).items())]
        self._defaults = self.main.document.root.child("tenant_defaults") if self.main.document else None

    def config(self) -> Config | None:
        if self.main.document is None:
            return None  # nothing is known of what the tenants' files refer to
        config = self.main.validate(Config, self.main.plain, self._environ)
        tenants = self._tenants()
        fleet = self._fleet()
        for problem in checks.contradictions(self.main.plain, keys_asked=self._texts.tenants is not None):
            self.main.contradict(problem)
        by_file = {part.file: part for part in self.parts}
        for file, problem in (*tenant_checks.contradictions(fleet), *partition_checks.contradictions(fleet)):
            if file in by_file:
                by_file[file].contradict(problem, self._defaults)
            else:
                self.main.contradict(problem)
        if config is None or self.errors():
            return None
        return config if self._texts.tenants is None else config.with_tenants(tenants)

    def _tenants(self) -> dict[str, Tenant]:
        made: dict[str, Tenant] = {}
        for part in self.parts:
            if part.document is not None:
                tenant = part.validate(Tenant, self._merged(part), self._environ, self._defaults)
                made |= {part.stem: tenant} if tenant is not None else {}
        return made

    def _merged(self, part: _Part) -> Plain:
        return merged(self._defaults.plain() if self._defaults is not None else {}, part.plain)

    def _fleet(self) -> tenant_checks.Fleet:
        tenants = [
            tenant_checks.File(file=part.file, id=part.stem, own=part.plain, merged=self._merged(part))
            for part in self.parts
        ]
        return tenant_checks.Fleet(root=self.main.plain, tenants=tenants if self._texts.tenants is not None else None)

    def warnings(self) -> list[ConfigError]:
        """Of a configuration without errors."""
        roots = {part.file: part.document.root for part in (self.main, *self.parts) if part.document is not None}
        made = []
        for file, problem in tenant_checks.useless(self._fleet()):
            name = file or self.main.file
            made.append(_error(name, roots[name].locate(problem.path, problem.at_key), problem))
        return sorted(made)

    def errors(self) -> list[ConfigError]:
        found = [*self._texts.errors, *self.main.errors()]
        return found + [error for part in self.parts for error in part.errors()]


def _error(file: str, place: Place, problem: Problem) -> ConfigError:
    path = written(problem.path)
    return ConfigError(file=file, line=place.line, column=place.column, path=path, message=problem.message)


def _never_learned(path: Path, document: Document) -> bool:
    return any(path[:length] in document.unknown for length in range(len(path) + 1))


def _problem(detail: ErrorDetails, model: type[Section]) -> Problem:
    path: Path = detail["loc"]
    if path and path[-1] == "[key]":
        return Problem(path=path[:-1], message=_words(detail, model), at_key=True)
    return Problem(path=path, message=_words(detail, model), at_key=detail["type"] == "extra_forbidden")


def _hint(path: Path, model: type[Section]) -> str:
    """What may have been meant; or why there is no such field, where that is a decision (docs/adr/0023)."""
    if path[0] == "classes" and path[2:] == ("rank",) and path[1] in CLASSES:
        return f": the order of the classes is fixed, {', '.join(CLASSES)}"
    return did_you_mean(str(path[-1]), list(at(path[:-1], model).get("properties", ())))


def _words(detail: ErrorDetails, model: type[Section]) -> str:
    value: Any = detail["input"]
    path: Path = detail["loc"]
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "missing":
            return "required"
        case "extra_forbidden":
            return f"unknown key{_hint(path, model)}"
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
