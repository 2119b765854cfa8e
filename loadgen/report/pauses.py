"""The pauses between tokens of all complete streamed answers of a group, in two ways.

`reads`: between reads that carried tokens, which is what a reader sees. `tokens`: the same shared out over the tokens
of the later read, known where the server says how many tokens an answer had; its events are taken for equally large.
"""

from collections.abc import Iterable, Sequence
from operator import sub

from loadgen.report.record import Outcome, Sample
from loadgen.report.times import Gaps


class Pauses:
    """Both; sums of them are as good as the whole."""

    __slots__ = ("reads", "tokens")

    def __init__(self) -> None:
        self.reads = Gaps()
        self.tokens = Gaps()

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "Pauses":
        """Of those that count: complete and streamed."""
        made = cls()
        for sample in samples:
            if sample.outcome is Outcome.OK and sample.streamed and len(sample.reads) > 1:
                pauses_us = between_us(sample)
                made.reads.take(pauses_us)
                made.tokens.take(_shared_out(sample, pauses_us))
        return made

    def add(self, other: "Pauses") -> None:
        """All of another group's."""
        self.reads.add(other.reads)
        self.tokens.add(other.tokens)


def between_us(sample: Sample) -> list[int]:
    """Pauses between reads that carried tokens, in whole microseconds."""
    stamps = [round(read * 1e6) for read in sample.reads]
    return list(map(sub, stamps[1:], stamps))


def _shared_out(sample: Sample, pauses_us: Sequence[int]) -> Iterable[int]:
    """For each pause so many equal parts as tokens came with the read after it; none where that is not known."""
    if sample.output_tokens is None:
        return []
    if sample.output_tokens == len(sample.reads):
        return pauses_us  # one token with each read
    events = sample.read_tokens if len(sample.read_tokens) == len(sample.reads) else [1] * len(sample.reads)
    each = sample.output_tokens / sum(events)
    parts = []
    for pause_us, count in zip(pauses_us, events[1:], strict=True):
        tokens = max(1.0, count * each)
        parts += [round(pause_us / tokens)] * round(tokens)
    return parts
