"""What a run came to, live or simulated, as far as the two are compared."""

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

    def share(self, endpoint: str) -> float:
        """Of all requests that were sent to an engine."""
        return self.sent.get(endpoint, 0) / max(1, sum(self.sent.values()))


def output_tokens(samples: list[Sample]) -> int:
    """Of the answers that count; those whose client leaves as planned do not."""
    return sum(one.tokens for one in samples if counts(one) and one.outcome is Outcome.OK)
