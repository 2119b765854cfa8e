"""What the simulated engine costs: `python tests/bench/engine_bench.py`.

- model: CPU per step in virtual time at N decodes, and a 300 s run of four engines with 10,000 requests;
- server: one process with four engines, streams read by another process; emit lag and CPU per token and per request.

Limits (issue 2, loadgen.md 3.1): 300 s of four engines in 10 s; 100 us per step; emit lag p99 5 ms at 2,500 tokens/s
on one core; 20 us per chunk; 150 us per request. Exit status 1 if one is missed.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from loadgen.sim.engine import EngineModel
from loadgen.sim.profile import EngineSettings, load
from loadgen.sim.sequence import Sequence

PROFILE = "llama70b-fp8-h200-tp2"
START = "import typer; from loadgen.__main__ import engine; typer.run(engine)"


def model_step_us(decodes: int) -> float:
    settings = EngineSettings(max_num_seqs=decodes, max_model_len=32768)
    model = EngineModel(load(PROFILE), settings)
    for number in range(decodes):
        chain = range(number << 20, (number << 20) + 100)
        model.submit(Sequence(str(number), prompt_tokens=500, output_tokens=1000, hashes=chain), 0.0)
    now = 0.0
    for _ in range(decodes * 500 // 8192 + 2):
        now = step(model, now)
    began = time.process_time()
    for _ in range(480):
        now = step(model, now)
    return (time.process_time() - began) / 480 * 1e6


def step(model: EngineModel, now: float) -> float:
    end = model.begin(now)
    assert end is not None
    model.end()
    return end


def virtual_run_s(requests: int = 10_000, seconds: float = 300.0) -> tuple[float, int]:
    """CPU seconds of four engines, load dealt round robin, and the steps they took."""
    random = Random(7)
    began = time.process_time()
    settings = EngineSettings(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=32768, watermark=0.02)
    steps = 0
    for engine in range(4):
        model = EngineModel(load(PROFILE), settings)
        arrivals = []
        for number in range(engine, requests, 4):
            prompt = min(3999, 30 + int(random.lognormvariate(6.4, 0.8)))
            output = min(1500, 10 + int(random.lognormvariate(5.0, 0.8)))
            chain = range(number << 20, (number << 20) + (prompt + output) // 16)
            sequence = Sequence(str(number), prompt_tokens=prompt, output_tokens=output, hashes=chain)
            arrivals.append((number * seconds / requests, sequence))
        run(model, arrivals)
        steps += model.steps
    return time.process_time() - began, steps


def run(model: EngineModel, arrivals: list[tuple[float, Sequence]]) -> None:
    now, position = 0.0, 0
    while True:
        end = model.begin(now)
        if end is None and position == len(arrivals):
            return
        now = arrivals[position][0] if end is None else end
        while position < len(arrivals) and arrivals[position][0] <= now:
            model.submit(arrivals[position][1], arrivals[position][0])
            position += 1
        if end is not None:
            model.end()


@contextmanager
def engines(*flags: str, alone: bool) -> Iterator[tuple[int, list[int], list[int]]]:
    """A process with engines on core 0; yields its pid, serving ports and control ports.

    `alone` runs it in a real-time class (needs root), so that what else runs on a busy machine does not count.
    """
    argv = [sys.executable, "-c", START, "--port", "0", "--control-port", "0", "--allow-markers", *flags]
    argv = ["taskset", "-c", "0", *(["chrt", "-r", "1"] if alone else []), *argv]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        serving, control = [], []
        for line in process.stdout:
            (control if " control " in line else serving).extend(int(port) for port in re.findall(r":(\d+)$", line))
            if "startup complete" in line:
                break
        try:
            yield process.pid, serving, control
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream(port: int, prompt: str, output: int) -> int:
    """Send one streamed request, read it to the end, return its bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": f"{prompt} [[fb out={output}]]"}
    body = json.dumps({"model": "llama-70b", "stream": True, "messages": [message]}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    size = 0
    while data := await reader.read(65536):
        size += len(data)
    writer.close()
    return size


async def paced(ports: list[int], per_engine: int, seconds: float) -> int:
    """Keep about `per_engine` streams of 100 tokens on each engine, begun evenly in time; returns the tokens."""
    slots = [(port, slot) for slot in range(per_engine) for port in ports]
    until = time.monotonic() + seconds

    async def keep(port: int, delay: float) -> int:
        await asyncio.sleep(delay)
        count = 0
        while time.monotonic() < until:
            await stream(port, f"{delay} {count} " * 50, 100)
            count += 100
        return count

    return sum(await asyncio.gather(*(keep(port, 2.0 * n / len(slots)) for n, (port, _) in enumerate(slots))))


async def many(port: int, requests: int) -> None:
    """`requests` streams of one token, over ten connections that are kept."""
    await asyncio.gather(*(one_after_another(port, requests // 10) for _ in range(10)))


async def one_after_another(port: int, requests: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": "and " * 500 + "[[fb out=1]]"}
    body = json.dumps({"model": "noop", "stream": True, "messages": [message]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    for _ in range(requests):
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()


def lag(control: list[int]) -> float:
    """The largest p99 of the engines, ms."""
    urls = [f"http://127.0.0.1:{port}/lag" for port in control]
    return max(json.load(urllib.request.urlopen(url))["p99_ms"] for url in urls)


def server(seconds: float, alone: bool) -> dict[str, float]:
    settings = ["--profile", PROFILE, "--count", "4", "--max-num-batched-tokens", "2048", "--max-num-seqs", "256"]
    with engines(*settings, alone=alone) as (pid, ports, control):
        asyncio.run(stream(ports[0], "warm", 5))
        cpu, began = cpu_s(pid), time.monotonic()
        count = asyncio.run(paced(ports, 13, seconds))
        cpu, wall = cpu_s(pid) - cpu, time.monotonic() - began
        figures = {
            "tokens_per_s": count / wall,
            "emit_lag_p99_ms": lag(control),
            "cpu_us_per_token": cpu / count * 1e6,
            "cpu_share_of_core": cpu / wall,
        }
    with engines("--profile", "noop", alone=alone) as (pid, ports, _):
        asyncio.run(many(ports[0], 100))
        rounds = []
        for _ in range(3):
            cpu = cpu_s(pid)
            asyncio.run(many(ports[0], 2000))
            rounds.append((cpu_s(pid) - cpu) / 2000 * 1e6)
        figures["cpu_us_per_request"] = min(rounds)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of paced streams")
    parser.add_argument("--alone", action="store_true", help="engine in a real-time class (root)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = {f"model_step_us_n{decodes}": model_step_us(decodes) for decodes in (1, 16, 64, 256)}
    figures["virtual_300s_cpu_s"], figures["virtual_300s_steps"] = virtual_run_s()
    figures |= server(arguments.seconds, arguments.alone)
    limits = {"virtual_300s_cpu_s": 10.0, "model_step_us_n64": 100.0, "emit_lag_p99_ms": 5.0}
    limits |= {"cpu_us_per_token": 20.0, "cpu_us_per_request": 150.0}
    if arguments.json:
        print(json.dumps(figures, indent=1))
    for name, value in figures.items():
        limit = limits.get(name)
        verdict = "" if limit is None else f"  limit {limit:g}  {'ok' if value <= limit else 'MISSED'}"
        print(f"{name:24} {value:12.2f}{verdict}", file=sys.stderr)
    return int(any(figures[name] > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
