"""Schedules out of journals: the same requests, at the same times, with what they share."""

import json
from pathlib import Path

import pytest

from loadgen.scenario import ScenarioError
from loadgen.sim.arm import run
from loadgen.sim.recorded import recorded
from loadgen.workload.chain import chain, rendered
from policies import journal
from policies.events import Arrived, Cancelled, Event, Finished, Outcome, SettingsChanged
from policies.types import InferenceRequest
from tests.loadgen.simulations import arm, mini, policy_for, scenario


def request(number: int, prefix: tuple[int, ...] = (), **fields: object) -> Arrived:
    values = {
        "id": f"x{number}",
        "tenant": "chat",
        "model": "m",
        "band": "interactive",
        "route": "chat",
        "streamed": True,
        "arrived_s": 100.0 + number,
        "deadline_s": 900.0,
        "prompt_tokens": 300,
        "max_output_tokens": 512,
        "sequences": 1,
        "body_bytes": 1,
        "prefix": prefix,
    }
    return Arrived(request=InferenceRequest(**(values | fields)))  # type: ignore[arg-type]


def finished(number: int, output: int | None, prompt: int | None = None) -> Finished:
    return Finished(
        request_id=f"x{number}", attempt=1, outcome=Outcome.COMPLETED, prompt_tokens=prompt, output_tokens=output
    )


def written(path: Path, *events: tuple[float, Event]) -> Path:
    first = SettingsChanged(settings=policy_for(mini()).settings)
    lines = [journal.header(7, "x"), journal.encode_line(0, 0.0, first, [])]
    lines += [journal.encode_line(number, t, event, []) for number, (t, event) in enumerate(events, 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_arrivals_lengths_and_patience_are_taken(tmp_path: Path) -> None:
    path = written(
        tmp_path / "j",
        (100.0, request(0)),
        (101.0, request(1, streamed=False, session="s")),
        (102.0, finished(0, 77, prompt=333)),
        (103.5, Cancelled(request_id="x1")),
    )
    made = recorded(path, scenario())
    first, second = made.schedule.requests
    assert (first.t, first.output_tokens, first.input_tokens, first.cancel_after_s) == (0.0, 77, 333, None)
    assert (second.t, second.session, second.stream, second.cancel_after_s) == (1.0, "s", False, 2.5)
    assert (second.output_tokens, made.guessed) == (77, 1), "who got no answer is given the median of its tenant"
    assert (first.tenant, first.priority, first.cls) == ("chat", "interactive", "short")


def test_equal_hashes_are_equal_engine_blocks(tmp_path: Path) -> None:
    long = tuple(range(1, 64 + 4))  # 64 blocks of 64 tokens, then 3 of 256
    path = written(
        tmp_path / "j",
        (100.0, request(0, prefix=long, prompt_tokens=4096 + 900)),
        (101.0, request(1, prefix=(*long[:65], 99), prompt_tokens=4096 + 900)),
        (102.0, request(2, prefix=(1, 2, 3), prompt_tokens=150)),
    )
    chains = [chain(rendered(one.blocks), 16) for one in recorded(path, scenario()).schedule.requests]
    shared = next(place for place, (a, b) in enumerate(zip(chains[0], chains[1], strict=True)) if a != b)
    assert shared == (4096 + 256) // 16
    assert chains[2][:8] == chains[0][:8], "two blocks of 64; the third does not fit its 150 tokens"
    assert len(chains[2]) == 9


def test_a_simulated_journal_gives_back_the_load_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "j"
    made = arm(journal=path)
    before = run(made, 3)
    again = run(arm(schedule=recorded(path, made.scenario).schedule), 3)
    assert again.requests == before.requests
    assert again.report.totals.ideal_tokens > 0
    cached = [one.report.totals.cached_tokens / one.report.totals.prompt_tokens for one in (before, again)]
    assert cached[0] == pytest.approx(cached[1], abs=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no request"),
        ("{}\n", ":1: timestamp is missing"),
        ('{"version": 1, "seed": 7, "config": "x"}\n{"seq": 0, "t": 0, "event": "Nope"}\n', ":2: event 'Nope'"),
        ('{"version": 1, "seed": 7, "config": "x"}\nnot json\n', ":2: "),
        ('{"version": 1, "seed": 7, "config": "x"}\n{"seq": 0, "t": "soon", "event": "Tick"}\n', ":2: "),
    ],
)
def test_what_is_no_journal_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "j"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        recorded(path, scenario())
