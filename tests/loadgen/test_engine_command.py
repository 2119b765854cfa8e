"""`forebay engine` as a process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from loadgen.engine_server import kv_events
from loadgen.engine_server.faults import Faults

START = "import typer; from loadgen.__main__ import engine; typer.run(engine)"


def test_the_command_prints_its_ports_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    argv = [sys.executable, "-c", START, "--port", "0", "--count", "2", "--control-port", "0", "--profile", "noop"]
    with subprocess.Popen([*argv, "--log", str(log)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        ports = [int(port) for port in re.findall(r"engine \d listening on http://127.0.0.1:(\d+)", "".join(lines))]
        assert len(ports) == 2
        assert len(re.findall(r"engine \d control on http://", "".join(lines))) == 2
        assert "startup complete" in lines[4]
        with openai.OpenAI(base_url=f"http://127.0.0.1:{ports[1]}/v1", api_key="x") as api:
            api.completions.create(model="noop", prompt="hi", max_tokens=2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert json.loads(log.read_text())["engine"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--profile", "nope"], "no profile 'nope'"),
        (["--max-num-seq", "3"], "No such option"),
        (["--fault", "zap"], "no fault 'zap'"),
        (["--port", "65536"], "Invalid value for '--port'"),
        (["--port", "65535", "--count", "2"], "port must be 0-65535"),
        (["--kv-events-config", '{"endpont": "tcp://*:1"}'], "unknown field `endpont`"),
        (["--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "x"}'], "'x' is not one of zmq, null"),
        (["--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "ipc://x"}'], "is not like tcp://*:5557"),
        (
            ["--kv-events-config", '{"enable_kv_cache_events": true, "replay_endpoint": "ipc://x"}'],
            "replay_endpoint 'ipc://x' is not like",
        ),
        (["--dialect", "trtllm"], "is not one of vllm, sglang"),
        (
            ["--dialect", "sglang", "--max-num-seqs", "3"],
            "a flag of vLLM's, and --dialect is sglang; here it is --max-running-requests",
        ),
        (["--dialect", "sglang", "--watermark", "0.1"], "a flag of vLLM's, and --dialect is sglang"),
        (["--page-size", "3"], "a flag of SGLang's, and --dialect is vllm; here it is --block-size"),
        (["--dialect", "sglang", "--chunked-prefill-size", "0"], "neither a number of tokens nor -1"),
        (["--dialect", "sglang", "--context-length", "9999999"], "lower --context-length"),
        (["--max-num-batched-tokens", "10"], "at least --max-num-seqs"),
        (["--profile", "llama70b-fp8-h200-tp1", "--max-model-len", "200000"], "lower --max-model-len"),
    ],
)
def test_a_bad_flag_says_what_is_wrong(flags: list[str], message: str) -> None:
    environ = {**os.environ, "COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", START, *flags], capture_output=True, text=True, env=environ)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", START, "--port", port], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    said = subprocess.run([sys.executable, "-c", START, "--fault", "port_in_use"], capture_output=True, text=True)
    assert (said.returncode, "Address already in use" in said.stderr) == (1, True)


def test_a_log_that_cannot_be_written_is_named_and_no_port_is_blamed(tmp_path: Path) -> None:
    log = str(tmp_path / "none" / "log")
    done = subprocess.run([sys.executable, "-c", START, "--log", log], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"forebay engine: No such file or directory ({log})\n")


def test_a_busy_port_for_kv_events_is_named_and_without_pyzmq_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        text = json.dumps({"enable_kv_cache_events": True, "endpoint": at})
        config = kv_events.read(text)
        assert config is not None
        with pytest.raises(ValueError, match=f"{at}: Address already in use"):
            kv_events.Publisher(config, 0, kv_events.ToldCache(8, 16), Faults((), 0)).open()
    assert config.at(2) == (f"tcp://127.0.0.1:{taken_port(at) + 2}", None)
    monkeypatch.setattr(kv_events, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'forebay\[kv-events\]'"):
        kv_events.read(text)
    assert kv_events.read("{}") is None


def taken_port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_in_sglangs_dialect_it_takes_sglangs_flags_and_says_its_words(tmp_path: Path) -> None:
    flags = ("--dialect", "sglang", "--port", "0", "--profile", "noop", "--context-length", "4096", "--enable-metrics")
    more = ("--max-running-requests", "7", "--page-size", "32", "--chunked-prefill-size", "-1", "--enable-mixed-chunk")
    argv = [sys.executable, "-c", START, *flags, *more, "--disable-radix-cache", "--api-key", "mine"]
    environ = {**os.environ, "VLLM_API_KEY": "other"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1] == "The server is fired up and ready to roll!\n"
        url = "http://127.0.0.1:" + re.findall(r":(\d+)", lines[0])[0]
        headers = {"authorization": "Bearer mine"}
        info = httpx.get(f"{url}/get_server_info", headers=headers).json()
        page = httpx.get(f"{url}/metrics").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    told = ("context_length", "max_running_requests", "page_size", "enable_mixed_chunk", "disable_radix_cache")
    assert [info[name] for name in told] == [4096, 7, 32, True, True]
    assert 'page_size="32"' in page


def test_the_key_of_vllms_environment_is_not_sglangs() -> None:
    argv = [sys.executable, "-c", START, "--dialect", "sglang", "--port", "0", "--profile", "noop"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "VLLM_API_KEY": "x"}) as process:
        assert process.stdout is not None
        url = "http://127.0.0.1:" + re.findall(r":(\d+)", process.stdout.readline())[0]
        assert httpx.get(f"{url}/v1/models").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def test_what_runs_is_waited_for_until_the_second_signal() -> None:
    argv = [sys.executable, "-c", START, "--dialect", "sglang", "--port", "0", "--allow-markers"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = "http://127.0.0.1:" + re.findall(r":(\d+)", process.stdout.readline())[0]
        body = {"prompt": "[[fb out=100000]]", "stream": True, "max_tokens": 100_000}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
            told = [line for line in lines if line]
        assert process.wait(5) == 0
    assert '"finish_reason":"abort"' in told[-2]
