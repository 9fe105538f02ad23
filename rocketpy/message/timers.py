"""When a message is to be delivered: times and delays as the timer properties of RocketMQ 5.x.

Source: Message setDeliverTimeMs and setDelayTimeMs, HookUtils of RocketMQ 5.3.3. Differs: a text that is no
number is refused before the send, and so are two properties, of which brokers use one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.message import properties as names

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_VALUE: Final = re.compile(r"[0-9]{1,18}")
_ARGUMENTS: Final = {names.TIMER_DELIVER_MS: "deliver_at", names.TIMER_DELAY_MS: "delay"}
_UNITS: Final = {names.TIMER_DELAY_SEC: timedelta(seconds=1), names.TIMER_DELAY_MS: _MS}


def timer_properties(
    deliver_at: datetime | None, delay: timedelta | None, delay_level: int, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the timer property for the arguments of a `Message`; none for a delay of 0.

    A fraction of a millisecond is rounded up. properties: those of the user. Raises MessageInvalid.
    """
    if (deliver_at is not None and delay is not None) or delay_level:
        raise MessageInvalid("deliver_at, delay and delay_level exclude each other; pass only one of them")
    if (timer := find_timer(properties)) is not None:
        given = "delay" if deliver_at is None else "deliver_at"
        raise MessageInvalid(f"the message has {given} and property {timer}; set one of them")
    if deliver_at is not None:
        return {names.TIMER_DELIVER_MS: str(max(_since_epoch_ms(deliver_at), 0))}
    ms = _delay_ms(delay)
    return {names.TIMER_DELAY_MS: str(ms)} if ms else {}


def _since_epoch_ms(deliver_at: object) -> int:
    if not isinstance(deliver_at, datetime):
        raise MessageInvalid(f"deliver_at is {deliver_at!r}; it must be a datetime with a time zone")
    if deliver_at.utcoffset() is None:
        raise MessageInvalid(
            f"deliver_at is {deliver_at.isoformat(' ')} without a time zone; add one, for example "
            'deliver_at.replace(tzinfo=ZoneInfo("Europe/Berlin")), or tzinfo=UTC for a time in UTC'
        )
    return -((_EPOCH - deliver_at) // _MS)


def _delay_ms(delay: object) -> int:
    if not isinstance(delay, timedelta):
        raise MessageInvalid(f"delay is {delay!r}; it must be a timedelta")
    if delay < timedelta(0):
        raise MessageInvalid(f"delay is {delay}; it must not be negative: a time may be past, as deliver_at")
    ms, rest = divmod(delay, _MS)
    return ms + bool(rest)


def find_timer(properties: Mapping[str, str]) -> str | None:
    """Return the name of the property that makes a message a timer message; None without one."""
    if not properties or names.TIMER_PROPERTIES.isdisjoint(properties):
        return None
    return min(names.TIMER_PROPERTIES & properties.keys())


def shown_timer(name: str) -> str:
    """Return the name of a timer property for errors, with the argument of `Message` that sets it."""
    argument = _ARGUMENTS.get(name)
    return f"property {name}" if argument is None else f"{argument} (property {name})"


def check_timer(properties: Mapping[str, str], name: str, delay_level: int) -> None:
    """Check the timer property of a message. Raises MessageInvalid for one that brokers would ignore."""
    value = properties[name]
    if delay_level:
        raise MessageInvalid(
            f"the message has delay level {delay_level} and {shown_timer(name)}; set one of them"
        )
    others = names.TIMER_PROPERTIES & properties.keys() - {name}
    if others:
        raise MessageInvalid(f"the message has properties {name} and {min(others)}; set one of them")
    if not _VALUE.fullmatch(value):
        raise MessageInvalid(f"property {name} is {value[:50]!r}; it must be a number of at most 18 digits")


def deliver_at_of(properties: Mapping[str, str], sent_ms: int | None = None) -> datetime | None:
    """Return the time of a timer message; None for another message, or if no datetime can have the time.

    sent_ms: when it was sent, in ms since 1970. Without it, a message with a delay has no time.
    """
    try:
        if (ms := _number(properties, names.TIMER_DELIVER_MS)) is not None:
            return _EPOCH + ms * _MS
        delay = delay_of(properties)
        return None if delay is None or sent_ms is None else _EPOCH + sent_ms * _MS + delay
    except OverflowError:
        return None


def delay_of(properties: Mapping[str, str]) -> timedelta | None:
    """Return the delay of a timer message; None for another message, or if no timedelta can have it."""
    for name, unit in _UNITS.items():
        if (number := _number(properties, name)) is not None:
            try:
                return number * unit
            except OverflowError:
                return None
    return None


def _number(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    return int(text) if text is not None and _VALUE.fullmatch(text) else None
