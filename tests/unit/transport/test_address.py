"""Addresses as users write them in settings."""

from __future__ import annotations

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("127.0.0.1:9876", Address("tcp", "127.0.0.1", 9876), "127.0.0.1:9876"),
        ("tcp://broker:10911", Address("tcp", "broker", 10911), "broker:10911"),
        ("tls://broker:10911", Address("tls", "broker", 10911), "tls://broker:10911"),
        ("[::1]:9876", Address("tcp", "::1", 9876), "[::1]:9876"),
        ("memory://Test-1", Address("memory", "Test-1"), "memory://Test-1"),
        ("127.0.0.1:0", Address("tcp", "127.0.0.1", 0), "127.0.0.1:0"),
    ],
)
def test_addresses_are_read_and_written(text: str, address: Address, written: str) -> None:
    """A name server address that worked with another client would not work with this one."""
    assert Address.parse(text) == address
    assert str(address) == written
    assert Address.parse(written) == address


@pytest.mark.parametrize(
    "text", ["", "localhost", "host:port", "host:70000", "memory://", "a:1/path", "tcp://"]
)
def test_an_invalid_address_is_named(text: str) -> None:
    """The user would see a socket error instead of the setting that is wrong."""
    with pytest.raises(ConfigInvalid, match="address"):
        Address.parse(text)
