"""What sockets and files a process holds, from /proc alone: the gateway's own gauges are what is under test."""

import os
from dataclasses import dataclass

ESTABLISHED, LISTEN = "01", "0A"


@dataclass(frozen=True, slots=True)
class Held:
    """Open file descriptors of one process by kind. `upstream` goes to the ports named as engines."""

    listening: int
    clients: int
    upstream: int
    others: int

    @property
    def own(self) -> int:
        """What may not grow: everything but pooled connections to engines."""
        return self.listening + self.clients + self.others


def held(pid: int, engine_ports: frozenset[int], own_ports: frozenset[int]) -> Held:
    # A socket that is made or closed while we look is in one listing or the other, or not in the table: left out.
    before = _descriptors(pid)
    table = _table(pid)
    after = set(_descriptors(pid))
    listening = clients = upstream = others = 0
    for inode in filter(after.__contains__, before):
        local, remote, state = table.get(inode, (0, 0, ""))
        if state == LISTEN:
            listening += 1
        elif remote in engine_ports:
            upstream += 1
        elif local in own_ports:
            clients += 1
        else:
            others += 1
    return Held(listening, clients, upstream, others)


def rss_bytes(pid: int) -> int:
    """Resident memory now."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmRSS for {pid}")


def cpu_s(pid: int) -> float:
    """User and system time it has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """CPU time of its main thread, to the nanosecond."""
    return _schedule(pid)[0]


def threads_cpu_s(pid: int) -> float:
    """CPU time of all its threads that live, to the nanosecond."""
    return sum(_schedule(f"{pid}/task/{name}")[0] for name in os.listdir(f"/proc/{pid}/task")) / 1e9


def without_core_s(pid: int | str = "thread-self") -> float:
    """How long its main thread, or this one, was ready to run and had no core: what other work on the machine has cost it."""
    return _schedule(pid)[1] / 1e9


def _schedule(pid: int | str) -> list[int]:
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _descriptors(pid: int) -> list[str]:
    made = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        made.append(target.removeprefix("socket:[").removesuffix("]") if target.startswith("socket:[") else target)
    return made


def _table(pid: int) -> dict[str, tuple[int, int, str]]:
    """inode -> (local port, remote port, state)."""
    made = {}
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            next(file)
            for line in file:
                parts = line.split()
                made[parts[9]] = (_port(parts[1]), _port(parts[2]), parts[3])
    return made


def connected(pid: int, port: int) -> bool:
    """Whether this process has a connection to that port of somebody else's."""
    own = set(_descriptors(pid))
    return any(
        inode in own and remote == port and state == ESTABLISHED for inode, (_, remote, state) in _table(pid).items()
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def clients_of(pid: int, port: int) -> set[int]:
    """The ports of those who are connected to this process at its `port`."""
    own = set(_descriptors(pid))
    return {
        remote
        for inode, (local, remote, state) in _table(pid).items()
        if inode in own and local == port and state == ESTABLISHED
    }
