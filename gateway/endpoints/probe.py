"""Health probes: one task per endpoint that asks its health path again and again and tells the directory.

A probe opens a connection of its own: what clients need is that the engine still accepts one. It is good when the
answer is a 200 within the timeout, and nothing else is; its body is not read. Redirects are not followed, proxies of
the environment not used, names resolved off the loop. Probes are never counted as load.

Pace: at once at the start, then every `every_s` ± 10 %, so that many gateways do not probe in step. While an endpoint
is suspected, every `SUSPECT_S`, until a good probe clears it or the third failure takes it out: a dead engine is out
half a second after the first request it failed, not after three periods.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp

from gateway.endpoints.directory import Directory
from gateway.endpoints.watches import Watches

TIMEOUT_S = 2.0
SUSPECT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """Where the health of one endpoint is asked. `url` is whole; `api_key` is the endpoint's own, None for none.

    `health_s`: so long the answer may take, however often it is asked; 0: no longer than all others.
    """

    name: str
    url: str
    api_key: str | None = None
    health_s: float = 0.0


class Prober:
    """Probes all targets from `start` to `close`. Times in seconds; `scale` multiplies the fixed ones (tests)."""

    def __init__(
        self, directory: Directory, targets: Iterable[ProbeTarget], *, every_s: float, scale: float = 1.0
    ) -> None:
        self._directory = directory
        self._targets = tuple(targets)
        self._every_s = every_s
        self._scale = scale
        self._random = random.Random()
        self._hurry: dict[str, asyncio.Event] = {}
        self._watches = Watches(self._watch, "probe")

    def start(self) -> None:
        """Begin to probe. Needs a running loop."""
        self._session = self._open_session()
        self._directory.on_suspect = lambda name: self._hurry[name].set()
        self.change(self._targets, self._every_s)

    def change(self, targets: Iterable[ProbeTarget], every_s: float) -> None:
        """Probe these from now on, in that period."""
        self._targets, self._every_s = tuple(targets), every_s
        self._hurry = {target.name: self._hurry.get(target.name) or asyncio.Event() for target in self._targets}
        self._watches.change(self._targets)

    async def well(self, targets: Iterable[ProbeTarget]) -> set[str]:
        """Probe these once, whether they are looked after or not. The names of those that are well."""
        asked = tuple(targets)
        causes = await asyncio.gather(*(self._probe(target) for target in asked))
        return {target.name for target, cause in zip(asked, causes, strict=True) if not cause}

    async def close(self) -> None:
        """End every probe, also one that hangs."""
        await self._watches.close()
        await self._session.close()

    async def _watch(self, target: ProbeTarget) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._hurry[target.name].clear()
            cause = await self._probe(target)
            if not self._watches.has(target):
                return
            if cause:
                self._directory.failed(target.name, cause)
            else:
                self._directory.good(target.name)
            await self._pause(target.name, began_s)

    async def _pause(self, name: str, began_s: float) -> None:
        """Until the next probe is due; a suspicion shortens the wait, also one that has begun."""
        loop = asyncio.get_running_loop()
        if not self._directory.standing(name).suspected:
            due_s = began_s + self._every_s * self._random.uniform(0.9, 1.1)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._hurry[name].wait()
            except TimeoutError:
                return
        await asyncio.sleep(began_s + SUSPECT_S * self._scale - loop.time())

    async def _probe(self, target: ProbeTarget) -> str:
        """Why the endpoint is not well, "" if it is."""
        headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        try:
            async with self._session.get(
                target.url, headers=headers, allow_redirects=False, timeout=self._timeout(target)
            ) as answer:
                return "" if answer.status == 200 else f"status {answer.status}"
        except TimeoutError:
            return "timeout"
        except aiohttp.ClientConnectorDNSError:
            return "name not resolved"
        except aiohttp.ClientSSLError:
            return "tls"
        except aiohttp.ClientConnectorError:
            return "not connected"
        except (aiohttp.ClientError, OSError, ValueError):
            return "no valid answer"

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def _timeout(self, target: ProbeTarget) -> aiohttp.ClientTimeout:
        usual_s = min(self._every_s, TIMEOUT_S * self._scale)
        return aiohttp.ClientTimeout(total=max(usual_s, target.health_s * self._scale))
