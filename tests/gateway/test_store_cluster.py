"""The store in a Redis Cluster of three real nodes: every call finds its node, also after slots have moved."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis.crc import key_slot

from gateway.store import StoreError
from gateway.store.redis import Place, RedisStore, key_of
from policies.leasing import Ask
from policies.sharing import ShareAsk
from policies.state.meters import MICRO
from policies.state.slotleases import SlotAsk
from tests.kit.redis import RedisNodes, needs_redis

pytestmark = needs_redis


def ask(tenant: str, need: int = 0) -> Ask:
    facts = {"scope": "tenant", "tenant": tenant, "part": "", "metric": "tpm", "period": 0, "ttl_s": 120}
    return Ask(**facts, capacity=100, per_minute=1, need=need * MICRO, wanted=need * MICRO)  # type: ignore[arg-type]


async def lend(store: RedisStore, tenant: str, need: int) -> int:
    [lent] = await store.lend([ask(tenant, need)], 1)
    return lent.granted // MICRO


async def test_every_call_finds_its_node_and_follows_slots_that_have_moved(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(RedisNodes(tmp_path))
        place = Place(url=nodes.url, cluster=True, prefix="fb", timeout_s=2.0, connect_timeout_s=2.0)
        store, other = RedisStore(place, "one"), RedisStore(place, "two")
        stack.push_async_callback(store.close)
        stack.push_async_callback(other.close)
        tenants = [f"t{number}" for number in range(12)]
        slots = {tenant: key_slot(key_of("fb", ask(tenant)).encode()) for tenant in tenants}
        assert {nodes.node_of(slot) for slot in slots.values()} == {0, 1, 2}

        assert (await store.beat()).replicas == 1
        assert (await other.beat()).replicas == 2
        for tenant in tenants:
            assert await lend(store, tenant, 60) == 60
            assert await lend(other, tenant, 60) == 0  # the same count, whoever asks
            slot_ask = SlotAsk(scope="tenant", tenant=tenant, part="", cap=5, want=3, used=0)
            assert [each.slots for each in await store.lease([slot_ask], 30.0)] == [3]
        await store.block({"k1": True})
        assert "k1" in (await other.beat()).blocked
        told = ShareAsk(pool="main", band="standard", tenants=("acme",), served=(5,))
        assert [await store.share([told]), await other.share([told])] == [[(0,)], [(0,)]]

        tenant = next(tenant for tenant in tenants if nodes.node_of(slots[tenant]) == 1)
        await move(nodes, slots[tenant], 1, 2)
        assert await lend(store, tenant, 60) == 0  # of what was used this one knows
        assert await lend(other, tenant, 40) == 40
        keys = await nodes.clients[2].execute_command("CLUSTER COUNTKEYSINSLOT", slots[tenant])
        assert keys >= 1
        await store.beat(leaving=True)
        assert (await other.beat()).replicas == 1


async def move(nodes: RedisNodes, slot: int, before: int, after: int) -> None:
    """The slot is another node's now, and empty."""
    taker = await nodes.clients[after].execute_command("CLUSTER MYID")
    giver = nodes.clients[before]
    for key in await giver.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
        await giver.delete(key)
    for at in (after, before):
        await nodes.clients[at].execute_command("CLUSTER SETSLOT", slot, "NODE", taker)


async def test_a_cluster_that_is_not_there_is_a_store_that_does_not_answer(tmp_path: Path) -> None:
    place = Place(url="redis://127.0.0.1:1", cluster=True, prefix="fb", timeout_s=0.05, connect_timeout_s=0.05)
    store = RedisStore(place, "one")
    with pytest.raises(StoreError, match="cannot be connected"):
        await store.beat()
    await store.close()
