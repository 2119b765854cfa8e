"""A flood of guessed keys, as a process of its own: who guesses must not stand in the way of who measures beside it.

    python -m tests.kit.guessers PORT GUESSES AT_ONCE

Each guess is a request on a connection of its own. Prints how many answers there were of each status, as JSON.
"""

import asyncio
import hashlib
import json
import os
import sys
from collections import Counter

from tests.kit import wire
from tests.kit.processes import ROOT, WITH_PARENT, python
from tests.kit.raw_client import exchange
from tests.kit.sizes import NIGHTLY


def guess(number: int) -> bytes:
    """A key of the right form that nobody has; every hundredth from another address."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    fields = [("authorization", f"Bearer fbk-{digest[:12]}-{digest[:43]}")]
    address = ("x-forwarded-for", f"203.0.{number // 100 // 250}.{number // 100 % 250}")
    path = wire.ROUTES["chat"].decode()
    return wire.request(path, wire.request_body("chat", "x", model="m"), extra=[*fields, address])


async def guessed(port: int, guesses: int, at_once: int) -> dict[int, int]:
    """Have so many guesses made from another process, and wait for it; how many answers there were of each status. It is of our
    session, else the kernel gives it as much of a processor as us (autogroup), however little it asks for."""
    argv = [*WITH_PARENT, *python("-m", "tests.kit.guessers", *map(str, (port, guesses, at_once)))]
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the guessers ended with status {process.returncode}")
    return {int(status): count for status, count in json.loads(told).items()}


async def flood(port: int, guesses: int, at_once: int) -> Counter[int]:
    """The same from this process."""
    found = Counter[int]()
    numbers = iter(range(guesses))

    async def guesser() -> None:
        for number in numbers:
            found[(await exchange(port, guess(number))).status] += 1

    await asyncio.gather(*(guesser() for _ in range(at_once)))
    return found


if __name__ == "__main__":
    if NIGHTLY:  # what nobody else wants of the processors
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print(json.dumps(asyncio.run(flood(*map(int, sys.argv[1:])))))
