"""`forebay bench SCENARIO --url URL`, and what goes with it: list, schema, compare, report, selftest."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

SENDING = "What is sent"
CLIENT = "The client"
OUTPUT = "Output"
SEARCH = "The highest rate"
RUN = "run"


class _RunByDefault(TyperGroup):
    """`forebay bench chat ...` is `forebay bench run chat ...`: the first word is a command or belongs to `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Load on a server you name, and what it sustains within your SLO.",
    subcommand_metavar="SCENARIO --url URL ... | COMMAND ...",
    no_args_is_help=True,
)


def _duration(text: str | float) -> float:
    from loadgen.bench.options import duration

    if isinstance(text, float):
        return text
    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_TIME: dict[str, Any] = {"parser": _duration, "metavar": "DURATION"}


@app.command(RUN)
def run(  # noqa: PLR0913  # one parameter per flag
    scenario: Annotated[str | None, typer.Argument(help="Name of a standard scenario, or a file.")] = None,
    url: Annotated[list[str] | None, typer.Option(help="Base URL of the server; several are taken in turn.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the one that /v1/models names, if it is one.")] = None,
    api: Annotated[
        Literal["chat", "completions", "responses", "messages"], typer.Option(help="What is spoken.")
    ] = "chat",
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML: tenant to API key. Default: `key_env` of the scenario.")
    ] = None,
    scale: Annotated[float | None, typer.Option(min=0.001, help="Multiply the rates.", rich_help_panel=SENDING)] = None,
    scale_tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=X",
            help="Those of one tenant. With --find-max-rate: NAME, searched alone.",
            rich_help_panel=SENDING,
        ),
    ] = None,
    tail: Annotated[
        float | None, typer.Option(help="Load after the window, not measured.", rich_help_panel=SENDING, **_TIME)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the scenario's.", rich_help_panel=SENDING)] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B.C=VALUE", help="One field of the scenario.", rich_help_panel=SENDING),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A saved schedule.jsonl.gz instead of drawing one.", rich_help_panel=SENDING),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Trace file of the scenario, or the folder it is in.", rich_help_panel=SENDING)
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(
            help="run (new prompts each run), none, or any text. Default: the scenario's.", rich_help_panel=SENDING
        ),
    ] = None,
    prime: Annotated[
        bool, typer.Option("--prime", help="Send each shared prefix once before the warm-up.", rich_help_panel=SENDING)
    ] = False,
    length_control: Annotated[
        Literal["auto", "ignore_eos", "min_tokens", "marker", "none"] | None,
        typer.Option(help="How answers get their planned length. Default: the scenario's.", rich_help_panel=SENDING),
    ] = None,
    probe: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="RATE", help="Also 1-token requests of a tenant `probe`.", rich_help_panel=SENDING
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that send.", rich_help_panel=CLIENT)] = 1,
    timeout: Annotated[
        float,
        typer.Option(
            help="Of one request, from its intended arrival.",
            show_default="120s",
            rich_help_panel=CLIENT,
            **_TIME,
        ),
    ] = 120.0,
    connect_timeout: Annotated[
        float, typer.Option(help="Of one connection.", show_default="5s", rich_help_panel=CLIENT, **_TIME)
    ] = 5.0,
    max_open: Annotated[
        int, typer.Option(min=1, help="Open requests; what meets it is dropped.", rich_help_panel=CLIENT)
    ] = 20_000,
    retries: Annotated[int, typer.Option(min=0, help="Tries beyond the first.", rich_help_panel=CLIENT)] = 0,
    honour_retry_after: Annotated[
        bool, typer.Option("--honour-retry-after", help="Wait as long as told.", rich_help_panel=CLIENT)
    ] = False,
    scrape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Metrics of the gateway or an engine, read each second.", rich_help_panel=OUTPUT
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="V4", help="A validity rule that may be broken; it is said.", rich_help_panel=OUTPUT),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: runs/UTC-SCENARIO-XXXXXX.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The report as JSON on stdout.", rich_help_panel=OUTPUT)
    ] = False,
    no_html: Annotated[
        bool, typer.Option("--no-html", help="Leave report.html out, which takes seconds.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.", rich_help_panel=OUTPUT)] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be offered.", rich_help_panel=OUTPUT)
    ] = False,
    find_max_rate: Annotated[
        bool, typer.Option("--find-max-rate", help="Search the highest rate within the SLO.", rich_help_panel=SEARCH)
    ] = False,
    start: Annotated[float, typer.Option(min=0.001, help="First scale.", rich_help_panel=SEARCH)] = 0.25,
    probe_seconds: Annotated[
        float, typer.Option(min=1, help="Window of each run of it, at least.", rich_help_panel=SEARCH)
    ] = 60.0,
    probe_requests: Annotated[
        int, typer.Option(min=1, help="Requests of each of them, at least.", rich_help_panel=SEARCH)
    ] = 500,
) -> None:
    """Send a scenario to a server (the word `run` may be left out)."""
    from loadgen.bench.command import bench_command
    from loadgen.bench.options import BenchOptions

    searched = [one for one in scale_tenant or () if "=" not in one] if find_max_rate else []
    options = BenchOptions(
        scenario=scenario,
        urls=tuple(url or ()),
        model=model,
        api=api,
        workers=workers,
        timeout_s=timeout,
        connect_timeout_s=connect_timeout,
        max_open=max_open,
        retries=retries,
        honour_retry_after=honour_retry_after,
        scrape=tuple(scrape or ()),
        probe=probe,
        salt=salt,
        prime=prime,
        length_control=length_control,
        scale=scale,
        rates=tuple(one for one in scale_tenant or () if one not in searched),
        tail_s=tail,
        seed=seed,
        out=out,
        keys=keys,
        changes=tuple(change or ()),
        schedule=schedule,
        trace=trace,
        allow=tuple(allow or ()),
        find_max_rate=find_max_rate,
        start=start,
        probe_s=probe_seconds,
        probe_requests=probe_requests,
        searched=tuple(searched),
        html=not no_html,
        json=as_json,
        quiet=quiet,
        dry_run=dry_run,
    )
    raise typer.Exit(bench_command(options))


@app.command("list")
def list_scenarios() -> None:
    """Name the standard scenarios."""
    from loadgen.bench.listing import listed

    listed()


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from loadgen.bench.listing import print_schema

    print_schema()


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What --out was.")],
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout.")] = False,
) -> None:
    """Make the reports of a run again, also after a kill."""
    from loadgen.bench.again import report_again

    raise typer.Exit(report_again(folder, json=as_json))


@app.command()
def compare(  # noqa: PLR0913  # one parameter per flag
    files: Annotated[list[Path], typer.Argument(metavar="A.json B.json ...", help="Reports, or folders of runs.")],
    baseline: Annotated[
        Path | None, typer.Option(metavar="A.json", help="What the others are compared with. Default: the first.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="GATE", help="Like 'ttft_p99{tenant=chat,class=short} > +5%'; repeatable."),
    ] = None,
    min_effect: Annotated[str, typer.Option(metavar="2%", help="Less than that is the same.")] = "2%",
    allow_different: Annotated[list[str] | None, typer.Option(metavar="SCENARIO|FLEET")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="A page with the curves of all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The comparison as JSON on stdout.")] = False,
) -> None:
    """Compare runs with the first one; fails if one is worse."""
    from loadgen.report.compare_command import CompareOptions, compare_command

    options = CompareOptions(
        files=tuple(files),
        baseline=baseline,
        metrics=tuple(metric or ()),
        fail_on=tuple(fail_on or ()),
        min_effect=min_effect,
        allow_different=tuple(allow_different or ()),
        html=html,
        json=as_json,
    )
    raise typer.Exit(compare_command(options))


@app.command()
def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="A minute instead of twelve; memory less firmly.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on stdout.")] = False,
) -> None:
    """Measure the client itself: how much load can it send here?"""
    from loadgen.bench.selftest import selftest_command

    raise typer.Exit(selftest_command(quick=quick, as_json=as_json))


if __name__ == "__main__":
    app(prog_name="forebay bench")
