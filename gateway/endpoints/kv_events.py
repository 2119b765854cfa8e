"""What engines publish of their KV caches over ZMQ (vLLM's and SGLang's `--kv-events-config`).

Events carry token ids and the engine's own hashes, our index is over bytes: they name none of our blocks. They tell how
many tokens entered and left a cache, summed up once a second, and when a cache is empty: at once.

What was lost on the way is counted, and asked for again where the engine has a port for that (`replay`). If it does not have
it any more, an empty cache may be among it: the cache is taken for empty. Each data-parallel rank publishes at a port of
its own, one above the other. One message of a feed in a turn of the loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gateway import tasks
from gateway.endpoints.kv_feed import MESSAGE_BYTES, Feed, Source
from gateway.endpoints.replay import replayed
from gateway.endpoints.watches import Watches

if TYPE_CHECKING:
    from zmq.asyncio import Context, Socket

REPORT_S = 1.0
REPLAY_S = 2.0  # [o]: until what was lost has been told again
SILENT_S = 60.0  # [o]: then the connection is made anew, for ZMQ gives up on a peer that breaks its protocol
RECONNECT_MS, RECONNECT_MOST_MS = 100, 5_000
HEARTBEAT_MS, DEAD_MS = 10_000, 30_000


class KvEvents:
    """Listens to all feeds from `start` to `close`. `on_cleared(name)`, `on_turned(name, stored tokens, removed tokens)`."""

    def __init__(self, sources: Iterable[Source], *, scale: float = 1.0) -> None:
        """`sources`: of each endpoint that has one. `scale` multiplies the times (tests)."""
        self.on_cleared: Callable[[str], None] = lambda name: None
        self.on_turned: Callable[[str, int, int], None] = lambda name, stored, removed: None
        self._feeds = _feeds(sources, {})
        self._report_s, self._silent_s, self._replay_s = REPORT_S * scale, SILENT_S * scale, REPLAY_S * scale
        self._context: Context | None = None
        self._watches = Watches(self._listen, "kv events")
        self._reporting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen. Needs a running loop; without any feed it does nothing, and pyzmq is not needed."""
        if self._feeds and self._context is None:
            import zmq.asyncio

            self._context = zmq.asyncio.Context()
            self._reporting = tasks.start(self._report(), "kv events")
        self._watches.change(self._feeds.values())

    def change(self, sources: Iterable[Source]) -> None:
        """Listen to these from now on."""
        self._feeds = _feeds(sources, self._feeds)
        self.start()

    async def close(self) -> None:
        """Stop listening."""
        await self._watches.close()
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def down(self, endpoint: str) -> None:
        """This endpoint is gone, and forgotten already: what it says when it is back is a beginning."""
        for feed in self._feeds.values():
            if feed.endpoint == endpoint:
                feed.seq = None

    def feeds(self) -> Iterator[Feed]:
        """What was heard from each rank of each endpoint."""
        yield from self._feeds.values()

    async def _listen(self, feed: Feed) -> None:
        while self._context is not None:
            socket = _subscribe(self._context, feed.url)
            try:
                await self._take(feed, socket, self._context)
            except TimeoutError:
                pass  # it may be a connection that is none any more: made anew
            finally:
                socket.close()

    async def _take(self, feed: Feed, socket: "Socket", context: "Context") -> None:
        """Take what comes until nothing comes for too long."""
        while True:
            async with asyncio.timeout(self._silent_s):
                frames = await socket.recv_multipart()
            lost = feed.lacks(frames)
            if lost and feed.replay_url is not None:
                await self._catch_up(feed, lost, replayed(context, feed.replay_url, lost.start))
            if feed.take(frames):
                self.on_cleared(feed.endpoint)
            await asyncio.sleep(0)  # a receive of what is there already does not wait

    async def _catch_up(self, feed: Feed, lost: range, messages: AsyncGenerator[tuple[int, bytes], None]) -> None:
        """Have told again what was lost; what is not to be had leaves nothing that could be believed."""
        feed.gaps += 1
        whole = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._replay_s):
                whole = await self._replay(feed, lost, messages)
        feed.replays["whole" if whole else "lost"] += 1
        if not whole:
            feed.forget()
            self.on_cleared(feed.endpoint)

    async def _replay(self, feed: Feed, lost: range, messages: AsyncGenerator[tuple[int, bytes], None]) -> bool:
        """Whether all of it was told again."""
        async with contextlib.aclosing(messages):
            async for seq, payload in messages:
                if feed.seq is None:  # it went down meanwhile: all that is past
                    return True
                if seq != feed.seq + 1:
                    return False
                if feed.take([b"", seq.to_bytes(8, "big"), payload]):
                    self.on_cleared(feed.endpoint)
                await asyncio.sleep(0)
        return feed.seq is None or feed.seq + 1 >= lost.stop

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_s)
            turned: dict[str, tuple[int, int]] = {}
            for feed in self._feeds.values():
                if feed.stored or feed.removed:
                    stored, removed = turned.get(feed.endpoint, (0, 0))
                    turned[feed.endpoint] = stored + feed.stored, removed + feed.removed
                    feed.stored = feed.removed = 0
            for endpoint, tokens in turned.items():
                self.on_turned(endpoint, *tokens)


def _feeds(sources: Iterable[Source], known: Mapping[str, Feed]) -> dict[str, Feed]:
    """By name; one that is as before goes on."""
    made = {feed.name: feed for source in sources for feed in source.feeds()}
    for name, feed in known.items():
        if name in made and (made[name].url, made[name].replay_url) == (feed.url, feed.replay_url):
            made[name] = feed
    return made


def _subscribe(context: "Context", url: str) -> "Socket":
    """A socket that connects, now and after every loss, until it is closed."""
    import zmq

    socket = context.socket(zmq.SUB)
    for option, value in (
        (zmq.IPV6, 1),
        (zmq.LINGER, 0),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, DEAD_MS),
    ):
        socket.setsockopt(option, value)
    socket.subscribe(b"")
    socket.connect(url)
    return socket
