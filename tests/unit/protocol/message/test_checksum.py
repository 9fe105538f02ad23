"""Checksums: RocketMQ's own, and the end-to-end one of message bodies."""

from __future__ import annotations

from typing import Any

import crcmod.predefined
import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.message.checksum import BODY_CHECKSUMS, body_checksum, crc32, verify_body_checksum
from tests.golden_data import vectors

CHECK = b"123456789"


@pytest.mark.parametrize("vector", vectors("crcAndCompress"), ids=lambda vector: str(vector["length"]))
def test_crc_is_rocketmqs(vector: dict[str, Any]) -> None:
    """QUIRKS 11: every record would look corrupt to a Java broker, and every registration be refused."""
    body = (
        (vector["bodyText"] or "").encode() if vector["bodyHex"] is None else bytes.fromhex(vector["bodyHex"])
    )
    assert crc32(body) == vector["crc32"]
    assert crcmod.predefined.mkCrcFun("crc-32")(body) & 0x7FFFFFFF == vector["crc32"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crc-32c", "e3069283"),
        ("crc-64", "46a5a9388a5beffe"),
        ("crc-64-we", "62ec59e3f1a4f00a"),
        ("crc-64-jones", "caa717168609f281"),
    ],
)
def test_body_checksums_are_the_published_ones(name: str, value: str) -> None:
    """Another implementation of the same polynomial would call every body damaged."""
    assert body_checksum(name, CHECK) == f"{name}:{value}"


@pytest.mark.parametrize("name", BODY_CHECKSUMS)
def test_a_changed_body_is_noticed(name: str) -> None:
    """A body damaged between producer and consumer would be accepted."""
    value = body_checksum(name, CHECK)
    assert verify_body_checksum(value, CHECK) is True
    assert verify_body_checksum(value, CHECK + b"0") is False
    assert verify_body_checksum(value[:-1], CHECK) is False


def test_checksums_we_do_not_know() -> None:
    """A newer producer's checksum would make this consumer refuse good messages."""
    assert verify_body_checksum("sha-256:00", CHECK) is None
    assert verify_body_checksum("", CHECK) is None
    with pytest.raises(ConfigInvalid, match="choose one of crc-32c"):
        body_checksum("sha-256", CHECK)


@pytest.mark.parametrize("name", BODY_CHECKSUMS)
def test_a_checksum_has_all_its_digits(name: str) -> None:
    """One in sixteen bodies would have a checksum that other implementations write with a leading zero."""
    digits = {len(body_checksum(name, b"%d" % number).partition(":")[2]) for number in range(200)}
    assert digits == {8 if name == "crc-32c" else 16}
