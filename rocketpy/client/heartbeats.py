"""Heartbeats: tell brokers which producer and consumer groups a client has.

Source: RocketMQ 4.6 MQClientInstance sendHeartbeatToAllBroker, unregisterClient.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from typing import Final

from rocketpy.client.connections import OpenCallback, PeerConnection
from rocketpy.errors import BrokerError, ClientClosed, RocketError
from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import UnregisterClientRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.progress import Progress
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log: Final = logging.getLogger("rocketpy.client")

_UNREGISTER_TIMEOUT_MS: Final = 1000


class Heartbeats:
    """The heartbeats of a client.

    timeout_ms: of each. now_ms: monotonic time.
    """

    def __init__(self, tasks: Tasks, timeout_ms: float, now_ms: Callable[[], float]) -> None:
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self.client_id: str = ""
        """The client id; empty before the start."""
        self.producers: Counter[str] = Counter()
        """How many producers each group has."""
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        """By group, a function that returns its part of a heartbeat."""
        self._progress: dict[str, Progress] = {}
        """By the address of the broker."""
        self._version_waiting: dict[PeerConnection, list[OpenCallback]] = {}
        self._limited_log = RateLimitedLog(log)

    @property
    def are_needed(self) -> bool:
        """Whether there are groups to tell brokers about."""
        return bool(self.producers or self.consumers)

    def _command(self) -> Command:
        body = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self.producers)],
            consumer_data_set=[self.consumers[group]() for group in sorted(self.consumers)],
        )
        return Command.request(RequestCode.HEART_BEAT, body=body.encode())

    async def send(self, targets: Sequence[PeerConnection]) -> None:
        """Send a heartbeat to each of the brokers, and wait for the responses. Errors are logged."""
        addresses = {target.address for target in targets}
        self._progress = {address: of for address, of in self._progress.items() if address in addresses}
        for target in targets:
            self._progress_of(target)
        for target, result in await _broadcast(targets, self._command, self._timeout_ms):
            if isinstance(result, RocketError):
                self._progress_of(target).failed(str(result))
            else:
                self._responded(target, result)

    def put(self, connection: PeerConnection) -> None:
        """Send a heartbeat on an open connection, without waiting for the response."""
        try:
            future = connection.put(self._command(), self._timeout_ms)
        except RocketError as error:
            self._version_known(connection, error)
        else:
            future.add_done_callback(
                lambda done: self._tasks.run(self._ended, connection, done), context=Context()
            )

    def when_version_known(self, connection: PeerConnection, then: OpenCallback) -> None:
        """Call `then` when the `version` of an open connection is known, or with the error of a heartbeat.

        Concurrent calls share one heartbeat. Their callbacks run in the order of the calls, without a gap.
        """
        waiting = self._version_waiting.setdefault(connection, [])
        waiting.append(then)
        if len(waiting) == 1:
            Context().run(self.put, connection)  # it belongs to no caller

    async def unregister(
        self, connected: Sequence[PeerConnection], *, producer_group: str = "", consumer_group: str = ""
    ) -> None:
        """Tell brokers that the client has no member of a group any more. Errors are logged."""
        header = UnregisterClientRequestHeader(
            client_id=self.client_id,
            producer_group=producer_group or None,
            consumer_group=consumer_group or None,
        )
        await _broadcast(
            connected, lambda: Command.request(RequestCode.UNREGISTER_CLIENT, header), _UNREGISTER_TIMEOUT_MS
        )

    def problems(self, addresses: Collection[str], limit_ms: float) -> list[str]:
        """Return a text for each of these brokers that rejects heartbeats, or answers none for a time."""
        now_ms = self._now_ms()
        found = [
            of.problem(now_ms, limit_ms, f"broker {address} has answered no heartbeat")
            for address, of in self._progress.items()
            if address in addresses
        ]
        return [text for text in found if text is not None]

    def _ended(self, connection: PeerConnection, future: asyncio.Future[Command]) -> None:
        error = ClientClosed("the client was closed") if future.cancelled() else future.exception()
        if error is None:
            self._responded(connection, future.result())
        self._version_known(connection, error if isinstance(error, RocketError) else None)

    def _version_known(self, connection: PeerConnection, error: RocketError | None) -> None:
        for then in self._version_waiting.pop(connection, ()):
            then(error)

    def _responded(self, connection: PeerConnection, response: Command) -> None:
        """Keep what the response says of the broker. Log a rejection, and keep it for `problems`."""
        connection.learn(response)
        progress = self._progress_of(connection)
        if response.code == ResponseCode.SUCCESS:
            progress.succeeded(self._now_ms())
            return
        error = BrokerError(response.code, response.remark, f"broker {connection.address}")
        progress.failed(f"a broker rejected a heartbeat: {error}", is_lasting=True)
        self._limited_log.warning(str(error), "a broker rejected a heartbeat: %s", error)

    def _progress_of(self, connection: PeerConnection) -> Progress:
        return self._progress.setdefault(connection.address, Progress(self._now_ms()))


async def _broadcast(
    targets: Sequence[PeerConnection], make: Callable[[], Command], timeout_ms: float
) -> list[tuple[PeerConnection, Command | RocketError]]:
    """Send a request to each target; return the responses and the errors, which are logged."""
    results = await asyncio.gather(
        *(target.request(make(), timeout_ms) for target in targets), return_exceptions=True
    )
    ends: list[tuple[PeerConnection, Command | RocketError]] = []
    for target, result in zip(targets, results, strict=True):
        if isinstance(result, RocketError):
            log.info("broker %s: %s", target.address, result)
        elif isinstance(result, BaseException):
            raise result
        ends.append((target, result))
    return ends
