"""What goes into the next step of SGLang (`managers/scheduler.py`, `schedule_policy.py`), policy `fcfs`, or by priority
(`--enable-priority-scheduling`): the largest first, and first come first served among equals. Who runs is not preempted
for that.

1. A step is a prefill batch or a decode batch, and a prefill batch whenever one can be formed: decodes stand still
   meanwhile. `enable_mixed_chunk` lets them come along, one token each out of the chunk's size.
2. A prefill batch takes `chunked_prefill_size` tokens at most. One sequence may be partly prefilled, and it goes first;
   the others follow from the head of the queue, without skipping, while `max_prefill_tokens` last.
3. A sequence is admitted if what it computes and might generate fits the free blocks, less what the running ones are
   expected to generate: min(max_new_tokens left, 4,096) x ratio. The ratio starts at 0.7 x conservativeness, falls
   to 0.14 of that in 600 decode steps, is what was really generated after a retraction, and starts anew when idle.
4. If the next token of all decodes does not fit, those with the fewest generated tokens (of these, with the longest
   prompt) are retracted until 20 steps fit. They lose what is not in the tree and wait at the tail of the queue.
5. A prompt enters the tree after its chunk has run, an answer when it is complete: sequences of one batch do not share.
6. The tree of SGLang matches single tokens; here it matches whole blocks of `block_size`, and a sequence's memory is
   rounded up to them. The state `batch_is_full`, which saves SGLang looking at its queue, is left out.
"""

from math import ceil

from loadgen.sim.kv import InvariantError
from loadgen.sim.profile import EngineSettings
from loadgen.sim.scheduler import Batch, Scheduler
from loadgen.sim.sequence import Sequence, State

CLIP_TOKENS = 4096
INITIAL_RATIO = 0.7
LEAST_RATIO_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_STEPS = 20


class PrefillFirst(Scheduler):
    """The `sglang` variant; same interface as vLLM's."""

    def __init__(self, settings: EngineSettings, kv_tokens: int | None) -> None:
        super().__init__(settings, kv_tokens)
        self._initial_ratio = min(1.0, INITIAL_RATIO * settings.schedule_conservativeness)
        self._least_ratio = self._initial_ratio * LEAST_RATIO_FACTOR
        self.new_token_ratio = self._initial_ratio
        self._computing: list[Sequence] = []  # their chunks are in the step that runs

    @property
    def step_tokens(self) -> int:
        """A chunk, or one token for each of the sequences that may run."""
        return max(self.settings.chunked_prefill_size, self.settings.max_num_seqs)

    def enqueue(self, sequence: Sequence) -> None:
        """Put an arrival at the tail of the queue, or of those as urgent as it is."""
        if not self.running and not self.waiting:
            self.new_token_ratio = self._initial_ratio
        self._rank_again(sequence)
        self._wait(sequence)

    def schedule(self, now: float) -> Batch:
        """The batch of the step that begins at `now`; empty if nothing can run."""
        if self._aborts:
            self._drop_aborted()
        self._publish_computed()
        batch = Batch()
        self._prefill(batch, now)
        if not batch.chunks:
            self._decode(batch)
        elif self.settings.enable_mixed_chunk:
            self._add_decodes(batch)
        return batch

    def finish(self, sequence: Sequence) -> None:
        """The sequence has its last token: all of it stays in the tree."""
        super()._publish(sequence, sequence.computed)
        super().finish(sequence)

    def check(self, batch: Batch | None) -> None:
        """Raise `InvariantError` if a rule above is broken."""
        super().check(batch)
        if batch is None and sum(not sequence.decoding for sequence in self.running) > 1:
            raise InvariantError("more than one sequence is partly prefilled")
        if batch is not None and batch.chunks and batch.decodes and not self.settings.enable_mixed_chunk:
            raise InvariantError("decodes in a prefill batch")
        if not self._least_ratio <= self.new_token_ratio <= 1.0:
            raise InvariantError(f"new token ratio {self.new_token_ratio}")

    def _publish(self, sequence: Sequence, end: int) -> None:
        """Not yet: `_publish_computed` and `finish` do it when there is something to find."""

    def _publish_computed(self) -> None:
        for sequence in self._computing:
            if sequence.state is State.RUNNING:
                super()._publish(sequence, sequence.computed)
        self._computing.clear()

    def _rank_again(self, victim: Sequence) -> None:
        self._arrivals += 1
        victim.rank = (-victim.priority if self.settings.scheduling_policy == "priority" else 0, self._arrivals)

    def _prefill(self, batch: Batch, now: float) -> None:
        """The partly prefilled sequence, then waiting ones."""
        partial = self.running[-1] if self.running and not self.running[-1].decoding else None
        if partial is None and not self.waiting:
            return
        decodes = [sequence for sequence in self.running if sequence.decoding]
        mixed = len(decodes) if self.settings.enable_mixed_chunk else 0
        left = self.settings.chunked_prefill_size - mixed
        expected = sum(ceil(self._to_come(sequence) * self.new_token_ratio) for sequence in decodes)
        if partial is not None and left > 0:
            expected += self._go_on(partial, batch, left)
        self._admit_waiting(batch, left - batch.prefill, expected, now)

    def _go_on(self, partial: Sequence, batch: Batch, left: int) -> int:
        """The next chunk; returns the tokens that may come after the last one."""
        share = min(partial.known - partial.computed, left)
        end = partial.computed + share
        while self._missing(partial, end) > self.kv.free:
            self._retract_one(batch)
        self._add(partial, share, batch)
        return self._to_come(partial) if end == partial.known else 0

    def _admit_waiting(self, batch: Batch, left: int, expected: int, now: float) -> None:
        size, waiting = self.settings.block_size, self.waiting
        inputs = self.settings.max_prefill_tokens - batch.prefill
        while waiting and left > 0 and len(self.running) < self.settings.max_num_seqs and waiting[0].ready_s <= now:
            sequence = waiting[0]
            hits = self._lookup(sequence)
            fresh = sequence.known - len(hits) * size
            room = (self.kv.free - self.kv.idle_among(hits)) * size - expected
            if fresh + self._to_come(sequence) > room or (batch.chunks and fresh >= inputs):
                return
            del waiting[0]
            self._admit(sequence, hits)
            share = min(fresh, left)
            self._add(sequence, share, batch)
            left -= share
            inputs -= share
            expected += self._to_come(sequence) if share == fresh else 0

    def _add(self, sequence: Sequence, share: int, batch: Batch) -> None:
        self._extend(sequence, sequence.computed + share)
        batch.add_chunk(sequence, share)
        self._computing.append(sequence)

    def _to_come(self, sequence: Sequence) -> int:
        """Tokens it might still generate, as far as the engine was told."""
        most = self.settings.max_model_len - sequence.known
        told = CLIP_TOKENS if sequence.max_new_tokens is None else sequence.max_new_tokens - sequence.generated
        return max(0, min(told, most, CLIP_TOKENS))

    def _decode(self, batch: Batch) -> None:
        """One token for each running sequence, for as many as fit."""
        if self._add_decodes(batch) == 0:
            decay = (self._initial_ratio - self._least_ratio) / DECAY_STEPS
            self.new_token_ratio = max(self._least_ratio, self.new_token_ratio - decay)

    def _add_decodes(self, batch: Batch) -> int:
        """Put the decodes into the batch; returns how many sequences were retracted for that."""
        retracted = self._retract(batch)
        for sequence in self.running:
            if not sequence.decoding:
                continue
            if sequence.known > sequence.capacity:
                self._extend(sequence, sequence.known)
            batch.decodes.append(sequence)
            batch.context += sequence.known
        return retracted

    def _retract(self, batch: Batch) -> int:
        decodes = [sequence for sequence in self.running if sequence.decoding]
        count = 0
        while self._missing_for(decodes) > self.kv.free or (count and self._short_of_steps(decodes)):
            decodes.remove(self._retract_one(batch))
            count += 1
        if count:
            done = sum(sequence.generated for sequence in decodes) + RETRACT_STEPS * len(decodes)
            told = sum(sequence.generated + self._to_come(sequence) for sequence in decodes)
            self.new_token_ratio = max(self._least_ratio, min(1.0, done / (told + 1)))
        return count

    def _retract_one(self, batch: Batch) -> Sequence:
        decodes = [sequence for sequence in self.running if sequence.decoding]
        victim = min(decodes, key=lambda sequence: (sequence.generated, -sequence.prompt_tokens))
        self._preempt(victim, batch)
        return victim

    def _missing_for(self, decodes: list[Sequence]) -> int:
        return sum(1 for sequence in decodes if sequence.known > sequence.capacity)

    def _short_of_steps(self, decodes: list[Sequence]) -> bool:
        return len(decodes) > 1 and self.kv.free * self.settings.block_size < RETRACT_STEPS * len(decodes)
