"""The checker finds each broken invariant: it is proved on texts in which one is broken."""

import pytest

from tests.kit import wire
from tests.kit.gateway import Metrics, config, merged
from tests.kit.invariants import BrokenInvariantError, conserved, same_stream

GOOD = """
forebay_requests_received_total{tenant="default",model="m",class="standard"} 10
forebay_requests_ended_total{outcome="completed",reason=""} 4
forebay_requests_ended_total{outcome="rejected",reason="overloaded"} 1
forebay_requests_ended_total{outcome="cancelled",reason="queued"} 2
forebay_requests_queued{model="m"} 2
forebay_requests_inflight{model="m"} 1
"""


def test_a_conserved_count_passes() -> None:
    assert conserved(Metrics(GOOD)) == []


@pytest.mark.parametrize(
    "change",
    [("} 10", "} 11"), ("} 10", "} 9"), ("queued\"} 2", "queued\"} 3"), ("inflight{model=\"m\"} 1", "inflight{model=\"m\"} 0")],
)  # fmt: skip
def test_one_request_too_many_or_too_few_is_found(change: tuple[str, str]) -> None:
    assert conserved(Metrics(GOOD.replace(*change)))


def test_a_negative_gauge_is_found_even_when_the_sum_is_right() -> None:
    text = GOOD.replace('queued{model="m"} 2', 'queued{model="m"} 4').replace(
        'inflight{model="m"} 1', 'inflight{model="m"} -1'
    )
    assert any("negative" in one for one in conserved(Metrics(text)))


def test_metrics_sum_over_labels() -> None:
    metrics = Metrics(GOOD)
    assert metrics.sum("forebay_requests_ended_total") == 7
    assert metrics.sum("forebay_requests_ended_total", outcome="cancelled") == 2
    assert metrics.by("forebay_requests_ended_total", "outcome") == {"completed": 4, "rejected": 1, "cancelled": 2}
    assert metrics.sum("absent") == 0


def test_a_stream_must_be_the_engines_minus_what_was_stripped() -> None:
    events = wire.events("chat", ["a", "b"])
    same_stream(events, b"".join(events))
    same_stream(events, b"".join(events[:-2] + events[-1:]), stripped=[events[-2]])
    with pytest.raises(BrokenInvariantError):
        same_stream(events, b"".join(events[:-1]))
    with pytest.raises(BrokenInvariantError):
        same_stream(events, b"".join(events) + b"x")


def test_settings_are_merged_section_by_section() -> None:
    made = config(["http://127.0.0.1:1"], timeouts={"connect_s": 2}, telemetry={"log_level": "debug"})
    assert made["timeouts"] == {"scale": 0.1, "connect_s": 2} and made["telemetry"] == {"log_level": "debug"}
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}
