"""How late the event loop is: a timer that asks to be called after `PERIOD_S` and notes by how much it was missed.

Lag is what every request, probe and stream on the loop suffers together, so it is sampled, never inferred.
uvloop rounds timers to whole milliseconds: half a millisecond of any sample is not lag.
"""

import asyncio
from collections.abc import Callable

PERIOD_S = 0.05


async def sample_lag(observe: Callable[[float], None]) -> None:
    """Run until cancelled, giving `observe` the lateness in seconds of every timer."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        observe(max(0.0, loop.time() - due))
