"""`forebay bench` beside `vllm bench serve` and `guidellm`: the same load on the same simulated engine, one table.

    .venv/bin/python tests/bench/side_by_side.py --vllm VENV/bin/vllm --guidellm VENV/bin/guidellm [--out DIR]

Each tool sends 120 streamed chats of 2,050 prompt and 64 answer tokens at a constant 2/s to an engine that was started
for it: a second tool on the same engine and prompts would measure the first one's prefix cache. The table has what each
tool prints, and its ratio to Forebay's figure of the same definition. docs/load-testing.md says what the definitions are.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loadgen.engine_server.tokens import WORDS
from loadgen.live.serving import FOREBAY

MODEL = "llama-70b"
REQUESTS, RATE, PROMPT, ANSWER = 120, 2, 2048, 64
EDGE_S = 5.0  # of a run, where its load builds up and ebbs
SCENARIO = f"""\
version: 1
name: side-by-side
seed: 7
warmup: {EDGE_S:g}s
duration: {REQUESTS / RATE:g}s
tail: {EDGE_S:g}s
length_control: ignore_eos
slo: {{ttft: {{base_ms: 400}}, tpot_ms: 100, stall_ms: 400}}
tenants:
  - {{name: all, arrivals: {{kind: constant, rate: {RATE}}}, input: {{kind: fixed, value: {PROMPT}}}, output: {{kind: fixed, value: {ANSWER}}}}}
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """When a request was sent, and when its first and last token came, in s of the tool's clock."""

    sent: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A tool's run: what it prints, by our names of the figures, and the answers it keeps."""

    printed: dict[str, float]
    answers: Sequence[Answer]


def prepare(folder: Path) -> None:
    """What the tools read: a scenario; prompts that have nothing in common; a tokenizer that counts as the engine does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "side-by-side.yaml").write_text(SCENARIO)
    draw = random.Random(time.time())
    prompts = ("".join(draw.choices(WORDS, k=PROMPT)) for _ in range(REQUESTS))
    lines = (json.dumps({"prompt": text, "output_tokens_count": ANSWER}) for text in prompts)
    (folder / "prompts.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "tokenizer").mkdir(exist_ok=True)
    vocabulary = {word: number for number, word in enumerate((*WORDS, "?"))}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "FixedLength", "length": 4}, "model": model}
    unused = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    (folder / "tokenizer" / "tokenizer.json").write_text(
        json.dumps(tokenizer | unused | {"added_tokens": [], "decoder": {"type": "Fuse"}})
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?", "pad_token": "?", "eos_token": "?"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))


def commands(url: str, vllm: str | None, guidellm: str | None) -> dict[str, list[str]]:
    """By name of the tool; what it writes bears its name."""
    found = {
        "forebay": [*FOREBAY, "bench", "side-by-side.yaml", "--url", url, "--scrape", url, "--out", "forebay"],
    }
    if vllm:
        found["vllm"] = [vllm, "bench", "serve", *_flags(
            backend="openai-chat", base_url=url, endpoint="/v1/chat/completions", model=MODEL, tokenizer="tokenizer",
            dataset_name="custom", dataset_path="prompts.jsonl", custom_output_len=ANSWER, num_prompts=REQUESTS,
            request_rate=RATE, burstiness="inf", percentile_metrics="ttft,tpot,itl,e2el", metric_percentiles="50,90",
            result_filename="vllm.json",
        ), "--disable-shuffle", "--skip-chat-template", "--ignore-eos", "--save-result", "--save-detailed"]  # fmt: skip
    if guidellm:
        found["guidellm"] = [guidellm, "run", *_flags(
            backend=f"kind=openai_http,target={url},model={MODEL}", profile=f"kind=constant,rate={RATE}",
            constraint=f"kind=max_requests,count={REQUESTS}", tokenizer="kind=hf_auto,model=tokenizer",
            data="kind=json_file,path=prompts.jsonl", output="kind=json,path=guidellm.json",
        ), "--disable-console-interactive"]  # fmt: skip
    return found


def measure(folder: Path, port: int, vllm: str | None, guidellm: str | None) -> list[str]:
    """Run every tool, each on an engine of its own; their names. What they say is in NAME.log."""
    url = f"http://127.0.0.1:{port}"
    for name, command in (every := commands(url, vllm, guidellm)).items():
        print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
        with (folder / f"{name}-engine.log").open("w") as log, (folder / f"{name}.log").open("w") as said:
            engine = subprocess.Popen(_engine(port), cwd=folder, stdout=log, stderr=log)
            try:
                _until_healthy(url)
                ended = subprocess.run(command, cwd=folder, stdout=said, stderr=said, check=False)
            finally:
                engine.terminate()
                engine.wait()
        if ended.returncode not in ((0, 1) if name == "forebay" else (0,)):  # 1: a goal was missed
            raise SystemExit(f"{name} ended with {ended.returncode}: {folder / name}.log")
    return list(every)


def _engine(port: int) -> list[str]:
    flags = _flags(profile="llama70b-fp8-h200-tp2", port=port, max_num_seqs=256, max_num_batched_tokens=2048,
                   max_model_len=32768, served_model_name=MODEL)  # fmt: skip
    return [*FOREBAY, "engine", *flags, "--enable-prompt-tokens-details"]


def _flags(**values: object) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _until_healthy(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url + "/health", timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the engine did not start")


def read_forebay(folder: Path) -> Seen:
    totals = json.loads((folder / "forebay" / "report.json").read_text())["totals"]
    lines = (json.loads(line) for line in (folder / "forebay" / "requests.jsonl").read_text().splitlines())
    answers = [Answer(one["t_send"], one["t_first"], one["t_last"]) for one in lines]
    times = totals["times"]
    printed = {
        "TTFT mean, ms": times["ttft"]["service"]["mean_ms"],
        "TTFT p50, ms": times["ttft"]["service"]["p50_ms"],
        "TTFT p90, ms": times["ttft"]["service"]["p90_ms"],
        "TPOT mean, ms": times["tpot"]["completed"]["mean_ms"],
        "TPOT p50, ms": times["tpot"]["completed"]["p50_ms"],
        "E2E p50, ms": times["e2e"]["service"]["p50_ms"],
        "tokens/s": totals["output_tokens_per_s"],
    }
    return Seen(printed, answers)


def read_vllm(folder: Path) -> Seen:
    told = json.loads((folder / "vllm.json").read_text())
    each = zip(told["start_times"], told["ttfts"], told["latencies"], strict=True)
    answers = [Answer(sent, sent + ttft, sent + latency) for sent, ttft, latency in each]
    printed = {
        "TTFT mean, ms": told["mean_ttft_ms"],
        "TTFT p50, ms": told["p50_ttft_ms"],
        "TTFT p90, ms": told["p90_ttft_ms"],
        "TPOT mean, ms": told["mean_tpot_ms"],
        "TPOT p50, ms": told["p50_tpot_ms"],
        "E2E p50, ms": told["p50_e2el_ms"],
        "tokens/s": told["output_throughput"],
    }
    return Seen(printed, answers)


GUIDED = ("time_to_first_token_ms", "time_per_output_token_ms", "request_latency", "output_tokens_per_second")


def read_guidellm(folder: Path) -> Seen:
    run = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    told = {name: run["metrics"][name]["successful"] for name in GUIDED}
    times = [one["info"]["timings"] for one in run["requests"]["successful"]]
    answers = [Answer(one["request_start"], one["first_token_iteration"], one["last_token_iteration"]) for one in times]
    printed = {
        "TTFT mean, ms": told["time_to_first_token_ms"]["mean"],
        "TTFT p50, ms": told["time_to_first_token_ms"]["median"],
        "TTFT p90, ms": told["time_to_first_token_ms"]["percentiles"]["p90"],
        "TPOT mean, ms": told["time_per_output_token_ms"]["mean"],
        "TPOT p50, ms": told["time_per_output_token_ms"]["median"],
        "E2E p50, ms": told["request_latency"]["median"] * 1000,
        "tokens/s": told["output_tokens_per_second"]["mean"],
    }
    return Seen(printed, answers)


READERS = {"forebay": read_forebay, "vllm": read_vllm, "guidellm": read_guidellm}


def same_way(answers: Sequence[Answer]) -> dict[str, float]:
    """The figures as Forebay defines them from the send, of any tool's times, without both edges of the run."""
    start_s, end_s = min(one.sent for one in answers) + EDGE_S, max(one.sent for one in answers) - EDGE_S
    inside = [one for one in answers if start_s <= one.sent < end_s]
    ttft = [(one.first - one.sent) * 1000 for one in inside]
    tpot = [(one.last - one.first) * 1000 / (ANSWER - 1) for one in inside]
    e2e = [(one.last - one.sent) * 1000 for one in inside]
    return {
        "TTFT mean, ms": statistics.fmean(ttft),
        "TTFT p50, ms": _rank(ttft, 0.5),
        "TTFT p90, ms": _rank(ttft, 0.9),
        "TPOT mean, ms": statistics.fmean(tpot),
        "TPOT p50, ms": _rank(tpot, 0.5),
        "E2E p50, ms": _rank(e2e, 0.5),
        "tokens/s": sum(_tokens(one, start_s, end_s) for one in answers) / (end_s - start_s),
    }


def _rank(values: Iterable[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, -int(-p * len(ordered) // 1) - 1)]


def _tokens(one: Answer, start_s: float, end_s: float) -> int:
    gap = (one.last - one.first) / (ANSWER - 1)
    return sum(start_s <= one.first + number * gap < end_s for number in range(ANSWER))


def table(folder: Path, names: Sequence[str]) -> None:
    seen = {name: READERS[name](folder) for name in names}
    alike = {name: same_way(one.answers) for name, one in seen.items()}
    others = [name for name in names if name != "forebay"]
    print(f"{'as printed':16}" + "".join(f"{name:>10}" for name in names) + "   " + _ratios(others))
    _rows({name: one.printed for name, one in seen.items()}, others)
    print(f"\n{'the same way':16}")
    _rows(alike, others)


def _ratios(others: Sequence[str]) -> str:
    return "".join(f"{name + ' / forebay':>20}" for name in others)


def _rows(figures: dict[str, dict[str, float]], others: Sequence[str]) -> None:
    for row, ours in figures["forebay"].items():
        values = "".join(f"{one[row]:10.2f}" for one in figures.values())
        print(f"{row:16}{values}   " + "".join(f"{figures[name][row] / ours:20.4f}" for name in others))


def _command(name: str) -> str:
    """Where it is, from whatever folder it is started."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"there is no command {name}")
    return str(Path(found).absolute())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=_command, help="the command `vllm`")
    parser.add_argument("--guidellm", type=_command, help="the command `guidellm`")
    parser.add_argument("--out", type=Path, default=Path("side-by-side"))
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--table-only", action="store_true", help="of what is in --out already")
    options = parser.parse_args()
    given = [name for name in ("vllm", "guidellm") if getattr(options, name)]
    if not options.table_only:
        prepare(options.out)
        measure(options.out, options.port, options.vllm, options.guidellm)
    table(options.out, ["forebay", *given])


if __name__ == "__main__":
    main()
