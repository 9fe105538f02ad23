"""Ports of servers that have stopped."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_server_at(*addresses: object) -> Iterator[None]:
    """Reserve the ports of stopped servers: connections are refused, and other tests cannot use them."""
    held = []
    try:
        for address in addresses:
            host, _, port = str(address).rpartition(":")
            holder = socket.socket()
            held.append(holder)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, int(port)))
        yield
    finally:
        for holder in held:
            holder.close()
