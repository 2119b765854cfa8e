"""What the process itself uses, read from /proc when somebody looks. Linux only; elsewhere the figures are 0."""

import os
import resource
import time
from collections.abc import Callable

from gateway import tasks
from gateway.telemetry import families
from gateway.telemetry.families import Family

_STARTED = time.time()
_PAGE_BYTES = resource.getpagesize()


def open_fds() -> int:
    """Open file descriptors. Linux 6.2 tells the number as the size of the directory; before, it is counted."""
    try:
        told = os.stat("/proc/self/fd").st_size
        return told or len(os.listdir("/proc/self/fd")) - 1  # less the one that lists
    except OSError:
        return 0


def resident_bytes() -> int:
    """Resident memory."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def max_fds() -> int:
    """Soft limit of file descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


READINGS: tuple[tuple[Family, Callable[[], float]], ...] = (
    (families.TASKS, tasks.running),
    (families.START_TIME, lambda: _STARTED),
    (families.CPU, time.process_time),
    (families.MEMORY, resident_bytes),
    (families.OPEN_FDS, open_fds),
    (families.MAX_FDS, max_fds),
)
