"""What asyncio's transports cannot be asked or told, and their sockets can."""

import asyncio
import fcntl
import socket
import struct
import sys
from contextlib import suppress
from typing import Any


def held_by_kernel(transport: Any, which: int) -> int:
    """Bytes that the kernel holds: FIONREAD, unread ones; TIOCOUTQ, those the peer has not acknowledged, sent or not.
    0 where it cannot be asked."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(sock.fileno(), which, bytes(4)), sys.byteorder)


def reset_on_close(transport: Any) -> None:
    """Let its close be a reset, which nobody can take for a proper end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang_up(transport: asyncio.Transport) -> None:
    """Let the engine see the end at once: the transport closes a turn of the loop later, and by then the request may be with
    another engine. (By a descriptor of our own: uvloop's sockets cannot be shut down.)"""
    theirs = transport.get_extra_info("socket")
    if theirs is None or theirs.fileno() < 0:
        return
    with socket.fromfd(theirs.fileno(), theirs.family, theirs.type) as same, suppress(OSError):  # it may have ended
        same.shutdown(socket.SHUT_RDWR)


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Notice a peer that has vanished. The kernel alone gives it about 15 minutes (tcp_retries2 = 15)."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
