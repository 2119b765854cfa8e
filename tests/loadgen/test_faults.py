"""Every fault, seen from the other end of a socket."""

import asyncio
import http.client
import json
import subprocess
import sys
import time
import urllib.request

import pytest

from loadgen.engine_server.faults import Faults
from loadgen.faults import Fault, FaultError, Stage
from tests.loadgen.simulated import chat, get, refused, simulated, talk, until

NOOP = {"profile": "noop", "served_model_name": "llama-8b"}
STREAM = chat("x [[fb out=6]]", stream=True, stream_options={"include_usage": True})
WHOLE = chat("x [[fb out=6]]")


# --- the language of faults ---


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zap", "no fault 'zap'"),
        ("status", "needs a value"),
        ("status:many", "'many' is not a number"),
        ("status:1,2", "two values"),
        ("status:503,color=red", "does not take color"),
        ("stall:10,chunk=x", "not a number"),
        ("reset:chunk=1@5-x", "not a number"),
    ],
)
def test_a_fault_that_cannot_be_read_says_why(spec: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        fault = Fault(spec, 0.0)
        fault.number("chunk", 0)


def test_a_fault_matches_counts_and_has_a_window() -> None:
    faults = Faults(["status:503,count=2,model=m"], seed=0)
    hits = [len(faults.strike(Stage.HEAD, {"model": model})) for model in ("other", "m", "m", "m")]
    assert hits == [0, 1, 1, 0]
    assert not Faults(["hang@5-9"], seed=0).strike(Stage.HEAD, {})
    assert Faults(["hang@0-9"], seed=0).strike(Stage.HEAD, {})


def test_p_is_a_probability() -> None:
    faults = Faults(["hang:p=0.3"], seed=1)
    hits = sum(len(faults.strike(Stage.HEAD, {})) for _ in range(1000))
    assert 240 < hits < 360


def test_a_bad_list_changes_nothing() -> None:
    faults = Faults(["hang"], seed=0)
    with pytest.raises(FaultError):
        faults.replace(["fin", "zap"])
    assert faults.specs() == ["hang"]


# --- connecting ---


async def test_refuse_closes_the_port_and_opens_it_again() -> None:
    async with simulated(**NOOP) as engine:
        port = engine.port
        engine.faults.replace(["refuse"])
        assert await refused(port)
        engine.faults.replace([])
        assert (await talk(port, get("/health"))).status == 200
        engine.faults.replace(["refuse@0.1-0.3"])
        assert (await talk(port, get("/health"))).status == 200
        await until(lambda: not engine.listening.serving)
        await until(lambda: engine.listening.serving)
        assert (await talk(port, get("/health"))).status == 200


async def test_accept_hang_is_silent_and_slow_accept_is_slow() -> None:
    async with simulated(**NOOP, faults=("accept_hang",)) as engine:
        wire = await talk(engine.port, WHOLE, seconds=0.15)
        assert (wire.data, wire.end) == (b"", "open")
        engine.faults.replace(["slow_accept:150"])
        began = time.monotonic()
        assert (await talk(engine.port, WHOLE, seconds=2)).status == 200
        assert time.monotonic() - began >= 0.15


async def test_idle_close_overrides_the_keep_alive() -> None:
    async with simulated(**NOOP, faults=("idle_close:0.1",)) as engine:
        began = time.monotonic()
        assert (await talk(engine.port, b"", seconds=2)).end == "fin"
        assert time.monotonic() - began < 1.5


async def test_connections_beyond_max_conns_are_closed() -> None:
    async with simulated(**NOOP, faults=("max_conns:1",)) as engine:
        _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        await until(lambda: engine.listening.connections)
        assert (await talk(engine.port, b"", seconds=2)).end in ("fin", "reset")
        writer.close()


# --- before the first byte ---


async def test_status_answers_with_code_and_retry_after() -> None:
    async with simulated(**NOOP, faults=("status:503,retry_after=7",)) as engine:
        wire = await talk(engine.port, STREAM)
        assert wire.status == 503
        assert b"retry-after: 7" in wire.head
        assert json.loads(wire.body)["error"]["code"] == 503
        assert (await talk(engine.port, get("/health"))).status == 200
        engine.faults.replace(["status:500,path=/health"])
        assert (await talk(engine.port, get("/health"))).status == 500
        assert (await talk(engine.port, WHOLE)).status == 200


async def test_startup_refuses_everything_for_as_long_as_it_says() -> None:
    async with simulated(**NOOP, faults=("startup:60",)) as engine:
        assert (await talk(engine.port, get("/health"))).status == 503
        assert (await talk(engine.port, WHOLE)).status == 503
        engine.faults.replace(["startup:0.05"])
        deadline = time.monotonic() + 5
        while (await talk(engine.port, WHOLE)).status != 200:
            assert time.monotonic() < deadline


async def test_hang_says_nothing_and_health_lie_only_the_head() -> None:
    async with simulated(**NOOP, faults=("hang",)) as engine:
        wire = await talk(engine.port, STREAM, seconds=0.15)
        assert (wire.data, wire.end) == (b"", "open")
        await until(lambda: json.loads(engine.log.lines())[0]["abort_seen_s"])
        engine.faults.replace(["health_lie"])
        wire = await talk(engine.port, STREAM, seconds=0.15)
        assert (wire.status, wire.raw) == (200, b"")
        assert (await talk(engine.port, get("/health"))).status == 200


@pytest.mark.parametrize(("spec", "end"), [("early_close", "fin"), ("early_close:reset=1", "reset")])
async def test_early_close_ends_before_the_first_byte(spec: str, end: str) -> None:
    async with simulated(**NOOP, faults=(spec,)) as engine:
        wire = await talk(engine.port, STREAM)
        assert (wire.data, wire.end) == (b"", end)


async def test_heads_that_lie() -> None:
    async with simulated(**NOOP, faults=("wrong_content_length:by=10",)) as engine:
        wire = await talk(engine.port, WHOLE)
        assert wire.end == "fin"
        assert b"content-length: %d" % (len(wire.raw) + 10) in wire.head
        engine.faults.replace(["bad_header"])
        assert b"\r\nbad header: \x00\r\n" in (await talk(engine.port, WHOLE)).data
        engine.faults.replace(["interim:9"])
        assert (await talk(engine.port, WHOLE)).data.count(b"HTTP/1.1 103 ") == 9
        engine.faults.replace(["second_response"])
        assert (await talk(engine.port, WHOLE)).data.count(b"HTTP/1.1 200 ") == 2


# --- in mid-stream ---


async def plain_body() -> bytes:
    async with simulated(**NOOP) as engine:
        return (await talk(engine.port, STREAM)).body


@pytest.mark.parametrize(("kind", "end"), [("fin", "fin"), ("reset", "reset"), ("cut_json", "open")])
@pytest.mark.parametrize("byte", [0, 1, 150, 333, 1000])
async def test_a_stream_is_cut_at_that_very_byte(kind: str, end: str, byte: int) -> None:
    whole = await plain_body()
    async with simulated(**NOOP, faults=(f"{kind}:byte={byte}",)) as engine:
        wire = await talk(engine.port, STREAM)
        await until(lambda: json.loads(engine.log.lines())[0]["ended"])
        assert json.loads(engine.log.lines())[0]["ended"] == f"fault:{kind}"
    assert len(wire.body) == byte
    assert len(whole) > byte
    assert wire.end == end
    assert wire.raw.endswith(b"0\r\n\r\n") == (kind == "cut_json")


async def test_half_a_chunk_promises_more_than_comes() -> None:
    async with simulated(**NOOP, faults=("half_chunk:chunk=2",)) as engine:
        wire = await talk(engine.port, STREAM)
    assert wire.end == "fin"
    size, _, part = wire.raw.rpartition(b"\r\n")[0].rpartition(b"\r\n")[2], b"", wire.raw.rpartition(b"\r\n")[2]
    assert 0 < len(part) < int(size, 16)


@pytest.mark.parametrize("place", ["chunk=3", "fraction=0.4"])
async def test_a_place_can_be_an_event_or_a_share(place: str) -> None:
    async with simulated(**NOOP, faults=(f"fin:{place}",)) as engine:
        wire = await talk(engine.port, STREAM)
    assert len(wire.events) == 3


async def test_a_place_in_time_strikes_even_while_nothing_comes() -> None:
    async with simulated(faults=("fin:ms=150",)) as engine:
        engine.model.prefill_factor = 1000.0
        began = time.monotonic()
        wire = await talk(engine.port, STREAM, seconds=3)
        assert 0.14 < time.monotonic() - began < 2
    assert (wire.status, wire.raw, wire.end) == (200, b"", "fin")


@pytest.mark.parametrize(("spec", "done"), [("error_event:chunk=2,code=503", True), ("error_event:done=0", False)])
async def test_an_error_event_ends_the_stream(spec: str, done: bool) -> None:
    async with simulated(**NOOP, faults=(spec,)) as engine:
        wire = await talk(engine.port, STREAM)
    assert wire.complete
    events = wire.events[:-1] if done else wire.events
    assert (wire.events[-1] == "[DONE]") == done
    assert events[-1]["error"]["code"] == (503 if done else 500)


async def test_an_error_event_can_be_the_first() -> None:
    async with simulated(**NOOP, faults=("error_event:chunk=0,code=429",)) as engine:
        wire = await talk(engine.port, STREAM)
    assert wire.events[0]["error"] == {
        "message": "simulated failure",
        "type": "RateLimitError",
        "param": None,
        "code": 429,
    }


@pytest.mark.parametrize(("spec", "count"), [("no_done", 0), ("double_done", 2)])
async def test_the_end_marker_can_be_missing_or_double(spec: str, count: int) -> None:
    async with simulated(**NOOP, faults=(spec,)) as engine:
        wire = await talk(engine.port, STREAM)
    assert wire.complete
    assert wire.body.count(b"data: [DONE]") == count


async def test_things_are_put_between_events() -> None:
    whole = await plain_body()
    async with simulated(**NOOP) as engine:
        for spec, added in (
            ("garbage:chunk=2", b'data: {"id": \xff\xfe garbage\n\n'),
            ("giant_line:100000", b"x" * 100_000),
            ("split_utf8", '{"content":"é"}'.encode()),
            ("comment_pings", b": ping\n\n"),
        ):
            engine.faults.replace([spec])
            wire = await talk(engine.port, STREAM)
            assert added in wire.body, spec
            assert wire.complete
            assert wire.body.count(b"\n\n") > whole.count(b"\n\n")
        engine.faults.replace(["split_utf8"])
        assert b"\xc3\r\n" in (await talk(engine.port, STREAM)).raw


async def test_stall_role_early_drip_and_slow_decode_take_their_time() -> None:
    async with simulated() as engine:
        for spec, least in (
            ("stall:200,chunk=3", 0.2),
            ("role_early:250", 0.25),
            ("drip:8000", 0.2),
            ("slow_decode:12", 0.2),
            ("slow_prefill:60", 0.2),
        ):
            engine.faults.replace([spec])
            began = time.monotonic()
            wire = await talk(engine.port, STREAM, seconds=5)
            took = time.monotonic() - began
            assert wire.complete, spec
            assert least <= took < least + 3, spec
            assert len(wire.events) == 9


async def test_a_role_event_comes_early_and_the_first_token_late() -> None:
    async with simulated(faults=("role_early:200",)) as engine:
        engine.model.prefill_factor = 20.0
        wire = await talk(engine.port, STREAM, seconds=5)
    gaps = [later - earlier for earlier, later in zip(wire.times, wire.times[1:], strict=False)]
    assert max(gaps) >= 0.15
    assert [bool(event["choices"][0]["delta"].get("content")) for event in wire.events[:2]] == [False, True]


@pytest.mark.parametrize(("spec", "end"), [("reset:byte=50", "reset"), ("fin:byte=50", "fin"), ("stall:200", "open")])
async def test_an_answer_that_is_not_streamed_can_break_too(spec: str, end: str) -> None:
    async with simulated(**NOOP, faults=(spec,)) as engine:
        wire = await talk(engine.port, WHOLE)
    assert wire.end == end
    assert len(wire.raw) == 50 or wire.complete


async def test_a_marker_can_name_a_fault_for_its_own_request() -> None:
    async with simulated(**NOOP) as engine:
        wire = await talk(engine.port, chat("x [[fb out=9 fault=fin:chunk=2]]", stream=True))
        assert (len(wire.events), wire.end) == (2, "fin")
        assert (await talk(engine.port, STREAM)).complete
        assert (await talk(engine.port, chat("x [[fb fault=zap]]"))).status == 400


async def test_a_client_that_leaves_a_faulty_stream_leaves_nothing_behind() -> None:
    from loadgen import tasks

    async with simulated(faults=("stall:60000,chunk=1",)) as engine:
        before = tasks.running()
        _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(STREAM)
        await until(lambda: engine.model.finished == 1)
        writer.close()
        await until(lambda: tasks.running() == before)
        assert not engine.exchanges


# --- the process, and its metrics ---


async def test_ignore_abort_runs_to_the_end() -> None:
    async with simulated(faults=("ignore_abort",)) as engine:
        _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(chat("x [[fb out=80]]", stream=True))
        await until(lambda: engine.model.running)
        writer.close()
        await until(lambda: not engine.exchanges)
        assert engine.model.running
        await until(lambda: engine.model.finished == 1)


def test_crash_ends_the_process_with_its_code() -> None:
    start = "import typer; from loadgen.__main__ import engine; typer.run(engine)"
    argv = [sys.executable, "-c", start, "--port", "0", "--profile", "noop", "--fault", "crash:exit=137,chunk=2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        body = json.dumps({"model": "noop", "prompt": "x", "max_tokens": 9, "stream": True}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer, pytest.raises((OSError, http.client.IncompleteRead)):
            answer.read()
        assert process.wait(5) == 137


async def test_metrics_can_freeze_vanish_fail_and_be_slow() -> None:
    async with simulated(**NOOP) as engine:
        await talk(engine.port, get("/metrics"))
        engine.faults.replace(["freeze"])
        before = (await talk(engine.port, get("/metrics"))).body
        await talk(engine.port, WHOLE)
        assert (await talk(engine.port, get("/metrics"))).body == before
        engine.faults.replace([])
        assert (await talk(engine.port, get("/metrics"))).body != before
        engine.faults.replace(["stale:60"])
        before = (await talk(engine.port, get("/metrics"))).body
        await talk(engine.port, WHOLE)
        assert (await talk(engine.port, get("/metrics"))).body == before
        engine.faults.replace(["absent"])
        assert (await talk(engine.port, get("/metrics"))).status == 404
        engine.faults.replace(["status:500,path=/metrics"])
        assert (await talk(engine.port, get("/metrics"))).status == 500
        engine.faults.replace(["slow:200"])
        began = time.monotonic()
        assert (await talk(engine.port, get("/metrics"), seconds=2)).status == 200
        assert time.monotonic() - began >= 0.2


async def test_a_cache_that_shrinks_is_mostly_in_use_until_the_fault_is_gone() -> None:
    async with simulated(faults=("kv_shrink:0.75",)) as engine:
        for usage, specs in ((0.75, []), (0.0, ["kv_shrink:0.25"]), (0.25, [])):
            assert (await talk(engine.port, WHOLE)).status == 200
            assert engine.model.kv_usage == pytest.approx(usage, abs=0.01)
            engine.faults.replace(specs)
