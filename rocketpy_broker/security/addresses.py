"""Patterns of client addresses in plain_acl.yml.

| pattern                              | matches                                              |
|--------------------------------------|------------------------------------------------------|
| ``10.1.2.3`` ``2001:db8::1``         | that address                                         |
| ``10.1.2.3,10.1.2.4``                | each of these addresses                              |
| ``10.1.2.{3,4}`` ``2001:db8::{1,2}`` | each of these addresses                              |
| ``10.1.2.*`` ``10.1.2-9.*``          | a range in one part, any value in the next           |
| ``*`` ``*.*.*.*``                    | every client, also without an IP address             |
| an empty text                        | no client                                            |

Source: RemoteAddressStrategyFactory of RocketMQ 4.6.0. Differs: every part may be a range, and an invalid
pattern is an error.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from rocketpy.errors import ConfigInvalid

_WILDCARDS: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_BRACES = re.compile(r"(?P<head>[^{}]*)\{(?P<ends>[^{}]*)\}")

Parts = tuple[tuple[int, int], ...]
"""Lowest and highest value of each part: 4 numbers below 256, or 8 below 65536."""


class AddressPattern:
    """Matches clients by their address. Raises ConfigInvalid for an invalid pattern."""

    __slots__ = ("_alternatives", "_is_wildcard", "text")

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._is_wildcard = self.text in _WILDCARDS
        self._alternatives: tuple[Parts, ...] = ()
        if self.text and not self._is_wildcard:
            self._alternatives = tuple(_parts(text, self.text) for text in _alternatives(self.text))

    def matches(self, host: str) -> bool:
        """Whether the pattern contains a host (without a port)."""
        if self._is_wildcard:
            return True
        if not self._alternatives:
            return False
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        mapped = address.ipv4_mapped if address.version == 6 else None
        numbers = _numbers(mapped or address)
        return any(
            len(parts) == len(numbers)
            and all(low <= number <= high for (low, high), number in zip(parts, numbers, strict=True))
            for parts in self._alternatives
        )


def _numbers(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[int, ...]:
    packed = address.packed
    if len(packed) == 4:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))


def _alternatives(text: str) -> list[str]:
    braces = _BRACES.fullmatch(text)
    if braces is not None:
        return [braces["head"] + end.strip() for end in braces["ends"].split(",")]
    return [part.strip() for part in text.split(",")]


def _parts(alternative: str, pattern: str) -> Parts:
    base, limit = (16, 0xFFFF) if ":" in alternative else (10, 0xFF)
    try:
        texts = _groups(alternative) if base == 16 else alternative.split(".")
        parts = tuple(_range(text.strip(), base, limit) for text in texts)
    except ValueError as error:
        raise ConfigInvalid(f"invalid address pattern {pattern!r}: {error}") from None
    expected = 8 if base == 16 else 4
    if len(parts) != expected:
        raise ConfigInvalid(f"invalid address pattern {pattern!r}: {len(parts)} parts, expected {expected}")
    return parts


def _groups(alternative: str) -> list[str]:
    """Return the 8 groups of an IPv6 pattern, with zeros for ``::``."""
    if alternative.count("::") > 1:
        raise ValueError("it contains :: twice")
    head, gap, tail = alternative.partition("::")
    before, after = (half.split(":") if half else [] for half in (head, tail))
    return [*before, *["0"] * (8 - len(before) - len(after) if gap else 0), *after]


def _range(text: str, base: int, limit: int) -> tuple[int, int]:
    if text == "*":
        return 0, limit
    low_text, dash, high_text = text.partition("-")
    try:
        low = int(low_text, base)
        high = int(high_text, base) if dash else low
    except ValueError:
        low = high = -1
    if not 0 <= low <= high <= limit:
        top = limit if base == 10 else f"{limit:x}"
        raise ValueError(f"{text!r} is neither * nor a number or range from 0 to {top}")
    return low, high
