"""`forebay bench` on a real vLLM: a model of two layers and random weights, on this machine's CPU.

    VLLM=VENV/bin/vllm .venv/bin/python -m pytest -m engine tests/loadgen/test_bench_vllm.py

VENV has vLLM for CPUs (docs/load-testing.md), which brings what makes the model. Says nothing about vLLM's speed.
"""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.processes import ROOT, Child, free_ports, until_async
from tests.kit.raw_client import exchange
from tests.loadgen.benching import bench

VLLM = os.environ.get("VLLM", "")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not VLLM, reason="VLLM names no command `vllm` of an environment for this machine's CPU"),
]
MODEL = """
import sys, pathlib, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
words = Tokenizer(models.BPE())
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
bytes_ = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<s>", "</s>"], initial_alphabet=bytes_)
words.train(sorted(map(str, pathlib.Path(sys.argv[1]).glob("*.md"))), trainer)
made = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
made.chat_template = "<s>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}assistant: "
made.save_pretrained(sys.argv[2])
size = dict(vocab_size=2000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
more = dict(num_key_value_heads=2, head_dim=64, max_position_embeddings=8192, bos_token_id=0, eos_token_id=1)
LlamaForCausalLM(LlamaConfig(**size, **more)).to(torch.bfloat16).save_pretrained(sys.argv[2])
"""
FLAGS = (
    "--served-model-name tiny --host 127.0.0.1 --enforce-eager --max-model-len 8192 --max-num-seqs 32 --block-size 32 "
    "--enable-prompt-tokens-details"
)
ALONE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
TALK = """
version: 1
name: talk
seed: 3
warmup: 3s
duration: 40s
tail: 2s
slo: {ttft: {base_ms: 20000}, tpot_ms: 5000, stall_ms: 20000, target: 0.9}
prefixes: {sys: {count: 3, tokens: 800}}
tenants:
  - name: talk
    arrivals: {kind: sessions, rate: 0.6, turns: {kind: fixed, value: 6}, think: {kind: fixed, value: 1}, lead: 10s}
    input: {kind: fixed, value: 64}
    output: {kind: fixed, value: 20}
    prompt: {prefix: sys, answers: real}
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    """Its URL. It starts in half a minute."""
    command = Path(VLLM).absolute()
    subprocess.run([command.with_name("python"), "-c", MODEL, ROOT / "docs", tmp_path / "tiny"], check=True)
    (port,) = free_ports(1)
    argv = [str(command), "serve", "tiny", *FLAGS.split(), "--port", str(port)]
    child = Child(argv, tmp_path, "vllm", ALONE)

    async def healthy() -> bool:
        assert not child.exited, child.err.read_text()[-2000:]
        try:
            return (await exchange(port, b"GET /health HTTP/1.1\r\nhost: vllm\r\n\r\n")).status == 200
        except OSError:
            return False

    try:
        await until_async(healthy, 240, "vLLM does not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        await child.stop(20)


async def test_conversations_with_a_real_vllm_are_valid_and_as_long_as_planned(server: str, tmp_path: Path) -> None:
    """Its tokenizer takes more tokens than were planned, in what is shared too: that is no cache warm from elsewhere."""
    done = await bench(tmp_path, "--url", server, "--scrape", server, scenario=TALK, env={})
    assert done.code == 0, done.err + done.out
    report = done.report
    assert report["target"]["model"] == "tiny" and report["run"]["length_control"] == "ignore_eos"
    assert report["totals"]["ok"] == report["totals"]["offered"] >= 100
    assert done.rule("V6")["state"] == done.rule("V7")["state"] == "ok"
    (talk,) = report["fairness"]["tenants"]
    assert 0.5 < talk["cached_share"] <= talk["ideal_share"]
    (engine,) = report["endpoints"]
    assert engine["name"] == server and engine["cached_tokens"] >= report["totals"]["cached_tokens"]
