"""The only place in loadgen that starts a task.

A task nobody refers to can be collected in mid-flight, and one whose exception nobody reads fails in silence: here
each is kept until it ends, and an exception other than cancellation goes to the loop's handler at once.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[Any]] = set()


def start(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Start `coroutine` as a task of the running loop and keep it until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def running() -> int:
    """How many tasks started here have not ended."""
    return len(_running)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
        )
