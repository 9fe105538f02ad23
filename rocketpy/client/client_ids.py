"""Client ids, by which brokers distinguish the members of a group. Source: RocketMQ ClientConfig.

A broker takes two clients with one id for the same member. Both would get the same queues, and handle each of
their messages.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import secrets
from typing import Final

LOOPBACK: Final = bytes((127, 0, 0, 1))

in_use: Final[set[str]] = set()
"""The client ids of this process."""


def new(address: bytes, instance_name: str, *, is_certain: bool) -> str:
    """Return ``ip@pid#random`` or ``ip@name``; a second client with that name in this process gets ``#2``.

    The random part distinguishes containers, whose pids and addresses are often equal.

    Args:
        address: The local IP address, packed.
        instance_name: The name that the user gave to the client, or an empty string.
        is_certain: Whether the IP address is known. Otherwise a given name gets a random part, too.
    """
    name = f"{ipaddress.ip_address(address)}@{instance_name or os.getpid()}"
    if not instance_name or not is_certain:
        name += f"#{secrets.token_hex(4)}"
    numbered = (f"{name}#{number}" for number in itertools.count(2))
    client_id = next(text for text in itertools.chain([name], numbered) if text not in in_use)
    in_use.add(client_id)
    return client_id


def ip_of(socket_name: str) -> bytes:
    """Return the IP address in ``host:port``; loopback when there is none, as with memory://."""
    host = socket_name.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return LOOPBACK
