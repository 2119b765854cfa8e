"""A task for each endpoint that is looked after. Endpoints come and go while the gateway runs.

aiohttp takes a cancel at the very moment of its own timeout for that timeout. So a task asks `has` after each of its
requests, and ends by itself when its target is looked after no more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar

from gateway import tasks


class Target(Protocol):
    """What a task looks after. One that is not equal to what its name stood for before gets a new task."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Target)


class Watches(Generic[T]):
    """The tasks of all targets; `watch` is what one does, `what` its name."""

    def __init__(self, watch: Callable[[T], Coroutine[Any, Any, None]], what: str) -> None:
        self._watch = watch
        self._what = what
        self._tasks: dict[str, tuple[T, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def has(self, target: T) -> bool:
        """Whether this very target is still to be looked after."""
        found = self._tasks.get(target.name)
        return found is not None and found[0] is target

    def change(self, targets: Iterable[T]) -> None:
        """Look after these from now on. Needs a running loop."""
        wanted = {target.name: target for target in targets}
        for name, (target, task) in list(self._tasks.items()):
            if wanted.get(name) != target:
                del self._tasks[name]
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
                task.cancel()
        for name, target in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = (target, tasks.start(self._watch(target), f"{self._what} {name}"))

    async def close(self) -> None:
        """End all, also one that hangs."""
        self.change(())
        await asyncio.gather(*self._ending, return_exceptions=True)
