"""The engine servers that can be simulated."""

from loadgen.engine_server.sglang import SGLANG
from loadgen.engine_server.vllm import VLLM

DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
