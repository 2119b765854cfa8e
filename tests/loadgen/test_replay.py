"""`forebay replay`: equal decisions in any process; the first difference shown; what cannot be replayed named."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.sim.replay import Asked, replay_command
from tests.loadgen import journals

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    journals.write(path, seed=3)
    return path


def replayed(path: Path, until: int | None = None, context: int = 5, stats: bool = False, max_diffs: int = 10) -> int:
    return replay_command(path, Asked(until=until, context=context, stats=stats, max_diffs=max_diffs))


def edited(path: Path, to: Path, change: Callable[[list[str]], object]) -> Path:
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    to.write_text("".join(lines))
    return to


def with_endpoint(line: str, name: str) -> str:
    """The line with its first dispatch sent to `name`."""
    record = json.loads(line)
    record["decisions"][0]["endpoint"] = name
    return json.dumps(record) + "\n"


def dispatches(path: Path) -> list[int]:
    """Numbers, from 0, of the lines that record a dispatch first."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        place
        for place, record in enumerate(records)
        if str(record.get("decisions"))[:25] == "[{'decision': 'Dispatch',"
    ]


def test_the_recorded_journal_holds_every_kind_of_decision(recorded: Path) -> None:
    kinds = Counter(
        decision["decision"]
        for line in recorded.read_text().splitlines()[1:]
        for decision in json.loads(line)["decisions"]
    )
    assert set(kinds) == {"Dispatch", "Reject", "Evict", "Fail"}
    assert min(kinds.values()) >= 3


def test_a_fresh_core_decides_the_same(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(recorded, stats=True) == 0
    out = capsys.readouterr().out
    assert "2000 events, all decisions equal" in out
    assert "events/s in the core" in out
    assert "Dispatch" in out


def test_decisions_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    journals_of = []
    for hash_seed in ("0", "1"):
        path = tmp_path / f"{hash_seed}.jsonl"
        subprocess.run(
            [sys.executable, "-m", "tests.loadgen.journals", str(path), "11"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            timeout=50,
        )
        journals_of.append(path)
    assert journals_of[0].read_bytes() == journals_of[1].read_bytes()
    assert replayed(journals_of[0]) == 0


def test_the_first_difference_is_shown_with_the_events_before_it(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = dispatches(recorded)[40]
    path = edited(recorded, tmp_path / "j", lambda lines: lines.__setitem__(place, with_endpoint(lines[place], "e99")))
    assert replayed(path, context=2) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"seq {place - 1} (line {place + 1}) decided differently"
    assert out[1].startswith(f"    seq {place - 3} ")
    assert out[2].startswith(f"    seq {place - 2} ")
    assert out[3].startswith(f"  > seq {place - 1} ")
    assert '"endpoint":"e99"' in out[4]
    assert '"endpoint":"e99"' not in out[5]
    assert "1 event decided differently" in out[6]


def test_it_stops_after_so_many_differences(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(lines: list[str]) -> None:
        for place in dispatches(recorded)[:5]:
            lines[place] = with_endpoint(lines[place], "e99")

    assert replayed(edited(recorded, tmp_path / "j", change), max_diffs=3) == 1
    assert "3 events decided differently" in capsys.readouterr().out


def test_until_stops_before_a_difference_that_comes_later(recorded: Path, tmp_path: Path) -> None:
    place = dispatches(recorded)[40]
    path = edited(recorded, tmp_path / "j", lambda lines: lines.__setitem__(place, with_endpoint(lines[place], "e99")))
    assert replayed(path, until=place - 2) == 0
    assert replayed(path, until=place - 1) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines.clear(), "the file is empty"),
        (lambda lines: lines.pop(0), "line 1: it does not begin with a journal's first line"),
        (lambda lines: lines.__setitem__(0, '{"version": 99}\n'), "line 1: version 99 is not read"),
        (lambda lines: lines.pop(1), "line 2: it is event 1, expected 0"),
        (lambda lines: lines.pop(500), "line 501: it is event 500, expected 499"),
        (lambda lines: lines.__setitem__(500, "{\n"), "line 501: not a JSON object"),
        (lambda lines: lines.__setitem__(500, "[]\n"), "line 501: not a JSON object"),
        (lambda lines: lines.__setitem__(500, "\n"), "line 501: not a JSON object"),
        (
            lambda lines: lines.__setitem__(500, '{"seq": 499, "dropped": 12}\n'),
            "line 501: 12 events are missing from here on",
        ),
        (
            lambda lines: lines.__setitem__(500, '{"seq": 499, "t": 1.0, "event": "Arived", "decisions": []}\n'),
            "line 501: event 'Arived' is unknown",
        ),
        (lambda lines: lines.__setitem__(500, '{"seq": 499, "event": "Tick"}\n'), "line 501: seq, t or decisions"),
        (
            lambda lines: lines.__setitem__(1, '{"seq": 0, "t": 0, "event": "Tick", "decisions": []}\n'),
            "line 2: the first event is not SettingsChanged",
        ),
    ],
)
def test_a_journal_that_cannot_be_replayed_says_where_and_why(
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[list[str]], object],
    words: str,
) -> None:
    assert replayed(edited(recorded, tmp_path / "j", change)) == 3
    assert f"unusable: {words}" in capsys.readouterr().out


def test_a_missing_file_is_an_unusable_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path / "nowhere") == 3
    said = capsys.readouterr().out
    assert "No such file or directory" in said and "equal" not in said


def test_a_last_line_that_a_crash_cut_off_is_left_out(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j"
    path.write_bytes(recorded.read_bytes()[:-20])
    assert replayed(path) == 0
    out = capsys.readouterr().out
    assert "1999 events, all decisions equal" in out
    assert "cut off" in out
