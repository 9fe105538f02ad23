"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: queues taken in order. Source: AdminBrokerProcessor of 4.6.0."""

from __future__ import annotations

from collections.abc import Callable

from rocketpy.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.services.metadata.locks import QueueLocks


class LockHandler:
    """Answers from the table of locks. now_ms: of a clock that only goes forward."""

    def __init__(self, locks: QueueLocks, *, now_ms: Callable[[], float]) -> None:
        self._locks = locks
        self._now_ms = now_ms

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, channel: Channel, request: Command) -> Command:
        """Handle LOCK_BATCH_MQ: locks queues, or renews locks."""
        wanted = LockBatchRequestBody.decode(request.body)
        got = self._locks.lock(wanted.consumer_group, wanted.client_id, wanted.mq_set, int(self._now_ms()))
        return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=got).encode())

    def unlock(self, channel: Channel, request: Command) -> Command:
        """Handle UNLOCK_BATCH_MQ."""
        given_up = UnlockBatchRequestBody.decode(request.body)
        self._locks.unlock(given_up.consumer_group, given_up.client_id, given_up.mq_set)
        return request.reply()
