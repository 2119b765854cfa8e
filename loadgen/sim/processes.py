"""The same work on several processes, results in order."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[R]:
    """`work` of each task, on at most `jobs` processes; in this one if that is enough. What is not begun when the
    caller stops is dropped."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"))
    try:
        yield from pool.map(work, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
