"""An attempt that came back: where it goes next, when it does not, and what the client is told then."""

import pytest

from policies.decisions import Evict, Fail
from policies.eligibility import GIVEN_UP
from policies.events import Bounced, Cause, Tick
from policies.types import Band, Pool
from tests.policies.given import World, endpoint, settings


def two(**limits: int) -> tuple[World, str, str]:
    """Two endpoints; request `a` runs on the first name returned."""
    world = World(endpoint("x"), endpoint("y"), settings=settings(**limits))  # type: ignore[arg-type]
    [text] = world.arrive("a")
    first = text[2:]
    return world, first, "y" if first == "x" else "x"


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_gets_a_second_attempt_on_another_endpoint(cause: Cause) -> None:
    world, _, other = two()
    assert world.bounce("a", 1.0, cause) == [f"a>{other}#2"]


@pytest.mark.parametrize(
    ("cause", "reason", "wait_s"),
    [
        (Cause.CONNECT, "backend_unavailable", 1.0),
        (Cause.RESET, "backend_unavailable", 1.0),
        (Cause.STATUS_429, "backend_saturated", 1.0),
        (Cause.STATUS_500, "backend_error", 1.0),
        (Cause.STATUS_502, "backend_unavailable", 1.0),
        (Cause.STATUS_503, "backend_saturated", 1.0),
        (Cause.STATUS_504, "backend_timeout", 1.0),
        (Cause.ABORTED, "backend_unavailable", 1.0),
        (Cause.FIRST_BYTE_TIMEOUT, "backend_timeout", 1.0),
        (Cause.PROTOCOL, "backend_protocol_error", 1.0),
    ],
)
def test_the_client_hears_the_cause_of_the_last_attempt(cause: Cause, reason: str, wait_s: float) -> None:
    world, _, _ = two()
    world.bounce("a", 1.0, Cause.CONNECT)
    [decision] = world.happen(Bounced(request_id="a", attempt=2, cause=cause), 2.0)
    assert isinstance(decision, Fail)
    assert (decision.reason, decision.retry_after_s) == (reason, wait_s)
    assert world.core.totals().failed == 1


def test_every_cause_has_its_words_for_the_client() -> None:
    assert set(GIVEN_UP) == set(Cause)


@pytest.mark.parametrize(
    ("hints", "told"),
    [((None, None), 1.0), ((9.0, 4.0), 4.0), ((4.0, 9.0), 4.0), ((None, 90.0), 30.0), ((0.0, 5.0), 1.0)],
)
def test_full_engines_are_quoted_with_the_shortest_wait_they_asked_for(
    hints: tuple[float | None, float | None], told: float
) -> None:
    world, _, _ = two()
    world.bounce("a", 1.0, Cause.STATUS_503, retry_after_s=hints[0])
    [decision] = world.happen(Bounced(request_id="a", attempt=2, cause=Cause.STATUS_429, retry_after_s=hints[1]), 2.0)
    assert isinstance(decision, Fail)
    assert (decision.reason, decision.retry_after_s) == ("backend_saturated", told)


def test_with_no_other_endpoint_up_there_is_no_second_attempt() -> None:
    world = World(endpoint("x"))
    world.arrive("a")
    assert world.bounce("a", 1.0) == ["a!backend_unavailable"]


POOLS = (
    Pool(name="short", model="llama", max_total_tokens=4096, lanes="off"),
    Pool(name="long", model="llama", lanes="off"),
)


def test_who_came_back_from_the_last_engine_of_its_pool_goes_to_another_pool_of_its_model() -> None:
    world = World(
        endpoint("x", pools=("short",)), endpoint("y", pools=("long",), seqs=1), settings=settings(pools=POOLS)
    )
    assert [world.arrive("a"), world.arrive("l", tokens=9000)] == [["a>x"], ["l>y"]]
    assert world.bounce("a", 1.0) == []
    assert world.finish("l", 2.0) == ["a>y#2"]
    assert world.bounce("a", 3.0, attempt=2) == ["a!backend_unavailable"]


def test_so_does_who_came_back_to_a_pool_that_a_reload_has_taken_away() -> None:
    world = World(endpoint("x", pools=("short",)), settings=settings(pools=POOLS))
    world.arrive("a")
    world.change(settings(pools=POOLS[1:]), 1.0)
    world.up(endpoint("y", pools=("long",)), 1.0)
    assert world.bounce("a", 2.0) == ["a>y#2"]


@pytest.mark.parametrize(("max_attempts", "answers"), [(1, ["!"]), (2, [">", "!"]), (3, [">", ">", "!"])])
def test_there_are_at_most_max_attempts(max_attempts: int, answers: list[str]) -> None:
    world = World(*(endpoint(name) for name in "wxyz"), settings=settings(max_attempts=max_attempts))
    world.arrive("a")
    seen = [world.bounce("a", float(number), attempt=number)[0][1] for number in range(1, len(answers) + 1)]
    assert seen == answers


@pytest.mark.parametrize("cause", [Cause.STATUS_500, Cause.PROTOCOL])
def test_an_error_that_may_be_the_requests_own_fault_is_tried_again_only_once(cause: Cause) -> None:
    world = World(*(endpoint(name) for name in "wxyz"), settings=settings(max_attempts=4))
    world.arrive("a")
    assert world.bounce("a", 1.0, Cause.CONNECT)[0][1] == ">"
    assert world.bounce("a", 2.0, cause, attempt=2)[0][1] == ">"
    assert world.bounce("a", 3.0, cause, attempt=3)[0][1] == "!"


@pytest.mark.parametrize(("at", "again"), [(50.0, True), (50.1, False)])
def test_a_first_byte_timeout_is_tried_again_while_half_of_the_deadline_is_left(at: float, again: bool) -> None:
    world = World(endpoint("x"), endpoint("y"))
    world.arrive("a", deadline_s=100.0)
    assert (world.bounce("a", at, Cause.FIRST_BYTE_TIMEOUT)[0][1] == ">") is again


def test_a_bounce_past_the_deadline_ends_the_request() -> None:
    world = World(endpoint("x"), endpoint("y"))
    world.arrive("a", deadline_s=5.0)
    assert world.bounce("a", 5.0) == ["a!deadline_exceeded"]


def test_a_retry_goes_before_those_that_came_later() -> None:
    world, first, other = two()
    world.down(other, 0.5)
    world.up(endpoint(other, seqs=1), 0.6)
    world.up(endpoint(first, seqs=1), 0.6)
    assert world.arrive("b", 1.0) == [f"b>{other}"]
    assert world.arrive("c", 2.0) == []
    assert world.bounce("a", 3.0) == [f"c>{first}"]  # `a` may not go there again
    assert world.arrive("d", 4.0) == []
    assert world.finish("b", 5.0) == [f"a>{other}#2"]


@pytest.mark.parametrize("ordering", ["by_length", "edf"])
def test_a_retry_that_never_waited_is_due_when_its_class_promises(ordering: str) -> None:
    band = Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=9, slo_ttft_s=8.0)
    world = World(endpoint("x", seqs=1, speed=1000.0), settings=settings(bands=(band,), ordering=ordering))
    world.arrive("a", tokens=1000)
    world.up(endpoint("y", seqs=1, speed=1000.0))
    world.arrive("b", tokens=1000)
    world.down("x", 1.0)
    assert world.bounce("a", 1.0) == []
    assert world.arrive("c", 2.0, tokens=1000) == []
    assert world.finish("b", 3.0) == ["a>y#2"]


def test_a_retry_without_room_does_not_hide_those_behind_it() -> None:
    world, first, other = two()
    world.up(endpoint(other, seqs=1), 0.5)
    world.down(first, 0.6)
    assert world.arrive("b", 1.0) == [f"b>{other}"]
    world.up(endpoint(first, seqs=8), 1.1)
    assert world.bounce("a", 2.0) == []
    for number in range(5):
        assert world.arrive(f"c{number}", 3.0) == [f"c{number}>{first}"]
    assert world.finish("b", 4.0) == [f"a>{other}#2"]


def test_nobody_overtakes_a_waiting_retry_on_the_endpoint_it_waits_for() -> None:
    world = World(endpoint("x", seqs=4), endpoint("y", seqs=4))
    [text] = world.arrive("a", tokens=2048)
    other = "y" if text == "a>x" else "x"
    assert world.arrive("b", tokens=2048) == [f"b>{other}"]
    assert world.bounce("a", 1.0) == []  # b is a step
    assert world.arrive("small", 2.0, tokens=10) == [f"small>{text[2:]}"]
    assert world.first_token("b", 3.0) == [f"a>{other}#2"]


def test_time_on_an_endpoint_is_no_time_in_the_queue() -> None:
    world = World(endpoint("x", seqs=1), endpoint("y", seqs=1))
    world.arrive("a")
    world.arrive("b")
    world.first_token("b", 1.0)
    assert world.bounce("a", 50.0) == []
    assert world.tick(109.9) == []
    assert world.tick(110.0) == ["a!queue_timeout"]


def test_a_retry_whose_endpoints_all_went_down_hears_so_at_its_timeout() -> None:
    world = World(endpoint("x", seqs=1), endpoint("y", seqs=1))
    [text] = world.arrive("a")
    other = "y" if text == "a>x" else "x"
    world.arrive("b")
    world.bounce("a", 1.0)
    world.down(other, 2.0)
    [decision] = world.happen(Tick(), 61.0)
    assert isinstance(decision, Evict)
    assert (decision.reason, decision.retry_after_s) == ("no_endpoint", 1.0)


def test_a_bounced_retry_does_not_count_against_the_bound_of_the_queue() -> None:
    world = World(endpoint("x", seqs=1), endpoint("y", seqs=1), settings=settings(max_queued=0))
    world.arrive("a")
    world.arrive("b")
    assert world.bounce("a", 1.0) == []
    assert world.core.totals().queued == 1
