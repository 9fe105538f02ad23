"""Which responses to a pull a consumer rejects: to follow their offsets would lose or repeat messages."""

from __future__ import annotations

import pytest

from rocketpy.client.broker_api import OFFSET_MAX
from rocketpy.consumer.fetch.consumer_api import to_pull_response
from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import PullMessageResponseHeader
from rocketpy.protocol.remoting.command import Command

FOUND, NO_NEW, NO_MATCH, ILLEGAL = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def next_offset(code: int, following: int, first: int, end: int) -> int:
    """The next offset of a response to a pull from offset 10."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=following, min_offset=first, max_offset=end
    )
    response = Command.request(RequestCode.PULL_MESSAGE).reply(code)
    response.ext = header.ext_fields()
    response.body = b"x" if code == FOUND else b""
    return to_pull_response(response, MessageQueue("T", "b", 0), 10).header.next_begin_offset


@pytest.mark.parametrize(
    ("code", "following", "first", "end"),
    [
        (FOUND, 12, 0, 12),
        (FOUND, 14, 0, 12),  # messages that arrived during the read
        (NO_NEW, 10, 0, 10),
        (NO_MATCH, 300_000, 0, 20),  # the rest of a file that is being deleted
        (ILLEGAL, 0, 0, 5),
        (ILLEGAL, 5, 0, 5),
        (ILLEGAL, 20, 20, 30),
    ],
)
def test_offsets_of_real_brokers_are_followed(code: int, following: int, first: int, end: int) -> None:
    """A consumer would stop at a queue whose broker is right."""
    assert next_offset(code, following, first, end) == following


@pytest.mark.parametrize(
    ("code", "following", "first", "end"),
    [
        (FOUND, 2**62, 0, 12),
        (FOUND, 2**62, 0, 2**62),
        (NO_MATCH, 2**62, 0, 12),
        (NO_NEW, 2**40, 0, 12),
        (ILLEGAL, 2**62, 0, 12),
        (ILLEGAL, 3, 5, 12),
        (ILLEGAL, OFFSET_MAX + 1, 0, OFFSET_MAX + 1),
        (FOUND, 10, 0, 12),
        (NO_NEW, 9, 0, 12),
        (FOUND, 12, 13, 12),
    ],
)
def test_offsets_that_no_queue_has_are_rejected(code: int, following: int, first: int, end: int) -> None:
    """A consumer would commit 2^62, and skip all later messages."""
    with pytest.raises(RemoteProtocolError, match="responded to a pull"):
        next_offset(code, following, first, end)
