"""What every test shares: seeds that are printed, and processes that are always ended by their own tests."""

import gc
import os
import random
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All tests are a million objects that stay: to look through them for garbage again and again takes seconds of
    collecting, and later half a second in the midst of a test, in which its gateway sees a client that says nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first: one that begins last leaves the other core idle."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed per run, or SEED from the environment to replay one; pytest shows it when the test fails."""
    chosen = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"SEED={chosen} replays {request.node.name}")
    return chosen
