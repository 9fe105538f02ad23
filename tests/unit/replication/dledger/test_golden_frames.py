"""Frames between three peers of DLedger 0.1 are decoded, and encoding them gives the same bytes."""

import json
from collections import Counter

import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.remoting.command import Command, decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy_broker.replication.dledger.core.messages import (
    AppendEntryRequest,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatResponse,
    MetadataRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    RaftMessage,
    RaftRequestCode,
    RaftResponseCode,
    VoteResponse,
    VoteResult,
    read_request,
    read_response,
    to_request,
    to_response,
)
from tests import golden_data
from tests.golden_data import RecordedFrame

FRAMES = golden_data.frames("raft-frames", "dledger")


def _command(frame: RecordedFrame) -> Command:
    (cut,) = FrameDecoder().feed(frame.data)
    return decode_command(cut)


def _message(frame: RecordedFrame) -> RaftMessage:
    if frame.info["kind"] == "response":
        return read_response(_command(frame), frame.info["requestCode"])
    return read_request(_command(frame))


def test_recorded_bodies_are_read_and_written_as_recorded() -> None:
    """QUIRKS 57: a Java peer could not decode the frames of this code, or the reverse."""
    kinds: Counter[str] = Counter()
    for frame in FRAMES:
        message = _message(frame)
        assert message.encode() == _command(frame).body, frame.info["n"]
        kinds[type(message).__name__] += 1
    assert kinds == {
        "VoteRequest": 16,
        "VoteResponse": 16,
        "HeartBeatRequest": 69,
        "HeartBeatResponse": 69,
        "PushEntryRequest": 432,
        "PushEntryResponse": 432,
    }


def test_recorded_requests_and_responses_go_into_the_same_frames() -> None:
    """The code or the type of a frame could differ from Java's."""
    requests = {frame.info["n"]: frame for frame in FRAMES if frame.info["kind"] == "request"}
    for frame in FRAMES:
        recorded = _command(frame)
        if frame.info["kind"] == "request":
            assert to_request(_message(frame)).code == recorded.code == frame.info["code"]
        else:
            request = _command(requests[frame.info["request"]["n"]])
            ours = to_response(request, _message(frame))
            assert (ours.code, ours.flag, ours.opaque) == (recorded.code, recorded.flag, recorded.opaque)


def test_the_values_in_recorded_frames() -> None:
    """QUIRKS 58, 59, 60 and 61: a value could be lost by decoding, and the texts would still be equal."""
    messages = [(frame, _message(frame)) for frame in FRAMES]
    results = {message.vote_result for _, message in messages if isinstance(message, VoteResponse)}
    assert results == {
        VoteResult.ACCEPT,
        VoteResult.REJECT_ALREADY_VOTED,
        VoteResult.REJECT_TERM_NOT_READY,
        VoteResult.REJECT_EXPIRED_VOTE_TERM,
        VoteResult.REJECT_ALREADY_HAS_LEADER,
    }
    beats = [message for _, message in messages if isinstance(message, HeartBeatResponse)]
    assert {(beat.code, beat.term, beat.remote_id) for beat in beats} == {(200, -1, None)}
    pushes = [message for _, message in messages if isinstance(message, PushEntryRequest)]
    assert {push.type for push in pushes} == set(PushType)
    assert all((push.entry is None) == (push.type is PushType.COMMIT) for push in pushes)
    responses = [message for _, message in messages if isinstance(message, PushEntryResponse)]
    refused = [response for response in responses if response.code == RaftResponseCode.INCONSISTENT_STATE]
    assert [(response.begin_index, response.end_index, response.index) for response in refused] == [
        (-1, -1, 0)
    ] * 2
    body = json.loads(_command(messages[0][0]).body)
    assert (body["leaderId"], body["remoteId"], body["term"]) == ("n1", "n2", -1)


@pytest.mark.parametrize(
    "message",
    [
        AppendEntryRequest(body=b"x", group="g", remote_id="n0"),
        GetEntriesRequest(begin_index=7, group="g", remote_id="n0"),
        MetadataRequest(group="g", remote_id="n0"),
    ],
)
def test_bodies_of_clients_are_decoded_as_encoded(message: RaftMessage) -> None:
    """DLedger's own client could not append to this ledger (no frame of it is recorded)."""
    command = to_request(message)
    assert command.code < 51000
    assert read_request(command) == message


def test_bodies_for_clients_have_javas_names() -> None:
    """The names in these bodies, which no recording contains, could be wrong."""
    assert AppendEntryRequest(body=b"hi", group="g", remote_id="n0").encode() == (
        b'{"body":"aGk=","code":200,"group":"g","remoteId":"n0","term":-1}'
    )
    assert GetEntriesRequest(begin_index=3).encode() == b'{"beginIndex":3,"code":200,"maxSize":0,"term":-1}'
    assert GetEntriesResponse(group="g").encode() == b'{"code":200,"entries":[],"group":"g","term":-1}'


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RaftRequestCode.VOTE, b'{"ledgerEndIndex":"many"}'),
        (RaftRequestCode.VOTE, b"{"),
        (RaftRequestCode.PUSH, b'{"type":"GRAB"}'),
        (RaftRequestCode.PUSH, b'{"entry":{"body":"aGk=","index":0,"pos":0,"size":49,"term":0}}'),
        (RaftRequestCode.PUSH, b'{"entry":{"body":"aGk=","index":-2,"pos":0,"size":50,"term":0}}'),
        (RaftRequestCode.PUSH, b'{"commitIndex":9223372036854775808}'),
        (10, b"{}"),
    ],
)
def test_other_bodies_are_rejected(code: int, body: bytes) -> None:
    """Invalid bodies from a peer would reach the files of the ledger."""
    with pytest.raises(RemoteProtocolError):
        read_request(Command(code, body=body))
