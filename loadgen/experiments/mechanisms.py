"""E6..E19: one mechanism at a time. Bounds are those of scheduling.md 13 unless a note says otherwise."""

import msgspec

from loadgen.experiments.arms import B2, B8, B9, CHWBL, FCFS, FIELD, OURS, STD, core, promised
from loadgen.experiments.carrying import AGENT_TOOLS, AGENTS, CAPPED, E1_LOADS, LONG_CHAT, MIXED, REASONING
from loadgen.experiments.terms import BEST, Claim, Experiment, Load, Point, Setup

AT_B8 = (Point(times=1.0, of=B8.label),)
SWEEP = tuple(Point(times=times, of=B8.label) for times in (0.5, 0.8, 1.0, 1.1))
NOBODY_STARVES = Claim(
    says="nobody waits until their time is over",
    figure="all.failed",
    ours=OURS.label,
    at_most=0.0,
    must_not=True,
)

E6 = Experiment(
    id="E6",
    title="Sorted dispatch",
    claim="Sorting the queue by urgency and length serves more requests in time than first come, first served.",
    loads=(MIXED,),
    arms=(OURS, FCFS, B8),
    points=(Point(times=1.1, of=B8.label),),
    claims=(
        Claim(
            says="at least as many within the SLO as by arrival (hoped for: 2 points more)",
            figure="all.attainment",
            ours=OURS.label,
            against=(FCFS.label,),
            how="difference",
            at_least=0.0,
        ),
        NOBODY_STARVES,
    ),
)


def _robust(kind: str, slower: float, points: float) -> tuple[Claim, ...]:
    ours, against = f"core, {kind}", (FCFS.label,)
    return (
        Claim(
            says=f"{kind} lengths: p99 to first token beside first come, first served",
            figure="all.ttft_p99_ms",
            ours=ours,
            against=against,
            how="ratio",
            at_most=slower,
        ),
        Claim(
            says=f"{kind} lengths: share within the SLO beside first come, first served",
            figure="all.attainment",
            ours=ours,
            against=against,
            how="difference",
            at_least=points,
        ),
        msgspec.structs.replace(NOBODY_STARVES, says=f"{kind} lengths: {NOBODY_STARVES.says}", ours=ours),
    )


E7 = Experiment(
    id="E7",
    title="A predictor that is wrong does no harm",
    claim="With another request's length in place of each prediction the core is hardly worse than without any order; with the lengths reversed it is not much worse.",
    loads=(
        *E1_LOADS,
        REASONING,
    ),
    arms=(OURS, *(core(f"core, {kind}", lengths=kind) for kind in ("oracle", "shuffled", "adversarial")), FCFS, B8),
    points=SWEEP,
    claims=(*_robust("shuffled", 1.05, -0.02), *_robust("adversarial", 1.10, -0.04)),
)

E8 = Experiment(
    id="E8",
    title="Prefix affinity",
    claim="Requests find nearly all of what an unlimited cache would hold, and the median first token comes 40 % sooner than with least requests.",
    loads=(
        LONG_CHAT,
        AGENT_TOOLS,
        AGENTS,
    ),
    arms=(OURS, B2, B8, B9, CHWBL),
    points=(Point(times=0.8, of=B8.label),),
    claims=(
        Claim(says="of the ideal hits", figure="all.cached_share", ours=OURS.label, at_least=0.85),
        Claim(
            says="median to first token beside least requests",
            figure="all.ttft_p50_ms",
            ours=OURS.label,
            against=(B2.label,),
            how="ratio",
            at_most=0.6,
        ),
        Claim(
            says="p95 to first token not above that of least requests",
            figure="all.ttft_p95_ms",
            ours=OURS.label,
            against=(B2.label,),
            how="ratio",
            at_most=1.0,
            must_not=True,
        ),
    ),
    notes=("Tenants share no cache behind the core (it salts their prompts), so its ideal can be a little lower.",),
)

E9 = Experiment(
    id="E9",
    title="One hot prefix",
    claim="A head that 60 % of the requests share is spread over the engines without losing its hits.",
    loads=(
        Load(
            scenario="agent-tools",
            label="agent-tools, one head at 60 %",
            changes=STD
            + tuple(
                f"tenants.{name}.arrivals.rate={rate}"
                for name, rate in (("tool_a", 3.6), ("tool_b", 0.5), ("chat", 1.9))
            ),
        ),
    ),
    arms=(OURS, B2, B8, B9, CHWBL),
    points=(Point(times=0.8, of=B8.label),),
    claims=(
        Claim(says="requests of the busiest engine over the mean", figure="imbalance", ours=OURS.label, at_most=1.3),
        Claim(
            says="hits not 10 % below the best of all arms",
            figure="all.cached_share",
            ours=OURS.label,
            against=(B2.label, B8.label, B9.label, CHWBL.label),
            how="ratio",
            at_least=0.9,
            must_not=True,
        ),
    ),
)

ADMIT_ALL = core(
    "core, admit all",
    "config.admission.shed=off",
    "config.admission.max_queued=1000000",
    *(
        f"config.classes.{name}.{change}"
        for name in ("critical", "interactive", "standard", "batch")
        for change in ("on_late=queue", "max_queued=1000000", "queue_timeout_s=100000")
    ),
)


def _admission() -> tuple[Claim, ...]:
    return (
        Claim(
            says="good answers/s beside a core that admits all",
            figure="all.goodput_per_s",
            ours=OURS.label,
            against=(ADMIT_ALL.label,),
            how="ratio",
            at_least=1.3,
        ),
        Claim(
            says="good answers/s beside B8, which has no admission",
            figure="all.goodput_per_s",
            ours=OURS.label,
            against=(B8.label,),
            how="ratio",
            at_least=1.3,
        ),
        Claim(
            says="critical requests within their SLO",
            figure="critical.attainment",
            ours=OURS.label,
            at_least=0.99,
        ),
        Claim(
            says="refusals do not oscillate: deviation of their number in 5 s over its mean",
            figure="refusals_cv",
            ours=OURS.label,
            at_most=0.5,
            must_not=True,
        ),
    )


E13A = Experiment(
    id="E13a",
    title="Admission in a lasting overload",
    claim="Offered one and a half times what the engines can serve in time, the core serves 1.3 times as many good answers as one that admits all, and the critical ones in time.",
    loads=(Load(scenario="overload", seconds=120.0, start=2.0, changes=promised(30_000, "standard")),),
    arms=(OURS, ADMIT_ALL, B8),
    points=tuple(Point(times=times, of=B8.label) for times in (1.5, 2.0)),
    claims=_admission(),
    notes=("`core, admit all` sheds nothing, refuses nothing, and lets everybody wait until their client leaves.",),
)

E13B = Experiment(
    id="E13b",
    title="Admission in a spike",
    claim="Twenty seconds of far more than can be served: the critical requests notice nothing, and as many others as without admission are served in time.",
    loads=(Load(scenario="spike", fleet=CAPPED, changes=promised(30_000, "standard")),),
    arms=(OURS, ADMIT_ALL, B8),
    points=(Point(times=1.2), Point(times=1.6)),
    claims=_admission()[:3],
    notes=("The peak is 1.5 and 2 times what four engines carry of this mix (about 36 requests/s).",),
)

E14 = Experiment(
    id="E14",
    title="The predicted first token",
    claim="Of ten requests nine come within margin times prediction: what admission decides by can be believed.",
    loads=E1_LOADS,
    arms=(OURS,),
    field=FIELD,
    points=tuple(Point(times=times, of=BEST) for times in (0.8, 1.0, 1.1)),
    claims=(
        Claim(
            says="first tokens within margin x prediction",
            figure="coverage",
            ours=OURS.label,
            at_least=0.88,
            at_most=0.93,
        ),
    ),
)

FRESH = Setup(label="core, 0.1 s", poll_s=0.1)
STALE = (
    Setup(label="core, 1 s"),
    Setup(label="core, 10 s", poll_s=10.0),
    Setup(label="core, frozen", frozen_s=60.0),
    Setup(label="core, no metrics", poll_s=0.0),
)

E15 = Experiment(
    id="E15",
    title="Stale metrics",
    claim="The core stands on its own counts: metrics that are old, stand still or never come cost a point at most.",
    loads=(MIXED, AGENT_TOOLS),
    arms=(FRESH, *STALE, B8),
    points=AT_B8,
    claims=tuple(
        claim
        for setup in STALE
        for claim in (
            Claim(
                says=f"{setup.label}: within the SLO beside metrics every 0.1 s",
                figure="all.attainment",
                ours=setup.label,
                against=(FRESH.label,),
                how="difference",
                at_least=-0.01,
            ),
            Claim(
                says=f"{setup.label}: nothing stands still (output tokens/s)",
                figure="all.output_tokens_per_s",
                ours=setup.label,
                against=(FRESH.label,),
                how="ratio",
                at_least=0.98,
                must_not=True,
            ),
        )
    ),
    notes=("`frozen`: from 60 s on every look shows what the last one before showed, with a new time.",),
)

SGLANG_FIELD = tuple(
    setup for setup in FIELD if setup.label in ("least_requests", "p2c", "sgl_cache_aware", "llmd_weighted", "chwbl_4k")
)
_SIGNS = Claim(
    says="at least the highest rate of the best baseline",
    figure="rate",
    ours="core",
    against=(BEST,),
    how="ratio",
    at_least=1.0,
)

E18 = Experiment(
    id="E18",
    title="SGLang's scheduler, with the overheads of serving",
    claim="What E1 and E3 find does not hang on vLLM's scheduler, nor on engines without overheads.",
    loads=tuple(
        Load(
            scenario=load.scenario,
            fleet="ref4-sglang",
            label=f"{load.scenario}, SGLang",
            changes=("slo.ttft.base_ms=1000", "slo.stall_ms=800", *promised(1000)),
            start=0.5,
        )
        for load in E1_LOADS
    ),
    arms=(OURS, B8, B9),
    field=SGLANG_FIELD,
    points=(Point(times=0.8, of=B8.label), Point(times=1.0, of=B8.label)),
    claims=(
        _SIGNS,
        Claim(
            says="p99 to first token of short prompts not above B8's",
            figure="short.ttft_p99_ms",
            ours="core",
            against=(B8.label,),
            how="ratio",
            at_most=1.0,
            loads=(0,),
        ),
    ),
    notes=(
        "The field is five of the thirteen baselines.",
        "SGLang runs one partly read prompt at a time and first, without a cap: inside `std` (400 ms, no pause above 400 ms) nobody carries more than 1.5 requests/s of mixed-lengths. Judged by 1,000 and 800 ms.",
    ),
)

_ALONE = "tenants.aggressor.arrivals.stages=[{at: 340s, rate: 0.001}]"

E19 = Experiment(
    id="E19",
    title="A noisy neighbour",
    claim="A tenant that sends twenty times as much does not slow a quiet one down.",
    loads=(
        Load(
            scenario="noisy-neighbour",
            fleet=CAPPED,
            changes=(*STD, "warmup=60s", "duration=240s", "tenants.aggressor.arrivals.stages=[{at: 30s, rate: 40}]"),
        ),
    ),
    arms=(
        OURS,
        Setup(label="core, victim alone", changes=(_ALONE,)),
        B2,
        Setup(label="least_requests, victim alone", router="least_requests", changes=(_ALONE,)),
    ),
    claims=(
        Claim(
            says="the victim's p99 to first token beside its own when alone",
            figure="victim.ttft_p99_ms",
            ours="core",
            against=("core, victim alone",),
            how="ratio",
            at_most=1.1,
        ),
    ),
    notes=("The tenants have no limits, which would hold the aggressor back: this is fairness alone.",),
)
