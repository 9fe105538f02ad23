"""PULL_MESSAGE: messages of one queue from an offset on.

Source: PullMessageProcessor of RocketMQ 4.6.0. Filters by tag; what finds nothing is answered at
once, unless `hold` takes it (long polling).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketpy.protocol.bodies import SubscriptionData, TopicConfig
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketpy.protocol.java import tags_code
from rocketpy.protocol.sysflag import PullSysFlag
from rocketpy.transport import Channel
from rocketpy_broker.config import BrokerConfig
from rocketpy_broker.handlers.base import FAQ, refuse_topic
from rocketpy_broker.services.clients import ClientRegistry
from rocketpy_broker.services.offsets import ConsumerOffsets
from rocketpy_broker.services.topics import PERM_READ, TopicTable
from rocketpy_broker.store import GetMessageResult, GetMessageStatus, MessageStore

__all__ = ["PullHandler"]

Hold = Callable[[Channel, Command, PullMessageRequestHeader], bool]
"""Whether a pull that found nothing is kept, to be handled again when there is something."""

_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
"""QUIRKS 34."""

_MASTER_ID: Final = 0


class PullHandler:
    """Serves pulls from the store. hold: see `Hold`; None answers every pull at once."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        clients: ClientRegistry,
        offsets: ConsumerOffsets,
        config: BrokerConfig,
        *,
        hold: Hold | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._config = config
        self._hold = hold

    def pull(self, channel: Channel, request: Command) -> Command | None:
        """Handle PULL_MESSAGE."""
        header = request.header_as(PullMessageRequestHeader)
        refusal = self._refusal(channel, request, header)
        if refusal is not None:
            return refusal
        wanted = self._subscription(header)
        if isinstance(wanted, tuple):
            code, remark = wanted
            return request.reply(code, remark=remark, header=_NOTHING)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        result = self._store.get_message(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            tag_codes=_tag_codes(wanted),
        )
        code = _code(result.status, header.queue_offset)
        is_empty = code == ResponseCode.PULL_NOT_FOUND
        if is_empty and self._hold is not None and self._hold(channel, request, header):
            return None
        return _answer(request, code, result)

    def _refusal(
        self, channel: Channel, request: Command, header: PullMessageRequestHeader
    ) -> Command | None:
        if not self._config.permission & PERM_READ:
            return request.reply(
                ResponseCode.NO_PERMISSION,
                remark=f"the broker[{self._config.name}] pulling message is forbidden",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            return refuse_topic(request, header.topic)
        if not topic.perm & PERM_READ:
            return request.reply(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=_bad_queue(header, topic, channel.remote_address)
            )
        return None

    def _subscription(self, header: PullMessageRequestHeader) -> SubscriptionData | tuple[int, str]:
        """Return what the consumer wants of the topic, or the code and remark of a refusal.

        A pull consumer says it in the request, a push consumer said it in its heartbeat (QUIRKS 32).
        """
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            wanted = SubscriptionData(
                topic=header.topic,
                sub_string=header.subscription,
                expression_type=header.expression_type or "TAG",
            )
        else:
            group = self._clients.consumer_group(header.consumer_group)
            if group is None:
                return ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
            found = group.subscriptions.get(header.topic)
            if found is None:
                return ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
            if found.sub_version < header.sub_version:
                return ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            wanted = found
        if wanted.expression_type not in ("TAG", ""):
            return (
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {wanted.expression_type}",
            )
        return wanted


_NOTHING: Final = PullMessageResponseHeader(
    suggest_which_broker_id=_MASTER_ID, next_begin_offset=0, min_offset=0, max_offset=0
)


def _answer(request: Command, code: int, result: GetMessageResult) -> Command:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=_MASTER_ID,
        next_begin_offset=result.next_begin_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
    )
    return request.reply(code, remark=result.status.name, header=header, body=b"".join(result.chunks))


def _code(status: GetMessageStatus, queue_offset: int) -> int:
    if status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
        # An empty queue has no offset but 0; a consumer elsewhere is sent back there.
        return ResponseCode.PULL_NOT_FOUND if queue_offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def _tag_codes(wanted: SubscriptionData) -> frozenset[int] | None:
    """Return the hash codes of the tags that are wanted, None for all."""
    if wanted.code_set:
        return frozenset(wanted.code_set)
    text = (wanted.sub_string or "").strip()
    if text in ("", "*"):
        return None
    return frozenset(tags_code(tag.strip()) for tag in text.split("||") if tag.strip())


def _bad_queue(header: PullMessageRequestHeader, topic: TopicConfig, consumer: str) -> str:
    return (
        f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{consumer}]"
    )
