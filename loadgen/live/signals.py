"""What stops a command that has started processes: the signals that would end it cancel its work instead."""

import asyncio
import signal

INTERRUPTED = 130  # exit code (loadgen.md 1.1)


def cancel_on_signal() -> None:
    """From here on they cancel the running task, which stops on its way out what it has started."""
    work = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(which, work.cancel if work else loop.stop)
