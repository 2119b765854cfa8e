"""What SGLang's scheduler does beside its steps: who leaves a full queue, and how it tells of its cache."""

from typing import Any

from loadgen.sim.engine import EngineModel
from loadgen.sim.sequence import Sequence


def victim(model: EngineModel, newcomer: Sequence) -> Sequence | None:
    """The least important and newest of those that wait, if the newcomer is more important."""
    if model.settings.scheduling_policy != "priority":
        return None
    last = next((sequence for sequence in reversed(model.waiting) if not sequence.aborted), None)
    return last if last is not None and last.priority < newcomer.priority else None


def kv_batch(time_s: float, events: list[dict[str, Any]]) -> list[Any]:
    """The payload of a message: time and events, each the values of its fields in order, its name first."""
    return [time_s, [_positional(event) for event in events]]


def _positional(event: dict[str, Any]) -> list[Any]:
    fields = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
    return [event[field] for field in fields if field in event]
