"""What a run came to, live or simulated, as far as the two are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report.figures import counts
from loadgen.report.record import Outcome, Sample
from loadgen.report.run import RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """`sent`: requests to each endpoint, tries counted; `steps` and `preemptions` of all engines together."""

    report: RunReport
    output_tokens: int
    sent: dict[str, int]
    steps: int
    preemptions: int

    def shares(self, endpoints: Sequence[str]) -> list[float]:
        """Of all requests that were sent to an engine, those to each of these, the busiest first."""
        total = max(1, sum(self.sent.values()))
        return sorted((self.sent.get(name, 0) / total for name in endpoints), reverse=True)


def output_tokens(samples: Sequence[Sample]) -> int:
    """Of the answers that count; those whose client leaves as planned do not."""
    return sum(one.tokens for one in samples if counts(one) and one.outcome is Outcome.OK)
