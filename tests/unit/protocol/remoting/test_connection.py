"""The sans-IO connection: each response finds its request, and each request ends."""

from __future__ import annotations

import pytest

from rocketpy.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    RocketError,
)
from rocketpy.protocol.remoting.command import FLAG_READS_MSGPACK, Command, decode_command, encode_command
from rocketpy.protocol.remoting.connection import Connection
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ, FrameDecoder


class Wait:
    """A waiter that stores its result."""

    def __init__(self) -> None:
        self.response: Command | None = None
        self.error: RocketError | None = None
        self.cancelled = False

    def done(self) -> bool:
        return self.cancelled or self.response is not None or self.error is not None

    def set_result(self, result: Command) -> None:
        self.response = result

    def set_exception(self, exception: RocketError) -> None:
        self.error = exception


def read(frame: bytes) -> Command:
    return decode_command(FrameDecoder().feed(frame)[0])


def test_responses_in_any_order_find_their_requests() -> None:
    """A caller would get the response that belongs to another one."""
    connection = Connection()
    waits = [Wait() for _ in range(3)]
    requests = [read(connection.encode_request(Command.request(10 + i), waits[i], 100)) for i in range(3)]
    stream = b"".join(encode_command(requests[i].reply(i)) for i in (2, 0, 1))
    assert connection.receive(stream) == []
    assert [wait.response.code for wait in waits if wait.response] == [0, 1, 2]
    assert connection.in_flight == 0


def test_requests_of_the_peer_are_not_taken_for_responses() -> None:
    """QUIRKS 7: both sides number their requests, so a broker's request would be taken for a response."""
    connection = Connection()
    wait = Wait()
    ours = read(connection.encode_request(Command.request(10), wait, 100))
    theirs = Command(39, ours.opaque)
    (request,) = connection.receive(encode_command(theirs))
    assert (request.code, wait.done()) == (39, False)


def test_late_and_unknown_responses_are_dropped() -> None:
    """A response after its timeout would raise an exception in the reader and end the connection."""
    connection = Connection()
    wait = Wait()
    request = read(connection.encode_request(Command.request(10), wait, 100))
    assert connection.expire(100) == 1
    assert isinstance(wait.error, RequestTimeout)
    assert connection.receive(encode_command(request.reply()) + encode_command(Command(0, 99, 1))) == []


def test_a_cancelled_waiter_is_not_resolved() -> None:
    """Cancelling one send would raise an exception in the reader when its response arrives."""
    connection = Connection()
    wait = Wait()
    request = read(connection.encode_request(Command.request(10), wait, 100))
    wait.cancelled = True
    connection.receive(encode_command(request.reply()))
    assert wait.response is None


def test_expiry_takes_only_overdue_requests() -> None:
    """A short timeout would also fail requests with a long one, or a long one hide a short one."""
    connection = Connection()
    waits = {deadline: Wait() for deadline in (300.0, 100.0, 200.0)}
    for deadline, wait in waits.items():
        connection.encode_request(Command.request(10), wait, deadline)
    assert connection.earliest_deadline_ms == 100
    assert connection.expire(99.9) == 0
    assert connection.expire(200) == 2
    assert connection.earliest_deadline_ms == 300
    assert not waits[300.0].done()


def test_close_fails_everything_in_flight_at_once() -> None:
    """Callers would wait for their timeout although the connection is closed."""
    connection = Connection()
    waits = [Wait(), Wait()]
    for wait in waits:
        connection.encode_request(Command.request(10), wait, 100)
    assert connection.close("connection to 127.0.0.1:1 ended") == 2
    assert all(isinstance(wait.error, ConnectionLost) for wait in waits)
    assert connection.earliest_deadline_ms == float("inf")


def test_opaque_wraps_and_skips_numbers_in_use() -> None:
    """After two billion requests a number would be used twice at once."""
    connection = Connection()
    first = connection.expect(Wait(), 100)
    connection._next_opaque = 0x7FFF_FFFF
    assert [connection.expect(Wait(), 100) for _ in range(2)] == [0x7FFF_FFFF, first + 1]


def test_a_request_that_cannot_be_written_leaves_no_trace() -> None:
    """Its waiter would time out although nothing was sent."""
    connection = Connection(CODEC_ROCKETMQ)
    with pytest.raises(LocalProtocolError):
        connection.encode_request(Command(2**20), Wait(), 100)
    assert connection.in_flight == 0


def test_oneway_is_marked_and_not_waited_for() -> None:
    """The table would fill with requests that get no response."""
    connection = Connection()
    assert read(connection.encode_oneway(Command.request(34))).is_oneway
    assert connection.in_flight == 0


def test_msgpack_waits_until_the_peer_announced_it() -> None:
    """A RocketMQ peer would get a codec that it does not know."""
    connection = Connection(CODEC_MSGPACK)
    first = read(connection.encode_request(Command.request(10), Wait(), 100))
    assert (first.codec, first.flag) == (CODEC_JSON, FLAG_READS_MSGPACK)
    java = Command(0, first.opaque, 1)
    connection.receive(encode_command(java))
    second = read(connection.encode_request(Command.request(10), Wait(), 100))
    assert second.codec == CODEC_JSON
    connection.receive(encode_command(second.reply()))
    assert read(connection.encode_request(Command.request(10), Wait(), 100)).codec == CODEC_MSGPACK


def test_bytes_without_a_frame_are_rejected() -> None:
    """Garbage on the wire would be ignored and the connection hang."""
    with pytest.raises(RemoteProtocolError):
        Connection().receive(b"GET / HTTP/1.1\r\n\r\n")


def test_oneway_requests_are_numbered_too() -> None:
    """Two oneway requests would have one opaque, and logs could not distinguish them."""
    connection = Connection()
    numbers = [read(connection.encode_oneway(Command.request(10))).opaque for _ in range(3)]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
