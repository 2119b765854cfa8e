"""Row 45 of the tenancy table: every numeric limit field has a check that fails when its enforcement is taken out."""

import inspect
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.limits import classes, fleet, store, tenants, wire
from tests.limits.table import CHECKS, NO_LIMITS, numeric_fields, on_sockets, without

MODULES = (classes, fleet, store, tenants, wire)  # that fill the table
ROTATION = 10  # a part of those that run a gateway has its turn each day

HERE = [path for path in CHECKS if not on_sockets(path)]
OUTSIDE = [path for path in CHECKS if on_sockets(path)]


async def checked(path: str, directory: Path) -> None:
    found = CHECKS[path](directory)
    if inspect.isawaitable(found):
        await found


async def noticed(path: str, directory: Path) -> None:
    with without(path), pytest.raises(AssertionError):
        await checked(path, directory)


def test_row_45_and_c087_every_numeric_field_has_a_check() -> None:
    fields = set(numeric_fields())
    assert fields - NO_LIMITS - set(CHECKS) == set(), "give each a check in tests/limits"
    assert set(CHECKS) | NO_LIMITS <= fields, "there are no such fields any more"


@pytest.mark.parametrize("path", CHECKS)
async def test_row_45_it_holds(path: str, tmp_path: Path) -> None:
    await checked(path, tmp_path)


@pytest.mark.parametrize("path", HERE)
async def test_row_45_it_is_noticed_when_it_does_not(path: str, tmp_path: Path) -> None:
    await noticed(path, tmp_path)


async def test_row_45_it_is_noticed_on_sockets_too_a_few_a_day(tmp_path: Path) -> None:
    today = datetime.now(UTC).toordinal() % ROTATION
    for number, path in enumerate(OUTSIDE):
        if number % ROTATION == today:
            directory = tmp_path / str(number)
            directory.mkdir()
            await noticed(path, directory)


@pytest.mark.nightly
@pytest.mark.parametrize("path", OUTSIDE)
async def test_row_45_it_is_noticed_on_sockets_too(path: str, tmp_path: Path) -> None:
    await noticed(path, tmp_path)
