"""Message ids: Java's tools find messages by rocketpy's ids, and the reverse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.message.message_id import (
    UniqueIdGenerator,
    check_unique_id,
    decode_message_id,
    message_id,
    month_start_ms,
)
from rocketpy.protocol.message.record import host_bytes
from tests.golden_data import vectors
from tests.unique_ids import unique_id_time_ms

UNIQUE_IDS = vectors("clientUniqId_ipv4") + vectors("clientUniqId_ipv6")
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone the vectors were made in."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("vector", vectors("brokerOffsetMsgId"), ids=lambda vector: vector["ip"])
def test_broker_message_id(vector: dict[str, Any]) -> None:
    """VIEW_MESSAGE_BY_ID of a Java tool would go to another broker or another offset."""
    host = host_bytes(vector["ip"], vector["port"])
    assert message_id(host, vector["offset"]) == vector["msgId"]
    assert decode_message_id(vector["msgId"]) == (host, vector["offset"])
    assert decode_message_id(vector["msgId"].lower()) == (host, vector["offset"])


@pytest.mark.parametrize("text", ["", "7F", "Z" * 32, "0" * 33, "0" * 57, " " + "0" * 31, "00 " * 16])
def test_an_invalid_message_id_is_rejected(text: str) -> None:
    """A mistyped id would be looked up at a random offset."""
    with pytest.raises(RemoteProtocolError, match="not a message id"):
        decode_message_id(text)


@pytest.mark.parametrize("vector", UNIQUE_IDS, ids=lambda vector: vector["id"])
def test_unique_ids_have_javas_layout(vector: dict[str, Any]) -> None:
    """QUIRKS 25: tools that read address and time from an id would show wrong values."""
    ours = UniqueIdGenerator(
        ip_address(_padded(vector["ip"])).packed, process=0, instance=int(vector["classLoaderHashHex"], 16)
    )
    made_ms = unique_id_time_ms(vector["id"], vector["nowMillis"])
    ids = [ours.next(made_ms) for _ in range(int(vector["id"][-4:], 16) + 1)]
    assert ids[-1] == vector["id"]


@pytest.mark.parametrize("vector", UNIQUE_IDS, ids=lambda vector: vector["id"])
def test_time_of_a_unique_id(vector: dict[str, Any]) -> None:
    """QUIRKS 26: a query by id would begin a month too early, as Java's does, or too late."""
    made_ms = unique_id_time_ms(vector["id"], vector["nowMillis"])
    assert 0 <= vector["nowMillis"] - made_ms < 1000
    late = int(vector["id"][-12:-4], 16)
    assert made_ms == month_start_ms(vector["nowMillis"]) + late


def test_an_id_of_last_month() -> None:
    """A message sent in the night before the first of a month could not be found after it."""
    november_1 = month_start_ms(1795253749550)
    made = november_1 - 5
    unique_id = UniqueIdGenerator(b"\x7f\0\0\1").next(made)
    assert unique_id_time_ms(unique_id, november_1 + DAY_MS) == made
    january_1 = month_start_ms(november_1 + 70 * DAY_MS)
    unique_id = UniqueIdGenerator(b"\x7f\0\0\1").next(january_1 - 1)
    assert unique_id_time_ms(unique_id, january_1) == january_1 - 1


@pytest.mark.parametrize("way", ["next", "take"])
def test_the_generator_crosses_months_and_counts_on(way: str) -> None:
    """Ids would repeat after the first of a month, or when the clock is set back."""
    start = month_start_ms(1795253749550)
    generator = UniqueIdGenerator(bytes(16))
    times = (start - 1, start, start, start - 1)
    if way == "next":
        ids = [generator.next(now) for now in times for _ in range(15_000)]
    else:
        ids = [text for now in times for text in generator.take(now, 15_000)]
    assert len(set(ids)) == len(ids)
    assert {len(text) for text in ids} == {56}
    assert ids[15_000][-12:-4] == "00000000"
    assert ids[0][:-4] == ids[45_000][:-4]


def test_two_generators_differ() -> None:
    """Two clients behind one address would give their messages the same ids."""
    first, second = UniqueIdGenerator(b"\x7f\0\0\1"), UniqueIdGenerator(b"\x7f\0\0\1")
    assert first.next(1795253749550) != second.next(1795253749550)


def test_an_invalid_address_or_unique_id_is_rejected() -> None:
    """A wrong address would give ids that no tool can read."""
    with pytest.raises(LocalProtocolError, match="4 or 16 bytes, not 8"):
        UniqueIdGenerator(bytes(8))
    for text in ("", "x" * 32, "0" * 30, "-" * 32, "0" * 27 + "\n" + "0" * 4, "0" * 31 + "\n", "\u0660" * 32):
        with pytest.raises(RemoteProtocolError, match="not a unique id"):
            check_unique_id(text)


def _padded(address: str) -> str:
    return address.split("%", maxsplit=1)[0]


def test_ids_generated_together_equal_those_generated_one_by_one() -> None:
    """Messages of one batch would share an id, or have ids of another form."""
    one, many = (UniqueIdGenerator(bytes(4), process=1, instance=2) for _ in range(2))
    singly = [one.next(1_700_000_000_000) for _ in range(70_000)]
    counts = [1, 3, 252, 256, 257, 511, 1000, 63_000, 4_000, 720]
    assert sum(counts) == len(singly)
    assert [text for count in counts for text in many.take(1_700_000_000_000, count)] == singly
