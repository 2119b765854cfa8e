"""Coroutines without tasks: each goes on in the very callback that brings what it waits for.

A request waits for three things at most (a place, a connection, the end of an answer). A task for it costs 15 µs of the
60 a request may cost, and lets the loop turn between "the answer has ended" and "its place is free". So a request's
coroutine awaits `Signal`s only, and `Steps` sends it on when one is set. Nothing of asyncio may be awaited in it; what
must be (a connect) runs in a task of its own that sets a signal.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Signal(Generic[T]):
    """A value that comes once; one coroutine may wait for it. `on_set` may be called instead."""

    __slots__ = ("_is_set", "_value", "on_set")

    def __init__(self) -> None:
        self._is_set = False
        self._value: Any = None
        self.on_set: Callable[[], None] | None = None

    def is_set(self) -> bool:
        """Whether the value has come."""
        return self._is_set

    def set(self, value: T) -> None:
        """Here it is. A second value is ignored."""
        if self._is_set:
            return
        self._is_set = True
        self._value = value
        resume, self.on_set = self.on_set, None
        if resume is not None:
            resume()

    def __await__(self) -> Generator["Signal[Any]", None, T]:
        if not self._is_set:
            yield self
        value: T = self._value
        return value


class Steps:
    """Drives one coroutine from signal to signal. An exception that leaves it goes to the loop's handler."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Signal[Any], None, None]) -> None:
        self._coroutine: Coroutine[Signal[Any], None, None] | None = coroutine
        self._waits_for: Signal[Any] | None = None

    def go(self) -> None:
        """Run to the next signal that is not set."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        try:
            signal = coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        except Exception as error:
            self._coroutine = None
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
        else:
            self._waits_for = signal
            signal.on_set = self.go

    def stop(self) -> None:
        """End the coroutine where it waits: its `finally` and `async with` blocks run now."""
        coroutine, self._coroutine = self._coroutine, None
        if self._waits_for is not None:
            self._waits_for.on_set = None
        if coroutine is not None:
            coroutine.close()
