"""What each class may hold, wait and promise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.config import ConfigErrors
from tests.limits.given import Configured, loaded
from tests.limits.table import holds

CLASSES = ("critical", "interactive", "standard", "batch")
OPEN = {name: {"ceiling": 1, "reserved": 0, "age_after_s": 3600} for name in CLASSES}


def each(field: str, *names: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """One check for the same field of several classes, all of them by default."""

    def register(check: Callable[[str], None]) -> Callable[[str], None]:
        for name in names or CLASSES:
            holds(f"classes.{name}.{field}")(partial(run, check, name))
        return check

    return register


def run(check: Callable[[str], None], name: str, _: Path) -> None:
    check(name)


def made(changes: dict[str, dict[str, Any]], **more: Any) -> Configured:
    """Classes without bounds but for what is said."""
    return Configured(None, classes={name: {**OPEN[name], **changes.get(name, {})} for name in CLASSES}, **more)


def less_urgent(name: str) -> tuple[str, ...]:
    return CLASSES[CLASSES.index(name) + 1 :]


@each("ceiling")
def ceiling(name: str) -> None:
    changes = {other: {"ceiling": 0.5} for other in (name, *less_urgent(name))}
    world = made(changes, endpoint={"max_seqs": 20})
    assert world.all_told(20, band=name).count("ok") == 10


@each("reserved", "critical", "interactive")
def reserved(name: str) -> None:
    below = less_urgent(name)
    world = made({name: {"reserved": 0.3}, **{other: {"ceiling": 0.7} for other in below}}, endpoint={"max_seqs": 20})
    for number in range(20):
        for other in below:
            world.told(f"{other}{number}", band=other)
    assert world.load("e0")[0] == 14
    assert world.told("its own", band=name) == "ok"


@each("reserved", "standard")
def left_to_the_last(name: str) -> None:
    """Of the only class below it the ceiling alone says the same: it must leave what is reserved."""
    assert refused({name: {"reserved": 0.3}})
    assert not refused({name: {"reserved": 0.3}, "batch": {"ceiling": 0.6}})


@each("reserved", "batch")
def for_the_last(name: str) -> None:
    """Nobody is below it: there is nothing to leave free."""
    assert refused({name: {"reserved": 0.1}})


def refused(classes: dict[str, dict[str, Any]]) -> bool:
    try:
        loaded(classes=classes)
    except ConfigErrors:
        return True
    return False


@each("queue_timeout_s")
def queue_timeout(name: str) -> None:
    world = made({name: {"queue_timeout_s": 2}}, endpoint={"max_seqs": 1})
    assert world.all_told(2, band=name) == ["ok", "queued"]
    assert world.tick(1.9) == []
    assert world.tick(2.0) == ["r1!queue_timeout"]


@each("max_queued")
def max_queued(name: str) -> None:
    world = made({name: {"max_queued": 1}}, endpoint={"max_seqs": 1})
    assert world.all_told(3, band=name) == ["ok", "queued", "overloaded"]
    assert world.told("another", band="batch" if name != "batch" else "standard") == "queued"


def crowd(world: Configured, *names: str, count: int = 60) -> None:
    """One runs, and so many of each class wait."""
    world.ask("runs", band="critical")
    for name in names:
        for number in range(count):
            world.ask(f"{name}{number}", band=name)


@each("min_share", "interactive", "standard", "batch")
def min_share(name: str) -> None:
    world = made({name: {"min_share": 0.3}}, endpoint={"max_seqs": 1})
    crowd(world, name, "critical")
    assert 10 <= sum(gone.startswith(name) for gone in world.order(40)) <= 14


@each("min_share", "critical")
def share_of_the_first(name: str) -> None:
    """Nobody can take from the most urgent what it is promised; but it counts for what may be promised in all."""
    assert refused({name: {"min_share": 0.4}, "standard": {"min_share": 0.2}})
    assert not refused({name: {"min_share": 0.4}, "standard": {"min_share": 0.1}})


@each("age_after_s", "interactive", "standard", "batch")
def age_after(name: str) -> None:
    world = made({name: {"age_after_s": 1}}, endpoint={"max_seqs": 1})
    crowd(world, name, "critical")
    assert 9 <= sum(gone.startswith(name) for gone in world.order(40, 2.0)) <= 11


@each("age_after_s", "critical")
def age_of_the_first(name: str) -> None:
    """Of two that have waited too long the older goes first, so nobody comes before those that came first."""
    world = made({name: {"age_after_s": 1}, "standard": {"age_after_s": 1}}, endpoint={"max_seqs": 1})
    crowd(world, name, "standard")
    assert {gone[:8] for gone in world.order(12, 2.0)} == {name}


# -- promises ----------------------------------------------------------------------------------------------------------


@each("slo.ttft_ms")
def ttft(name: str) -> None:
    """Behind a quarter of a second of prompts one that is due after ten milliseconds is surely late."""
    world = made({name: {"on_late": "reject", "slo": {"ttft_ms": 10}}}, endpoint={"max_seqs": 1})
    assert world.told("runs", band=name, tokens=2000) == "ok"
    assert world.told("late", band=name) == "overloaded"


def first_of_two(name: str, **slo: float) -> str:
    """A prompt of 10,000 tokens, more than a second of work, came just before a short one: who goes first?"""
    changes = {name: {"slo": {"ttft_ms": 5000, **slo}}}
    world = made(changes, endpoint={"max_seqs": 1}, admission={"ordering": "edf"})
    world.ask("runs", band=name)
    world.ask("long", band=name, tokens=10_000)
    world.ask("short", 0.05, band=name)
    return world.order(1, 0.1)[0]


@each("slo.ttft_per_token_ms")
def ttft_per_token(name: str) -> None:
    assert first_of_two(name, ttft_per_token_ms=0) == "long"


@each("slo.free_tokens")
def free_tokens(name: str) -> None:
    assert first_of_two(name, free_tokens=100_000) == "long"
