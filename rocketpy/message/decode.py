"""Decodes the messages in a response; a corrupt record does not affect the others.

A record that cannot be decoded becomes a message with its raw body and `MessageExt.decode_error`. Decoding
ends at a record whose length is not reliable, since the next record cannot be found.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import repeat
from operator import lt
from typing import Final, TypeVar

import msgspec

from rocketpy.errors import RecordCorrupt, RemoteProtocolError, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, verify_body_checksum
from rocketpy.protocol.message.compression import InflatesTooFar, body_limit, decompress
from rocketpy.protocol.message.properties import find
from rocketpy.protocol.message.record import (
    Record,
    decode,
    envelope_properties,
    open_envelope,
    salvage,
    split_records,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag

E = TypeVar("E", bound=RocketError)

_CHECKSUM_NAME: Final = PROPERTY_BODY_CHECKSUM.encode()
_LIGHT_QUEUE: Final = "%LMQ%"
"""Prefix of topics of RocketMQ 5 whose queues have messages of other topics."""


class Decoded(msgspec.Struct, gc=False):
    """The messages of a response, in order."""

    messages: list[MessageExt]
    offsets: list[int]
    """Queue offsets of the messages."""
    failed: int
    """Number of messages with a `decode_error`."""
    limited: RocketError | None
    """The `decode_error` of messages that were not inflated because earlier bodies reached the limit, or
    None."""
    damage: RecordCorrupt | None
    """Why decoding ended before the last byte, or None."""


class PulledMessages(msgspec.Struct, gc=False):
    """The messages of a pull."""

    messages: list[MessageExt]
    undecodable: int
    """Number of them."""
    next_offset: int
    """The offset of the next pull."""


def decode_pull(
    data: bytes,
    queue: MessageQueue,
    offset: int,
    next_offset: int,
    *,
    topic: str = "",
    offset_delta: int | None = None,
    max_body_bytes: int,
    max_total_bytes: int,
    verify: bool,
) -> PulledMessages:
    """Decode the messages of a pull from `offset`, as far as they can be read and inflated.

    next_offset, offset_delta: from the broker. When some messages are left, the result has the offset after
    the last decoded one. topic: of the records, with the namespace; that of the queue if it is empty. Other
    arguments: see `decode_messages`.

    Raises RecordCorrupt when the first record has an unreliable length, or is corrupt and has an offset
    outside the request. Raises RemoteProtocolError when other messages have offsets outside the request, or
    are of another topic or queue.
    """
    is_own = offset_delta is None and not queue.topic.startswith(_LIGHT_QUEUE)
    own = (topic or queue.topic, queue.queue_id) if is_own else None
    decoded = decode_messages(data, queue, max_body_bytes, max_total_bytes, verify=verify, own=own)
    messages, limited, damage = decoded.messages, decoded.limited, decoded.damage
    if not decoded.failed and damage is None:
        check_offsets(decoded.offsets, queue, offset, next_offset)
        return PulledMessages(messages, 0, next_offset)
    taken: list[MessageExt] = []
    for message in messages:
        error = message.decode_error
        if error is not None and error is limited:
            break
        if error is not None and not offset <= message.queue_offset < next_offset:
            damage = RecordCorrupt(message.physical_offset, f"queue offset {message.queue_offset}: {error}")
            break
        taken.append(message)
    if not taken and damage is not None:
        raise damage
    check_offsets(decoded.offsets[: len(taken)], queue, offset, next_offset)
    if len(taken) < len(messages) or damage is not None:
        next_offset = taken[-1].queue_offset + 1
    return PulledMessages(taken, len(undecodable(taken)), next_offset)


def check_offsets(offsets: list[int], queue: MessageQueue, begin: int, end: int) -> None:
    """Raise unless the offsets ascend within the requested range; consumers track progress by them."""
    if not offsets:
        return
    if begin <= offsets[0] and offsets[-1] < end:
        first = offsets[0]
        is_dense = offsets == list(range(first, first + len(offsets)))  # fast check of the usual case
        if is_dense or all(map(lt, offsets, offsets[1:])):
            return
    raise RemoteProtocolError(
        f"broker {queue.broker_name} responded to a pull of {queue}, offsets {begin} to {end - 1}, with "
        f"messages at {offsets[0]} to {offsets[-1]}, or not in ascending order"
    )


def decode_messages(
    data: bytes,
    queue: MessageQueue,
    max_body_bytes: int,
    max_total_bytes: int,
    *,
    verify: bool,
    own: tuple[str, int] | None = None,
) -> Decoded:
    """Decode the messages of a response.

    own: topic and queue id; raise RemoteProtocolError for a record that has others.

    max_body_bytes: limit of an inflated body. max_total_bytes: limit of all inflated bodies; the first body
    only has its own limit. verify: check CRCs and end-to-end checksums.
    """
    bodies = _Bodies(max_body_bytes, max_total_bytes, verify)
    messages: list[MessageExt] = []
    offsets: list[int] = []
    damage = None
    topic, queue_id = own if own is not None else (queue.topic, queue.queue_id)
    has_checksums = verify and _CHECKSUM_NAME in data
    at, end = 0, len(data)
    while True:
        at, envelopes, plain, queue_offsets = split_records(data, at, topic.encode(), queue_id, verify)
        if has_checksums:
            messages += map(bodies.message, envelopes, repeat(queue), plain)
        else:
            messages += map(MessageExt, envelopes, repeat(queue), plain)
        offsets += queue_offsets
        if at == end:
            break
        error: RecordCorrupt | None = None
        try:
            record = decode(data, at, check_crc=verify)
        except RecordCorrupt as raised:
            salvaged, error = salvage(data, at, topic), raised
            if salvaged is None:
                damage = _without_context(raised)
                break
            record = salvaged
        if error is not None:
            messages.append(bodies.undecodable_message(record, queue, error))
        elif own is None or (record.topic, record.queue_id) == own:
            messages.append(bodies.message(record, queue, record.body))
        else:
            raise RemoteProtocolError(
                f"a record of queue {record.queue_id} of topic {record.topic!r} is in a response about queue "
                f"{queue_id} of topic {topic!r}"
            )
        offsets.append(record.queue_offset)
        at += record.size
    return Decoded(messages, offsets, bodies.failed, bodies.limited, damage)


def decode_message(data: bytes, broker_name: str, max_body_bytes: int, *, verify: bool) -> MessageExt:
    """Decode the message of a VIEW_MESSAGE_BY_ID response, perhaps with a `decode_error`.

    Raises RecordCorrupt for bytes that are not a record.
    """
    rejection: RecordCorrupt | None = None
    try:
        record = decode(data, check_crc=verify)
    except RecordCorrupt as error:
        salvaged = salvage(data, 0, "")
        if salvaged is None:
            raise
        record, rejection = salvaged, error
    bodies = _Bodies(max_body_bytes, max_body_bytes, verify)
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    return (
        bodies.message(record, queue, record.body)
        if rejection is None
        else bodies.undecodable_message(record, queue, rejection)
    )


def undecodable(messages: Sequence[MessageExt]) -> list[MessageExt]:
    """Return the messages with a `decode_error`."""
    return [message for message in messages if message.decode_error is not None]


def log_undecodable(messages: Sequence[MessageExt], log: logging.Logger) -> int:
    """Log each message with a `decode_error` at ERROR; return their number."""
    found = undecodable(messages)
    for message in found:
        log.error(
            "message %s of topic %s, broker %s, queue %d, offset %d cannot be decoded: %s",
            message.message_id,
            message.topic,
            message.queue.broker_name,
            message.queue.queue_id,
            message.queue_offset,
            message.decode_error,
        )
    return len(found)


class _Bodies:
    """Makes messages of the records of one response; `failed` and `limited` as in `Decoded`."""

    failed = 0
    limited: RocketError | None = None
    _total = 0

    def __init__(self, max_body_bytes: int, max_total_bytes: int, verify: bool) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_total_bytes = max_total_bytes
        self._verify = verify

    def message(self, record: Record | bytes, queue: MessageQueue, body: bytes) -> MessageExt:
        """Return the message of a record or envelope, with its body decompressed and verified."""
        if isinstance(record, bytes):
            properties = envelope_properties(record)
        else:
            properties = record.properties
            if record.sys_flag & MessageSysFlag.COMPRESSED:
                try:
                    body = self._inflated(body, record.sys_flag)
                except RocketError as error:
                    return self._failed(record, queue, error)
        checksum = find(properties, _CHECKSUM_NAME) if self._verify else None
        if checksum is not None and verify_body_checksum(checksum.decode("ascii", "replace"), body) is False:
            whole = open_envelope(record, body) if isinstance(record, bytes) else record
            return self.undecodable_message(
                whole, queue, RecordCorrupt(0, f"body does not match its producer's {checksum!r}")
            )
        return MessageExt(record, queue, body)

    def undecodable_message(self, record: Record, queue: MessageQueue, error: RecordCorrupt) -> MessageExt:
        """Return the message of a corrupt record; its error has the offset in the commit log."""
        return self._failed(record, queue, RecordCorrupt(record.physical_offset, error.reason))

    def _inflated(self, body: bytes, sys_flag: int) -> bytes:
        """Raises RemoteProtocolError, ConfigInvalid."""
        own_limit = body_limit(body, self._max_body_bytes)
        limit = min(own_limit, self._max_total_bytes - self._total) if self._total else own_limit
        if self.limited is None and limit > 0:
            try:
                plain = decompress(body, sys_flag, max_bytes=limit)
            except InflatesTooFar:
                if limit == own_limit:
                    raise
            else:
                self._total += len(plain)
                return plain
        if self.limited is None:
            self.limited = RemoteProtocolError(
                "not inflated: the bodies of this response exceed the limit of inflated bytes"
            )
        raise self.limited

    def _failed(self, record: Record, queue: MessageQueue, error: RocketError) -> MessageExt:
        self.failed += 1
        return MessageExt(record, queue, record.body, None, _without_context(error))


def _without_context(error: E) -> E:
    """Return the error without its context: a traceback would keep the whole response in memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
