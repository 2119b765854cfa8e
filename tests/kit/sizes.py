"""One test, two sizes: what fits into every CI run, and the full size of faults.md 4 at night (`NIGHTLY=1`)."""

import os

NIGHTLY = os.environ.get("NIGHTLY", "") == "1"


def sized(ci: int, nightly: int) -> int:
    """The size for this run."""
    return nightly if NIGHTLY else ci


def patience(ci_s: float, nightly_s: float) -> float:
    """The timeout of a test in seconds, for this run's size."""
    return nightly_s if NIGHTLY else ci_s
