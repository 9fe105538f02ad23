"""The state that clients must find at the new leader of a DLedger group after a kill.

Before the kill, `Promises` creates a topic with messages, a group with settings, and offsets of the group.
`check` reads all of them from the new leader with rocketpy's client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocketpy import AdminClient, ClientConfig, Message, Producer, PullConsumer, SendResult
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper, SubscriptionGroupWrapper
from rocketpy.protocol.codes import RequestCode
from tests.interop import probe
from tests.interop.ledger_group import LedgerGroup
from tools.soak.bodies import body_of
from tools.soak.group_load import GroupLoad

_QUEUES: Final = 4
_MESSAGES: Final = 20
_QUESTIONS_MAX: Final = 16
"""Maximum number of concurrent queries."""


class KeyedLoad(GroupLoad):
    """A load that gives each message a key, and keeps the results of its sends."""

    def __init__(self, client: ClientConfig) -> None:
        super().__init__(client, senders=2)  # only two, since each message is read in four ways
        self.sent: dict[int, tuple[Message, SendResult]] = {}
        """Acknowledged messages that `take` has not returned yet, by number."""
        self._open: dict[int, Message] = {}

    def take(self) -> list[tuple[Message, SendResult]]:
        """Return the messages that were acknowledged since the last call."""
        taken, self.sent = self.sent, {}
        return list(taken.values())

    def _new(self) -> tuple[int, Message]:
        number, plain = super()._new()
        self._open[number] = Message(plain.topic, plain.body, keys=f"load-{number}")
        return number, self._open[number]

    def _note(self, number: int, end: SendResult | BaseException) -> None:
        super()._note(number, end)
        message = self._open.pop(number)
        if isinstance(end, SendResult) and number in self.ledger.acked:
            self.sent[number] = message, end


@dataclass
class Promises:
    """One round's topic, messages, group and offsets. Made at the leader, then copied by its followers."""

    number: int
    sent: list[tuple[Message, SendResult]] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """Name of the topic, which is new in each round, so that followers must copy it."""
        return f"FailOver{self.number}"

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return f"kept{self.number}"

    @property
    def _retries(self) -> int:
        return 3 + self.number % 10

    def _offset(self, queue_id: int) -> int:
        return 1 + (self.number + queue_id) % 3

    async def make(self, group: LedgerGroup, client: ClientConfig) -> None:
        """Create topic, group and messages at the leader. Raises RocketError."""
        leader = group.master()
        assert leader is not None
        settings = {"groupName": self.group, "retryMaxTimes": self._retries, "consumeEnable": True}
        code, _, _ = probe.ask(
            group.brokers[leader].address,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=json.dumps(settings).encode(),
        )
        assert code == 0
        await group.make_topic(self.topic, _QUEUES)
        messages = [
            Message(self.topic, body_of(number), keys=f"{self.topic}-{number}") for number in range(_MESSAGES)
        ]
        async with (
            Producer("fail_over", client=client) as producer,
            PullConsumer(self.group, client=client) as consumer,
        ):
            for message in messages:
                self.sent.append((message, await producer.send(message)))
            for queue in await consumer.fetch_queues(self.topic):
                await consumer.commit(queue, self._offset(queue.queue_id))

    def is_copied(self, group: LedgerGroup) -> bool:
        """Whether every broker of the group knows the topic, the group and its offsets."""
        return all(self._is_at(broker.address) for broker in group.brokers.values())

    def _is_at(self, address: str) -> bool:
        topics = probe.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)[2]
        return f'"{self.topic}"'.encode() in topics and not self._differences(address)

    def _differences(self, address: str) -> list[str]:
        """Compare the broker's settings and offsets of the group; return the differences."""
        body = probe.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)[2]
        offsets = ConsumerOffsetSerializeWrapper.decode(body).offset_table.get(f"{self.topic}@{self.group}")
        body = probe.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[2]
        found = SubscriptionGroupWrapper.decode(body).subscription_group_table.get(self.group)
        wanted = {queue_id: self._offset(queue_id) for queue_id in range(_QUEUES)}
        problems = [] if offsets == wanted else [f"offsets of {self.group} are {offsets}, not {wanted}"]
        if found is None or found.retry_max_times != self._retries:
            problems.append(f"group {self.group} is {found}, not one with {self._retries} retries")
        return problems

    async def check(self, group: LedgerGroup, client: ClientConfig) -> list[str]:
        """Return the errors at the new leader as texts."""
        leader = group.master()
        assert leader is not None
        problems = await check_messages(client, self.sent)
        problems += await asyncio.to_thread(self._differences, group.brokers[leader].address)
        async with PullConsumer(self.group, client=client) as consumer:
            for queue in await consumer.fetch_queues(self.topic):
                committed = await consumer.committed(queue)
                if committed != self._offset(queue.queue_id):
                    problems.append(f"{self.group} is at {committed} of {queue}")
        return problems


async def check_messages(client: ClientConfig, sent: Iterable[tuple[Message, SendResult]]) -> list[str]:
    """Look up messages by key, by both ids and by queue offset; describe those that are missing."""
    room, problems = asyncio.Semaphore(_QUESTIONS_MAX), list[str]()
    async with AdminClient(client=client) as admin, PullConsumer("fail_over", client=client) as consumer:

        async def look(message: Message, result: SendResult) -> None:
            try:
                found = {
                    "key": (await admin.query_message(message.topic, message.keys[0])).messages,
                    "unique id": [await admin.view_message(result.message_id, message.topic)],
                    "broker's id": [await admin.view_message(result.offset_message_id)],
                    "queue": (await consumer.pull(result.queue, result.queue_offset, 1)).messages,
                }
            except RocketError as error:
                problems.append(f"{message.keys[0]}, {result}: {error}")
                return
            for way, messages in found.items():
                if message.body not in [one.body for one in messages]:
                    problems.append(f"{message.keys[0]}, {result}: by its {way} there is {messages}")

        async def look_in_turn(message: Message, result: SendResult) -> None:
            async with room:
                await look(message, result)

        await asyncio.gather(*(look_in_turn(*one) for one in sent))
    return problems
