"""Compressed bodies: readable by Java, and no way to fill a consumer's memory."""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import pytest

from rocketpy.errors import ConfigInvalid, RemoteProtocolError
from rocketpy.protocol.message.compression import (
    MAX_INFLATED_BYTES,
    compress,
    compress_if_worth,
    decompress,
    inflate,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag
from tests.golden_data import vectors

COMPRESSED = MessageSysFlag.COMPRESSED
TEXT = b"line 1 compressible body; line 2 compressible body; " * 100
LATER = (MessageSysFlag.COMPRESSION_LZ4, MessageSysFlag.COMPRESSION_ZSTD)


@pytest.mark.parametrize("vector", vectors("crcAndCompress"), ids=lambda vector: str(vector["length"]))
def test_bodies_compressed_by_java_are_read(vector: dict[str, Any]) -> None:
    """A large message of a Java producer could not be read."""
    body = (
        (vector["bodyText"] or "").encode() if vector["bodyHex"] is None else bytes.fromhex(vector["bodyHex"])
    )
    assert decompress(bytes.fromhex(vector["zlibLevel5Hex"]), COMPRESSED) == body
    assert decompress(compress(body), COMPRESSED) == body


def test_only_flagged_bodies_are_touched() -> None:
    """A body that happens to look compressed would arrive changed."""
    packed = compress(TEXT)
    assert decompress(packed, 0) == packed
    assert decompress(packed, COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB) == TEXT


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends too early"),
        (b"not zlib", "not a zlib stream"),
        (compress(TEXT)[:-1], "ends too early"),
        (zlib.compress(bytes((4 << 20) + 1)), "inflate to more than"),
        (zlib.compress(bytes(MAX_INFLATED_BYTES + 1), 1), "inflate to more than"),
    ],
)
def test_streams_that_are_rejected(data: bytes, reason: str) -> None:
    """A few kilobytes from a hostile producer would fill the memory of every consumer."""
    with pytest.raises(RemoteProtocolError, match=reason):
        inflate(data)


def test_the_byte_limit_holds_below_the_ratio() -> None:
    """Sixteen megabytes and one byte at a harmless ratio would pass."""
    noise = random.Random(1).randbytes(100_000)
    data = zlib.compress(noise, 1)
    assert inflate(data, max_bytes=100_000) == noise
    with pytest.raises(RemoteProtocolError, match="more than the 99999 allowed"):
        inflate(data, max_bytes=99_999)


def test_the_largest_body_is_read() -> None:
    """A message as large as a broker stores could not be read, or a larger one fill a consumer's memory."""
    noise = random.Random(1).randbytes(1 << 20) * 16
    assert decompress(zlib.compress(noise, 0), COMPRESSED) == noise
    with pytest.raises(RemoteProtocolError, match="more than the 16777216 allowed"):
        decompress(zlib.compress(noise + b"1", 0), COMPRESSED)


def test_small_results_may_have_any_ratio() -> None:
    """A body of zeros that a Java producer deflated to a thousandth would be stored and never be readable."""
    assert inflate(compress(bytes(4 << 20))) == bytes(4 << 20)


def test_a_producer_sends_nothing_that_its_consumer_rejects() -> None:
    """A message of eight megabytes of zeros would be stored and never be readable."""
    for body in (bytes(8 << 20), random.Random(1).randbytes(5000), TEXT):
        sent, flag = compress_if_worth(body)
        assert decompress(sent, flag) == body
        assert len(sent) <= len(body)
    assert compress_if_worth(TEXT)[1] == COMPRESSED
    assert compress_if_worth(bytes(8 << 20))[1] == 0


@pytest.mark.parametrize("kind", LATER)
def test_types_of_rocketmq_5(kind: int) -> None:
    """A message of a 5.x producer could not be read, or would fill the memory of its reader."""
    packed = compress(TEXT, kind)
    assert decompress(packed, COMPRESSED | kind) == TEXT
    for data in (b"", b"junk", packed[:-5], compress(bytes(1 << 24), kind)):
        with pytest.raises(RemoteProtocolError):
            decompress(data, COMPRESSED | kind)


@pytest.mark.parametrize("kind", LATER)
def test_the_largest_body_of_rocketmq_5_is_read(kind: int) -> None:
    """A message as large as a broker stores could not be read, or a larger one fill a consumer's memory."""
    noise = random.Random(1).randbytes(1 << 20) * 16
    assert decompress(compress(noise, kind), COMPRESSED | kind) == noise
    with pytest.raises(RemoteProtocolError):
        decompress(compress(noise + b"1", kind), COMPRESSED | kind)


@pytest.mark.parametrize(("kind", "module"), list(zip(LATER, ("lz4.frame", "zstandard"), strict=True)))
def test_a_missing_package_is_named(kind: int, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a 5.x producer would fail without naming the package to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigInvalid, match=r"pip install rocketpy-mq\[compression\]"):
        compress(TEXT, kind)
    with pytest.raises(ConfigInvalid, match=r"pip install rocketpy-mq\[compression\]"):
        decompress(b"x", COMPRESSED | kind)


def test_unknown_types() -> None:
    """A body in a form of the future would be handed out as if it were plain."""
    with pytest.raises(RemoteProtocolError, match="sysFlag 0x401"):
        decompress(b"x", 0x401)
    with pytest.raises(ConfigInvalid, match="0x700"):
        compress(b"x", 0x700)
