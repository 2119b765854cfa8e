"""The `forebay` command.

`serve` and `config` live here, `keys` in gateway/keys. Other packages add commands by the entry point group `forebay.commands`: a function
or a `typer.Typer`. Only the one that is asked for is imported, so that `forebay serve` starts as fast with them and
does not mind one that is broken; the line that `--help` shows of the others is read from their source. They cannot import
the loader of the configuration: `typer.Context.obj` of theirs is `settings`.
"""

import ast
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gateway.keys.__main__ import app as keys_app

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.config.load import Loaded
    from policies.types import Settings

COMMANDS = "forebay.commands"
CONFIG_ERROR = 2

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration, forebay.yaml.")]
FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="The configuration.", show_default=False)]
FileOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The same.", show_default=False)]

config_app = typer.Typer(help="Check, describe and show the configuration.", no_args_is_help=True)


def main() -> None:
    """Run the command line of this process."""
    arguments = sys.argv[1:]
    asked = next((argument for argument in arguments if not argument.startswith("-")), "")
    application(asked)(args=arguments, prog_name="forebay")


def application(asked: str) -> typer.Typer:
    """The command line. Of the commands of other packages, `asked` is imported and the rest are only named."""
    app = typer.Typer(
        help="Multi-tenant router and admission-control gateway for LLM serving.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    app.command()(serve)
    app.add_typer(config_app, name="config")
    app.add_typer(keys_app, name="keys")
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        if entry.name in ("serve", "config", "keys"):
            typer.echo(f"forebay: ignoring the command {entry.name} of {entry.value}: the name is taken", err=True)
        elif entry.name == asked:
            _join(app, entry)
        else:
            app.command(entry.name, help=None if asked else _summary(entry))(_not_loaded)
    return app


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"forebay {version('forebay')}")
    except PackageNotFoundError:
        typer.echo("forebay (not installed)")
    raise typer.Exit


def _options(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj = settings


def settings(path: Path) -> "Settings":
    """What the core is told under a configuration. One that is not valid ends the command, as everywhere."""
    loaded = _load(path)
    _warn(loaded)
    return loaded.config.settings()


def serve(
    config: ConfigOption,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration; start nothing.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Processes on the port.")] = 1,
    worker: Annotated[str, typer.Option(hidden=True, help="Of a supervisor for its workers.")] = "",
) -> None:
    """Run the gateway until SIGTERM, which drains it."""
    loaded = _load(config)
    if worker:
        raise typer.Exit(_serve_as(worker, loaded))
    _warn(loaded)
    _refuse_without_store(loaded, workers)
    if check:
        typer.echo(_all_well(loaded))
        return
    raise typer.Exit(_serve(loaded, workers))


def _serve(loaded: "Loaded", workers: int) -> int:
    if workers > 1:
        from gateway.workers.supervisor import serve as supervise

        return supervise(loaded, workers)
    from gateway.app import serve as run

    return run(loaded)


def _serve_as(worker: str, loaded: "Loaded") -> int:
    from gateway.app import serve as run
    from gateway.config.changes import fixed_checksum
    from gateway.replica import Replica

    replica = Replica.parse(worker)
    if fixed_checksum(loaded.config) != replica.fixed:
        changed = f"{loaded.file} has changes that only a restart can take over"
        typer.echo(
            f"forebay: worker {replica.index} waits for those files or for a restart of all: {changed}", err=True
        )
        return CONFIG_ERROR
    return run(loaded, replica)


def _refuse_without_store(loaded: "Loaded", workers: int) -> None:
    from gateway.workers.needed import missing

    errors = missing(loaded, workers)
    for error in errors:
        typer.echo(str(error), err=True)
    if errors:
        raise typer.Exit(CONFIG_ERROR)


@config_app.command("check")
def config_check(
    file: FileArgument = None,
    config: FileOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
) -> None:
    """Say everything that is wrong with a configuration, or `ok`. Exit status 2 when something is."""
    loaded = _load(_one(file, config))
    _warn(loaded)
    if strict and loaded.warnings:
        raise typer.Exit(CONFIG_ERROR)
    typer.echo(_all_well(loaded))


@config_app.command("schema")
def config_schema(
    tenant: Annotated[bool, typer.Option("--tenant", help="That of a tenant's file, tenants.d/ID.yaml.")] = False,
) -> None:
    """Print the JSON Schema of the configuration, for editors."""
    import json

    from gateway.config import Config, Tenant, schema

    typer.echo(json.dumps(schema(Tenant if tenant else Config), indent=2, ensure_ascii=False))


@config_app.command("show")
def config_show(
    file: FileArgument = None,
    config: FileOption = None,
    effective: Annotated[
        bool, typer.Option("--effective", help="Also defaults and what is inherited; always so.")
    ] = True,
) -> None:
    """Print every value in force and the line it came from. Secrets are not shown."""
    from gateway.config.show import show

    typer.echo(show(_load(_one(file, config))), nl=False)


def _one(file: Path | None, config: Path | None) -> Path:
    """The file that was named in one of two ways."""
    if (file is None) == (config is None):
        raise typer.BadParameter("name one file, as FILE or with --config FILE")
    return file or config or Path()


def _load(path: Path) -> "Loaded":
    from gateway.config import ConfigErrors, load_document

    try:
        return load_document(path, os.environ)
    except ConfigErrors as errors:
        typer.echo(str(errors), err=True)
        raise typer.Exit(CONFIG_ERROR) from None


def _warn(loaded: "Loaded") -> None:
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _all_well(loaded: "Loaded") -> str:
    config: Config = loaded.config
    counts = [
        _count(len(config.models), "model"),
        _count(len(config.pools), "pool"),
        _count(len(config.endpoints), "endpoint"),
    ]
    if config.tenants is not None:
        counts.append(_count(len(config.tenants), "tenant"))
    listen, admin = config.listen, config.admin
    return (
        f"ok: {loaded.file}: {', '.join(counts)};"
        f" data on {listen.host}:{listen.port}, admin on {admin.host}:{admin.port}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _join(app: typer.Typer, entry: EntryPoint) -> None:
    """Import a command of another package and add it; one that cannot be imported says so when it is run."""
    try:
        command = entry.load()
    except Exception as error:
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(entry.name, context_settings=anything, add_help_option=False)(_broken(entry, error))
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name, context_settings=getattr(command, "context_settings", None))(command)


def _broken(entry: EntryPoint, error: Exception) -> Callable[[], NoReturn]:
    def run() -> NoReturn:
        typer.echo(
            f"forebay {entry.name} cannot run: {entry.value} failed to load: {type(error).__name__}: {error}", err=True
        )
        raise typer.Exit(1)

    return run


def _not_loaded() -> None:
    raise RuntimeError("a command that was only named for --help was run")


def _summary(entry: EntryPoint) -> str:
    """The first line of a command's docstring, read from its source without running it."""
    try:
        spec = find_spec(entry.module)  # imports the package around it, not the module
        if spec is None or spec.origin is None:
            return f"(cannot be loaded: no module {entry.module})"
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        return f"(cannot be loaded: {error})"
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == entry.attr:
            return (ast.get_docstring(statement) or "").partition("\n")[0]
        if isinstance(statement, ast.Assign) and entry.attr in map(ast.unparse, statement.targets):
            return _help_of(statement.value) or f"See forebay {entry.name} --help."
    return f"See forebay {entry.name} --help."


def _help_of(value: ast.expr) -> str:
    """The `help=` of a `typer.Typer(...)` in a source."""
    words = {word.arg: word.value for word in value.keywords} if isinstance(value, ast.Call) else {}
    given = words.get("help")
    return str(given.value) if isinstance(given, ast.Constant) else ""


if __name__ == "__main__":
    main()
