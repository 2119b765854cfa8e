"""What every test shares: seeds that are printed, and processes that are always ended by their own tests."""

import os
import random

import pytest


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed per run, or SEED from the environment to replay one; pytest shows it when the test fails."""
    chosen = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"SEED={chosen} replays {request.node.name}")
    return chosen
