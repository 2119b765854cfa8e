"""The engine model: one object for virtual time (`forebay sim`) and real time (`forebay engine`).

The driver owns the clock. It calls `begin(now)`, which schedules a step and says when it ends; at that time, or
later, it calls `end()`, which gives out the tokens, and then `begin` again *with the exact end*, so that lateness of
the driver never becomes part of the model. An idle engine begins at the arrival itself.
"""

from random import Random

from loadgen.sim.kv import InvariantError
from loadgen.sim.profile import EngineSettings, Profile
from loadgen.sim.scheduler import Batch, Scheduler
from loadgen.sim.scheduler_sglang import PrefillFirst
from loadgen.sim.sequence import Sequence

JITTER_SIGMA = 0.5


class QueueFull(Exception):
    """The engine's own queue bound (`--max-num-queued-*`); `reason` is the flag's name."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineModel:
    """One simulated engine. Counters only grow; `prefill_factor` and `decode_factor` slow steps down (faults)."""

    def __init__(self, profile: Profile, settings: EngineSettings, seed: int = 0) -> None:
        self.profile = profile
        self.settings = settings
        rules = PrefillFirst if settings.variant == "sglang" else Scheduler
        self.scheduler = rules(settings, profile.kv_tokens)
        self.prefill_factor = 1.0
        self.decode_factor = 1.0
        self.steps = 0
        self.prefill_steps = 0  # of them, those with prompt tokens in them
        self.arrived = 0
        self.finished = 0
        self.aborted = 0
        self.scheduled_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.busy_s = 0.0
        self.turning = False  # the step that ended gave somebody a first or a last token
        self._batch: Batch | None = None
        self._ends_s = 0.0
        self._random = Random(seed)
        self._aborted_in_step = False
        self._open: set[Sequence] = set()

    @property
    def running(self) -> list[Sequence]:
        """Sequences in the running batch, in admission order."""
        return self.scheduler.running

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences in the queue, head first."""
        return self.scheduler.waiting

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that sequences hold, 0..1; cached blocks nobody holds count as free."""
        return self.scheduler.kv.referenced / self.scheduler.kv.total

    @property
    def stepping(self) -> bool:
        """A step has begun and not ended."""
        return self._batch is not None

    def would_refuse(self, sequences: int, prompt_tokens: int) -> str | None:
        """The queue bound that this many more sequences of that prompt would break, or None."""
        most, most_tokens = self.settings.max_num_queued_reqs, self.settings.max_num_queued_tokens
        if most is None and most_tokens is None:
            return None
        queued = [sequence.known for sequence in self.waiting if not sequence.aborted]
        if most is not None and len(queued) + sequences > most:
            return "max_num_queued_reqs"
        if most_tokens is not None and sum(queued) + sequences * prompt_tokens > most_tokens:
            return "max_num_queued_tokens"
        return None

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence; it can be scheduled from `now` plus the profile's request overhead."""
        reason = self.would_refuse(1, sequence.prompt_tokens)
        if reason is not None:
            raise QueueFull(reason)
        if sequence.prompt_tokens + sequence.output_tokens > self.settings.max_model_len:
            raise ValueError(f"{sequence.id} is longer than max_model_len {self.settings.max_model_len}")
        sequence.ready_s = now + self.profile.request_overhead_ms / 1e3
        self.arrived += 1
        self._open.add(sequence)
        self.scheduler.enqueue(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence: it gives no further token; its blocks are free from the next step on."""
        if sequence not in self._open:
            return
        self._open.discard(sequence)
        self.aborted += 1
        self._aborted_in_step = self._batch is not None
        self.scheduler.abort(sequence)

    def shrink_kv(self, share: float) -> None:
        """Let this share of the KV blocks be of no use (faults). An unlimited cache does not shrink."""
        if self.profile.kv_tokens is not None:
            self.scheduler.kv.withhold(share)

    def ready_at(self) -> float | None:
        """When an engine that is not stepping could begin a step, or None while nothing waits or runs."""
        if self.running:
            return 0.0
        return self.waiting[0].ready_s if self.waiting else None

    def begin(self, now: float) -> float | None:
        """Schedule the step that starts at `now`; its end in absolute seconds, or None if nothing can run yet."""
        if self._batch is not None:
            raise InvariantError("a step has not ended")
        batch = self.scheduler.schedule(now)
        if not batch.tokens:
            return None
        duration = self._duration(batch)
        self._batch = batch
        self._ends_s = now + duration
        self.steps += 1
        if batch.chunks:
            self.prefill_steps += 1
            for sequence in batch.chunks:
                if sequence.started_s is None:
                    sequence.started_s = now
        self.busy_s += duration
        return self._ends_s

    def end(self) -> list[Sequence]:
        """The sequences that get one token from the step that ended; finished ones say so."""
        batch = self._batch
        if batch is None:
            raise InvariantError("no step has begun")
        self._batch = None
        emitted = batch.decodes
        ends = False
        for sequence in emitted:
            known = sequence.known
            sequence.computed = known
            known += 1
            sequence.known = known
            if known == sequence.final:
                ends = True
        decodes = len(emitted)
        self.scheduled_tokens += batch.tokens
        if batch.chunks:
            ends = self._end_chunks(batch) or ends
        self.turning = ends or len(emitted) > decodes
        if self._aborted_in_step:
            emitted = [sequence for sequence in emitted if not sequence.aborted]
            self._aborted_in_step = False
        self.generated_tokens += len(emitted)
        if ends:
            self._finish([sequence for sequence in emitted if sequence.known == sequence.final])
        return emitted

    def check(self) -> None:
        """Raise `InvariantError` unless all invariants of the model hold now."""
        self.scheduler.check(self._batch)
        if self.scheduled_tokens != self.scheduler.computed_tokens():
            raise InvariantError(
                f"{self.scheduled_tokens} tokens in steps, {self.scheduler.computed_tokens()} in sequences"
            )
        open_now = sum(1 for entry in [*self.running, *self.waiting] if not entry.aborted)
        if open_now != len(self._open) or self.arrived != self.finished + self.aborted + len(self._open):
            raise InvariantError(
                f"{self.arrived} arrived, {self.finished} finished, {self.aborted} aborted, {open_now} open"
            )

    def _duration(self, batch: Batch) -> float:
        profile = self.profile
        seconds = profile.step.step_s(len(batch.decodes), batch.context, batch.prefill, batch.attention)
        seconds *= profile.slow_factor * (self.prefill_factor if batch.prefill else self.decode_factor)
        if profile.token_overhead_us:
            seconds += batch.tokens * profile.token_overhead_us / 1e6
        if profile.jitter_ms:
            seconds += profile.jitter_ms / 1e3 * self._random.lognormvariate(0.0, JITTER_SIGMA)
        return seconds

    def _end_chunks(self, batch: Batch) -> bool:
        """Book the prefill chunks; completed prefills join the emitted ones. True if one of them ends with that."""
        ends = False
        for sequence in batch.chunks:
            sequence.computed += sequence.share
            if sequence.computed == sequence.known:
                if sequence.known == sequence.prompt_tokens:
                    self.prompt_tokens += sequence.prompt_tokens
                    self.cached_tokens += sequence.cached or 0
                sequence.known += 1
                sequence.decoding = True
                batch.decodes.append(sequence)
                ends = ends or sequence.known == sequence.final
        return ends

    def _finish(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.finished += 1
            self._open.discard(sequence)
            self.scheduler.finish(sequence)
        self.scheduler.drop_finished()
