"""Checks what a client asks of the broker in the properties and the header of a message.

| property                              | accepted in                                                        |
|---------------------------------------|--------------------------------------------------------------------|
| DELAY above 0, TRAN_MSG=true          | single sends                                                       |
| RETRY_TOPIC and the other properties  | single sends to ``%RETRY%group``: copies of a message that a       |
| of messages that were sent back       | consumer could not send back                                       |
| TIMER_DELAY_SEC and the other timers  | single sends; with DELAY above 0, that counts instead              |
| __STARTDELIVERTIME                    | such copies, where DELAY counts instead                            |
| POP_CK                                | any sends; removed, since it is the receipt of another message     |

A property that the broker would ignore is rejected, since the sender relies on it. Other reserved names are
overwritten by the broker where it reads them (REAL_TOPIC, REAL_QID, CLUSTER), or have no effect.
Source: SendMessageProcessor of RocketMQ 4.6.0. Differs: there, any producer may set any of them. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.headers import SendMessageRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.batch import decode_batch, has_property
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.services.delay.topic_rewrite import delay_level, is_half

PLAIN_FLAGS: Final = (
    MessageSysFlag.COMPRESSED | MessageSysFlag.MULTI_TAGS | MessageSysFlag.COMPRESSION_TYPE_MASK
)
"""The bits of a sysFlag that a client may set in any send. The broker sets those of IPv6 hosts itself."""

_MARKED: Final = tuple(
    sorted(
        f"{name}\x01"
        for name in (
            props.PROPERTY_TRANSACTION_PREPARED,
            props.POP_RECEIPT,
            *props.TIMER_PROPERTIES,
            *props.RETRY_PROPERTIES,
        )
    )
)
"""The checked names, except DELAY. All contain an underscore."""
_DUE: Final = re.compile(
    rf"(?:^|\x02)({props.TIMER_DELAY_SEC}|{props.TIMER_DELAY_MS}|{props.TIMER_DELIVER_MS})\x01([^\x01\x02]+)\x02"
)
_UNIQUE_ID: Final = re.compile(rf"(?:^|\x02){props.PROPERTY_UNIQ_KEY}\x01([^\x01\x02]+)\x02")
_CHECKED_IN_BATCHES: Final = tuple(
    name.encode() for name in (*[name[:-1] for name in _MARKED], props.PROPERTY_DELAY_TIME_LEVEL)
)


def is_marked(text: str) -> bool:
    """Whether properties seem to contain a checked name other than DELAY.

    It may also be the end of another name, such as MY_RETRY_TOPIC.
    """
    for name in _MARKED:  # noqa: SIM110 - takes two thirds of the time of `any`
        if name in text:
            return True
    return False


def timed_alone(text: str) -> dict[str, str] | None:
    """Return the due time and the unique id of a timed message, as properties.

    None if the properties have another checked name, or seem to: `check_sent` parses them.
    """
    at = text.find("TIMER_DEL")
    due = _DUE.match(text, at - 1 if at > 0 else 0)
    if due is None or text.count("TIMER_") > 1:
        return None
    begin, end = due.span()
    has_id = "UNIQ_KEY\x01" in text
    if text.count("_") > 2 + has_id and is_marked(text[: begin + 1] + text[end:]):
        return None
    found = {due[1]: due[2]}
    if has_id:
        unique_id = _UNIQUE_ID.search(text)
        if unique_id is None or text.count("UNIQ_KEY\x01") > 1:
            return None
        found[props.PROPERTY_UNIQ_KEY] = unique_id[1]
    return found


def check_sent(header: SendMessageRequestHeader, *, is_single: bool) -> dict[str, str] | None:
    """Check the header of a send, with the properties in it; removes POP_CK. Raises MessageInvalid.

    is_single: False for a batch, whose messages `check_batch` checks, and for a reply. Returns the
    properties; None if none of them makes the message a special one.
    """
    flags = header.sys_flag & ~PLAIN_FLAGS
    if flags and not (is_single and flags == MessageSysFlag.TRANSACTION_PREPARED):
        raise MessageInvalid(f"sysFlag is {header.sys_flag}, which no client of RocketMQ sends")
    is_copy = is_single and header.topic.startswith(RETRY_TOPIC_PREFIX)
    times = header.reconsume_times or 0
    if times < 0 or (times and not is_copy):
        raise MessageInvalid(
            f"reconsumeTimes is {times}; only copies in %RETRY%group have retries, from 1 on"
        )
    text = header.properties or ""
    if not is_marked(text) and "DELAY\x01" not in text:
        return None
    properties = props.decode(text)
    _check(properties, is_single=is_single, is_copy=is_copy)
    if properties.pop(props.POP_RECEIPT, None) is not None:  # a consumer forwards a popped message
        header.properties = props.encode(properties)
    return properties


def check_batch(common: bytes, data: bytes) -> None:
    """Check the messages of a batch, of which there must be one. Raises MessageInvalid.

    common: properties of the request. data: body of the batch. Raises RemoteProtocolError if it is malformed.
    """
    if not data:
        raise MessageInvalid("the batch holds no message")
    if has_property(data, _CHECKED_IN_BATCHES) or any(
        name + b"\x01" in common for name in _CHECKED_IN_BATCHES
    ):
        for _, _, text in decode_batch(data):
            _check(props.decode(text), is_single=False, is_copy=False)


def _check(properties: Mapping[str, str], *, is_single: bool, is_copy: bool) -> None:
    """is_copy: the message is a copy that a consumer sends to its retry topic."""
    is_delayed = delay_level(properties) > 0
    if not is_single and is_delayed:
        raise MessageInvalid("messages of a batch cannot be delayed, nor can a reply")
    if not is_single and is_half(properties):
        raise MessageInvalid("messages of a batch cannot be transactional, nor can a reply")
    if not is_copy and not props.RETRY_PROPERTIES.isdisjoint(properties):
        name = min(props.RETRY_PROPERTIES & properties.keys())
        raise MessageInvalid(
            f"the property {name} is only for copies that consumers send to %RETRY%group; remove it"
        )
    timers = props.TIMER_PROPERTIES & properties.keys()
    if timers and (not is_single or is_half(properties)):
        raise MessageInvalid(
            f"the property {min(timers)} asks for a timer message, which cannot be transactional, a "
            "reply, or in a batch; send it individually"
        )
    if props.START_DELIVER_TIME in timers and not (is_copy and is_delayed):
        raise MessageInvalid(
            f"the property {props.START_DELIVER_TIME} is of another product; use {props.TIMER_DELIVER_MS}, "
            "or a delay level (DELAY)"
        )
