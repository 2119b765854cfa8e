"""E1..E5: how much load, with what lanes. Bounds are those of scheduling.md 13 unless a note says otherwise."""

from loadgen.experiments.arms import B8, B9, FIELD, OURS, STD, core, promised
from loadgen.experiments.terms import BEST, Claim, Experiment, Load, Point, Setup

MIXED = Load(scenario="mixed-lengths", changes=STD)
LONG_CHAT = Load(scenario="long-chat", changes=STD)
AGENT_TOOLS = Load(scenario="agent-tools", changes=STD)
CAPPED = "ref4-cap512"
E1_LOADS = (MIXED, LONG_CHAT, AGENT_TOOLS)
AT_BEST = tuple(Point(times=times, of=BEST) for times in (0.5, 0.8, 1.0, 1.1))
OF_B8 = tuple(Point(times=times, of="least_prefill") for times in (0.8, 1.0))
SAME_TOKENS = Claim(
    says="no fewer output tokens/s than the best of B0..B7",
    figure="all.output_tokens_per_s",
    ours="core",
    against=(BEST,),
    how="ratio",
    at_least=0.98,
    must_not=True,
)


def _rate(against: str, at_least: float, says: str, loads: tuple[int, ...] | None = None) -> Claim:
    return Claim(says=says, figure="rate", ours="core", against=(against,), how="ratio", at_least=at_least, loads=loads)


E1 = Experiment(
    id="E1",
    title="Everything together",
    claim="The core carries at least 1.25 times the load of any router people run today inside the same SLO.",
    loads=E1_LOADS,
    arms=(OURS, B8, B9),
    field=FIELD,
    points=AT_BEST,
    claims=(
        _rate(BEST, 1.25, "1.25 x the highest rate of the best of B0..B7"),
        _rate("lmetric", 1.10, "1.10 x the highest rate of B9"),
        SAME_TOKENS,
    ),
    curve=True,
)

_CAP = "fleet.engines.e.flags.long_prefill_token_threshold=512"
AGENTS = Load(
    scenario="agents-trace", changes=(_CAP, *promised(1500)), seeds=1, seconds=300.0, search_s=300.0, start=0.6
)
REASONING = Load(
    scenario="reasoning-trace", changes=(_CAP, *promised(1000)), seeds=1, patience_s=900.0, search_s=180.0, start=0.8
)
_TRACES = (
    Load(scenario="tenants-trace", fleet=CAPPED, changes=STD, seeds=1, search_s=180.0, start=0.8),
    Load(scenario="chat-trace", fleet=CAPPED, seeds=1, search_s=180.0, start=1.0),
    Load(
        scenario="code-trace",
        fleet=CAPPED,
        changes=("slo.target=0.8", *promised(1500)),
        seeds=1,
        seconds=540.0,
        search_s=540.0,
        start=0.8,
    ),
    AGENTS,
    REASONING,
)

E2 = Experiment(
    id="E2",
    title="Everything together, on recorded traffic",
    claim="On recorded traffic, which has few long prompts, the core carries at least 1.05 times the load of any router people run today; on coding agents 1.25 times.",
    loads=_TRACES,
    arms=(OURS, B8, B9),
    field=FIELD,
    points=(Point(times=1.0, of=BEST),),
    claims=(
        _rate(BEST, 1.05, "1.05 x the highest rate of the best of B0..B7", (0, 1, 2, 4)),
        _rate(BEST, 1.25, "1.25 x the highest rate of the best of B0..B7", (3,)),
        *(
            Claim(
                says=f"{group} prompts: no 2 points fewer within the SLO than with the best of B0..B7",
                figure=f"{group}.attainment",
                ours="core",
                against=(BEST,),
                how="difference",
                at_least=-0.02,
                must_not=True,
                loads=(0, 1, 2, 4),
            )
            for group in ("short", "long")
        ),
    ),
    notes=(
        "A trace is what it is under every seed: one run each, no interval.",
        "`code` cannot be served whole by anybody (its bursts are more prefill than the fleet can do in time): the rate there is that of 80 % within the SLO.",
        "A user's rate in `agents-trace` is that of its sessions; the scale is the number of users.",
    ),
)

_LONG_PRICE = Claim(
    says="p99 to first token of long prompts, core / B8",
    figure="long.ttft_p99_ms",
    ours="core",
    against=("least_prefill",),
    how="ratio",
    at_most=1.5,
)


def _short(factor: float, loads: tuple[int, ...] | None = None, ours: str = "core") -> Claim:
    return Claim(
        says=f"p99 to first token of short prompts {factor:g} x lower than with B8",
        figure="short.ttft_p99_ms",
        ours=ours,
        against=("least_prefill",),
        how="ratio",
        at_most=round(1 / factor, 3),
        loads=loads,
    )


E3 = Experiment(
    id="E3",
    title="Lanes and late binding",
    claim="Short prompts see their first token 1.5 times sooner at the 99th percentile, and long ones pay little.",
    loads=(MIXED,),
    arms=(OURS, B8, B9),
    points=OF_B8,
    claims=(
        _short(1.5),
        _LONG_PRICE,
        Claim(
            says="long prompts: no 5 points fewer within the SLO than with B8",
            figure="long.attainment",
            ours="core",
            against=("least_prefill",),
            how="difference",
            at_least=-0.05,
            must_not=True,
            points=(0,),
        ),
    ),
)


def fixed(lanes: int) -> Setup:
    """The core with long prompts on so many of four endpoints, for good."""
    flags = "{max_num_batched_tokens: 2048, max_num_seqs: 256, max_model_len: 32768, watermark: 0.02, long_prefill_token_threshold: 512}"
    groups = [f"{{name: long, count: {lanes}, profile: llama70b-fp8-h200-tp2, flags: {flags}}}"]
    if lanes < 4:
        rest = f"count: {4 - lanes}, profile: llama70b-fp8-h200-tp2, long_lanes: 0"
        groups.append(f"{{name: short, {rest}, flags: {flags}}}")
    engines = f"fleet.engines=[{', '.join(groups)}]"
    return core(f"core, long on {lanes} of 4", engines, "fleet.pools.main.lanes=fixed")


E4 = Experiment(
    id="E4",
    title="What a length split does where engines have no prefill cap",
    claim="Without the engines' long-prefill cap the core's lanes lower the p99 of short prompts by 2.5 times: this is where large gains of length splits come from.",
    loads=(Load(scenario="mixed-lengths", fleet="ref4", label="mixed-lengths, no cap", changes=STD, start=0.8),),
    arms=(OURS, B8),
    points=OF_B8,
    claims=(_short(2.5), _LONG_PRICE),
)

NO_WORSE = Claim(
    says="no 2 points fewer within the SLO than the best fixed number",
    figure="all.attainment",
    ours="core",
    against=tuple(fixed(lanes).label for lanes in range(1, 5)),
    how="difference",
    at_least=-0.02,
)
FLAPPING = Claim(
    says="no more than 2 moves of a lane a minute", figure="moves_per_min", ours="core", at_most=2.0, must_not=True
)

E5A = Experiment(
    id="E5a",
    title="The number of long lanes follows the load",
    claim="Nobody has to choose how many endpoints take long prompts: what the core chooses is as good as the best fixed number, also when the mix changes.",
    loads=(Load(scenario="changing-mix", changes=STD),),
    arms=(OURS, *(fixed(lanes) for lanes in range(1, 5))),
    claims=(NO_WORSE, FLAPPING),
)

E5B = Experiment(
    id="E5b",
    title="No split where it cannot help",
    claim="With short prompts alone, or with two endpoints, the core leaves lanes alone and loses nothing by having them.",
    loads=(
        Load(scenario="chat", fleet=CAPPED),
        Load(
            scenario="mixed-lengths",
            label="mixed-lengths on 2 endpoints",
            changes=(
                *STD,
                "fleet.engines.e.count=2",
                "tenants.chat.arrivals.rate=4.0",
                "tenants.docs.arrivals.rate=0.55",
            ),
        ),
    ),
    arms=(OURS, core("core, no lanes", "fleet.pools.main.lanes=off")),
    claims=(
        Claim(
            says="no 2 points fewer within the SLO than without lanes",
            figure="all.attainment",
            ours="core",
            against=("core, no lanes",),
            how="difference",
            at_least=-0.02,
        ),
        FLAPPING,
    ),
)
