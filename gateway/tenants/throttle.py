"""How often one address may be wrong: ten bad keys a minute, then it is told to wait (tenancy.md 2).

Only answers are throttled: the key is looked up first, so a good one behind the same address always passes. An IPv6
client counts as its /64, which is what one customer of a provider has.
"""

import ipaddress
from collections import OrderedDict

FAILURES = 10.0  # at once, and so many a minute
PER_S = FAILURES / 60
ADDRESSES = 65_536  # the least recently seen one is forgotten first


class Throttle:
    """Leaky buckets by address. `scale` multiplies their times."""

    def __init__(self, scale: float = 1.0) -> None:
        self._per_s = PER_S / scale
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # failures held, as of when

    def failed(self, client: str, now: float) -> float:
        """A bad key came from this address. Seconds until it may be wrong again; 0.0: this time it may."""
        address = _network(client)
        used, since_s = self._used.get(address, (0.0, now))
        used = max(0.0, used - (now - since_s) * self._per_s)
        wait_s = max(0.0, (used + 1.0 - FAILURES) / self._per_s)
        self._used[address] = (used if wait_s else used + 1.0, now)
        self._used.move_to_end(address)
        if len(self._used) > ADDRESSES:
            self._used.popitem(last=False)
        return wait_s


def _network(client: str) -> str:
    if ":" not in client:
        return client
    try:
        address = ipaddress.IPv6Address(client.partition("%")[0])
    except ValueError:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
