"""Batches: which messages fit, and where a long list is split."""

from __future__ import annotations

import pytest

from rocketpy.errors import MessageInvalid, MessageTooLarge
from rocketpy.message import Message
from rocketpy.producer.send.encoder import check_sizes, split_batch
from rocketpy.producer.send.submitter import check_batch


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "message 1 is for U, message 0 for T"),
        ([Message("T", b"x"), Message("T", b"x", delay_level=1)], "message 1 has delay level 1"),
        ([Message("T", b"x"), Message("T", b"x", wait_store=False)], "message 1 differs"),
        ([Message("%RETRY%g", b"x")], "retry topics"),
    ],
)
def test_messages_that_no_batch_can_hold(messages: list[Message], words: str) -> None:
    """The broker would store a message without its delay, or under the topic of the first one."""
    with pytest.raises(MessageInvalid, match=words):
        check_batch(messages)


def sizes(bodies: list[int], max_bytes: int) -> list[int]:
    """How many messages go into each request. A record here has 120 bytes more than its body."""
    slices = split_batch("TTTTT", [b"x" * size for size in bodies], [b""] * len(bodies), max_bytes)
    assert [index for part in slices for index in range(part.start, part.stop)] == list(range(len(bodies)))
    return [part.stop - part.start for part in slices]


def test_a_list_is_cut_by_the_size_of_its_records() -> None:
    """A long list would be refused by the broker as too large."""
    assert sizes([80] * 10, 2000) == [10]
    assert sizes([80] * 10, 1999) == [9, 1]
    assert sizes([80] * 10, 400) == [2] * 5
    assert sizes([80, 900, 80], 400) == [1, 1, 1]


def test_too_large_a_message_is_named_before_anything_is_sent() -> None:
    """Half the batch would be stored before the error."""
    with pytest.raises(MessageTooLarge, match="message 1 has a body of 1001 bytes, 1000"):
        check_sizes([b"x", b"x" * 1001, b"x" * 1002], 1000)
    check_sizes([b"x" * 1000], 1000)


@pytest.mark.parametrize(
    ("sys_flags", "expected"),
    [([0, 0, 0, 0], [4]), ([1, 1, 1, 1], [4]), ([0, 1, 1, 0], [1, 2, 1]), ([0x101, 1, 0, 0], [1, 1, 2])],
)
def test_a_request_has_one_sys_flag(sys_flags: list[int], expected: list[int]) -> None:
    """A plain body would be marked as compressed, or the other way round, and no consumer could read it."""
    slices = split_batch("T", [b"x"] * 4, [b""] * 4, 10_000, sys_flags)
    assert [part.stop - part.start for part in slices] == expected


@pytest.mark.parametrize("properties", [0, 1, 37, 300])
@pytest.mark.parametrize("spare", [-1, 0])
def test_properties_count(properties: int, spare: int) -> None:
    """The broker would reject a batch whose messages have many properties."""
    bodies, each = [b"x" * 80] * 5, [b"p" * properties] * 5
    whole = 5 * (120 + 80 + properties)
    slices = split_batch("TTTTT", bodies, each, whole + spare)
    assert [part.stop - part.start for part in slices] == ([5] if spare == 0 else [4, 1])
