"""Plain values to Settings: what a journal carries comes back the same, and nothing wrong gets through."""

import dataclasses
import json
from typing import Any

import pytest

from policies.settings import PORTION, SettingsError, settings_from
from policies.types import Band, Pool

PLAIN: dict[str, Any] = {
    "pools": {"p": {"name": "p", "model": "m"}, "n": {"name": "n", "model": "other"}},
    "bands": {
        "critical": {"name": "critical", "rank": 0, "queue_timeout_s": 30, "max_queued": 512},
        "batch": {"name": "batch", "rank": 3, "queue_timeout_s": 300.5, "max_queued": 5000},
    },
    "max_queued": 10000,
    "max_queued_bytes": 2**29,
    "max_attempts": 2,
    "seed": 2**62,
}


def changed(path: str, value: object) -> dict[str, Any]:
    """PLAIN with the value at a dotted path replaced or added."""
    plain: dict[str, Any] = json.loads(json.dumps(PLAIN))
    *steps, last = path.split(".")
    inner = plain
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return plain


def test_plain_values_become_settings() -> None:
    settings = settings_from(PLAIN)
    assert settings.pools["p"] == Pool(name="p", model="m")
    assert settings.bands["batch"] == Band(name="batch", rank=3, queue_timeout_s=300.5, max_queued=5000)
    assert (settings.seed, settings.timer_scale, settings.admitting, settings.queueing) == (2**62, 1.0, True, True)


def test_settings_written_to_a_journal_come_back_the_same() -> None:
    settings = settings_from({**PLAIN, "timer_scale": 0.05, "admitting": False, "queueing": False})
    assert settings_from(json.loads(json.dumps(dataclasses.asdict(settings)))) == settings


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("max_queud", 5, "max_queud: Unexpected keyword argument"),
        ("pools.p.max_totl_tokens", 5, "pools.p.max_totl_tokens: Unexpected keyword argument"),
        ("bands.batch.reservd", 0.5, "bands.batch.reservd: Unexpected keyword argument"),
        ("max_attempts", "2", "max_attempts: Input should be a valid integer"),
        ("max_attempts", True, "max_attempts: Input should be a valid integer"),
        ("max_attempts", 0, "max_attempts: must be positive"),
        ("max_queued", -1, "max_queued: must be positive"),
        ("timer_scale", 0, "timer_scale: must be positive"),
        ("timer_scale", float("nan"), "timer_scale: Input should be a finite number"),
        ("bands.batch.queue_timeout_s", float("inf"), "bands.batch.queue_timeout_s: Input should be a finite number"),
        ("bands.batch.queue_timeout_s", 0, "bands.batch: queue_timeout_s and max_queued must be positive"),
        ("bands.batch.rank", 0, "bands: two with the same rank"),
        ("bands.batch.name", "late", "bands.batch.name: is 'late'"),
        ("pools.p.name", "q", "pools.p.name: is 'q'"),
        ("ordering", "shortest", "ordering: 'shortest' is none of by_length, edf, fcfs"),
        ("shed", "on", "shed: 'on' is none of auto, llmd, off"),
        ("length", "oracle", "length: 'oracle' is none of learned, declared"),
        ("pools.p.lanes", "two", "pools.p.lanes: 'two' is none of auto, off, fixed"),
        ("bands.batch.on_late", "drop", "bands.batch.on_late: 'drop' is none of queue, downgrade, reject"),
        ("bands.batch.age_after_s", 0, "bands.batch.age_after_s: must be positive"),
        ("pools.p.borrow", ["nowhere"], "pools.p.borrow: 'nowhere' is no other pool"),
        ("pools.p.borrow", ["p"], "pools.p.borrow: 'p' is no other pool"),
        ("pools.p.borrow", ["n"], "pools.p.borrow: 'n' serves another model"),
        ("pools", [], "pools: Input should be an object"),
        ("seed", b"x", "not plain values"),
    ],
)
def test_wrong_settings_are_refused_by_name(path: str, value: object, said: str) -> None:
    plain = {**PLAIN, path: value} if isinstance(value, bytes) else changed(path, value)
    with pytest.raises(SettingsError) as caught:
        settings_from(plain)
    assert said in str(caught.value)


def test_every_error_is_named_at_once() -> None:
    plain = changed("max_attempts", 0)
    plain["pools"]["p"]["name"] = "q"
    with pytest.raises(SettingsError, match=r"pools\.p\.name: is 'q'; max_attempts: must be positive"):
        settings_from(plain)


def test_a_crowd_of_tenants_is_taken_and_refused_as_a_few_are() -> None:
    crowd = {f"t{number}": {"id": f"t{number}", "weight": 1.0 + number} for number in range(2 * PORTION + 7)}
    made = settings_from({**PLAIN, "tenants": crowd})
    assert {name: tenant.weight for name, tenant in made.tenants.items()} == {
        name: each["weight"] for name, each in crowd.items()
    }
    crowd[f"t{PORTION + 3}"]["weight"] = "heavy"
    with pytest.raises(SettingsError, match=rf"^tenants\.t{PORTION + 3}\.weight: "):
        settings_from({**PLAIN, "tenants": crowd})


def test_a_missing_field_is_an_error() -> None:
    plain = {name: value for name, value in PLAIN.items() if name != "seed"}
    with pytest.raises(SettingsError, match="seed"):
        settings_from(plain)
