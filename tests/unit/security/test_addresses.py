"""Patterns of client addresses in plain_acl.yml."""

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.security.addresses import AddressPattern


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", "", "127.0.0.1 ::1 memory"),
        ("*", "127.0.0.1 ::1 memory", ""),
        ("*.*.*.*", "127.0.0.1 memory", ""),
        ("10.1.2.3", "10.1.2.3 ::ffff:10.1.2.3", "10.1.2.4 110.1.2.3 10.1.2.30 memory"),
        ("10.1.2.3, 10.1.2.5", "10.1.2.3 10.1.2.5", "10.1.2.4"),
        ("10.1.2.{3,5}", "10.1.2.3 10.1.2.5", "10.1.2.4"),
        ("10.10.103.*", "10.10.103.0 10.10.103.255", "10.10.104.1 110.10.103.1"),
        ("10.10.*.*", "10.10.0.1", "10.11.0.1"),
        ("10.10.1-20.*", "10.10.1.9 10.10.20.9", "10.10.21.9 10.10.0.9"),
        ("192.168.0.10-20", "192.168.0.10 192.168.0.20", "192.168.0.9 192.168.0.21 192.168.0.1"),
        ("2001:db8::1", "2001:db8::1 2001:DB8:0:0::1 [2001:db8::1]", "2001:db8::2"),
        ("2001:db8::{1,ff}", "2001:db8::1 2001:db8::ff", "2001:db8::2"),
        ("0-ffff:*:*:*:*:*:*:*", "::1 2001:db8::1", "127.0.0.1"),
        ("2::ac5:78:1-200:*", "2::ac5:78:1:9 2::ac5:78:200:ffff", "2::ac5:78:201:9 2::ac5:79:1:9"),
    ],
)
def test_a_pattern_means_these_addresses(pattern: str, inside: str, outside: str) -> None:
    """An unknown client would be accepted without a signature, or a known client rejected."""
    parsed = AddressPattern(pattern)
    assert [host for host in inside.split() if not parsed.matches(host)] == []
    assert [host for host in outside.split() if parsed.matches(host)] == []


@pytest.mark.parametrize(
    "pattern",
    ["10.1.2", "10.1.2.*.4", "10.1.2.256", "10.1.2.9-3", "10.1.2.-3", "10.1.2.x", "{1,2}", "host.name.a.b",
     "1::2::3", "10000::1", "10.1.2.{1,256}", "10.1.2.3,"],
)  # fmt: skip
def test_invalid_patterns_are_rejected(pattern: str) -> None:
    """A misspelt pattern would silently open or close the broker."""
    with pytest.raises(ConfigInvalid, match="invalid address pattern"):
        AddressPattern(pattern)
