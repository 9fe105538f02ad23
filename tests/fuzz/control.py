"""An ordinary client that works while its servers are fuzzed."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from rocketpy import ClientConfig, Message, Producer, ProducerConfig, PullConsumer, PullStatus
from rocketpy.errors import RocketError, RouteNotFound
from tests.fuzz.engine import Failure

TOPIC = "FuzzControl"
_PAUSE_SECONDS = 0.02
_READY_SECONDS = 20
_PATIENT = ProducerConfig(send_timeout_ms=10_000)


class ControlClient:
    """Sends a message every 20 ms until the block ends, then reads all of them back.

    Asks the name server for the route every 100 ms. Raises Failure when a send gets no response within its
    timeout or a message does not come back as it was sent.
    """

    def __init__(self, namesrv: str) -> None:
        self._config = ClientConfig(namesrv=namesrv, route_refresh_ms=100)
        self._sent: list[bytes] = []
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when its topic is known to the name server, so that no fuzzed broker gets a share of it."""
        self._task = asyncio.create_task(self._send())
        async with asyncio.timeout(_READY_SECONDS):
            await self._wait_for_route()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._task is not None
        if error is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            return
        try:
            await self._task
            received = await self._receive()
        except RocketError as problem:
            raise Failure(f"the control client got {type(problem).__name__}: {problem}") from problem
        if sorted(received) != sorted(self._sent):
            raise Failure(f"the control client sent {len(self._sent)} messages and received {len(received)}")

    async def _wait_for_route(self) -> None:
        async with PullConsumer("fuzz_control_readers", client=self._config) as consumer:
            while True:
                with contextlib.suppress(RouteNotFound):
                    await consumer.fetch_queues(TOPIC)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _send(self) -> None:
        async with Producer("fuzz_control", client=self._config, config=_PATIENT) as producer:
            while not self._stop.is_set():
                body = b"%d" % len(self._sent)
                await producer.send(Message(TOPIC, body))
                self._sent.append(body)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _receive(self) -> list[bytes]:
        found: list[bytes] = []
        async with PullConsumer("fuzz_control_readers", client=self._config) as consumer:
            for queue in await consumer.fetch_queues(TOPIC):
                result = await consumer.pull(queue, 0)
                while result.status is PullStatus.FOUND:
                    found += [message.body for message in result.messages]
                    result = await consumer.pull(queue, result.next_offset)
        return found
