"""What goes into the next step: vLLM's scheduler, rule by rule (`v1/core/sched/scheduler.py`).

1. One budget of tokens per step. Running sequences come first, in admission order; each needs its known tokens less
   the computed ones: 1 for a decode, the rest of the prompt for a prefill.
2. A share is min(need, cap, budget left); the cap (`long_prefill_token_threshold`) spares a sequence that is alone.
3. Waiting ones follow strictly from the head, only if nothing was preempted in this step, while there is budget, a
   free place, and room for the whole prompt above the watermark.
4. Growth that finds no block preempts the last running sequence (policy `priority`: the largest (priority, arrival)).
   It loses its blocks, goes to the head of the waiting queue, and recomputes prompt and answer so far.
5. The prefix cache is asked once, when a sequence leaves the waiting queue; at most known - 1 tokens hit, in whole
   blocks. Blocks enter the table when they are scheduled, so a later waiting sequence of the same step hits them.
6. An abort frees its blocks at the next step.
"""

from bisect import insort

from loadgen.sim.kv import InvariantError, KvCache
from loadgen.sim.profile import EngineSettings
from loadgen.sim.sequence import Sequence, State
from policies.capacity import attention

UNLIMITED_BLOCKS = 1 << 40


class Batch:
    """One step: who has a share in it, and the sums that its duration depends on."""

    __slots__ = ("attention", "chunks", "context", "decodes", "preempted", "prefill")

    def __init__(self) -> None:
        self.decodes: list[Sequence] = []  # one token each
        self.chunks: list[Sequence] = []  # prefills, `share` tokens each
        self.preempted: list[Sequence] = []
        self.context = 0
        self.prefill = 0
        self.attention = 0.0

    @property
    def tokens(self) -> int:
        """What the step takes from the budget."""
        return len(self.decodes) + self.prefill

    def add_chunk(self, sequence: Sequence, share: int) -> None:
        """Give a prefill `share` tokens of this step."""
        sequence.share = share
        self.chunks.append(sequence)
        self.prefill += share
        self.attention += attention(share, sequence.computed)

    def drop(self, victim: Sequence) -> None:
        """Take back the share of a sequence that was preempted in this very step."""
        self.preempted.append(victim)
        if victim in self.decodes:
            self.decodes.remove(victim)
        elif victim in self.chunks:
            self.chunks.remove(victim)
            self.prefill -= victim.share
            self.attention -= attention(victim.share, victim.computed)


class Scheduler:
    """Queues, KV cache and rules; knows nothing of time but when a waiting sequence is ready."""

    def __init__(self, settings: EngineSettings, kv_tokens: int | None) -> None:
        size = settings.block_size
        blocks = UNLIMITED_BLOCKS if kv_tokens is None else kv_tokens // size
        self.settings = settings
        self.kv = KvCache(blocks)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []  # sorted by rank
        self.preemptions = 0
        self.lookup_tokens = 0
        self.hit_tokens = 0
        self.settled_tokens = 0  # computed for sequences that have ended
        self.lost_tokens = 0  # computed, then thrown away by a preemption
        self._watermark = int(settings.watermark * blocks)
        self._arrivals = 0
        self._returns = 0
        self._aborts = False
        if (blocks - self._watermark) * size < settings.max_model_len:
            raise ValueError(
                f"To serve at least one request with the model's max seq len ({settings.max_model_len}), more KV cache"
                f" is needed than the {blocks * size} tokens of this profile; lower"
                f" {'--context-length' if settings.variant == 'sglang' else '--max-model-len'}"
            )

    @property
    def step_tokens(self) -> int:
        """The most tokens a step may have."""
        return self.settings.max_num_batched_tokens

    def enqueue(self, sequence: Sequence) -> None:
        """Put an arrival into the waiting queue."""
        self._arrivals += 1
        priority = sequence.priority if self.settings.scheduling_policy == "priority" else 0
        sequence.rank = (priority, self._arrivals)
        self._wait(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take the sequence out at the next step."""
        sequence.aborted = True
        self._aborts = True

    def schedule(self, now: float) -> Batch:
        """The batch of the step that begins at `now`; empty if nothing can run."""
        if self._aborts:
            self._drop_aborted()
        cap = self._cap()
        batch = Batch()
        budget = self._continue_running(batch, cap)
        if not batch.preempted and self.waiting:
            self._admit_waiting(batch, budget, cap, now)
        return batch

    def finish(self, sequence: Sequence) -> None:
        """The sequence has its last token: give its blocks back. The caller takes it off `running`."""
        sequence.state = State.FINISHED
        self.settled_tokens += sequence.computed - sequence.hit
        self._give_back(sequence)

    def drop_finished(self) -> None:
        """Take the ended ones off the running list."""
        self.running = [sequence for sequence in self.running if sequence.state is State.RUNNING]

    def _cap(self) -> int:
        settings = self.settings
        alone = len(self.running) + len(self.waiting) == 1
        cap = 0 if alone and not settings.cap_when_alone else settings.long_prefill_token_threshold
        return cap or settings.max_num_batched_tokens

    def _continue_running(self, batch: Batch, cap: int) -> int:
        """Serve the running list in order; returns the budget left."""
        budget = self.settings.max_num_batched_tokens
        context = 0
        decodes, preempted = batch.decodes, batch.preempted
        for sequence in self.running.copy():
            if budget <= 0:
                break
            if preempted and sequence.state is not State.RUNNING:
                continue
            if sequence.decoding:
                known = sequence.known
                if known >= sequence.grows_at and not self._grow(sequence, known, batch):
                    break
                if preempted:  # they had shares in this step
                    budget = self.settings.max_num_batched_tokens - batch.tokens
                decodes.append(sequence)
                context += known
                budget -= 1
                continue
            share = min(sequence.known - sequence.computed, cap, budget)
            if not self._grow(sequence, sequence.computed + share, batch):
                break
            budget = self.settings.max_num_batched_tokens - batch.tokens - share
            batch.add_chunk(sequence, share)
        batch.context = sum(sequence.known for sequence in decodes) if preempted else context
        return budget

    def _admit_waiting(self, batch: Batch, budget: int, cap: int, now: float) -> None:
        settings, waiting, running = self.settings, self.waiting, self.running
        while waiting and budget > 0 and len(running) < settings.max_num_seqs and waiting[0].ready_s <= now:
            sequence = waiting[0]
            hits = self._lookup(sequence)
            computed = len(hits) * settings.block_size
            share = min(sequence.known - computed, cap, budget)
            if not self._fits(sequence, hits, computed + share):
                return
            del waiting[0]
            self._admit(sequence, hits)
            self._extend(sequence, computed + share)
            batch.add_chunk(sequence, share)
            budget -= share

    def _lookup(self, sequence: Sequence) -> list[int]:
        if not (self.settings.enable_prefix_caching and sequence.reads_cache):
            return []
        return self.kv.match(sequence.hashes, (sequence.known - 1) // self.settings.block_size)

    def _fits(self, sequence: Sequence, hits: list[int], end: int) -> bool:
        tokens = sequence.known if self.settings.scheduler_reserve_full_isl else end
        fresh = -(-tokens // self.settings.block_size) - len(hits)
        return fresh + self.kv.idle_among(hits) <= self.kv.free - self._watermark

    def _admit(self, sequence: Sequence, hits: list[int]) -> None:
        self.kv.claim(hits)
        sequence.blocks = hits
        sequence.published = len(hits)
        sequence.computed = len(hits) * self.settings.block_size
        sequence.hit = sequence.computed
        sequence.state = State.RUNNING
        if sequence.cached is None:
            sequence.cached = sequence.computed
            if self.settings.enable_prefix_caching and sequence.reads_cache:
                self.lookup_tokens += sequence.known
                self.hit_tokens += sequence.computed
        self.running.append(sequence)

    def _grow(self, sequence: Sequence, end: int, batch: Batch) -> bool:
        """Blocks up to `end`, preempting others for them; False if the sequence itself had to go."""
        while self._missing(sequence, end) > self.kv.free:
            victim = self._victim()
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        self._extend(sequence, end)
        return True

    def _missing(self, sequence: Sequence, end: int) -> int:
        return max(0, -(-end // self.settings.block_size) - len(sequence.blocks))

    def _extend(self, sequence: Sequence, end: int) -> None:
        """Take the blocks up to `end`, and put those it fills into the prefix table."""
        missing = self._missing(sequence, end)
        if missing:
            sequence.blocks += self.kv.take(missing)
            sequence.capacity = len(sequence.blocks) * self.settings.block_size
        if sequence.published < len(sequence.hashes):
            self._publish(sequence, end)
        sequence.grows_at = sequence.capacity + (sequence.published >= len(sequence.hashes))

    def _victim(self) -> Sequence:
        if self.settings.scheduling_policy == "priority":
            return max(self.running, key=_rank)
        return self.running[-1]

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        self.running.remove(victim)
        batch.drop(victim)
        self.lost_tokens += victim.computed - victim.hit
        self._give_back(victim)
        victim.state = State.WAITING
        victim.computed = victim.hit = 0
        victim.decoding = False
        victim.preemptions += 1
        self.preemptions += 1
        self._rank_again(victim)
        self._wait(victim)

    def _wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_rank)

    def _rank_again(self, victim: Sequence) -> None:
        """Where a preempted sequence waits: at the head of the queue, or by its priority."""
        if self.settings.scheduling_policy != "priority":
            self._returns += 1
            victim.rank = (-1, -self._returns)

    def _publish(self, sequence: Sequence, end: int) -> None:
        """Put the blocks that `end` tokens fill into the prefix table."""
        full = min(end // self.settings.block_size, len(sequence.hashes))
        if self.settings.enable_prefix_caching:
            for index in range(sequence.published, full):
                self.kv.publish(sequence.blocks[index], sequence.hashes[index])
        sequence.published = max(full, end // self.settings.block_size)

    def _give_back(self, sequence: Sequence) -> None:
        self.kv.release(sequence.blocks)
        sequence.blocks = []
        sequence.published = sequence.capacity = sequence.grows_at = 0

    def _drop_aborted(self) -> None:
        for sequence in [*self.running, *self.waiting]:
            if sequence.aborted:
                sequence.state = State.ABORTED
                self.settled_tokens += sequence.computed - sequence.hit
                self._give_back(sequence)
        self.running = [sequence for sequence in self.running if not sequence.aborted]
        self.waiting = [sequence for sequence in self.waiting if not sequence.aborted]
        self._aborts = False

    def computed_tokens(self) -> int:
        """Tokens that went through steps so far, from the sequences' point of view."""
        running = sum(sequence.computed - sequence.hit for sequence in self.running)
        return self.settled_tokens + self.lost_tokens + running

    def check(self, batch: Batch | None) -> None:
        """Raise `InvariantError` if a rule above is broken."""
        self.kv.check()
        if len(self.running) > self.settings.max_num_seqs:
            raise InvariantError(f"{len(self.running)} running, {self.settings.max_num_seqs} allowed")
        if batch is not None and batch.tokens > self.step_tokens:
            raise InvariantError("a step took more tokens than its budget")
        if [entry.rank for entry in self.waiting] != sorted(entry.rank for entry in self.waiting):
            raise InvariantError("the waiting queue is out of order")
        for sequence in self.running:
            self._check_running(sequence)
        if any(sequence.blocks or sequence.state is not State.WAITING for sequence in self.waiting):
            raise InvariantError("a waiting sequence holds blocks")

    def _check_running(self, sequence: Sequence) -> None:
        held = len(sequence.blocks) * self.settings.block_size
        if sequence.state is not State.RUNNING:
            raise InvariantError(f"{sequence.id} runs in state {sequence.state}")
        if not sequence.computed <= sequence.known == sequence.prompt_tokens + sequence.generated:
            raise InvariantError(f"{sequence.id}: {sequence.computed} computed of {sequence.known} known")
        if held < sequence.computed:
            raise InvariantError(f"{sequence.id} has {held} tokens of blocks for {sequence.computed} computed")
        if sequence.cached is None or sequence.cached >= sequence.known:
            raise InvariantError(f"{sequence.id} hit its whole prompt")


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
