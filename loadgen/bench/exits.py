"""Exit codes of `forebay bench` (loadgen.md 1.1), and the error that carries one."""

from enum import IntEnum


class Exit(IntEnum):
    """What a command came to."""

    MET = 0
    MISSED = 1  # valid, and a target was missed
    WRONG = 2  # options, files
    INVALID = 3  # what was measured cannot be trusted
    UNREACHABLE = 4  # the server, or what preflight asked of it
    INTERNAL = 5
    INTERRUPTED = 130


class BenchError(Exception):
    """The command cannot go on; the message says why and what to do."""

    def __init__(self, message: str, code: Exit = Exit.WRONG) -> None:
        """`code`: what the command ends with."""
        super().__init__(message)
        self.code = code
