"""Timer messages at one broker: sent as they are, or with a delay level of the same length.

A broker of RocketMQ 4.x ignores timer properties and would deliver the message immediately. It has a table
of delay levels instead, which it tells in the response to GET_BROKER_CONFIG.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

from rocketpy.client.connections import OpenCallback, PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import ClientClosed, ConfigInvalid, MessageInvalid, RocketError
from rocketpy.message.timers import delay_of, deliver_at_of, find_timer
from rocketpy.producer.send.pending import NOW, PendingSend
from rocketpy.protocol.bodies import decode_settings
from rocketpy.protocol.codes import RequestCode, ResponseCode, version_name
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.remoting.command import Command

_MS: Final = timedelta(milliseconds=1)


class BrokerTimers:
    """What one broker can do with timer messages."""

    def __init__(self, broker_name: str, connection: PeerConnection, client: ClientInstance) -> None:
        self._broker_name = broker_name
        self._connection = connection
        self._client = client
        self._levels: DelayLevels | str = ""
        """The delay levels of the broker; a text says why they are not known."""
        self._read_ms = float("nan")
        """When the connection was opened on which the levels were read."""
        self._waiting: list[OpenCallback] = []

    @property
    def are_known(self) -> bool:
        """Whether `prepare` may be called."""
        connection = self._connection
        if connection.version is None:
            return False
        return connection.has_timers or self._read_ms == connection.opened_ms

    def when_known(self, then: OpenCallback) -> None:
        """Call `then` when `are_known`, or with the error of a request."""
        if self._connection.version is None:
            self._client.when_version_known(self._connection, partial(self._version_known, then))
        else:
            self._version_known(then, None)

    def prepare(self, send: PendingSend) -> None:
        """Let a send have a delay level if the broker has no timers. Raises MessageInvalid without one."""
        send.use_level(0 if self._connection.has_timers else self._level_for(send))

    def _level_for(self, send: PendingSend) -> int:
        """Return the level with the delay of a message; NOW if the message is due."""
        properties = send.messages[0].properties
        at, delay = deliver_at_of(properties), delay_of(properties)
        left = at - datetime.now(UTC) if at is not None else delay
        if left is not None and left <= timedelta(0):
            return NOW
        text = f"broker {self._broker_name} ({version_name(self._connection.version or 0)}) has no timers, "
        levels = self._levels
        if isinstance(levels, str):
            raise MessageInvalid(f"{text}and its delay levels are not known: {levels}; set delay_level")
        if at is None and delay is not None and delay / _MS in levels.delays_ms:
            return levels.level_for(delay)
        if at is not None:
            wanted = f"deliver_at {at.isoformat(' ', 'milliseconds')}"
        else:
            wanted = f"property {find_timer(properties)}" if delay is None else f"delay {delay}"
        raise MessageInvalid(
            f"{text}and no delay level for {wanted}: {_choices(levels, left)}; set delay_level to one of "
            "them, or use a broker with timers: rocketpy's, or one of RocketMQ 5"
        )

    def _version_known(self, then: OpenCallback, error: RocketError | None) -> None:
        if error is not None or self.are_known:
            then(error)
            return
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._client.tasks.spawn(self._read_levels(), f"delay levels of {self._broker_name}")

    async def _read_levels(self) -> None:
        connection, error = self._connection, cast(RocketError | None, ClientClosed("the client was closed"))
        opened_ms, request = connection.opened_ms, Command.request(RequestCode.GET_BROKER_CONFIG)
        try:
            response = await connection.request(request, self._client.config.request_timeout_ms)
            self._levels, self._read_ms, error = _levels_in(response), opened_ms, None
        except RocketError as failed:
            error = failed
        finally:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then(error)


def _levels_in(response: Command) -> DelayLevels | str:
    """Return the delay levels in the response to GET_BROKER_CONFIG, or why they are not known."""
    if response.code != ResponseCode.SUCCESS:
        return f"it responded with code {response.code}: {response.remark or 'no remark'}"
    text = decode_settings(response.body).get("messageDelayLevel")
    if text is None:
        return "its settings have no messageDelayLevel"
    try:
        return DelayLevels(text)
    except ConfigInvalid as error:
        return str(error)


def _choices(levels: DelayLevels, delay: timedelta | None) -> str:
    """Return the levels of a broker in words, and which is the nearest."""
    delays_ms = levels.delays_ms
    if not delays_ms:
        return "its messageDelayLevel is empty"
    text = f"levels 1 to {levels.level_max} are {levels}"
    if delay is None:
        return text
    nearest = min(range(len(delays_ms)), key=lambda index: abs(delays_ms[index] - delay / _MS))
    return f"{text}; the nearest is {nearest + 1} ({str(levels).split()[nearest]})"
