"""The admin listener: an aiohttp server with tight limits, whose handlers end when their client leaves."""

import logging

from aiohttp import web

KEEPALIVE_S = 75.0
CLOSE_S = 1.0
LINGER_S = 1.0  # for a body nobody wants, so that its sender reads the answer
# aiohttp logs a traceback with the bytes of every message it cannot parse, which may be a token.
_NO_LOG = logging.Logger("forebay.admin", logging.CRITICAL + 1)


class Listener:
    """A bound admin listener. `port` is the real one, also when 0 was asked for."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def close(self) -> None:
        """Stop listening; requests in progress get `CLOSE_S`."""
        await self._runner.cleanup()


async def listen(app: web.Application, host: str, port: int) -> Listener:
    """Serve `app` on host and port (0 = any free one). Raises OSError when the address cannot be bound."""
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
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    return Listener(runner, int(runner.addresses[0][1]))
