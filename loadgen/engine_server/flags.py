"""The flags of `forebay engine` made into options: which belong to which engine, and what they come to.

Flags keep the names of the engine whose dialect is spoken; a flag of the other one is an error, with the name it has here.
"""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from loadgen.engine_server import kv_events
from loadgen.engine_server.options import EngineOptions
from loadgen.sim.profile import EngineSettings, load

# By flag, as Python spells it: what the other engine calls the same thing, "" where it has none.
VLLM_FLAGS = {
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "long_prefill_token_threshold": "",
    "max_model_len": "context_length",
    "block_size": "page_size",
    "watermark": "",
    "max_num_queued_reqs": "max_queued_requests",
    "max_num_queued_tokens": "",
    "scheduling_policy": "enable_priority_scheduling",
    "shutdown_timeout": "",
    "enable_prompt_tokens_details": "enable_cache_report",
    "enable_prefix_caching": "disable_radix_cache",
    "scheduler_reserve_full_isl": "",
    "disable_uvicorn_access_log": "",
    "disable_fastapi_docs": "",
}
SGLANG_FLAGS = {
    **{sglang: vllm for vllm, sglang in VLLM_FLAGS.items() if sglang},
    **dict.fromkeys(("max_prefill_tokens", "enable_mixed_chunk", "schedule_conservativeness"), ""),
    **dict.fromkeys(("enable_metrics", "decode_log_interval"), ""),
}
OF_THE_OTHER = {"vllm": ("SGLang", SGLANG_FLAGS), "sglang": ("vLLM", VLLM_FLAGS)}
NO_CHUNKS = 1 << 30  # tokens: prompts are not cut (`--chunked-prefill-size -1`)


class FlagError(ValueError):
    """A flag that cannot be; `flag` is its name as it is typed."""

    def __init__(self, flag: str, text: str) -> None:
        super().__init__(text)
        self.flag = flag


def options(values: Mapping[str, Any], given: Set[str], faults: tuple[str, ...]) -> EngineOptions:
    """`values` by flag, `given` those that were typed. Raises FlagError and what the parts raise."""
    dialect = values["dialect"]
    if dialect not in OF_THE_OTHER:
        raise FlagError("--dialect", f"{dialect!r} is not one of {', '.join(OF_THE_OTHER)}")
    _refuse_others(dialect, given)
    _check_kv_dtype(values["kv_cache_dtype"])
    settings = _sglang(values) if dialect == "sglang" else _vllm(values)
    own = _of_sglang(values) if dialect == "sglang" else _of_vllm(values)
    log: Path | None = values["log"]
    return EngineOptions(
        dialect=dialect,
        profile=values["profile"],
        settings=settings,
        host=values["host"],
        port=values["port"],
        count=values["count"],
        control_port=values["control_port"],
        startup_delay_s=values["startup_delay"],
        seed=values["seed"],
        faults=faults,
        markers=values["allow_markers"],
        log=log,
        keep_alive_s=values["keep_alive"],
        stream_interval=values["stream_interval"],
        served_model_name=values["served_model_name"],
        api_key=values["api_key"],
        fp8_kv=values["kv_cache_dtype"].startswith("fp8"),
        kv_events=kv_events.read(values["kv_events_config"]),
        **own,
    )


def typed(flag: str) -> str:
    """A flag as one types it."""
    return "--" + flag.replace("_", "-")


def _refuse_others(dialect: str, given: Set[str]) -> None:
    whose, others = OF_THE_OTHER[dialect]
    for flag, here in others.items():
        if flag in given:
            instead = f"; here it is {typed(here)}" if here else ""
            raise FlagError(typed(flag), f"a flag of {whose}'s, and --dialect is {dialect}{instead}")


def _check_kv_dtype(value: str) -> None:
    if value != "auto" and not value.startswith("fp8"):
        raise FlagError("--kv-cache-dtype", f"{value!r} is not one of auto, fp8, fp8_e4m3, fp8_e5m2")


def _vllm(values: Mapping[str, Any]) -> EngineSettings:
    seqs, policy = values["max_num_seqs"], values["scheduling_policy"]
    if policy not in ("fcfs", "priority"):
        raise FlagError("--scheduling-policy", f"{policy!r} is not one of fcfs, priority")
    if values["max_num_batched_tokens"] < seqs:
        raise FlagError("--max-num-batched-tokens", f"must be at least --max-num-seqs ({seqs})")
    same: tuple[str, ...] = ("max_num_batched_tokens", "long_prefill_token_threshold", "block_size", "watermark")
    same += ("enable_prefix_caching", "scheduler_reserve_full_isl", "max_num_queued_reqs", "max_num_queued_tokens")
    return EngineSettings(
        max_num_seqs=seqs,
        max_model_len=values["max_model_len"] or load(values["profile"]).max_model_len,
        scheduling_policy=policy,
        **{name: values[name] for name in same},
    )


def _of_vllm(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "shutdown_timeout_s": values["shutdown_timeout"],
        "shows_cached": values["enable_prompt_tokens_details"],
    }


def _sglang(values: Mapping[str, Any]) -> EngineSettings:
    chunk = values["chunked_prefill_size"]
    if chunk == 0 or chunk < -1:
        raise FlagError("--chunked-prefill-size", f"{chunk} is neither a number of tokens nor -1")
    same = ("max_prefill_tokens", "enable_mixed_chunk", "schedule_conservativeness")
    return EngineSettings(
        variant="sglang",
        max_num_seqs=values["max_running_requests"],
        chunked_prefill_size=NO_CHUNKS if chunk == -1 else chunk,
        max_model_len=values["context_length"] or load(values["profile"]).max_model_len,
        block_size=values["page_size"],
        enable_prefix_caching=not values["disable_radix_cache"],
        max_num_queued_reqs=values["max_queued_requests"],
        scheduling_policy="priority" if values["enable_priority_scheduling"] else "fcfs",
        **{name: values[name] for name in same},
    )


def _of_sglang(values: Mapping[str, Any]) -> dict[str, Any]:
    """It waits for what runs when it is told to stop, however long that takes."""
    return {
        "shutdown_timeout_s": float("inf"),
        "shows_cached": values["enable_cache_report"],
        "has_metrics": values["enable_metrics"],
        "decode_log_interval": values["decode_log_interval"],
    }
