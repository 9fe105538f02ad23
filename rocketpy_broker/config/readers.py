"""Parses values of the configuration: numbers, ports, addresses, names and choices.

The caller adds the key and its place to the text of a ValueError or ConfigInvalid.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rocketpy.protocol.bodies import UserInfo
from rocketpy.transport import Address
from rocketpy_broker.store.setting import read_integer, read_text


def read_positive(value: str) -> int:
    """Return a whole number of at least 1. Raises ValueError."""
    number = read_integer(value)
    if number < 1:
        raise ValueError("a number of at least 1 is expected")
    return number


def read_port(value: str) -> int:
    """Return a port. Raises ValueError."""
    port = read_integer(value)
    if not 0 <= port <= 65535:
        raise ValueError("a port from 0 to 65535 is expected")
    return port


def read_seconds(value: str) -> int:
    """Parse a number of seconds; return it in milliseconds. Raises ValueError."""
    return read_integer(value) * 1000


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader that accepts these words in any case. It raises ValueError for any other word."""

    def read(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)} is expected")
        return word

    return read


def read_address(value: str) -> Address:
    """Return an address. Raises ConfigInvalid."""
    return Address.parse(value.strip())


def read_addresses(value: str) -> tuple[Address, ...]:
    """Return addresses that semicolons separate. Raises ConfigInvalid."""
    return tuple(Address.parse(part.strip()) for part in value.split(";") if part.strip())


def read_listen_address(value: str) -> tuple[str | None, str, int]:
    """Return scheme, host and port. Raises ConfigInvalid.

    The scheme is None if the value has none: then the broker uses TLS if it has a certificate.
    """
    address = Address.parse(value.strip())
    return address.scheme if "://" in value else None, address.host, address.port


def read_peers(value: str) -> dict[str, Address]:
    """Return the addresses in dLegerPeers by peer id. Raises ValueError, ConfigInvalid."""
    peers: dict[str, Address] = {}
    for part in filter(None, map(str.strip, value.split(";"))):
        peer, _, address = part.partition("-")
        if peer in peers:
            raise ValueError(f"peer {peer} is listed twice")
        peers[peer] = Address.parse(address)
    return peers


def read_names(value: str) -> frozenset[str]:
    """Return the names of certificates that semicolons separate, in lower case. Raises ValueError."""
    return frozenset(filter(None, (name.strip().lower() for name in read_text(value).split(";"))))


def read_dledger_flush(value: str) -> bool:
    """Return whether dLegerFlush is ``quorum``, not ``async``. Raises ValueError."""
    return one_of("quorum", "async")(value) == "quorum"


def read_initial_user(value: str) -> UserInfo | None:
    """Return the user in ``{"username":"…","password":"…"}``, of the type Super. None for an empty text.

    Raises ValueError, which does not show the password.
    """
    return _user(value, "username", "password")


def read_inner_user(value: str) -> UserInfo | None:
    """Return the user in ``{"accessKey":"…","secretKey":"…"}``; see `read_initial_user`."""
    return _user(value, "accessKey", "secretKey")


def _user(value: str, name: str, password: str) -> UserInfo | None:
    if not value.strip():
        return None
    try:
        found = msgspec.json.decode(value.encode(), type=dict[str, str])
    except msgspec.MsgspecError:
        found = {}
    if not (found.get(name) or "").strip() or not (found.get(password) or "").strip():
        raise ValueError(f'{{"{name}":"…","{password}":"…"}} is expected, with two texts that are not empty')
    return UserInfo(username=found[name].strip(), password=found[password], user_type="Super")
