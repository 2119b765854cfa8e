"""A Redis that resets connections while they are opened, on the loop that the gateway runs on."""

import asyncio
import socket

import pytest
import uvloop

from gateway.store import StoreError
from gateway.store.redis import Place, RedisStore
from tests.kit.raw_client import RESET_ON_CLOSE

CALLS = 20


def reset_everybody(listener: socket.socket, turns: int) -> None:
    """Reset whoever connects, so many turns of the running loop later."""
    loop = asyncio.get_running_loop()

    def reset(connection: socket.socket, left: int) -> None:
        if left:
            loop.call_soon(reset, connection, left - 1)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            connection.close()

    loop.add_reader(listener, lambda: reset(listener.accept()[0], turns))


async def calls(turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        reset_everybody(listener, turns)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        store = RedisStore(Place(url=url, prefix="fb", timeout_s=1.0, connect_timeout_s=1.0), "one")
        for _ in range(CALLS):
            with pytest.raises(StoreError):
                await store.beat()
        await store.close()
        asyncio.get_running_loop().remove_reader(listener)


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_reset_at_any_turn_of_its_opening_is_a_store_that_does_not_answer(turns: int) -> None:
    """After one turn uvloop has an error of its own, which once ended the task that keeps replicas in step."""
    uvloop.run(calls(turns))
