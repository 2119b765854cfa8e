"""What an operator has taken out of service, for the workers of one command that are started later: an empty file each.

The files are in the folder of their sockets and go with it. A process that is alone starts with everything in service.
"""

import hashlib
from pathlib import Path

from gateway.config.fleet import Endpoint


class Marks:
    """The marks in `folder`; None: nobody else is to know."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def has(self, endpoint: Endpoint) -> bool:
        """Whether this very engine, under this name, is marked."""
        return self._folder is not None and _path(self._folder, endpoint).exists()

    def set(self, endpoint: Endpoint, drained: bool) -> None:
        """Mark it, or do not any more; again is harmless."""
        if self._folder is None:
            return
        path = _path(self._folder, endpoint)
        if drained:
            path.touch()
        else:
            path.unlink(missing_ok=True)


def _path(folder: Path, endpoint: Endpoint) -> Path:
    known = repr((endpoint.name, *endpoint.identity)).encode()
    return folder / f"{hashlib.sha256(known).hexdigest()}.drained"
