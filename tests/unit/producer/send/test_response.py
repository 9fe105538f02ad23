"""How the response of a broker to a send is interpreted."""

from __future__ import annotations

import pytest

from rocketpy.errors import BrokerError, Outcome, RemoteProtocolError, Retry
from rocketpy.message import MessageQueue
from rocketpy.producer.send.response import parse_batch_response, parse_response
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command, decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.results import SendResult, SendStatus
from tests import golden_data

QUEUE = MessageQueue("GoldenTopic", "broker-a", 1)


def recorded(name: str) -> Command:
    """The real broker's response in a recorded pair."""
    pair = next(item for item in golden_data.essential() if item["name"].endswith(name))
    (frame,) = FrameDecoder().feed(bytes.fromhex(pair["responseHex"]))
    return decode_command(frame)


def response(code: int) -> Command:
    """A response with this code and all fields."""
    header = SendMessageResponseHeader(msg_id="A", queue_id=1, queue_offset=3)
    return Command(code, header=header, remark="because")


def test_a_recorded_response() -> None:
    """Results against the real broker would lack the place of the message."""
    command = recorded("SEND_MESSAGE_V2/JSON/send.sync no tag no key empty-ish body, q2")
    result = parse_response(command, QUEUE, "mine")
    assert (result.status, result.message_id, len(result.offset_message_id)) == (
        SendStatus.SEND_OK,
        "mine",
        32,
    )
    assert result.queue == MessageQueue("GoldenTopic", "broker-a", 2)


def test_a_response_of_our_own_broker() -> None:
    """A field that only RocketMQ's brokers write would be required."""
    result = parse_response(response(0), QUEUE, "mine")
    assert (result.queue, result.queue_offset, result.region, result.trace_on) == (
        QUEUE,
        3,
        "DefaultRegion",
        True,
    )


@pytest.mark.parametrize("queue_id", [0, 2])
def test_a_response_from_another_queue_than_requested(queue_id: int) -> None:
    """An offset would be looked up in a queue that does not contain the message."""
    header = SendMessageResponseHeader(msg_id="A", queue_id=queue_id, queue_offset=3)
    result = parse_response(Command(0, header=header), QUEUE, "mine")
    assert result.queue == MessageQueue("GoldenTopic", "broker-a", queue_id)


def test_a_recorded_batch_response() -> None:
    """Messages of a batch would get each other's ids and offsets."""
    results = parse_batch_response(recorded("JSON/send.batch of 3 to q1"), QUEUE, ["x", "y", "z"])
    assert [result.message_id for result in results] == ["x", "y", "z"]
    assert [result.queue_offset for result in results] == [1, 2, 3]
    assert results[1].offset_message_id == "7F00000100004E2A00000000000005CB"
    assert {result.queue for result in results} == {QUEUE}


def test_a_batch_response_with_another_number_of_ids() -> None:
    """Results would be given to the wrong messages in silence."""
    with pytest.raises(RemoteProtocolError, match="3 ids for a batch of 2"):
        parse_batch_response(recorded("JSON/send.batch of 3 to q1"), QUEUE, ["x", "y"])


@pytest.mark.parametrize("status", list(SendStatus))
def test_statuses(status: SendStatus) -> None:
    """A message that is stored would be reported as failed."""
    code = 0 if status is SendStatus.SEND_OK else ResponseCode[status.name]
    assert parse_response(response(code), QUEUE, "mine").status is status


@pytest.mark.parametrize(
    ("code", "outcome", "retry"),
    [
        (ResponseCode.SYSTEM_ERROR, Outcome.UNKNOWN, Retry.OTHER_BROKER),
        (ResponseCode.SYSTEM_BUSY, Outcome.NOT_SENT, Retry.SAME_BROKER),
        (ResponseCode.MESSAGE_ILLEGAL, Outcome.NOT_SENT, Retry.NONE),
        (ResponseCode.SERVICE_NOT_AVAILABLE, Outcome.NOT_SENT, Retry.OTHER_BROKER),
        (ResponseCode.TOPIC_NOT_EXIST, Outcome.NOT_SENT, Retry.REFRESH_ROUTE),
        (9999, Outcome.UNKNOWN, Retry.NONE),
    ],
)
def test_rejections_have_outcome_and_retry(code: int, outcome: Outcome, retry: Retry) -> None:
    """A user could not know whether sending the message a second time makes a duplicate."""
    with pytest.raises(BrokerError, match=r"broker-a responded with code .*: because") as caught:
        parse_response(response(code), QUEUE, "mine")
    assert (caught.value.code, caught.value.outcome, caught.value.retry) == (code, outcome, retry)


def test_a_response_without_its_fields() -> None:
    """A broken peer would show as a KeyError."""
    with pytest.raises(RemoteProtocolError, match="msgId"):
        parse_response(Command(0, ext=b"{}"), QUEUE, "mine")


def test_results_of_a_batch_are_those_of_its_messages() -> None:
    """A result would have the offset or the id of another message."""
    header = SendMessageResponseHeader(msg_id="A,B,C", queue_id=1, queue_offset=3)
    results = parse_batch_response(Command(0, header=header), QUEUE, ["x", "y", "z"])
    expected = [
        SendResult(SendStatus.SEND_OK, message_id, offset_id, QUEUE, offset)
        for message_id, offset_id, offset in [("x", "A", 3), ("y", "B", 4), ("z", "C", 5)]
    ]
    assert results[0] == expected[0]
    assert [*results] == [results[index] for index in range(3)] == expected
    assert (results[-1], results[1:], results[::-1]) == (expected[-1], expected[1:], expected[::-1])
    with pytest.raises(IndexError):
        results[3]
    again = results.after(2)
    assert (again.attempts, [result.attempts for result in again]) == (2, [2, 2, 2])
