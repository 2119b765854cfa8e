"""`forebay bench` on servers of other kinds: a gateway with tenants, and engines that answer in ways of their own."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.workload.bodies import Terms, body
from loadgen.workload.prompts import Block, Prose
from tests.kit import wire
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.raw_client import exchange
from tests.kit.script_engine import FIN, ScriptEngine, Seen, Step, Wait
from tests.kit.tenants import secret, tenant
from tests.loadgen.benching import BUSY, KEYS, REQUESTS, TINY, bench, command, ended, started
from tests.loadgen.sending import planned
from tests.loadgen.simulated import post

pytestmark = pytest.mark.timeout(120)


async def test_through_a_gateway_each_tenant_has_its_key_and_both_sides_count_the_same(tmp_path: Path) -> None:
    flags = ("--profile", "noop", "--allow-markers", "--enable-prompt-tokens-details", "--served-model-name", "m")
    chat = tenant("chat", limits={"rpm": 100_000}, **{"class": "interactive"})
    jobs = tenant("jobs", **{"class": "batch"})
    keys = {"KEY_CHAT": secret("chat"), "KEY_JOBS": secret("jobs")}
    salt = {"isolation": {"salt_secret": "0123456789abcdef0123456789abcdef"}, "timeouts": {"scale": 1}}
    async with Engine(tmp_path, arguments=flags) as engine:
        settings = config([engine.url], **salt)
        async with Gateway(settings, tmp_path, tenants=[chat, jobs]) as gateway:
            admin = f"http://127.0.0.1:{gateway.admin_port}"
            options = ("--url", gateway.url, "--model", "m", "--scrape", admin, "--scrape", engine.url)
            done = await bench(tmp_path, *options, "--set",
                "duration=1800ms",
                "--set", "tenants.chat.cancel={p: 0.1, after: {kind: fixed, value: 0.02}}",
                               env=keys)  # fmt: skip
            written = done.everything() + gateway.output()
            log = await engine.log()
    assert done.code == 0, done.err + done.out
    assert done.rule("V10")["state"] == "ok" and done.rule("V6")["state"] == "ok"
    assert {row["tenant"]: row["priority"] for row in done.requests} == {"chat": "interactive", "jobs": "batch"}
    assert {row["outcome"] for row in done.requests} <= {"ok", "cancelled"}
    assert {row["pool"] for row in done.requests if row["outcome"] == "ok"} == {"main"}
    served = {(row["tenant"], row["gateway_class"]) for row in done.requests if row["outcome"] == "ok"}
    assert served == {("chat", "interactive"), ("jobs", "batch")}
    assert [(row["pool"], row["class"]) for row in done.report["gateway"]] == [
        ("main", "batch"),
        ("main", "interactive"),
    ]
    assert len(log) > 150
    assert not [key for key in keys.values() if key.encode() in written]


FAULTY = ("status:500,p=0.01", "reset:chunk=3,p=0.01", "fin:chunk=4,p=0.01", "error_event:chunk=2,p=0.01")


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_both_sides_count_the_same_ten_thousand_requests_of_which_some_fail(tmp_path: Path) -> None:
    flags = ("--profile", "noop", "--allow-markers", "--enable-prompt-tokens-details", "--served-model-name", "m")
    faults = [part for fault in FAULTY for part in ("--fault", fault)]
    async with (
        Engine(tmp_path, arguments=(*flags, *faults)) as engine,
        Gateway(config([engine.url]), tmp_path) as gateway,
    ):
        admin = f"http://127.0.0.1:{gateway.admin_port}"
        options = ("--url", gateway.url, "--model", "m", "--scrape", admin, "--scale", "2", "--set", "duration=100s")
        child = started(tmp_path, *options, *BUSY, "--no-html")
        done = await ended(child, tmp_path, 400)
    assert done.code in (0, 1), done.err + done.out
    assert done.rule("V10")["state"] == "ok", done.rule("V10")
    outcomes = Counter(row["outcome"] for row in done.requests)
    assert outcomes.total() >= 10_000 and len(outcomes) >= 3 and outcomes["ok"] < outcomes.total()


async def test_a_quota_that_refuses_is_told_apart_from_failures(tmp_path: Path) -> None:
    flags = ("--profile", "noop", "--allow-markers", "--served-model-name", "m")
    limited = tenant("chat", limits={"rpm": 60}, **{"class": "interactive"})
    keys = {"KEY_CHAT": secret("chat"), "KEY_JOBS": secret("jobs")}
    salt = {"isolation": {"salt_secret": "0123456789abcdef0123456789abcdef"}, "timeouts": {"scale": 1}}
    async with Engine(tmp_path, arguments=flags) as engine:
        settings = config([engine.url], **salt)
        async with Gateway(settings, tmp_path, tenants=[limited, tenant("jobs", **{"class": "batch"})]) as gateway:
            options = ("--url", gateway.url, "--model", "m", "--set", "tenants.chat.expect_rejects=true")
            done = await bench(tmp_path, *options, "--allow", "V8", env=keys)
    assert done.code == 0, done.err + done.out
    cells = {cell["tenant"]: cell for cell in done.report["cells"]}
    assert cells["chat"]["figures"]["rejected_quota"] > 30 and not cells["chat"]["judged"]
    assert cells["jobs"]["figures"]["ok"] == cells["jobs"]["figures"]["offered"]
    assert done.report["totals"]["failed"] == 0


LENGTHS = (5, 900, 17, 333, 64, 128, 250, 12)  # of answers, as markers ask for them


async def decided(directory: Path, lengths: Sequence[int]) -> list[Any]:
    """What a fresh gateway knew of requests that differ in their markers alone, and where it sent them."""
    directory.mkdir()
    async with ScriptEngine() as a, ScriptEngine() as b:
        settings = config([a.url, b.url], telemetry={"journal": str(directory / "journal.jsonl")})
        async with Gateway(settings, directory) as gateway:
            for number, length in enumerate(lengths):
                blocks = (
                    Block(namespace="shared", id=number % 3, tokens=400, role="system"),
                    Block(namespace="own", id=number, tokens=50 + 37 * number),
                )
                data = body(Terms(model="m"), planned(number, blocks=blocks, output_tokens=length), Prose("salt"))
                assert (await exchange(gateway.port, post("/v1/chat/completions", data))).status == 200
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_bytes().splitlines()[1:]]
    arrived = [(line["request"], line["decisions"]) for line in lines if line["event"] == "Arrived"]
    # Equal ones are drawn from in the order in which they came up, and which of two probes answers first is chance.
    up = [line["endpoint"]["name"] for line in lines if line["event"] == "EndpointUp"]
    own = {
        "id",
        "arrived_s",
        "deadline_s",
        "prefix",
    }  # of the hashes, the last ones are of bytes with the marker in them
    return [
        (
            {name: value for name, value in request.items() if name not in own},
            len(request["prefix"]),
            [(one["decision"], up.index(one["endpoint"])) for one in decisions],
        )
        for request, decisions in arrived
    ]


async def test_a_gateway_does_the_same_whatever_lengths_the_markers_ask_for(tmp_path: Path) -> None:
    first, second = [
        await decided(tmp_path / name, lengths) for name, lengths in (("as", LENGTHS), ("permuted", LENGTHS[::-1]))
    ]
    assert len(first) == len(LENGTHS) and first == second


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return wire.event({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})
CALL = {"index": 0, "id": "t", "type": "function", "function": {"name": "find", "arguments": '{"q"'}}


def usage(output: int) -> bytes:
    return wire.event({"id": "c", "choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": output}})


def thinking(seen: Seen) -> Iterable[Step]:
    """Thinks, then speaks."""
    events = [chunk({"reasoning_content": "hm "}), chunk({"reasoning": "so "}), chunk({"content": "yes"})]
    yield wire.stream_head()
    yield wire.chunk(ROLE)
    for event in events:
        yield Wait(0.1)
        yield wire.chunk(event)
    yield from (wire.chunk(event) for event in (chunk({}, "stop"), usage(3), DONE))
    yield b"0\r\n\r\n"


def calling(seen: Seen) -> Iterable[Step]:
    """Says nothing but a call of a tool."""
    return wire.stream([ROLE, chunk({"tool_calls": [CALL]}), chunk({}, "tool_calls"), usage(7), DONE])


def in_fours(seen: Seen) -> Iterable[Step]:
    """Gives four tokens at a time."""
    yield wire.stream_head()
    for number in range(3):
        yield Wait(0.04)
        yield wire.chunk((ROLE if number == 0 else b"") + chunk({"content": "a b c d "}))
    yield from (wire.chunk(event) for event in (chunk({}, "length"), usage(12), DONE))
    yield b"0\r\n\r\n"


def failing(seen: Seen) -> Iterable[Step]:
    """Begins with 200, and fails."""
    error = wire.event({"error": {"message": "out of memory", "type": "server_error", "code": "oom"}})
    return wire.stream([ROLE, chunk({"content": "a"}), error, DONE])


def uncounted(seen: Seen) -> Iterable[Step]:
    """Tells no usage."""
    return wire.stream([ROLE, chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop"), DONE])


def cut(seen: Seen) -> Iterable[Step]:
    """Ends without an end."""
    return wire.stream([ROLE, chunk({"content": "a"})])


async def seen_by_bench(directory: Path, answer: Any, *arguments: str, scenario: str = TINY) -> Any:
    """A run on a scripted engine, whose preflight is answered well."""

    def script(seen: Seen) -> Sequence[Step]:
        return list(answer(seen) if b'"stream":true' in seen.body.replace(b" ", b"") else wire.echo(seen))

    async with ScriptEngine(script) as engine:
        options = ("--url", engine.url, "--length-control", "none")
        return await bench(directory, *options, *arguments, scenario=scenario)


async def test_thought_is_the_first_token_and_what_is_said_comes_later(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, thinking)
    assert done.code == 0, done.err
    for row in done.requests:
        assert row["output_tokens"] == 3 and row["outcome"] == "ok"
        assert row["t_content"] - row["t_first"] > 0.15 and row["t_first"] - row["t_send"] > 0.07
    assert done.report["totals"]["times"]["ttfo"]["completed"]["p50_ms"] > 270


async def test_a_call_of_a_tool_is_an_answer(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, calling)
    assert done.code == 0, done.err
    assert {(row["outcome"], row["output_tokens"]) for row in done.requests} == {("ok", 7)}
    assert all(row["t_first"] for row in done.requests)


async def test_several_tokens_in_a_chunk_are_that_many(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, in_fours)
    assert done.code == 0, done.err
    times = done.report["totals"]["times"]
    assert times["itl"]["completed"]["p50_ms"] == pytest.approx(40, abs=8)
    assert times["tpot"]["completed"]["p50_ms"] == pytest.approx(80 / 11, abs=2)
    per_token = times["itl_per_token"]["completed"]
    assert per_token["p50_ms"] == pytest.approx(times["itl"]["completed"]["p50_ms"] / 4, rel=0.01)
    assert per_token["mean_ms"] == pytest.approx(times["itl"]["completed"]["mean_ms"] / 4, rel=0.01)
    assert times["tpot"]["completed"]["mean_ms"] == pytest.approx(
        times["itl"]["completed"]["mean_ms"] * 2 / 11, rel=0.01
    )


async def test_an_error_inside_a_good_answer_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, failing)
    assert done.code == 1, done.err
    totals = done.report["totals"]
    assert totals["ok"] == 0 and totals["attainment"] == 0 and totals["ttft_p50_ms"] == "inf"
    assert [(end["outcome"], end["reason"], end["count"]) for end in done.report["ends"]] == [
        ("error_stream", "oom", totals["offered"])
    ]
    assert "oom" in done.out


async def test_without_usage_tokens_are_counted_by_what_came_and_that_is_said(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, uncounted)
    assert done.code == 0, done.err
    assert {(row["output_tokens"], row["token_events"]) for row in done.requests} == {(None, 2)}
    assert "without `usage`" in done.out


async def test_an_answer_that_is_cut_is_no_success(tmp_path: Path) -> None:
    done = await seen_by_bench(tmp_path, cut)
    assert done.code == 1, done.err
    assert {row["outcome"] for row in done.requests} == {"truncated"}


async def test_c105_waiting_for_a_full_server_is_in_the_latency(tmp_path: Path) -> None:
    """Four places, 190 ms each, and 40 requests a second: the k-th of them gets its answer when k/4 others have gone.

    The server says when that was, since a busy machine may keep it waiting too."""
    free_s, ends_s = [0.0] * 4, []

    def full(seen: Seen) -> Iterable[Step]:
        now_s = time.monotonic()
        place = free_s.index(min(free_s))
        free_s[place] = max(free_s[place], now_s) + 0.19
        ends_s.append(free_s[place])
        yield Wait(free_s[place] - now_s)
        yield from wire.echo(seen)

    done = await seen_by_bench(tmp_path, full, "--set", "slo.target=0.1", scenario=FORTY)
    assert done.code == 0, done.err
    count = done.report["totals"]["offered"]
    expected = [0.19 + end_s - ends_s[0] - number / 40 for number, end_s in enumerate(ends_s)]
    assert expected[-1] > 2.0  # there is something to be seen
    times = done.report["totals"]["times"]["e2e"]
    assert count == len(ends_s) == 120 and times["completed"]["mean_ms"] == pytest.approx(
        1000 * sum(expected) / count, rel=0.05
    )
    assert times["service"]["mean_ms"] == pytest.approx(times["completed"]["mean_ms"], rel=0.05), "nobody waits here"
    assert done.report["client"]["sent_per_s"] == pytest.approx(40, abs=1)


async def test_a_server_that_repeats_a_key_does_not_get_it_into_the_report(tmp_path: Path) -> None:
    def gossip(seen: Seen) -> Iterable[Step]:
        said = {"error": {"message": f"Incorrect API key provided: {seen.header('authorization')}", "code": None}}
        return [wire.json_answer(said, status=401)]

    done = await seen_by_bench(tmp_path, gossip)
    assert done.code == 1, done.err
    assert any("[key]" in end["reason"] for end in done.report["ends"])
    assert not [key for key in KEYS.values() if key.encode() in done.everything()]


async def test_conversations_wait_for_answers_and_say_them_again(tmp_path: Path) -> None:
    flags = ("--profile", "noop", "--allow-markers", "--enable-prompt-tokens-details")
    async with Engine(tmp_path, arguments=flags) as engine:
        done = await bench(tmp_path, "--url", engine.url, "--scrape", engine.url, scenario=TALKS)
    assert done.code == 0, done.err + done.out
    assert done.rule("V6")["state"] == "ok" and done.report["totals"]["cached_tokens"] > 1000
    assert re.search(r"In flight: [0-9.]+ on average", done.out) and "hink" in done.out, "C108: depth and think time"
    turns = {}
    for row in done.requests:
        turns[row["session"], row["turn"]] = row
    later = [(row, turns[session, turn - 1]) for (session, turn), row in turns.items() if turn]
    assert len(later) > 50
    assert all(row["t_sched"] >= before["t_end"] + 0.05 for row, before in later), "thinking comes after the answer"
    assert all(row["prompt_tokens"] > before["prompt_tokens"] for row, before in later)


async def test_all_tenants_may_have_servers_of_their_own(tmp_path: Path) -> None:
    async with ScriptEngine() as first, ScriptEngine() as second:
        done = await bench(
            tmp_path, "--url", first.url, "--set", f"tenants.jobs.url={second.url}", "--length-control", "none"
        )
        prompts = {engine: [json.loads(one.body) for one in engine.seen] for engine in (first, second)}
    assert done.code == 0, done.err
    assert len(prompts[first]) > len(prompts[second]) >= 18
    assert done.report["target"]["urls_by_tenant"]["jobs"] == [second.url]


async def test_another_api_is_spoken_when_asked(tmp_path: Path) -> None:
    async with ScriptEngine() as engine:
        done = await bench(tmp_path, "--url", engine.url, "--api", "messages", "--length-control", "none")
        targets = {one.target for one in engine.seen}
    assert done.code == 0, done.err + done.out
    assert targets == {b"/v1/messages"}


LONG = """
version: 1
name: long
seed: 7
warmup: 0s
duration: 1s
slo: {ttft: {base_ms: 30000}, tpot_ms: 1000, stall_ms: 30000}
tenants:
  - name: one
    arrivals: {kind: constant, rate: 3}
    input: {kind: fixed, value: 40}
    output: {kind: fixed, value: 4200}
    stream: false
"""


async def test_the_cap_that_anthropics_dialect_wants_ends_no_answer_before_its_plan(tmp_path: Path) -> None:
    """The scenario caps nothing; what is sent, 4,096, is what an answer can come to, and V7 knows it."""
    flags = ("--profile", "noop", "--allow-markers")
    async with Engine(tmp_path, arguments=flags) as engine:
        options = ("--url", engine.url, "--api", "messages", "--allow", "V8")
        done = await bench(tmp_path, *options, scenario=LONG)
        assert done.code == 0, done.err + done.out
        assert {(row["planned_output_tokens"], row["output_tokens"]) for row in done.requests} == {(4096, 4096)}
        assert (done.report["run"]["length_control"], done.rule("V7")["state"]) == ("marker", "ok")
    again = tmp_path / "again"
    again.mkdir()
    narrow = (*flags, "--max-model-len", "4100", "--max-num-seqs", "8", "--max-num-batched-tokens", "512")
    async with Engine(tmp_path, "narrow", arguments=narrow) as engine:
        short = ("--set", "tenants.one.output.value=9")
        done = await bench(again, "--url", engine.url, "--api", "messages", *short, scenario=LONG)
    assert done.code == 4 and "an answer of up to 4,096 does not fit" in done.err, done.err


async def test_a_run_is_compared_with_another(tmp_path: Path) -> None:
    async with ScriptEngine() as engine:
        done = await bench(tmp_path, "--url", engine.url, "--length-control", "none", "--set", "slo.target=0.1")
    assert done.code == 0, done.err
    report = done.folder / "report.json"
    same = await command(tmp_path, "compare", str(report), str(done.folder))
    assert same.code == 0 and "attainment" in same.out, same.err
    other = tmp_path / "other.json"
    other.write_text(report.read_text().replace('"state":"ok"', '"state":"breach"'))
    invalid = await command(tmp_path, "compare", str(report), str(other))
    assert invalid.code == 3, invalid.err


FORTY = """
version: 1
name: forty
seed: 7
warmup: 0s
duration: 3s
slo: {ttft: {base_ms: 3000}, tpot_ms: 1000, stall_ms: 3000}
tenants:
  - name: one
    arrivals: {kind: constant, rate: 40}
    input: {kind: fixed, value: 40}
    output: {kind: fixed, value: 3}
"""
TALKS = """
version: 1
name: talks
seed: 7
warmup: 500ms
duration: 4s
slo: {ttft: {base_ms: 3000}, tpot_ms: 1000, stall_ms: 3000, target: 0.9}
tenants:
  - name: chat
    arrivals: {kind: sessions, rate: 12, turns: {kind: fixed, value: 4}, think: {kind: fixed, value: 0.1}}
    input: {kind: fixed, value: 60}
    output: {kind: fixed, value: 12}
    max_tokens: {kind: fixed, value: 64}
    prompt: {answers: real}
"""
SLOW = """
version: 1
name: slow
seed: 7
warmup: 0s
duration: 3s
slo: {ttft: {base_ms: 3000}, tpot_ms: 1000, stall_ms: 3000, target: 0.9}
tenants:
  - name: one
    arrivals: {kind: constant, rate: 40}
    input: {kind: fixed, value: 40}
    output: {kind: fixed, value: 2000}
"""


async def test_a_request_ends_at_its_timeout_and_one_beyond_the_cap_is_dropped(tmp_path: Path) -> None:
    """Answers take ten seconds: a client with six places and a patience of half a second serves nobody."""
    async with Engine(tmp_path, arguments=("--profile", "llama8b-fp8-h100", "--allow-markers")) as engine:
        done = await bench(tmp_path, "--url", engine.url, "--timeout", "500ms", "--max-open", "6", scenario=SLOW)
    assert (done.code, done.rule("V5")["state"]) == (3, "breach"), done.err
    assert "met the cap on open requests (--max-open)" in done.out
    outcomes = done.report["outcomes"]
    assert outcomes.keys() == {"timeout", "dropped"} and outcomes["timeout"] + outcomes["dropped"] == 120
    rows = [json.loads(line) for line in (done.folder / "requests.jsonl").read_text().splitlines()]
    waited = [row["t_end"] - row["t_sched"] for row in rows if row["outcome"] == "timeout"]
    assert 18 <= len(waited) <= 42 and min(waited) >= 0.499  # six at a time, each for half a second


async def test_a_server_that_accepts_no_connection_is_given_up_at_the_connect_timeout(tmp_path: Path) -> None:
    """Its backlog is full: in preflight that ends the command, later on it is how a request ends."""
    async with ScriptEngine() as engine:
        engine.jam()
        done = await bench(tmp_path, "--url", engine.url, "--connect-timeout", "300ms")
    assert done.code == 4 and not done.folder.exists(), done.err
    assert "tenant chat: " in done.err and "no connection within 0.3 s; is the server there" in done.err

    def answer(seen: Seen) -> Sequence[Step]:
        if len(engine.seen) == 60:
            engine.jam()
        return [*wire.stream(wire.events("chat", ("the ", "cat "))), FIN]  # each request needs a connection of its own

    async with ScriptEngine(answer) as engine:
        timeouts = ("--connect-timeout", "300ms", "--timeout", "60s")
        done = await bench(tmp_path, "--url", engine.url, *timeouts, "--length-control", "none", "--allow", "V8")
    assert done.code == 1, done.err
    lost = [row for row in done.requests if row["outcome"] == "error_connect"]
    assert len(lost) > 60 and len(lost) + sum(row["outcome"] == "ok" for row in done.requests) == REQUESTS
    waited = [row for row in lost if "no connection within 0.3 s" in row["reason"]]
    assert len(waited) > 60 and min(row["t_end"] - row["t_sched"] for row in waited) >= 0.299
    assert sorted(row["t_end"] - row["t_sched"] for row in waited)[len(waited) // 2] < 2.5, (
        "not the usual 5 s, nor 60 s"
    )


STEADY = """
version: 1
name: steady
seed: 7
warmup: 200ms
duration: 10s
slo: {ttft: {base_ms: 150}, tpot_ms: 1000, stall_ms: 3000, target: 0.9}
tenants:
  - name: one
    arrivals: {kind: constant, rate: 40}
    input: {kind: fixed, value: 40}
    output: {kind: fixed, value: 8}
    max_tokens: {kind: fixed, value: 16}
"""


async def test_the_search_finds_the_rate_that_an_engine_can_do(tmp_path: Path) -> None:
    """Four at a time, eight steps of some 5 ms each: about 95 requests a second, however many come."""
    flags = (
        "--profile",
        "llama8b-fp8-h100",
        "--allow-markers",
        "--max-num-seqs",
        "4",
        "--max-num-batched-tokens",
        "512",
    )
    search = ("--find-max-rate", "--start", "1", "--probe-seconds", "1.2", "--probe-requests", "105")
    async with Engine(tmp_path, arguments=flags) as engine:
        done = await bench(tmp_path, "--url", engine.url, "--scrape", engine.url, *search, scenario=STEADY)
    assert done.code == 0, done.err + done.out
    report = done.report
    probes = report["search"]
    best = max(probe["rate"] for probe in probes if probe["passed"])
    assert 50 < best < 125, probes
    assert {probe["seed"] for probe in probes if probe["passed"] and probe["scale"] >= 0.9 * best / 40} >= {7, 8}
    assert any(not probe["passed"] for probe in probes)
    assert "is the highest rate within the SLO on each of 3 seeds" in done.out
    for number, probe in enumerate(probes, 1):  # C112: each ends by its own limits
        of = json.loads((done.folder / f"probe-{number:02}" / "report.json").read_bytes())
        assert probe["why"] or (of["window_s"] >= 1.2 and of["totals"]["offered"] >= 105)
        window_s = max(1.2, 105 / (40 * probe["scale"]))
        assert probe["why"] or of["window_s"] == pytest.approx(window_s, abs=0.001)
        assert probe["why"] or of["totals"]["offered"] == pytest.approx(40 * probe["scale"] * window_s, abs=1)
    again = await command(tmp_path, "report", "out", "--json")
    assert json.loads(again.out)["search"] == probes
