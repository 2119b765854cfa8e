"""What differs between engines, as tables: one row per engine, no logic. Source of every value: engines.md 2, 3, 5 and 8.

A path of None means the engine has no such route. `endpoints[].engine` in the configuration is a key of `ENGINES`.
"""

from collections.abc import Mapping

from gateway.engines.openai import OPENAI
from gateway.engines.row import Engine
from gateway.engines.sglang import SGLANG
from gateway.engines.trtllm import TRTLLM
from gateway.engines.vllm import VLLM

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG, TRTLLM, OPENAI)}

__all__ = ["ENGINES", "Engine"]
