"""Events and decisions as plain values: there and back, and what is refused with which words."""

import json

import pytest
from msgspec import structs

from policies import journal
from policies.decisions import Dispatch, Reason, Reject, Why
from policies.events import (
    Arrived,
    Bounced,
    CacheCleared,
    CacheTurned,
    Cancelled,
    Cause,
    EndpointDown,
    EndpointUp,
    Event,
    Finished,
    FirstToken,
    LengthsRestored,
    LoadObserved,
    Outcome,
    QuotaGranted,
    QuotaReturned,
    ServedElsewhere,
    SettingsChanged,
    SlotsLeased,
    StoreChanged,
    Tick,
    WallClock,
)
from tests.policies.given import endpoint, request, settings

EVENTS: list[Event] = [
    Arrived(request=request("a", at=0.1 + 0.2)),
    Cancelled(request_id="a"),
    FirstToken(request_id="a", attempt=1),
    Finished(request_id="a", attempt=1, outcome=Outcome.COMPLETED, prompt_tokens=7, output_tokens=None),
    Finished(request_id="a", attempt=1, outcome=Outcome.FAILED, left=True),
    Bounced(request_id="a", attempt=2, cause=Cause.STATUS_503, retry_after_s=1.5),
    EndpointUp(endpoint=endpoint("x", pools=("main", "other"))),
    EndpointDown(name="x"),
    LoadObserved(endpoint="x", observed_s=1.5, running=3, waiting=0, kv_usage=None),
    CacheCleared(endpoint="x"),
    CacheTurned(endpoint="x", stored_tokens=4096, removed_tokens=0),
    LengthsRestored(state="{}"),
    SettingsChanged(settings=settings()),
    WallClock(offset_s=1.75e9),
    QuotaReturned(scope="tenant", tenant="acme", part="", metric="tpm", amount=10**15),
    QuotaGranted(scope="model", tenant="", part="llama", metric="rpm", granted=1, reported=0, used=10**21, wait_s=0.5),
    SlotsLeased(scope="key", tenant="acme", part="k1", count=3, contended=True, until_s=25.5),
    ServedElsewhere(pool="main", band="standard", tenants=("acme", "b"), served=(3, 0), elsewhere=(-7, 1 << 40)),
    StoreChanged(up=False, replicas=4),
    Tick(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_way_through_json(event: Event) -> None:
    line = journal.encode_line(3, 1.25, event, [])
    assert journal.decode_event(json.loads(json.dumps(line))) == event


def test_every_kind_of_event_is_tested_here() -> None:
    assert {type(event).__name__ for event in EVENTS} == set(journal.EVENTS)


def test_a_line_says_when_what_and_what_was_decided() -> None:
    decisions = [
        Dispatch(request_id="a", attempt=1, endpoint="x", why=Why(pool="main", candidates=2)),
        Reject(request_id="b", reason=Reason.OVERLOADED, retry_after_s=None, why=Why()),
    ]
    why = {field.name: field.default for field in structs.fields(Why)}
    assert journal.encode_line(3, 1.25, Cancelled(request_id="c"), decisions) == {
        "seq": 3,
        "t": 1.25,
        "event": "Cancelled",
        "request_id": "c",
        "sent": True,
        "seen_tokens": 0,
        "prompt_tokens": None,
        "cached_tokens": None,
        "decisions": [
            {
                "decision": "Dispatch",
                "request_id": "a",
                "attempt": 1,
                "endpoint": "x",
                "why": why | {"pool": "main", "candidates": 2},
            },
            {
                "decision": "Reject",
                "request_id": "b",
                "reason": "overloaded",
                "retry_after_s": None,
                "why": why,
                "shortage": None,
            },
        ],
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"event": "Arived"}, "event 'Arived' is unknown"),
        ({}, "event None is unknown"),
        ({"event": "Cancelled"}, "Cancelled.request_id: is missing"),
        ({"event": "Cancelled", "request_id": 5}, "Cancelled.request_id: 5 is not of type str"),
        ({"event": "Cancelled", "request_id": "a", "why": 1}, "Cancelled.why: is unknown"),
        ({"event": "FirstToken", "request_id": "a", "attempt": True}, "attempt: True is not of type int"),
        ({"event": "Finished", "request_id": "a", "attempt": 1, "outcome": "won"}, "outcome: 'won' is not one of"),
        ({"event": "EndpointUp", "endpoint": []}, "EndpointUp.endpoint: [] is not an object"),
        (
            {"event": "EndpointUp", "endpoint": {"name": "x", "pools": "main", "max_seqs": 1, "max_prefill_tokens": 1}},
            "EndpointUp.endpoint.pools: 'main' is not a list",
        ),
        (
            {"event": "EndpointUp", "endpoint": {"name": "x", "pools": [1], "max_seqs": 1, "max_prefill_tokens": 1}},
            "EndpointUp.endpoint.pools[0]: 1 is not of type str",
        ),
        ({"event": "SettingsChanged", "settings": {"pools": []}}, "SettingsChanged.settings.bands: is missing"),
    ],
)
def test_what_is_wrong_with_an_event_is_said_with_its_place(line: dict[str, journal.Plain], words: str) -> None:
    with pytest.raises(journal.JournalError) as caught:
        journal.decode_event(line)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"seq": 1}, "does not begin with a journal's first line"),
        ({"version": "1"}, "does not begin with a journal's first line"),
        ({"version": 0}, "version 0 is not read"),
        ({"version": journal.VERSION + 1}, f"version {journal.VERSION + 1} is not read"),
    ],
)
def test_a_journal_of_another_version_is_refused(line: dict[str, journal.Plain], words: str) -> None:
    with pytest.raises(journal.JournalError) as caught:
        journal.check_header(line)
    assert words in str(caught.value)


def test_a_fields_default_stands_in_where_an_older_journal_has_none() -> None:
    line = journal.encode_event(SettingsChanged(settings=settings()))
    inner = line["settings"]
    assert isinstance(inner, dict)
    del inner["admitting"]
    assert journal.decode_event(line) == SettingsChanged(settings=settings())
