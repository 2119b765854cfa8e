"""`python -m loadgen.experiments`: the options of `make experiments`."""

from pathlib import Path
from typing import Annotated

import typer


def main(  # noqa: PLR0913  # one parameter per option
    ids: Annotated[list[str] | None, typer.Argument(help="E1 E3 ...; all without.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many, from 7 on.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    seconds: Annotated[float | None, typer.Option(min=30, help="Windows that long, for a quick look.")] = None,
    traces: Annotated[Path, typer.Option(help="Folder of recorded traces.")] = Path("traces"),
    results: Annotated[Path, typer.Option(help="Folder of results, to be found again.")] = Path("runs/experiments"),
    page: Annotated[Path, typer.Option(help="The page; its results file lies beside it.")] = Path(
        "docs/experiments.md"
    ),
) -> None:
    """Run the experiments of the scheduling core in the simulator and write the page."""
    from loadgen.experiments.command import Options, experiments_command

    options = Options(
        ids=tuple(ids or ()), seeds=seeds, jobs=jobs, seconds=seconds, traces=traces, results=results, page=page
    )
    raise typer.Exit(experiments_command(options))


if __name__ == "__main__":
    typer.run(main)
