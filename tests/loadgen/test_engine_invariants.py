"""The engine model under a random load, checked after every step (scheduling.md 2.6); and its profile files."""

from pathlib import Path
from random import Random

import pytest

from loadgen.sim.engine import EngineModel
from loadgen.sim.profile import EngineSettings, Profile, ProfileError, load, names
from loadgen.sim.sequence import Sequence, State


@pytest.mark.parametrize("seed", range(6))
def test_invariants_hold_after_every_step_of_a_random_load(seed: int) -> None:
    assert trace(seed) == trace(seed)


@pytest.mark.parametrize("seed", range(6))
def test_invariants_hold_for_sglang_too(seed: int) -> None:
    flags = {"variant": "sglang", "chunked_prefill_size": 128, "enable_mixed_chunk": seed % 2 == 1}
    flags["schedule_conservativeness"] = 0.01
    assert trace(seed, **flags) == trace(seed, **flags)


def trace(seed: int, **more: object) -> list[tuple[float, tuple[str, ...]]]:
    """A random load under KV pressure, checked at every step; what was given out when."""
    random = Random(seed)
    profile = load("llama8b-fp8-h100")
    flags = {**({"scheduling_policy": "priority"} if seed % 2 else {}), **more}
    settings = EngineSettings(
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=1024,
        watermark=0.02,
        long_prefill_token_threshold=(0, 64)[seed % 3 == 0],
        **flags,  # type: ignore[arg-type]
    )
    small = Profile(name="small", model="m", step=profile.step, kv_tokens=2048, max_model_len=1024, jitter_ms=0.1)
    model = EngineModel(small, settings, seed=seed)
    arrivals = sorted((random.uniform(0, 1.5), number) for number in range(60))
    given: list[tuple[float, tuple[str, ...]]] = []
    alive: list[Sequence] = []
    now = 0.0
    while arrivals or model.running or model.waiting:
        end = model.begin(now)
        model.check()
        now = arrivals[0][0] if end is None else end
        while arrivals and arrivals[0][0] <= now:
            at, number = arrivals.pop(0)
            text = random.randrange(12)
            prompt, output, base = random.randint(1, 600), random.randint(1, 200), text << 20
            new = Sequence(
                str(number),
                prompt_tokens=prompt,
                output_tokens=output,
                hashes=range(base, base + (prompt + output) // 16),
                priority=random.randrange(3),
            )
            new.max_new_tokens = output + 20
            alive.append(new)
            model.submit(new, at)
        if random.random() < 0.02 and alive:
            model.abort(random.choice(alive))
        if end is not None:
            given.append((now, tuple(entry.id for entry in model.end())))
            model.check()
    assert model.scheduler.preemptions > 0
    assert model.scheduler.hit_tokens > 0
    assert model.finished + model.aborted == 60
    assert all(entry.state in (State.FINISHED, State.ABORTED) for entry in alive)
    assert model.scheduler.kv.referenced == 0
    assert sum(len(ids) for _, ids in given) == model.generated_tokens
    return given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m", "missing 'kv_tokens'"),
        ("model: m\nstep: {}\nkv_tokens: 1\nmax_model_len: 9\nspeed: 3", "unknown speed"),
        ("model: m\nstep: {t0: 3}\nkv_tokens: 1\nmax_model_len: 9", "unknown t0"),
        ("model: m\nstep: {t0_ms: fast}\nkv_tokens: 1\nmax_model_len: 9", "not a number"),
        ("[1", "while parsing"),
        ("- 1", "not a mapping"),
    ],
)
def test_a_bad_profile_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ProfileError, match=message):
        load(str(file))


def test_an_unknown_profile_names_the_shipped_ones() -> None:
    with pytest.raises(ProfileError, match="llama70b-fp8-h200-tp2"):
        load("llama7b")
    with pytest.raises(ProfileError, match="no profile file"):
        load("absent.yaml")


def test_every_shipped_profile_loads() -> None:
    assert len(names()) == 10
    assert load("noop").kv_tokens is None
    for name in names():
        assert load(name).max_model_len > 0
