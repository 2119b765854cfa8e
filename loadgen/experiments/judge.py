"""Is a claim true? In pairs, seed by seed, with a 95 % interval.

`met`: the whole interval is on the claim's side. `met on average`: the mean is, the interval reaches over the bound.
`missed`: the mean is not. With one seed there is no interval, and no `met` either.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from loadgen.experiments.figures import Estimate, Plain, estimate, figure
from loadgen.experiments.lab import Lab
from loadgen.experiments.terms import BEST, Claim, Experiment, Load

MET, ON_AVERAGE, MISSED, UNKNOWN = "met", "met on average", "missed", "cannot be judged"
RATE = "rate"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a claim at one load and point. `theirs`: the arm it was held against, if there was a choice."""

    says: str
    where: str
    figure: str
    how: str
    at_least: float | None
    at_most: float | None
    must_not: bool
    theirs: str
    outcome: str
    estimate: Estimate | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of each arm at one load and point, seed by seed, and the best of the field if there is one."""

    where: str
    runs: dict[str, Sequence[Plain]]
    best: str = ""


def of_runs(claim: Claim, measured: Measured) -> Verdict:
    """From runs at one point."""
    values = {
        label: [figure(run, claim.figure) for run in measured.runs[label]]
        for label in (_label(name, measured.best) for name in (claim.ours, *claim.against))
    }
    return _verdict(claim, measured.where, values, _label(claim.ours, measured.best))


def of_rates(claim: Claim, experiment: Experiment, load: Load, lab: Lab) -> Verdict:
    """From the highest rates at a load. Raises NotYet."""
    best = lab.best(experiment, load).label if BEST in (claim.ours, *claim.against) else ""
    setups = {setup.label: setup for setup in (*experiment.arms, *experiment.field)}
    labels = [_label(name, best) for name in (claim.ours, *claim.against)]

    def rates(label: str) -> list[float | None]:
        return [one["rate"] for one in lab.rates(setups[label], load)]

    values = dict(zip(labels, lab.together(labels, rates), strict=True))
    return _verdict(claim, load.name, values, labels[0])


def compared(how: str, ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """In pairs; ratios on a logarithmic scale. `inf`: only ours waited for ever, 0: only theirs. None if that cannot be
    said."""
    if how == "value":
        return estimate(ours)
    if math.inf in ours or math.inf in theirs:
        return None if math.inf in ours and math.inf in theirs else Estimate(mean=math.inf if math.inf in ours else 0.0)
    pairs = list(zip(ours, theirs, strict=True))
    if how == "difference":
        return estimate([a - b for a, b in pairs])
    if not all(a > 0 and b > 0 for a, b in pairs):
        return None
    logs = estimate([math.log(a / b) for a, b in pairs])
    low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
    return Estimate(mean=math.exp(logs.mean), low=low, high=high)


def outcome(claim: Claim, found: Estimate) -> str:
    """How it stands with its bounds."""
    least = -math.inf if claim.at_least is None else claim.at_least
    most = math.inf if claim.at_most is None else claim.at_most
    if not least <= found.mean <= most:
        return MISSED
    if found.low is None or found.high is None:
        return ON_AVERAGE
    return MET if least <= found.low and found.high <= most else ON_AVERAGE


def _verdict(claim: Claim, where: str, values: dict[str, list[float | None]], ours: str) -> Verdict:
    known = {label: [one for one in several if one is not None] for label, several in values.items()}
    complete = all(len(known[label]) == len(values[label]) > 0 for label in known)
    found, theirs = None, ""
    if complete:
        others = [label for label in known if label != ours]
        pick = max if claim.at_least is not None else min
        theirs = pick(others, key=lambda label: fmean(known[label])) if others else ""
        found = compared(claim.how, known[ours], known.get(theirs, []))
    return Verdict(
        says=claim.says,
        where=where,
        figure=claim.figure,
        how=claim.how,
        at_least=claim.at_least,
        at_most=claim.at_most,
        must_not=claim.must_not,
        theirs=theirs if len(claim.against) > 1 or BEST in claim.against else "",
        outcome=UNKNOWN if found is None else outcome(claim, found),
        estimate=found,
    )


def _label(name: str, best: str) -> str:
    return best if name == BEST else name
