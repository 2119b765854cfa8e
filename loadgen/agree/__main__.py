"""`python -m loadgen.agree`, which `make agree` calls."""

from pathlib import Path
from typing import Annotated

import typer

from loadgen.agree.run import AgreeOptions, agree_command
from loadgen.bench.validity import RULES


def agree(  # noqa: PLR0913  # one parameter per flag
    scenario: Annotated[list[str] | None, typer.Option(help="Standard scenario; repeatable.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Valid live runs of each; their median counts.")] = 3,
    seconds: Annotated[
        float | None, typer.Option(min=2, help="Length of the window; the warm-up comes before.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second in all.")] = None,
    fleet: Annotated[str | None, typer.Option(help="Shipped fleet or a file; default: the scenario's.")] = None,
    saturated: Annotated[bool, typer.Option("--saturated", help="Tolerances for more load than is served.")] = False,
    allow: Annotated[list[str] | None, typer.Option(help="A rule like V1: compare live runs that break it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for what the runs leave.")] = None,
) -> None:
    """Do live and simulated runs agree?"""
    unknown = sorted({*(allow or ())} - {*RULES})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(RULES)}", param_hint="--allow")
    chosen = {"scenarios": tuple(scenario)} if scenario else {}
    options = AgreeOptions(
        **chosen,
        runs=runs,
        seconds=seconds,
        rate=rate,
        fleet=fleet,
        saturated=saturated,
        allow=tuple(allow or ()),
        out=out,
    )
    raise typer.Exit(agree_command(options))


if __name__ == "__main__":
    typer.run(agree)
