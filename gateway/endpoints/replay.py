"""Asking an engine again for what it has published of its KV cache and was lost on the way.

vLLM keeps its last 10,000 messages and answers at a port of its own (`replay_endpoint`): a number behind an empty frame
asks, [empty, number, payload] for each message from there on answers, and -1 is the end.
"""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from gateway.endpoints.kv_feed import MESSAGE_BYTES

if TYPE_CHECKING:
    from zmq.asyncio import Context

_END = (-1).to_bytes(8, "big", signed=True)


async def replayed(context: "Context", url: str, first: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """Number and payload of each message from `first` on that the engine still has. It waits for as long as it is let."""
    import zmq

    socket = context.socket(zmq.DEALER)
    try:
        for option, value in (
            (zmq.IPV6, 1),
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, MESSAGE_BYTES),
            (zmq.RCVHWM, 0),  # they come faster than they are taken, and there are so many and no more
        ):
            socket.setsockopt(option, value)
        socket.connect(url)
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or frames[1] == _END:
                return
            yield int.from_bytes(frames[1], "big"), frames[2]
    finally:
        socket.close()
