"""What kind of engine is simulated: the profile (physics of a model on its GPUs) and the settings (its flags).

Profiles are YAML files, the shipped ones in `loadgen/profiles`, and the only place for such constants. An unknown key
is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from policies.capacity import SEQUENCE_S, StepModel

# Coefficient in a profile file -> field of StepModel and its unit in seconds.
COEFFICIENTS = {
    "t0_ms": ("fixed_s", 1e-3),
    "tw_ms": ("weights_s", 1e-3),
    "c_us": ("token_s", 1e-6),
    "x_us": ("link_s", 1e-6),
    "k_ns": ("context_s", 1e-9),
    "a_ns": ("attention_s", 1e-9),
    "s_us": ("sequence_s", 1e-6),
}
OVERHEADS = ("jitter_ms", "request_overhead_ms", "token_overhead_us", "slow_factor")


class ProfileError(ValueError):
    """A profile that does not exist or does not make sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model on one set of GPUs. `kv_tokens` None means unlimited.

    Serving overheads are off unless the file sets them: `jitter_ms` is the median of a lognormal addition to each
    step, `request_overhead_ms` delays a request before it can be scheduled, `token_overhead_us` lengthens a step for
    each token it gives out, `slow_factor` multiplies every step.
    """

    name: str
    model: str
    step: StepModel
    kv_tokens: int | None
    max_model_len: int
    output_median: float = 150.0
    output_sigma: float = 1.1
    jitter_ms: float = 0.0
    request_overhead_ms: float = 0.0
    token_overhead_us: float = 0.0
    slow_factor: float = 1.0

    def with_fp8_kv(self) -> "Profile":
        """The same engine with one byte per KV number: half the reads, twice the tokens."""
        step = replace(self.step, context_s=self.step.context_s / 2)
        return replace(self, step=step, kv_tokens=self.kv_tokens and self.kv_tokens * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The scheduler's flags under vLLM's names; defaults are vLLM 0.32's for an API server on a large GPU.

    `variant` is vllm or sglang. The last four are SGLang's names and defaults on H100 and H200 and count for it only;
    it takes no notice of the budget of vLLM's step, the cap and the watermark. Policy `priority`: vLLM takes the smallest
    first, SGLang the largest.
    """

    variant: str = "vllm"
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    cap_when_alone: bool = False  # vLLM before 0.32: True
    max_model_len: int = 131072
    block_size: int = 16
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    scheduling_policy: str = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in ("vllm", "sglang"):
            raise ValueError(f"variant {self.variant}: neither vllm nor sglang")


def names() -> list[str]:
    """The shipped profiles."""
    return sorted(entry.name[:-5] for entry in _shipped().iterdir() if entry.name.endswith(".yaml"))


def load(name: str) -> Profile:
    """A shipped profile by name, or the one in the file of that path."""
    path = Path(name)
    if name.endswith((".yaml", ".yml")):
        if not path.is_file():
            raise ProfileError(f"no profile file {name}")
        return _read(path.stem, path.read_text())
    shipped = _shipped() / f"{name}.yaml"
    if "/" in name or not shipped.is_file():
        raise ProfileError(f"no profile {name!r}; shipped are: {', '.join(names())}")
    return _read(name, shipped.read_text())


def _shipped() -> Traversable:
    return files("loadgen") / "profiles"


@lru_cache(maxsize=64)
def _read(name: str, text: str) -> Profile:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProfileError(f"profile {name}: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(f"profile {name}: not a mapping")
    known = {"model", "step", "kv_tokens", "max_model_len", "output", *OVERHEADS}
    _refuse_unknown(name, data, known)
    try:
        return _build(name, data)
    except KeyError as error:
        raise ProfileError(f"profile {name}: missing {error}") from error
    except (TypeError, ValueError) as error:
        raise ProfileError(f"profile {name}: {error}") from error


def _build(name: str, data: Mapping[str, object]) -> Profile:
    output = _mapping(data.get("output", {}))
    _refuse_unknown(f"{name}: output", output, {"median", "sigma"})
    tokens = data["kv_tokens"]
    return Profile(
        name=name,
        model=str(data["model"]),
        step=_step(name, _mapping(data["step"])),
        kv_tokens=None if tokens is None else int(_number(tokens)),
        max_model_len=int(_number(data["max_model_len"])),
        output_median=_number(output.get("median", 150)),
        output_sigma=_number(output.get("sigma", 1.1)),
        **{key: _number(data[key]) for key in OVERHEADS if key in data},
    )


def _step(name: str, data: Mapping[str, object]) -> StepModel:
    _refuse_unknown(f"{name}: step", data, set(COEFFICIENTS))
    values = {field: _number(data[key]) * unit for key, (field, unit) in COEFFICIENTS.items() if key in data}
    return StepModel(**{"sequence_s": SEQUENCE_S, **values})


def _refuse_unknown(where: str, data: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(set(map(str, data)) - known)
    if unknown:
        raise ProfileError(f"profile {where}: unknown {', '.join(unknown)}")


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a mapping")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
