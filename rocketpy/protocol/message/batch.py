"""The body of a SEND_BATCH_MESSAGE request: consecutive messages of one topic (QUIRKS 23).

::

    offset  size  field                       offset  size  field
         0     4  size of this element            16     4  body length
         4     4  magic, 0                        20     b  body
         8     4  CRC, 0 (not used)             20+b     2  properties length
        12     4  flag, the user's              22+b     p  properties, see `properties`

Big-endian. Source: RocketMQ 4.6 MessageDecoder encodeMessage, decodeMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from rocketpy.errors import MessageTooLarge, RemoteProtocolError
from rocketpy.native import has_native_form
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES

ELEMENT_FIXED_BYTES: Final = 22
"""Size of an element with an empty body and no properties."""

_HEAD: Final = struct.Struct(">iiiii")
_HEAD_BYTES: Final = _HEAD.size
_PROPERTIES_LENGTH: Final = struct.Struct(">H")


class BatchMessage(NamedTuple):
    """One message of a batch."""

    flag: int
    """Set by the user."""
    body: bytes
    properties: bytes
    """As UTF-8 text."""


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode the body for messages given as (flag, body, properties).

    Faster than encoding each message (see `tools/bench/codecs.py`): it joins once, and packs numbers only
    when they differ from those of the previous message. Raises MessageTooLarge for more than 32,767 bytes of
    properties.
    """
    parts: list[bytes] = []
    head = packed_length = b""
    last_body = last_length = -1
    last_flag = 0
    for flag, body, properties in messages:
        length, body_length = len(properties), len(body)
        if length != last_length:
            if length > MAX_PROPERTIES_BYTES:
                raise MessageTooLarge(f"properties of {length} bytes; the limit is {MAX_PROPERTIES_BYTES}")
            packed_length = _PROPERTIES_LENGTH.pack(length)
            last_length, last_body = length, -1
        if body_length != last_body or flag != last_flag:
            head = _HEAD.pack(ELEMENT_FIXED_BYTES + body_length + length, 0, 0, flag, body_length)
            last_body, last_flag = body_length, flag
        parts += (head, body, packed_length, properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchMessage]:
    """Decode a batch body. Raises RemoteProtocolError when its lengths contradict each other."""
    messages: list[BatchMessage] = []
    unpack_head = _HEAD.unpack_from
    start, end = 0, len(data)
    try:
        while start < end:
            size, _, _, flag, body_length = unpack_head(data, start)
            body_at = start + _HEAD_BYTES
            body_end = body_at + body_length
            text_at = body_end + 2
            stop = start + size
            text_length = data[body_end] << 8 | data[body_end + 1]
            if body_length < 0 or text_at + text_length != stop or stop > end:
                raise _bad_element(data, start, len(messages))
            messages.append(BatchMessage(flag, data[body_at:body_end], data[text_at:stop]))
            start = stop
    except (struct.error, IndexError):  # the data ends within an element
        raise _bad_element(data, start, len(messages)) from None
    return messages


@has_native_form
def has_property(data: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether a message of a batch body may have a property with one of these names.

    A property whose name ends with one of them counts as well. Raises as `decode_batch`.
    """
    texts = b"\x02".join([message.properties for message in decode_batch(data)])
    return any(name + b"\x01" in texts for name in names)


def _bad_element(data: bytes, offset: int, index: int) -> RemoteProtocolError:
    """Return the error that describes the malformed element at `offset`."""
    left = len(data) - offset
    if left < ELEMENT_FIXED_BYTES:
        return RemoteProtocolError(
            f"batch element {index}: {left} bytes left; an element has at least {ELEMENT_FIXED_BYTES}"
        )
    size, _, _, _, body_length = _HEAD.unpack_from(data, offset)
    if not ELEMENT_FIXED_BYTES <= size <= left or not 0 <= body_length <= size - ELEMENT_FIXED_BYTES:
        return RemoteProtocolError(
            f"batch element {index}: size {size} and body length {body_length} with {left} bytes left"
        )
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(data, offset + _HEAD_BYTES + body_length)
    return RemoteProtocolError(
        f"batch element {index}: size {size}, but its parts have "
        f"{ELEMENT_FIXED_BYTES + body_length + properties_length} bytes"
    )
