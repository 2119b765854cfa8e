"""The engine's scheduler, rule by rule (scheduling.md 2.3); invariants after every step."""

import pytest

from loadgen.sim.engine import EngineModel, QueueFull
from loadgen.sim.kv import InvariantError
from loadgen.sim.profile import EngineSettings, Profile, load
from loadgen.sim.sequence import Sequence, State
from policies.capacity import StepModel

FLAT = StepModel(
    fixed_s=1.0, weights_s=0.0, token_s=0.0, link_s=0.0, context_s=0.0, attention_s=0.0, sequence_s=0.0
)  # every step takes a second


def engine(kv_tokens: int | None = None, **flags: object) -> EngineModel:
    profile = Profile(name="flat", model="flat", step=FLAT, kv_tokens=kv_tokens, max_model_len=4096)
    defaults: dict[str, object] = {"max_num_batched_tokens": 100, "max_num_seqs": 8, "max_model_len": 4096}
    if kv_tokens is not None:
        defaults["max_model_len"] = kv_tokens
    return EngineModel(profile, EngineSettings(**(defaults | flags)))  # type: ignore[arg-type]


def sequence(name: str, prompt: int, output: int = 10, text: int | None = None, priority: int = 0) -> Sequence:
    """`text` numbers a prompt: equal numbers share their whole chain."""
    base = (sum(name.encode()) if text is None else text) << 20
    chain = range(base, base + (prompt + output) // 16)
    return Sequence(name, prompt_tokens=prompt, output_tokens=output, hashes=chain, priority=priority)


def submit(model: EngineModel, *sequences: Sequence, now: float = 0.0) -> None:
    for entry in sequences:
        model.submit(entry, now)


def step(model: EngineModel, now: float = 0.0) -> dict[str, int]:
    """One checked step: the tokens each sequence had in it."""
    before = {entry.id: entry.computed for entry in model.running}
    assert model.begin(now) is not None
    model.check()
    hits = {entry.id: entry.hit for entry in model.running}
    running = list(model.running)
    model.end()
    model.check()
    return {
        entry.id: entry.computed - before.get(entry.id, hits.get(entry.id, 0))
        for entry in running
        if entry.computed != before.get(entry.id, hits.get(entry.id, 0))
    }


def finish(model: EngineModel, now: float = 0.0) -> float:
    while (end := model.begin(now)) is not None:
        model.check()
        now = end
        model.end()
        model.check()
    return now


# --- rules 1 to 4: budget, cap, order ---


def test_a_running_prefill_keeps_the_budget_until_its_last_chunk() -> None:
    model = engine()
    submit(model, sequence("long", 250), sequence("short", 30))
    assert step(model) == {"long": 100}
    assert step(model) == {"long": 100}
    assert step(model) == {"long": 50, "short": 30}
    assert step(model) == {"long": 1, "short": 1}


def test_decodes_admitted_earlier_come_before_a_prefill() -> None:
    model = engine()
    submit(model, sequence("first", 10))
    step(model)
    submit(model, sequence("long", 300))
    assert step(model) == {"first": 1, "long": 99}


def test_with_a_cap_long_prefills_run_side_by_side() -> None:
    model = engine(long_prefill_token_threshold=40)
    submit(model, sequence("a", 200), sequence("b", 200), sequence("c", 200))
    assert step(model) == {"a": 40, "b": 40, "c": 20}
    assert step(model) == {"a": 40, "b": 40, "c": 20}


def test_a_decode_admitted_behind_capped_prefills_can_wait() -> None:
    model = engine(long_prefill_token_threshold=40)
    submit(model, sequence("a", 200), sequence("b", 200), sequence("c", 5))
    assert step(model) == {"a": 40, "b": 40, "c": 5}
    submit(model, sequence("d", 200))
    assert step(model) == {"a": 40, "b": 40, "c": 1, "d": 19}
    full = engine(long_prefill_token_threshold=50)
    submit(full, sequence("a", 49, output=2), sequence("b", 200), sequence("c", 1, output=50))
    step(full)  # 49 + 50 + 1
    submit(full, sequence("d", 200))
    assert step(full) == {"a": 1, "b": 50, "c": 1, "d": 48}


@pytest.mark.parametrize(("cap_when_alone", "first"), [(False, 100), (True, 40)])
def test_the_cap_spares_a_request_that_is_alone(cap_when_alone: bool, first: int) -> None:
    model = engine(long_prefill_token_threshold=40, cap_when_alone=cap_when_alone)
    submit(model, sequence("alone", 200))
    assert step(model) == {"alone": first}
    submit(model, sequence("other", 200))
    assert step(model)["alone"] == 40


def test_the_waiting_queue_is_never_skipped() -> None:
    model = engine(kv_tokens=320)
    submit(model, sequence("big", 200, output=40), sequence("huge", 250), sequence("small", 16, output=1))
    step(model)
    step(model)
    assert step(model) == {"big": 1}  # huge does not fit, and small stays behind it
    assert [entry.id for entry in model.waiting] == ["huge", "small"]


def test_no_more_run_than_max_num_seqs() -> None:
    model = engine(max_num_seqs=2)
    submit(model, *(sequence(name, 5) for name in "abc"))
    assert step(model) == {"a": 5, "b": 5}


def test_the_whole_prompt_must_fit_above_the_watermark() -> None:
    strict = engine(kv_tokens=320, watermark=0.2, max_model_len=256)
    submit(strict, sequence("a", 130), sequence("b", 130))
    step(strict)
    assert step(strict) == {"a": 30}  # 11 of 20 blocks are free, 4 of them under the watermark, b needs 9
    loose = engine(kv_tokens=320, watermark=0.2, max_model_len=256, scheduler_reserve_full_isl=False)
    submit(loose, sequence("a", 130), sequence("b", 130))
    step(loose)
    assert step(loose) == {"a": 30, "b": 70}


def test_a_queue_bound_refuses_with_its_name() -> None:
    model = engine(max_num_queued_reqs=2)
    submit(model, sequence("a", 5), sequence("b", 5))
    with pytest.raises(QueueFull, match="max_num_queued_reqs"):
        submit(model, sequence("c", 5))
    tokens = engine(max_num_queued_tokens=100)
    submit(tokens, sequence("a", 60))
    with pytest.raises(QueueFull, match="max_num_queued_tokens"):
        submit(tokens, sequence("b", 60))


# --- rule 5: preemption ---


def test_growth_preempts_the_last_running_sequence_to_the_head_of_the_queue() -> None:
    model = engine(kv_tokens=96, max_num_seqs=2)  # 6 blocks
    first, last = sequence("first", 32, output=60), sequence("last", 32, output=60)
    later = sequence("later", 16)
    submit(model, first, last)
    while not last.preemptions:
        step(model)
        if model.steps == 5:
            submit(model, later)
    assert last.state is State.WAITING
    assert last.computed == 0
    assert [entry.id for entry in model.waiting] == ["last", "later"]
    assert first.preemptions == 0
    finish(model)
    assert (first.generated, last.generated, later.generated) == (60, 60, 10)


def test_a_preempted_sequence_recomputes_prompt_and_answer_less_what_is_cached() -> None:
    model = engine(kv_tokens=96)
    first, last = sequence("first", 32, output=40), sequence("last", 32, output=40)
    submit(model, first, last)
    while not last.preemptions:
        step(model)
    known = last.known
    while last.state is State.WAITING:
        step(model)
    assert last.known == known + 1  # one prefill over all of it, then the next token
    assert 0 < last.hit < known
    assert last.cached == 0  # what the client is told is the first admission


def test_with_policy_priority_the_least_important_is_preempted_even_if_it_came_first() -> None:
    model = engine(kv_tokens=96, scheduling_policy="priority")
    meek, proud = sequence("meek", 32, output=60, priority=5), sequence("proud", 32, output=60, priority=0)
    submit(model, meek, proud)
    while not model.scheduler.preemptions:
        step(model)
    assert (meek.preemptions, proud.preemptions) == (1, 0)
    finish(model)
    assert (meek.generated, proud.generated) == (60, 60)


def test_policy_priority_admits_low_numbers_first() -> None:
    model = engine(max_num_seqs=1, scheduling_policy="priority")
    submit(model, sequence("a", 5, output=1, priority=3), sequence("b", 5, output=1), sequence("c", 5, priority=-1))
    assert step(model) == {"c": 5}
    fcfs = engine(max_num_seqs=1)
    submit(fcfs, sequence("a", 5, priority=3), sequence("b", 5))
    assert step(fcfs) == {"a": 5}


# --- rules 6 and 7: prefix cache ---


def test_a_repeated_prompt_hits_all_but_its_last_block() -> None:
    model = engine()
    submit(model, sequence("one", 64, output=1, text=1))
    finish(model)
    again, longer = sequence("again", 64, output=1, text=1), sequence("longer", 70, output=1, text=1)
    submit(model, again, longer)
    finish(model)
    assert again.cached == 48  # 64 - 1, rounded down to a block
    assert longer.cached == 64


def test_an_answer_is_found_when_it_comes_back_as_history() -> None:
    model = engine()
    submit(model, sequence("turn 1", 40, output=41, text=1))
    finish(model)
    second = sequence("turn 2", 100, text=1)
    submit(model, second)
    step(model)
    assert second.cached == 80  # the last token of the answer was never computed


def test_no_cache_no_hit() -> None:
    for model, reads in ((engine(enable_prefix_caching=False), True), (engine(), False)):
        submit(model, sequence("one", 64, output=1, text=1))
        finish(model)
        again = sequence("again", 64, output=1, text=1)
        again.reads_cache = reads
        submit(model, again)
        finish(model)
        assert again.cached == 0


def test_a_waiting_request_hits_blocks_scheduled_in_the_same_step() -> None:
    model = engine(max_num_batched_tokens=300)
    submit(model, sequence("leader", 128, text=1), sequence("follower", 128, text=1))
    assert step(model) == {"leader": 128, "follower": 16}


def test_without_a_cap_one_cold_prefix_is_computed_once() -> None:
    model = engine(max_num_batched_tokens=64)
    sequences = [sequence(str(number), 512, output=1, text=1) for number in range(4)]
    submit(model, *sequences)
    finish(model)
    assert [entry.cached for entry in sequences] == [0, 496, 496, 496]


def test_with_a_cap_requests_of_one_cold_prefix_recompute_each_others_chunks() -> None:
    model = engine(max_num_batched_tokens=64, long_prefill_token_threshold=16)
    sequences = [sequence(str(number), 512, output=1, text=1) for number in range(4)]
    submit(model, *sequences)
    finish(model)
    assert [entry.cached for entry in sequences] == [0, 16, 32, 48]
    assert model.scheduled_tokens > 3 * 450


# --- rule 8 and the clock ---


def test_an_abort_frees_its_blocks_at_the_next_step_and_gives_nothing_more() -> None:
    model = engine(kv_tokens=1600)
    gone, stays, queued = sequence("gone", 50), sequence("stays", 20), sequence("queued", 500)
    submit(model, gone, stays, queued)
    model.begin(0.0)
    model.abort(gone)
    model.abort(queued)
    held = model.scheduler.kv.referenced
    assert [entry.id for entry in model.end()] == ["stays"]
    model.check()
    assert model.scheduler.kv.referenced == held
    assert step(model) == {"stays": 1}
    assert model.scheduler.kv.referenced == 2
    assert gone.state is queued.state is State.ABORTED
    model.abort(gone)
    assert model.aborted == 2


def test_an_idle_engine_starts_a_lone_request_in_the_same_instant() -> None:
    model = engine()
    assert model.begin(3.0) is None
    submit(model, sequence("lone", 10), now=7.25)
    assert model.ready_at() == 7.25
    assert model.begin(7.25) == 8.25


def test_a_request_that_comes_after_a_step_began_is_not_in_it() -> None:
    model = engine()
    submit(model, sequence("a", 10), now=0.0)
    submit(model, sequence("b", 10), now=0.5)
    assert step(model, now=0.0) == {"a": 10}
    assert step(model, now=1.0) == {"a": 1, "b": 10}


def test_request_overhead_delays_scheduling() -> None:
    profile = Profile(name="p", model="m", step=FLAT, kv_tokens=None, max_model_len=100, request_overhead_ms=15)
    model = EngineModel(profile, EngineSettings(max_model_len=100))
    submit(model, sequence("a", 10), now=1.0)
    assert model.begin(1.0) is None
    assert model.ready_at() == pytest.approx(1.015)
    assert model.begin(1.015) is not None


def test_a_decode_is_priced_by_its_context_and_never_as_a_prefill() -> None:
    profile = load("llama70b-fp8-h200-tp2")
    model = EngineModel(profile, EngineSettings(max_model_len=8192))
    submit(model, sequence("a", 1024))
    now = model.begin(0.0) or 0.0
    model.end()
    end = model.begin(now) or 0.0
    assert end - now == pytest.approx(profile.step.step_s(1, 1025, 0, 0.0))


def test_adding_work_never_shortens_a_step() -> None:
    step_s = load("llama70b-fp8-h200-tp2").step.step_s
    for decodes in (1, 16, 256):
        for prefill in (0, 64, 2048):
            base = step_s(decodes, decodes * 500, prefill, prefill * 100.0)
            assert step_s(decodes + 1, decodes * 500 + 1, prefill, prefill * 100.0) > base
            assert step_s(decodes, decodes * 500, prefill + 1, prefill * 100.0 + 1) > base


def test_a_profile_too_small_for_its_context_is_refused() -> None:
    with pytest.raises(ValueError, match="max seq len"):
        engine(kv_tokens=160, max_model_len=4096)


def test_beginning_twice_is_an_error() -> None:
    model = engine()
    submit(model, sequence("a", 10))
    model.begin(0.0)
    with pytest.raises(InvariantError):
        model.begin(0.0)
