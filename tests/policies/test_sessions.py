"""Sessions: where the last turn went, as long as that means something; each tenant has its own table."""

import pytest

from policies.state.sessions import Sessions, Turn


def turn(endpoint: str, at_s: float, tokens: int = 100) -> Turn:
    return Turn(endpoint=endpoint, prompt_tokens=tokens, at_s=at_s)


def test_the_last_turn_is_found_by_tenant_and_session() -> None:
    sessions = Sessions()
    sessions.keep("acme", "s", turn("x", 1.0))
    sessions.keep("acme", "s", turn("y", 2.0, tokens=900))
    sessions.keep("beta", "s", turn("z", 2.0))
    assert sessions.find("acme", "s", 3.0) == turn("y", 2.0, tokens=900)
    assert sessions.find("beta", "s", 3.0) == turn("z", 2.0)
    assert sessions.find("acme", "t", 3.0) is sessions.find("gamma", "s", 3.0) is None


@pytest.mark.parametrize(("later_s", "found"), [(1800.0, True), (1800.1, False)])
def test_a_quiet_session_is_forgotten(later_s: float, found: bool) -> None:
    sessions = Sessions()
    sessions.keep("acme", "s", turn("x", 1.0))
    assert (sessions.find("acme", "s", 1.0 + later_s) is not None) is found


def test_the_least_recently_used_of_the_tenant_leaves() -> None:
    sessions = Sessions(most=2)
    for at, name in enumerate(("a", "b", "a", "c")):
        sessions.keep("acme", name, turn("x", float(at)))
    assert [sessions.find("acme", name, 5.0) is not None for name in "abc"] == [True, False, True]


def test_an_endpoint_that_went_has_lost_its_sessions_also_when_it_is_back() -> None:
    sessions = Sessions()
    sessions.keep("acme", "s", turn("x", 1.0))
    sessions.keep("acme", "t", turn("y", 1.0))
    sessions.down("x", 1.0)
    assert sessions.find("acme", "s", 2.0) is None
    assert sessions.find("acme", "t", 2.0) is not None
    sessions.keep("acme", "s", turn("x", 3.0))
    assert sessions.find("acme", "s", 3.0) is not None


def test_neither_quiet_sessions_nor_gone_endpoints_pile_up() -> None:
    sessions = Sessions(ttl_s=10.0)
    for at in range(100):
        sessions.keep(f"tenant-{at}", "s", turn("x", 0.0))
        sessions.down(f"engine-{at}", float(at))
    for at in range(200):
        sessions.keep("acme", f"s-{at}", turn("x", 20.0 + at))
    assert [len(table) for table in sessions._tables.values()] <= [12]
    assert len(sessions._down) <= 12
