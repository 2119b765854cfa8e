"""The subcommands of `forebay` that live in loadgen: engine, demo, sim, replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

PORTS = 65_535
VLLM, SGLANG, BOTH = "vLLM", "SGLang", "vLLM and SGLang"


def _of(engine: str, words: str = "") -> dict[str, Any]:
    """Of an option that is an engine's own flag."""
    return {"help": f"{engine}{': ' if words else '.'}{words}", "rich_help_panel": f"Flags of {engine}"}


def _time(least_s: float) -> dict[str, Any]:
    """Of an option that takes a time: `100ms`, `30s`, `2m`, or a number of seconds, at least `least_s`."""
    return {"parser": _seconds(least_s), "metavar": "DURATION"}


def _seconds(least_s: float) -> Callable[[str | float], float]:
    def read(text: str | float) -> float:
        from loadgen.bench.options import duration

        try:
            value_s = float(text)
        except ValueError:
            try:
                value_s = duration(str(text))
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
        if not value_s >= least_s:
            raise typer.BadParameter(f"{text!r} is not at least {least_s:g} s")
        return value_s

    return read


def engine(  # noqa: PLR0913  # one parameter per flag
    context: typer.Context,
    profile: Annotated[str, typer.Option(help="Shipped profile or a profile file.")] = "llama70b-fp8-h200-tp2",
    dialect: Annotated[str, typer.Option(help="vllm or sglang: whose routes, answers, metrics and flags.")] = "vllm",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=PORTS, help="First port; 0 lets the system choose each.")] = 8000,
    count: Annotated[int, typer.Option(min=1, help="Engines in this process, on consecutive ports.")] = 1,
    control_port: Annotated[
        int | None, typer.Option(min=0, max=PORTS, help="First control port; 0 lets the system choose.")
    ] = None,
    startup_delay: Annotated[float, typer.Option(min=0, help="Seconds before the ports are opened.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of answers, jitter and faults.")] = 0,
    fault: Annotated[list[str] | None, typer.Option(help="NAME[:VALUE,key=value,...][@FROM-TO]; repeatable.")] = None,
    faults: Annotated[Path | None, typer.Option(help="File with one fault per line.")] = None,
    allow_markers: Annotated[bool, typer.Option("--allow-markers", help="Obey [[fb ...]] in prompts.")] = False,
    log: Annotated[Path | None, typer.Option(help="Append one JSON line per request.")] = None,
    keep_alive: Annotated[
        float,
        typer.Option(
            min=0.01,
            envvar=["VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "SGLANG_TIMEOUT_KEEP_ALIVE"],
            help="Idle seconds before closing.",
        ),
    ] = 5.0,
    ignore_unknown_flags: Annotated[bool, typer.Option("--ignore-unknown-flags", help="Skip unknown flags.")] = False,
    stream_interval: Annotated[int, typer.Option(min=1, **_of(BOTH))] = 1,
    served_model_name: Annotated[str, typer.Option(**_of(BOTH))] = "",
    api_key: Annotated[str, typer.Option(envvar="VLLM_API_KEY", **_of(BOTH))] = "",
    kv_cache_dtype: Annotated[str, typer.Option(**_of(BOTH, "auto or fp8*."))] = "auto",
    kv_events_config: Annotated[str, typer.Option(**_of(BOTH, "JSON."))] = "{}",
    max_num_seqs: Annotated[int, typer.Option(min=1, **_of(VLLM))] = 1024,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, **_of(VLLM))] = 8192,
    long_prefill_token_threshold: Annotated[int, typer.Option(min=0, **_of(VLLM))] = 0,
    max_model_len: Annotated[int | None, typer.Option(min=2, **_of(VLLM))] = None,
    block_size: Annotated[int, typer.Option(min=1, **_of(VLLM))] = 16,
    watermark: Annotated[float, typer.Option(min=0, max=0.5, **_of(VLLM))] = 0.0,
    max_num_queued_reqs: Annotated[int | None, typer.Option(min=0, **_of(VLLM))] = None,
    max_num_queued_tokens: Annotated[int | None, typer.Option(min=0, **_of(VLLM))] = None,
    scheduling_policy: Annotated[str, typer.Option(**_of(VLLM, "fcfs or priority."))] = "fcfs",
    shutdown_timeout: Annotated[float, typer.Option(min=0, **_of(VLLM))] = 0.0,
    enable_prompt_tokens_details: Annotated[bool, typer.Option("--enable-prompt-tokens-details", **_of(VLLM))] = False,
    enable_prefix_caching: Annotated[bool, typer.Option(**_of(VLLM))] = True,
    scheduler_reserve_full_isl: Annotated[bool, typer.Option(**_of(VLLM))] = True,
    disable_uvicorn_access_log: Annotated[
        bool, typer.Option("--disable-uvicorn-access-log", **_of(VLLM, "without effect."))
    ] = False,
    disable_fastapi_docs: Annotated[
        bool, typer.Option("--disable-fastapi-docs", **_of(VLLM, "without effect."))
    ] = False,
    max_running_requests: Annotated[int, typer.Option(min=1, **_of(SGLANG))] = 2048,
    max_queued_requests: Annotated[int | None, typer.Option(min=0, **_of(SGLANG))] = None,
    chunked_prefill_size: Annotated[int, typer.Option(min=-1, **_of(SGLANG, "-1: prompts are not cut."))] = 8192,
    max_prefill_tokens: Annotated[int, typer.Option(min=1, **_of(SGLANG))] = 16384,
    enable_mixed_chunk: Annotated[bool, typer.Option("--enable-mixed-chunk", **_of(SGLANG))] = False,
    schedule_conservativeness: Annotated[float, typer.Option(min=0.01, **_of(SGLANG))] = 1.0,
    enable_priority_scheduling: Annotated[bool, typer.Option("--enable-priority-scheduling", **_of(SGLANG))] = False,
    context_length: Annotated[int | None, typer.Option(min=2, **_of(SGLANG))] = None,
    page_size: Annotated[
        int,
        typer.Option(min=1, **_of(SGLANG, "its own default is 1, which takes 15 times the CPU here.")),
    ] = 16,
    disable_radix_cache: Annotated[bool, typer.Option("--disable-radix-cache", **_of(SGLANG))] = False,
    enable_cache_report: Annotated[bool, typer.Option("--enable-cache-report", **_of(SGLANG))] = False,
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", **_of(SGLANG))] = False,
    decode_log_interval: Annotated[
        int,
        typer.Option(
            min=0, **_of(SGLANG, "steps between two moves of its gauges (its default: 40); 0: they are always true.")
        ),
    ] = 0,
) -> None:
    """Simulated engines: real timing, no GPU."""
    import uvloop

    from loadgen.engine_server import command, flags
    from loadgen.faults import FaultError
    from loadgen.sim.profile import ProfileError

    _refuse_unknown(context.args, ignore_unknown_flags)
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if dialect == "sglang" and "api_key" not in typed:
        context.params["api_key"] = ""  # the variable is vLLM's
    try:
        uvloop.run(command.run(flags.options(context.params, typed, (*(fault or ()), *_fault_lines(faults)))))
    except flags.FlagError as error:
        raise typer.BadParameter(str(error), param_hint=error.flag) from error
    except (ProfileError, FaultError, ValueError, OverflowError) as error:  # the last: --count leads beyond PORTS
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        where = f"({error.filename})" if error.filename else f"({host}:{port}); choose another with --host or --port"
        typer.echo(f"forebay engine: {error.strerror} {where}", err=True)
        raise typer.Exit(1) from error


# Typer settings that go with the function: unknown flags come in as `context.args`, to be refused or skipped there.
engine.__dict__["context_settings"] = {"ignore_unknown_options": True, "allow_extra_args": True}


def demo(  # noqa: PLR0913  # one parameter per flag
    seconds: Annotated[float, typer.Option(min=1, help="Length of each arm.")] = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for logs and details.")] = None,
    no_compare: Annotated[bool, typer.Option("--no-compare", help="Leave the round-robin arm out.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Requests per second.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 7,
    port: Annotated[int, typer.Option(min=0, max=PORTS, help="Port of the gateway; 0 lets the system choose.")] = 0,
) -> None:
    """Four simulated engines, the gateway, and a load."""
    from loadgen.demo import DemoOptions, run_demo

    options = DemoOptions(
        seconds=seconds, json_file=json_file, out=out, no_compare=no_compare, rate=rate, seed=seed, port=port
    )
    raise typer.Exit(run_demo(options))


def replay(  # noqa: PLR0913  # one parameter per flag
    command: typer.Context,
    journal: Annotated[Path, typer.Argument(help="Journal written by `serve` (telemetry.journal).")],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Decide by this forebay.yaml (and tenants.d beside it) instead of all settings recorded, later changes "
            "too; stop at the first difference.",
        ),
    ] = None,
    until: Annotated[int | None, typer.Option(help="Stop after this sequence number.")] = None,
    context: Annotated[int, typer.Option(min=0, help="Events shown around the first difference.")] = 5,
    stats: Annotated[bool, typer.Option("--stats", help="Events per second, decisions by kind.")] = False,
    max_diffs: Annotated[int, typer.Option(min=1, help="Stop after this many differences.")] = 10,
) -> None:
    """Decide a recorded journal again, and compare."""
    from loadgen.sim.replay import Asked, replay_command

    settings = command.obj(config) if config is not None else None
    asked = Asked(until=until, context=context, stats=stats, max_diffs=max_diffs, settings=settings)
    raise typer.Exit(replay_command(journal, asked))


def sim(  # noqa: PLR0913  # one parameter per flag
    command: typer.Context,
    scenario: Annotated[str, typer.Argument(help="Name of a standard scenario, or a file.")],
    config: Annotated[
        Path | None, typer.Option(help="forebay.yaml whose policy is used, with the tenants of tenants.d beside it.")
    ] = None,
    fleet: Annotated[str | None, typer.Option(help="Shipped fleet or a file; default: the scenario's.")] = None,
    router: Annotated[str, typer.Option(help="core or baselines, comma-separated: one arm each.")] = "core",
    lengths: Annotated[str, typer.Option(help="learned, declared, oracle, shuffled or adversarial.")] = "learned",
    poll_interval: Annotated[
        float, typer.Option(help="Between looks at the engines; 0: none.", show_default="100ms", **_time(0.0))
    ] = 0.1,
    poll_delay: Annotated[float, typer.Option(help="Age of what is seen.", show_default="5ms", **_time(0.0))] = 0.005,
    net_ms: Annotated[float, typer.Option(min=0, help="From the gateway to an engine.")] = 0.3,
    timeout: Annotated[
        float, typer.Option(help="A client waits so long for the whole answer.", show_default="120s", **_time(0.1))
    ] = 120.0,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many runs, with consecutive seeds; default: 5, or 1 with given requests or --journal.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="First seed; default: the scenario's.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second in all.")] = None,
    scale: Annotated[float | None, typer.Option(min=0.001, help="Multiply the rates.")] = None,
    scale_tenant: Annotated[list[str] | None, typer.Option(help="NAME=X: multiply the rate of one tenant.")] = None,
    find_max_rate: Annotated[bool, typer.Option("--find-max-rate", help="Search the highest rate.")] = False,
    start: Annotated[float, typer.Option(min=0.001, help="First scale of the search.")] = 0.25,
    probe_seconds: Annotated[float, typer.Option(min=10, help="Window of each of its runs.")] = 120.0,
    journal: Annotated[Path | None, typer.Option(help="Write the core's journal here.")] = None,
    from_journal: Annotated[Path | None, typer.Option(help="Take the requests of this journal.")] = None,
    faults: Annotated[
        Path | None, typer.Option(help="Faults of the engines, one per line, in seconds of the run.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Audit the core after each event (slow).")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the files of each run.", show_default="runs/UTC-SCENARIO-HEX"),
    ] = None,
    no_html: Annotated[
        bool, typer.Option("--no-html", help="Leave each report.html out, which takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All arms as JSON.")] = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="a.b.c=value, config.… or fleet.…")] = None,
    schedule: Annotated[Path | None, typer.Option(help="A saved schedule instead of the scenario's.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace file of the scenario, or the folder it is in.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be offered.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Simulate a load in virtual time: the real scheduling core, engines of known speed."""
    from loadgen.sim.command import SimOptions, sim_command
    from loadgen.sim.loop import Timing

    _one_of("--lengths", lengths, ("learned", "declared", "oracle", "shuffled", "adversarial"))
    options = SimOptions(
        scenario=scenario,
        config=config,
        served=command.obj(config) if config is not None and (config.parent / "tenants.d").is_dir() else None,
        fleet=fleet,
        routers=tuple(router.split(",")),
        lengths=lengths,
        timing=Timing(net_s=net_ms / 1e3, poll_s=poll_interval, poll_delay_s=poll_delay, patience_s=timeout),
        seeds=seeds,
        seed=seed,
        jobs=jobs,
        rate=rate,
        scale=scale,
        scale_tenants=tuple(scale_tenant or ()),
        find_max_rate=find_max_rate,
        start=start,
        probe_s=probe_seconds,
        journal=journal,
        from_journal=from_journal,
        faults=_fault_lines(faults),
        check=check,
        out=out,
        html=not no_html,
        json=as_json,
        changes=tuple(change or ()),
        trace=trace,
        schedule=schedule,
        dry_run=dry_run,
        quiet=quiet,
    )
    raise typer.Exit(sim_command(options))


def _refuse_unknown(extra: list[str], ignore: bool) -> None:
    if extra and not ignore:
        raise typer.BadParameter(f"unknown: {' '.join(extra)}; --ignore-unknown-flags skips them")


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=flag)


def _fault_lines(path: Path | None) -> tuple[str, ...]:
    from loadgen.faults import lines

    if path is None:
        return ()
    try:
        return lines(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--faults") from error
