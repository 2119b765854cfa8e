"""What is remembered of requests, and for how long."""

from msgspec.structs import replace

from gateway.explain import Explain
from policies.decisions import Dispatch, Evict, Reason, Why
from policies.events import Arrived, Bounced, Cancelled, Cause, Finished, FirstToken, LoadObserved, Outcome, Tick
from policies.types import InferenceRequest

REQUEST = InferenceRequest(
    id="r1", tenant="default", model="m", band="batch", route="chat", streamed=True, arrived_s=100.0, deadline_s=160.5,
    prompt_tokens=500, max_output_tokens=64, sequences=1, body_bytes=2100, prefix=tuple(range(500)), text_bytes=2000,
    shape="tool:ab",
)  # fmt: skip


def arrived(name: str) -> Arrived:
    return Arrived(request=replace(REQUEST, id=name))


def dispatch(name: str, attempt: int, endpoint: str) -> Dispatch:
    return Dispatch(
        request_id=name,
        attempt=attempt,
        endpoint=endpoint,
        why=Why(pool="p", waited_s=0.25, band="batch", lane="short"),
    )


def test_a_request_is_told_from_its_arrival_to_its_end_with_the_numbers_of_each_decision() -> None:
    explain = Explain()
    explain.record(100.0, Arrived(request=REQUEST), [])
    explain.record(100.2, Finished(request_id="r0", attempt=1, outcome=Outcome.COMPLETED), [dispatch("r1", 1, "e0")])
    explain.record(100.3, Bounced(request_id="r1", attempt=1, cause=Cause.RESET), [dispatch("r1", 2, "e1")])
    explain.record(100.5, FirstToken(request_id="r1", attempt=2), [])
    explain.record(100.6, LoadObserved(endpoint="e1", observed_s=100.6, running=1, waiting=0), [])
    explain.record(101.0, Finished(request_id="r1", attempt=2, outcome=Outcome.COMPLETED, output_tokens=9), [])
    found = explain.find("r1")
    assert found is not None
    assert found["request"] == {
        "id": "r1", "tenant": "default", "model": "m", "class": "batch", "route": "chat", "streamed": True,
        "deadline_ms": 60500.0, "prompt_tokens": 500, "max_output_tokens": 64, "sequences": 1, "body_bytes": 2100,
        "session": "", "text_bytes": 2000, "kind": "text", "shape": "tool:ab",
    }  # fmt: skip
    steps = [(step["at_ms"], step["what"], step.get("endpoint", "")) for step in found["steps"]]
    assert steps == [
        (200.0, "dispatch", "e0"),
        (300.0, "bounced", ""),
        (300.0, "dispatch", "e1"),
        (500.0, "first_token", ""),
        (1000.0, "finished", ""),
    ]
    assert found["steps"][0]["why"]["pool"] == "p"
    assert found["steps"][0]["why"]["lane"] == "short"
    assert found["steps"][0]["why"]["class"] == "batch"  # as everywhere outside of the core
    assert "band" not in found["steps"][0]["why"]
    assert found["steps"][1]["cause"] == "reset"
    assert found["steps"][4]["output_tokens"] == 9


def test_refusals_and_departures_are_told_too() -> None:
    explain = Explain()
    evict = Evict(request_id="r1", reason=Reason.QUEUE_TIMEOUT, retry_after_s=3.0, why=Why(waited_s=30.0))
    explain.record(100.0, arrived("r1"), [])
    explain.record(130.0, Tick(), [evict])
    explain.record(130.0, arrived("r2"), [])
    explain.record(131.0, Cancelled(request_id="r2"), [])
    first, second = explain.find("r1"), explain.find("r2")
    assert first is not None
    assert (first["steps"][0]["what"], first["steps"][0]["reason"]) == ("evict", "queue_timeout")
    assert second is not None
    untold = {"seen_tokens": 0, "prompt_tokens": None, "cached_tokens": None}
    assert second["steps"] == [{"at_ms": 31000.0, "what": "cancelled", "sent": True, **untold}]


def test_only_the_last_so_many_are_known_and_what_comes_late_about_others_is_nothing() -> None:
    explain = Explain(room=8)
    for at in range(5):
        explain.record(100.0, arrived(f"r{at}"), [dispatch(f"r{at}", 1, "e")])
        explain.record(100.1, LoadObserved(endpoint="e1", observed_s=100.1, running=1, waiting=0), [])
        explain.record(100.2, FirstToken(request_id=f"r{at}", attempt=1), [])
    assert [explain.find(f"r{at}") is not None for at in range(5)] == [False, True, True, True, True]
    explain.record(101.0, FirstToken(request_id="r0", attempt=1), [dispatch("r1", 2, "e")])
    explain.record(101.0, Cancelled(request_id="never"), [])
    explain.record(101.0, arrived("r4"), [])  # twice
    known = [explain.find(f"r{at}") is not None for at in range(5)]
    assert (known, explain.find("never")) == ([False, False, False, True, True], None)
