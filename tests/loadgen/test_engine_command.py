"""`forebay engine` as a process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

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
        (["--kv-events-config", '{"endpont": "tcp://*:1"}'], "unknown field `endpont`"),
        (["--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "x"}'], "'x' is not one of zmq, null"),
        (["--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "ipc://x"}'], "is not like tcp://*:5557"),
        (
            ["--kv-events-config", '{"enable_kv_cache_events": true, "replay_endpoint": "ipc://x"}'],
            "replay_endpoint 'ipc://x' is not like",
        ),
        (["--dialect", "trtllm"], "is not one of vllm, sglang"),
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
