"""The ends of an engine's process that nobody asked for. Every engine of a process dies with it."""

import os
import signal
import sys
from typing import NoReturn

from loadgen.faults import Fault

DEATHS = ("crash", "segv", "oom_text")  # those at a place of an answer
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB."
)


def die(fault: Fault) -> NoReturn:
    """End the process as `fault` has it: by a signal, with the words of a GPU without memory, or with a status."""
    if fault.name == "segv":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault.name == "oom_text":
        sys.stderr.write(OOM + "\n")
        sys.stderr.flush()
    os._exit(int(fault.number("exit", 1)))
