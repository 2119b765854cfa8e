"""`forebay keys new|list|disable`. A secret is printed once, to stdout, and kept nowhere."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.keys.store import Found, Store

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration, forebay.yaml.")]
FAILED, WRONG = 1, 2
GRACE = "24h"

app = typer.Typer(help="Make, list and block the API keys of tenants.", no_args_is_help=True)


@app.command()
def new(  # noqa: PLR0913  # one parameter per option
    config: ConfigOption,
    tenant: Annotated[str, typer.Option(help="Whose key it will be.")],
    name: Annotated[str | None, typer.Option(help="What people call it.")] = None,
    expires: Annotated[str | None, typer.Option(help="90d, 24h, 2w, or a time like 2027-02-01T00:00:00Z.")] = None,
    class_ceiling: Annotated[str | None, typer.Option(help="The most urgent class its requests get.")] = None,
    replaces: Annotated[str | None, typer.Option(metavar="ID", help="A key that shall end then.")] = None,
    grace: Annotated[str | None, typer.Option(help="With --replaces: so long both work.", show_default=GRACE)] = None,
    from_stdin: Annotated[bool, typer.Option("--stdin", help="Read a key that exists already from stdin.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the record into the tenant's file.")] = False,
) -> None:
    """Make a key: the secret goes to stdout, once; its record for the tenant's file to stderr."""
    from gateway.keys.make import BadInput, Wanted, foreign, later, make, moment

    now = datetime.now(UTC)
    with _store(config) as store:
        if grace is not None and replaces is None:
            raise BadInput("--grace does nothing without --replaces")
        store.file_of(tenant)
        wanted = Wanted(
            name=name,
            expires=later(expires, now) if expires else None,
            class_ceiling=class_ceiling,
            foreign=foreign(sys.stdin.readline()) if from_stdin else None,
        )
        made = make(wanted, store.keys(), now)
        typer.echo(f"  - {made.record}", err=True)
        end = _end(store.find(replaces), tenant, later(grace or GRACE, now)) if replaces else None
        if write:
            store.add(tenant, made.id, made.record)
            if replaces and end is not None:
                store.expire(replaces, end)
            _say_written(store)
        else:
            typer.echo(f"Put this under `keys` in {store.file_of(tenant)}, or use --write.", err=True)
        if end is not None:
            typer.echo(f"{replaces}{' has' if write else ' needs'} `expires: {moment(end)}`.", err=True)
        if not from_stdin:
            typer.echo(made.secret)


@app.command("list")
def list_keys(
    config: ConfigOption,
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print every key: tenant, id, state, when it was made and when it ends. No hashes.

    Where the gateway runs here and answers (its admin token: FOREBAY_ADMIN_TOKEN), also when each was last used,
    and which are `blocked now`: by an operator, where the file says nothing of it.
    """
    import json

    from gateway.keys.tell import seen_there

    with _store(config) as store:
        if tenant:
            store.file_of(tenant)
        rows = [_row(found) for found in store.keys().values() if tenant in (None, found.tenant.id)]
        seen = seen_there(store.admin(), os.environ.get("FOREBAY_ADMIN_TOKEN", ""))
        if seen is not None:
            rows = [_as_seen(row, *seen.get(row["id"] or "", (None, False))) for row in rows]
        if as_json:
            typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        else:
            typer.echo(_table(rows), nl=False)


@app.command()
def disable(
    config: ConfigOption,
    key: Annotated[str, typer.Argument(metavar="ID", help="The id of the key.")],
    now: Annotated[
        bool,
        typer.Option("--now", help="Tell the running gateway too. Its admin token: FOREBAY_ADMIN_TOKEN."),
    ] = False,
) -> None:
    """Block a key in its tenant's file: `state: blocked`."""
    with _store(config) as store:
        found = store.find(key)
        if found.key.state == "blocked":
            typer.echo(f"{key} of {found.tenant.id} is blocked already", err=True)
        else:
            store.block(key)
            _say_written(store)
        if now:
            _tell(store, key)


def _tell(store: "Store", key: str) -> None:
    """Have the running gateway block a key at once; with a store it tells all replicas."""
    from gateway.keys.tell import tell_to_block

    wrong = tell_to_block(store.admin(), key, os.environ.get("FOREBAY_ADMIN_TOKEN", ""))
    if wrong:
        typer.echo(f"forebay keys: the gateway was not told: {wrong}", err=True)
        raise typer.Exit(FAILED)
    typer.echo("blocked in the running gateway", err=True)


@contextmanager
def _store(config: Path) -> "Iterator[Store]":
    """The files; whatever is wrong ends the command with a line that says it."""
    from gateway.config import ConfigErrors
    from gateway.keys.edit import CannotEdit
    from gateway.keys.make import BadInput
    from gateway.keys.store import Store

    try:
        yield Store(config, os.environ)
    except (ConfigErrors, BadInput) as error:
        typer.echo(str(error) if isinstance(error, ConfigErrors) else f"forebay keys: {error}", err=True)
        raise typer.Exit(WRONG) from None
    except CannotEdit as error:
        typer.echo(f"forebay keys: cannot change the file for you: {error}", err=True)
        raise typer.Exit(FAILED) from None
    except OSError as error:
        typer.echo(f"forebay keys: cannot write {error.filename or 'the key to stdout'}: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None


def _end(found: "Found", tenant: str, end: datetime) -> datetime | None:
    """When a key that is replaced shall end; None: it ends before that anyway."""
    from gateway.keys.make import BadInput

    if found.tenant.id != tenant:
        raise BadInput(f"{found.key.id} is a key of {found.tenant.id}")
    return end if found.key.expires is None or found.key.expires > end else None


def _say_written(store: "Store") -> None:
    for file in store.write():
        typer.echo(f"written: {file}", err=True)


def _row(found: "Found") -> dict[str, str | None]:
    from gateway.keys.make import moment

    key = found.key
    return {
        "tenant": found.tenant.id,
        "id": key.id,
        "name": key.name,
        "state": found.state(datetime.now(UTC)),
        "created": key.created,
        "expires": moment(key.expires) if key.expires is not None else None,
    }


def _as_seen(row: dict[str, str | None], last_use: str | None, blocked: bool) -> dict[str, str | None]:
    """A key with what the running gateway says of it: `blocked now`, whatever the file says."""
    return {**row, "last_use": last_use, **({"state": "blocked now"} if blocked else {})}


def _table(rows: list[dict[str, str | None]]) -> str:
    used = ("last_use",) if any("last_use" in row for row in rows) else ()
    names = ("tenant", "id", "state", "created", "expires", *used, "name")
    lines = [names, *(tuple(row[name] or "-" for name in names) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    cells = ((f"{text:{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(f"{'  '.join(line).rstrip()}\n" for line in cells)
