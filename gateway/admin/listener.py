"""The admin listener: an aiohttp server with tight limits, whose handlers end when their client leaves."""

import logging
from pathlib import Path

from aiohttp import web

KEEPALIVE_S = 75.0
CLOSE_S = 1.0
LINGER_S = 1.0  # for a body nobody wants, so that its sender reads the answer
# aiohttp logs a traceback with the bytes of every message it cannot parse, which may be a token.
_NO_LOG = logging.Logger("forebay.admin", logging.CRITICAL + 1)


class Listener:
    """A bound admin listener. `port` is the real one, also when 0 was asked for; `where` is for logs."""

    def __init__(self, runner: web.AppRunner, port: int, where: str) -> None:
        self._runner = runner
        self.port = port
        self.where = where

    async def close(self) -> None:
        """Stop listening; requests in progress get `CLOSE_S`."""
        await self._runner.cleanup()


async def listen(app: web.Application, host: str, port: int) -> Listener:
    """Serve `app` on host and port (0 = any free one). Raises OSError when the address cannot be bound."""
    runner = await _set_up(app)
    await _start(runner, web.TCPSite(runner, host, port))
    port = int(runner.addresses[0][1])
    return Listener(runner, port, f"{host}:{port}")


async def listen_privately(app: web.Application, path: Path) -> Listener:
    """Serve `app` on a Unix socket. Raises OSError when it cannot be made."""
    runner = await _set_up(app)
    await _start(runner, web.UnixSite(runner, path))
    return Listener(runner, 0, str(path))


async def _start(runner: web.AppRunner, site: web.BaseSite) -> None:
    try:
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise


async def _set_up(app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_NO_LOG,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=CLOSE_S,
        lingering_time=LINGER_S,
        max_line_size=4096,
        max_field_size=8190,
        max_headers=64,
    )
    await runner.setup()
    return runner
