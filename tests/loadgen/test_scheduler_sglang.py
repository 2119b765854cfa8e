"""The `sglang` variant: prefill first, what is admitted, what is retracted, what is shared (scheduling.md 2.4)."""

import pytest

from loadgen.sim.engine import EngineModel
from loadgen.sim.profile import EngineSettings, Profile, load
from loadgen.sim.scheduler_sglang import PrefillFirst
from loadgen.sim.sequence import Sequence, State


def engine(kv_tokens: int = 16_000, **flags: object) -> EngineModel:
    settings = {"variant": "sglang", "chunked_prefill_size": 1024, "max_num_seqs": 64, "max_model_len": 4096, **flags}
    step = load("llama8b-fp8-h100").step
    profile = Profile(name="p", model="m", step=step, kv_tokens=kv_tokens, max_model_len=4096)
    return EngineModel(profile, EngineSettings(**settings))  # type: ignore[arg-type]


def rules(model: EngineModel) -> PrefillFirst:
    assert isinstance(model.scheduler, PrefillFirst)
    return model.scheduler


def ask(model: EngineModel, name: str, prompt: int, output: int = 50, text: int | None = None) -> Sequence:
    hashes = () if text is None else range(text << 20, (text << 20) + prompt // 16)
    sequence = Sequence(name, prompt_tokens=prompt, output_tokens=output, hashes=hashes)
    sequence.max_new_tokens = output
    model.submit(sequence, 0.0)
    return sequence


def step(model: EngineModel, now: float = 0.0) -> tuple[list[str], int, int]:
    """One step: who got a token, decodes and prefill tokens of the batch."""
    assert model.begin(now) is not None
    batch = model._batch
    assert batch is not None
    model.check()
    decodes, prefill = len(batch.decodes), batch.prefill
    given = [sequence.id for sequence in model.end()]
    model.check()
    return given, decodes, prefill


def test_a_lone_request_starts_at_once_and_ends() -> None:
    model = engine()
    ask(model, "a", 100, output=3)
    assert step(model) == (["a"], 0, 100)
    assert step(model) == (["a"], 1, 0)
    assert step(model) == (["a"], 1, 0)
    assert model.finished == 1
    assert model.begin(1.0) is None


def test_decodes_stand_still_while_anything_can_be_prefilled() -> None:
    model = engine()
    ask(model, "a", 100)
    step(model)
    ask(model, "b", 2500)
    assert step(model) == ([], 0, 1024)
    assert step(model) == ([], 0, 1024)
    assert step(model) == (["b"], 0, 452)
    assert step(model) == (["a", "b"], 2, 0)


def test_mixed_chunks_take_the_decodes_along() -> None:
    model = engine(enable_mixed_chunk=True)
    ask(model, "a", 100)
    step(model)
    ask(model, "b", 2500)
    assert step(model) == (["a"], 1, 1023)
    assert step(model) == (["a"], 1, 1023)
    assert step(model) == (["a", "b"], 1, 454)


def test_one_sequence_is_partly_prefilled_and_goes_first() -> None:
    model = engine()
    for name, prompt in (("a", 600), ("b", 600), ("c", 600)):
        ask(model, name, prompt)
    assert step(model) == (["a"], 0, 1024)  # a, and 424 of b
    assert step(model) == (["b", "c"], 0, 776)  # the rest of b, and c


def test_prefill_tokens_bound_a_batch_but_not_its_first_sequence() -> None:
    model = engine(max_prefill_tokens=500)
    ask(model, "a", 600)
    ask(model, "b", 100)
    assert step(model) == (["a"], 0, 600)
    assert step(model) == (["b"], 0, 100)


def test_one_batch_shares_nothing_and_the_next_shares_what_ran() -> None:
    model = engine()
    first, second = ask(model, "a", 400, text=1), ask(model, "b", 400, text=1)
    assert step(model)[2] == 800
    third = ask(model, "c", 400, text=1)
    assert step(model)[2] == 16  # at most 399 tokens hit, in whole blocks
    assert (first.cached, second.cached, third.cached) == (0, 0, 384)


def test_a_chunk_is_found_after_it_ran() -> None:
    model = engine()
    ask(model, "a", 1500, text=1)
    step(model)
    late = ask(model, "b", 1500, text=1)
    assert step(model)[2] == 952  # what is left of each
    assert late.cached == 1024


def test_admission_counts_what_is_still_to_come() -> None:
    model = engine(kv_tokens=4096)
    ask(model, "a", 1000, output=1500)
    step(model)
    ask(model, "b", 1000, output=1000)
    # 3,088 tokens free, 1,499 x 0.7 expected of a; b takes 1,000 and might take 1,000 more
    assert step(model) == (["b"], 0, 1000)
    ask(model, "c", 600, output=50)
    assert step(model)[0] == ["a", "b"]  # 2,080 free, 1,049 + 700 expected: c has to wait


def test_no_one_overtakes_the_head_of_the_queue() -> None:
    model = engine(kv_tokens=4096)
    ask(model, "a", 1000, output=3000)
    step(model)
    ask(model, "b", 1000, output=3000)
    ask(model, "c", 10, output=1)
    assert step(model) == (["a"], 1, 0)
    assert [sequence.id for sequence in model.waiting] == ["b", "c"]


def test_the_ratio_falls_with_decode_steps_and_starts_anew_when_idle() -> None:
    model = engine()
    ask(model, "a", 10, output=1000)
    step(model)
    assert rules(model).new_token_ratio == 0.7
    for _ in range(300):
        step(model)
    assert rules(model).new_token_ratio == pytest.approx(0.7 * (1 + 0.14) / 2)
    for _ in range(699):
        step(model)
    assert rules(model).new_token_ratio == pytest.approx(0.098)
    assert model.finished == 1
    ask(model, "b", 10)
    assert rules(model).new_token_ratio == 0.7


def test_who_has_generated_least_is_retracted_and_waits_at_the_tail() -> None:
    model = engine(kv_tokens=4096, schedule_conservativeness=0.01)
    old, long = ask(model, "old", 1000, output=1900), ask(model, "long", 1024, output=1500)
    rules(model).new_token_ratio = rules(model)._least_ratio
    while long.state is State.RUNNING or long.generated == 0:
        step(model)
    assert long.state is State.WAITING
    assert (long.preemptions, old.preemptions) == (1, 0)
    assert rules(model).new_token_ratio > 0.3  # what old really generated, of what it was told
    ask(model, "new", 1000, output=900)
    assert [sequence.id for sequence in model.waiting] == ["long", "new"]
    while model.running or model.waiting:
        step(model)
    assert model.finished == 3


def test_ties_cost_the_longest_prompt() -> None:
    model = engine(kv_tokens=4096, chunked_prefill_size=4096)
    asked = {name: ask(model, name, prompt, output=1200) for name, prompt in (("a", 600), ("b", 1400), ("c", 800))}
    for sequence in asked.values():
        sequence.max_new_tokens = 100  # wrong, so all of them are admitted
    assert step(model) == (["a", "b", "c"], 0, 2800)
    while not model.scheduler.preemptions:
        step(model)
    assert [name for name, sequence in asked.items() if sequence.preemptions] == ["b"]


def test_there_are_two_variants() -> None:
    with pytest.raises(ValueError, match="neither vllm nor sglang"):
        EngineSettings(variant="trtllm")
