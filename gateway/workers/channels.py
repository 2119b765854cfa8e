"""Questions to the admin applications of all workers, over a private Unix socket each.

A question goes on as it came: path, token, `host` and `origin`. So each worker judges for itself who may ask, by the
tokens of the configuration that is in force there.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

from gateway.workers.slot import Slot

ANSWER_S = 10.0
RELOAD_S = 120.0  # reading a thousand tenants, and probing what is new
_PASSED_ON = ("authorization", "host", "origin")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said. `status` 0: it runs, and said nothing in time."""

    slot: Slot
    pid: int
    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class Channels:
    """The way to every worker that runs and has begun to serve."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def ask(self, request: web.Request, path: str, *, within_s: float = ANSWER_S) -> list[Answer]:
        """The answers of all, in their order; those that end meanwhile are left out."""
        passed = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        timeout = aiohttp.ClientTimeout(total=within_s)
        asked = [slot for slot in self._slots if slot.state in ("serving", "draining")]
        given = await asyncio.gather(*(self._ask(slot, (request.method, path), passed, timeout) for slot in asked))
        return [answer for answer in given if answer.status or answer.slot.runs(answer.pid)]

    async def close(self) -> None:
        """Hang up."""
        for session in self._sessions.values():
            await session.close()

    async def _ask(
        self, slot: Slot, what: tuple[str, str], headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> Answer:
        method, path = what
        pid = slot.pid
        url = URL.build(scheme="http", host="worker", path=path)
        try:
            async with self._session(slot).request(method, url, headers=headers, timeout=timeout) as response:
                return Answer(slot, pid, response.status, await response.read(), dict(response.headers))
        except (OSError, aiohttp.ClientError):  # a timeout is an OSError
            return Answer(slot, pid, 0)

    def _session(self, slot: Slot) -> aiohttp.ClientSession:
        """Connections are not kept: the process at the other end may be another one next time."""
        if slot.index not in self._sessions:
            connector = aiohttp.UnixConnector(path=str(slot.address), force_close=True)
            self._sessions[slot.index] = aiohttp.ClientSession(connector=connector)
        return self._sessions[slot.index]


def worst(answers: Iterable[Answer]) -> Answer:
    """The one with the highest status; silence is worst of all."""
    return max(answers, key=lambda answer: answer.status or 1000)
