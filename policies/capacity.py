"""How long one engine step takes: the physics behind the engine model and, later, the sizing advisor.

A step runs N decodes with C context tokens between them, and prefill chunks i of p_i tokens behind ctx_i computed
ones, P = sum of p_i. With A = sum of p_i * (ctx_i + p_i / 2):

    T = t0 + (Tw^4 + ((N + P) c)^4)^(1/4) + k C + a A + s N + x (N + P)

Reading the weights (Tw) and the matrix products (c) overlap, so the larger of the two dominates: the fourth-power
mean. A decode pays k for each token of its context and is never a one-token prefill (k is 12 a on a 70B model).
Constants are fitted on NVIDIA's published TensorRT-LLM throughput tables (docs/source/performance/perf-overview.md);
TP4 and TP8 are extrapolated from TP2 and good for +-25 %.
"""

from dataclasses import dataclass

SEQUENCE_S = 4.96e-6
WEIGHT_BANDWIDTH_RATIO = 0.606
KV_BANDWIDTH_RATIO = 0.912
MATMUL_RATIO = 0.535
ATTENTION_RATIO = 0.425
STEP_S = 0.985e-3
LAYER_S = 3.33e-6
ALL_REDUCE_S = 23.5e-6
LINK_BYTES_PER_S = 315e9  # a ring all-reduce at 70 % of NVLink's 450 GB/s
ATTENTION_FLOPS_PER_S = 989e12  # attention runs in bf16 whatever the weights are


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """The coefficients of T for one model on one set of GPUs, in seconds."""

    fixed_s: float
    weights_s: float
    token_s: float
    link_s: float
    context_s: float
    attention_s: float
    sequence_s: float = SEQUENCE_S

    def step_s(self, decodes: int, context: int, prefill: int, attention: float) -> float:
        """T for `decodes` sequences over `context` tokens in all, beside `prefill` tokens of weight `attention`."""
        tokens = decodes + prefill
        matrices: float = (self.weights_s**4 + (tokens * self.token_s) ** 4) ** 0.25
        reads = self.context_s * context + self.attention_s * attention
        return self.fixed_s + matrices + reads + self.sequence_s * decodes + self.link_s * tokens

    def prefill_s(self, tokens: int, computed: int = 0) -> float:
        """A step with nothing in it but one chunk of `tokens` behind `computed` ones."""
        return self.step_s(0, 0, tokens, attention(tokens, computed))


def attention(tokens: int, computed: int) -> float:
    """A of one prefill chunk: each token looks at all before it, inside and before the chunk."""
    return tokens * (computed + tokens / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Memory in bytes and bytes/s, dense matrix throughput in FLOP/s."""

    memory: float
    bandwidth: float
    fp8_flops: float = 1979e12
    bf16_flops: float = 989e12


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder: `linear` and `vocabulary` count parameters (one embedding or head matrix)."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    linear: float
    vocabulary: float

    @property
    def width(self) -> int:
        """Size of the hidden state."""
        return self.heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is laid out: GPUs that share each layer, bytes per weight, bytes per KV number."""

    gpus: int
    weight_bytes: int
    kv_bytes: int


H100 = Gpu(memory=80e9, bandwidth=3.35e12)
H200 = Gpu(memory=141e9, bandwidth=4.8e12)
LLAMA_70B = ModelShape(layers=80, heads=64, kv_heads=8, head_size=128, linear=68.45e9, vocabulary=1.05e9)
LLAMA_8B = ModelShape(layers=32, heads=32, kv_heads=8, head_size=128, linear=6.98e9, vocabulary=0.53e9)


def derive(shape: ModelShape, gpu: Gpu, layout: Layout) -> StepModel:
    """The coefficients that the constants above give for this model on this hardware."""
    gpus = layout.gpus
    flops = gpu.fp8_flops if layout.weight_bytes == 1 else gpu.bf16_flops
    weights = shape.linear * layout.weight_bytes + 2 * shape.vocabulary
    reduces = 2 * shape.layers * ALL_REDUCE_S if gpus > 1 else 0.0
    return StepModel(
        fixed_s=STEP_S + LAYER_S * shape.layers + reduces,
        weights_s=weights / (gpus * gpu.bandwidth * WEIGHT_BANDWIDTH_RATIO),
        token_s=2 * shape.linear / (gpus * flops * MATMUL_RATIO),
        link_s=8 * shape.layers * shape.width * (gpus - 1) / gpus / LINK_BYTES_PER_S,
        context_s=kv_bytes_per_token(shape, layout) / (gpus * gpu.bandwidth * KV_BANDWIDTH_RATIO),
        attention_s=4 * shape.layers * shape.width / (gpus * ATTENTION_FLOPS_PER_S * ATTENTION_RATIO),
    )


def kv_bytes_per_token(shape: ModelShape, layout: Layout) -> int:
    """Keys and values of one token over all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * layout.kv_bytes


def kv_tokens(shape: ModelShape, gpu: Gpu, layout: Layout, usable: float = 0.9, reserve: float = 3e9) -> int:
    """Tokens that fit beside the weights: `usable` share of each GPU's memory, less `reserve` bytes of it."""
    weights = shape.linear * layout.weight_bytes + 2 * 2 * shape.vocabulary
    room = (usable * gpu.memory - reserve) * layout.gpus - weights
    return int(room / kv_bytes_per_token(shape, layout))
