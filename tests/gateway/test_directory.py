"""When an endpoint is up, and when it is not."""

import pytest

from gateway.endpoints.directory import Directory


class Seen:
    """A directory of two endpoints and the changes it told."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.suspects: list[str] = []
        self.directory = Directory(
            ["a", "b"],
            on_up=lambda name: self.changes.append(f"up {name}"),
            on_down=lambda name: self.changes.append(f"down {name}"),
        )
        self.directory.on_suspect = self.suspects.append


@pytest.mark.parametrize(
    ("probes", "changes", "up"),
    [
        ("", [], False),
        ("x", [], False),
        ("xxxxx", [], False),  # never up, so never down
        ("+", ["up"], True),
        ("xxxxx+", ["up"], True),
        ("+++", ["up"], True),
        ("+x", ["up"], True),
        ("+xx", ["up"], True),
        ("+xx+xx+xx", ["up"], True),  # never three in a row
        ("+xxx", ["up", "down"], False),
        ("+xxxxxxx", ["up", "down"], False),
        ("+xxx+", ["up", "down", "up"], True),
        ("+xxx+xx", ["up", "down", "up"], True),
        ("+xxx+xxx", ["up", "down", "up", "down"], False),
    ],
)
def test_one_good_probe_is_up_and_three_failures_in_a_row_are_down(probes: str, changes: list[str], up: bool) -> None:
    seen = Seen()
    for probe in probes:
        if probe == "+":
            seen.directory.good("a")
        else:
            seen.directory.failed("a", "timeout")
    assert seen.changes == [f"{change} a" for change in changes]
    assert seen.directory.standing("a").up is up
    assert seen.directory.standing("b").up is False
    assert seen.directory.standing("a").probes_good == probes.count("+")
    assert seen.directory.standing("a").probes_failed == probes.count("x")


def test_an_endpoint_that_three_probes_do_not_reach_is_told_once() -> None:
    seen = Seen()
    told: list[str] = []
    seen.directory.on_unreached = told.append
    seen.directory.good("b")
    for _ in range(5):
        seen.directory.failed("a", "not connected")
        seen.directory.failed("b", "not connected")
    assert told == ["a"]  # b was up: of that one on_down tells
    assert seen.changes == ["up b", "down b"]
    seen.directory.change(["a"], anew=["a"])
    for _ in range(3):
        seen.directory.failed("a", "not connected")
    assert told == ["a", "a"]  # another engine under its name


def test_the_cause_is_that_of_the_last_failure_and_goes_with_a_good_probe() -> None:
    directory = Seen().directory
    directory.failed("a", "timeout")
    directory.failed("a", "status 503")
    assert directory.standing("a").cause == "status 503"
    assert directory.standing("a").failures == 2
    directory.good("a")
    assert directory.standing("a").cause == ""
    assert directory.standing("a").failures == 0


def test_the_last_failure_and_the_moment_of_the_last_change_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gateway.endpoints.directory.time.time", lambda: now[0])
    directory, found = Seen().directory, []
    known_s = directory.standing("a").since_s
    for probe in "x++xxx+":
        now[0] += 1.0
        if probe == "+":
            directory.good("a")
        else:
            directory.failed("a", f"at {now[0]:.0f}")
        standing = directory.standing("a")
        found.append((probe, standing.up, standing.since_s, standing.failed_s, standing.failure))
    assert found == [
        ("x", False, known_s, 101.0, "at 101"),
        ("+", True, 102.0, 101.0, "at 101"),
        ("+", True, 102.0, 101.0, "at 101"),
        ("x", True, 102.0, 104.0, "at 104"),
        ("x", True, 102.0, 105.0, "at 105"),
        ("x", False, 106.0, 106.0, "at 106"),
        ("+", True, 107.0, 106.0, "at 106"),
    ]


def test_probes_go_on_while_it_is_drained_and_change_nothing_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gateway.endpoints.directory.time.time", lambda: now[0])
    seen, found = Seen(), []
    standing = seen.directory.standing("a")
    for step in "+DDxxx+UUxxxDU":
        now[0] += 1.0
        if step in "DU":
            news = seen.directory.set_drained("a", step == "D")
        elif step == "+":
            news = seen.directory.good("a")
        else:
            news = seen.directory.failed("a", "timeout")
        found.append((step, news, standing.drained, standing.up, standing.since_s))
    assert found == [
        ("+", None, False, True, 101.0),
        ("D", True, True, True, 102.0),
        ("D", False, True, True, 102.0),
        ("x", None, True, True, 102.0),
        ("x", None, True, True, 102.0),
        ("x", None, True, False, 102.0),
        ("+", None, True, True, 102.0),
        ("U", True, False, True, 108.0),
        ("U", False, False, True, 108.0),
        ("x", None, False, True, 108.0),
        ("x", None, False, True, 108.0),
        ("x", None, False, False, 112.0),
        ("D", True, True, False, 113.0),
        ("U", True, False, False, 114.0),
    ]
    assert seen.changes == ["up a", "down a", "up a", "down a"]


def test_a_suspicion_is_told_once_until_a_probe_has_decided() -> None:
    seen = Seen()
    seen.directory.good("a")
    for _ in range(1000):
        seen.directory.suspect("a")
    assert seen.suspects == ["a"]
    seen.directory.failed("a", "not connected")
    seen.directory.suspect("a")
    assert seen.suspects == ["a"]
    seen.directory.good("a")
    seen.directory.suspect("a")
    assert seen.suspects == ["a", "a"]


def test_suspicion_alone_changes_nothing() -> None:
    seen = Seen()
    seen.directory.good("a")
    for _ in range(1000):
        seen.directory.suspect("a")
    assert seen.changes == ["up a"]
    assert seen.directory.standing("a").up


def test_an_endpoint_that_is_down_is_not_suspected() -> None:
    seen = Seen()
    seen.directory.suspect("a")
    for probe in range(4):
        if probe == 0:
            seen.directory.good("b")
        else:
            seen.directory.failed("b", "timeout")
    seen.directory.suspect("b")
    assert seen.suspects == []
    assert not seen.directory.standing("b").suspected


def test_an_unknown_name_is_an_error() -> None:
    directory = Seen().directory
    for call in (directory.good, directory.standing):
        with pytest.raises(KeyError):
            call("c")


def test_endpoints_keep_the_order_of_the_configuration() -> None:
    assert [name for name, _ in Seen().directory.standings()] == ["a", "b"]
