"""Bodies that contain their own number, to compare received messages with sent ones."""

from __future__ import annotations

import zlib

_SIZES = (40, 200, 200, 1000, 1000, 6000)


def body_of(number: int) -> bytes:
    """A text with its own number and checksum."""
    text = f"{number} ".encode().ljust(_SIZES[number % len(_SIZES)], b"%x" % (number % 16))
    return b"%08x %b" % (zlib.crc32(text), text)


def number_of(body: bytes) -> int | None:
    """The number of a body, None when it was changed."""
    checksum, _, text = body.partition(b" ")
    return int(text.split()[0]) if checksum == b"%08x" % zlib.crc32(text) else None
