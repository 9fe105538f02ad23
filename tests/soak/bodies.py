"""Bodies that say their own number, so that what is read can be held against what was sent."""

from __future__ import annotations

import zlib

_SIZES = (40, 200, 200, 1000, 1000, 6000)


def body_of(number: int) -> bytes:
    """A text that says its own number and checksum."""
    text = f"{number} ".encode().ljust(_SIZES[number % len(_SIZES)], b"%x" % (number % 16))
    return b"%08x %b" % (zlib.crc32(text), text)


def number_of(body: bytes) -> int | None:
    """The number of a body, None when it is not as it was made."""
    checksum, _, text = body.partition(b" ")
    return int(text.split()[0]) if checksum == b"%08x" % zlib.crc32(text) else None
