"""The arms that several experiments share."""

from loadgen.experiments.terms import Setup
from loadgen.sim.arm import CORE

OURS = Setup(label=CORE)
B1 = Setup(label="round_robin", router="round_robin")
B2 = Setup(label="least_requests", router="least_requests")
B8 = Setup(label="least_prefill", router="least_prefill")
B9 = Setup(label="lmetric", router="lmetric")
CHWBL = Setup(label="chwbl_4k", router="chwbl_4k")

FIELD = tuple(
    Setup(label=name, router=name)
    for name in (
        "random",
        "round_robin",
        "least_requests",
        "p2c",
        "sgl_cache_aware",
        "sgl_cache_aware_struct",
        "smg_cache_aware",
        "llmd_weighted",
        "chwbl",
        "chwbl_4k",
        "smg_least_load",
        "smg_least_load_100ms",
        "smg_least_load_http",
    )
)
"""B0..B7 of scheduling.md 13, with the second settings of those that have two."""


def core(label: str, *changes: str, lengths: str = "learned") -> Setup:
    """The core with other settings."""
    return Setup(label=label, changes=changes, lengths=lengths)


def promised(ttft_ms: int, *classes: str) -> tuple[str, ...]:
    """What an operator would set: these classes promise what the scenario judges by. Without effect on baselines."""
    return tuple(f"config.classes.{name}.slo.ttft_ms={ttft_ms}" for name in classes or ("interactive", "standard"))


STD = promised(400)
FCFS = core("core, fcfs", "config.admission.ordering=fcfs")
