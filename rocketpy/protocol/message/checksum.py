"""Checksums: RocketMQ's CRC-32, and others for the end-to-end checksum of a body.

The end-to-end checksum is an extension of rocketpy: a producer sets `PROPERTY_BODY_CHECKSUM`, and consumers
verify the body with it. The broker computes RocketMQ's CRC, so the CRC does not cover the network between
producer and broker.

The property's value is ``<name>:<digits>``: a name of `BODY_CHECKSUMS`, and lower-case hexadecimal digits. It
covers the body as the application sees it, before compression. Other clients ignore it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final
from zlib import crc32 as _zlib_crc32

from rocketpy.errors import ConfigInvalid

PROPERTY_BODY_CHECKSUM: Final = "BODY_CHECKSUM"
"""Name of the property that carries the end-to-end checksum; reserved by this project, not by RocketMQ."""

BODY_CHECKSUMS: Final = {"crc-32c": 8, "crc-64": 16, "crc-64-we": 16, "crc-64-jones": 16}
"""Checksums that a producer may choose, with the number of their hexadecimal digits. Names as in crcmod."""


def crc32(data: bytes | bytearray | memoryview) -> int:
    """Return RocketMQ's CRC of a body: CRC-32 with the top bit cleared. Source: RocketMQ UtilAll crc32."""
    return _zlib_crc32(data) & 0x7FFFFFFF


def body_checksum(name: str, body: bytes) -> str:
    """Return the value of `PROPERTY_BODY_CHECKSUM` for a body. Raises ConfigInvalid for an unknown name.

    Slow unless crcmod was installed with its C extension.
    """
    return f"{name}:{_function(name)(body):0{BODY_CHECKSUMS[name]}x}"


def verify_body_checksum(value: str, body: bytes) -> bool | None:
    """Return whether a body matches its `PROPERTY_BODY_CHECKSUM`; None for an unknown checksum."""
    name, _, digits = value.partition(":")
    if name not in BODY_CHECKSUMS:
        return None
    return body_checksum(name, body) == f"{name}:{digits}"


@cache
def _function(name: str) -> Callable[[bytes], int]:
    if name not in BODY_CHECKSUMS:
        raise ConfigInvalid(f"body checksum {name!r} is unknown; choose one of {', '.join(BODY_CHECKSUMS)}")
    import crcmod.predefined  # noqa: PLC0415 - it is compiled, so Spark's --py-files cannot carry it

    function: Callable[[bytes], int] = crcmod.predefined.mkCrcFun(name)
    return function
