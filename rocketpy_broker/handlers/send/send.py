"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: the hot path.

Each send is appended to the store's pending run, and its response is parked. At the end of the socket buffer
one call writes the run, the parked responses are sent, and consume queues and index are updated afterwards.
A message costs no task, timer or lock.
Source: SendMessageProcessor of RocketMQ 4.6.0.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import RocketError, StoreError, UsageError
from rocketpy.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    SubscriptionGroupConfig,
    TopicConfig,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import Header, SendMessageRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.record import Record, decode, host_bytes
from rocketpy.protocol.message.sysflag import MessageSysFlag, TopicSysFlag
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import FAQ, Rejected, handles, topic_not_found
from rocketpy_broker.handlers.send.response import OnStored, ParkedResponse, ParkResponses, SendResponses
from rocketpy_broker.handlers.send.response_waiters import PC_BUSY, CommitWaiters
from rocketpy_broker.handlers.send.sent_properties import (
    PLAIN_FLAGS,
    check_batch,
    check_sent,
    is_marked,
    timed_alone,
)
from rocketpy_broker.handlers.send.timed import TimedSends
from rocketpy_broker.services.delay.topic_rewrite import (
    HALF_TOPIC,
    REVIVE_TOPIC_PREFIX,
    delay_level,
    is_half,
    to_delayed_message,
    to_half_message,
)
from rocketpy_broker.services.metadata.topics import (
    NOT_WRITABLE,
    TopicTable,
    ensure_topic,
    perm_text,
    queue_count,
    usable_queues,
)
from rocketpy_broker.services.timers.messages import is_timed, without_times
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore
from rocketpy_broker.store.busy import PendingFull, Reason, StoreBusy
from rocketpy_broker.store.files.disk import Clock, system_clock

log = logging.getLogger("rocketpy.broker.send")

_UNKNOWN_HOST: Final = bytes(8)
_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_OTHER_FLAGS: Final = ~PLAIN_FLAGS
_WAIT: Final = props.PROPERTY_WAIT_STORE_MSG_OK.encode()
_WAIT_NAME: Final = b"WAIT\x01"
_WAIT_TRUE: Final = b"WAIT\x01true\x02"
_V3_4_9: Final = 121
"""Since this version, the client says how often a message is retried."""

FindGroup = Callable[[str], SubscriptionGroupConfig | None]
"""Returns the configuration of a consumer group; None if the group does not exist and may not be created."""


@dataclass(eq=False)
class SendHandler:
    """Stores the messages that producers send."""

    store: MessageStore
    topics: TopicTable
    config: BrokerConfig
    responses: SendResponses
    _: KW_ONLY
    schedule_dispatch: Callable[[], None]
    """Updates consume queues and index soon."""
    find_group: FindGroup
    delays: DelayLevels
    on_delayed: Callable[[int], None]
    """Called with the level of each delayed message."""
    park: ParkResponses | None = None
    """Parks responses of SYNC_FLUSH and SYNC_MASTER; None if responses leave once messages are written."""
    timed: TimedSends | None = None
    """Accepts timed messages; None if no message is timed."""
    commits: CommitWaiters | None = None
    """Parks all responses of a DLedger broker."""
    before_write: Callable[[], None] = lambda: None
    """Called before records of pops are written; it may call `when_stored`."""
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        self._append = self.store.append
        self._topic = self.topics.get
        self._plain_queues = self.topics.plain_queues
        self._cluster_property = f"CLUSTER\x01{self.config.cluster_name}\x02".encode()
        self._born_hosts: dict[Channel, bytes] = {}
        self._level_max = self.delays.level_max
        self._waiting: list[ParkedResponse] = []
        self._stored_listeners: list[OnStored] = []
        self._parked_listeners: list[OnStored] = []
        """Those that wait until the run is flushed or replicated, as the broker is configured."""
        self.is_run_open = False
        """Whether messages are appended and not written yet. Before reads, call `end_of_buffer`."""
        self.has_records = False
        """Whether there are records of pops, which no request reads; then `before_write` is called."""
        self._accepts_from_ms = self.config.send.start_accept_ms

    # -- requests -----------------------------------------------------------------------------

    @handles(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send_v2(self, channel: Channel, request: Command) -> Command | None:
        """Handle SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        return self._send(channel, request, request.header_as(SendMessageRequestHeaderV2))

    @handles(RequestCode.SEND_MESSAGE)
    def send_v1(self, channel: Channel, request: Command) -> Command | None:
        """Handle SEND_MESSAGE."""
        return self._send(channel, request, request.header_as(SendMessageRequestHeader))

    def _send(self, channel: Channel, request: Command, header: SendMessageRequestHeader) -> Command | None:
        """Store a common message here, and any other on the slow path.

        Every send executes each line of this hot path. A property name found in the text may be the end of
        another name; the slow path parses the text.
        """
        text = header.properties or ""
        queue_id = header.queue_id
        timed = None
        if (
            not 0 <= queue_id < self._plain_queues.get(header.topic, 0)
            or header.sys_flag & _OTHER_FLAGS
            or "DELAY\x01" in text
            or "CLUSTER\x01" in text
            or (
                text.count("_") > ("UNIQ_KEY\x01" in text)
                and is_marked(text)
                and (timed := self._timed_alone(header.topic, text)) is None
            )
            or header.reconsume_times
            or text[-1:] != "\x02"
            or header.batch
            or self._accepts_from_ms
        ):
            return self._send_slow_path(channel, request, header)
        message = MessageInner(
            header.topic,
            queue_id,
            request.body,
            text.encode() + self._cluster_property,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            self._born_hosts.get(channel, _UNKNOWN_HOST),
        )
        handle = None
        if timed is not None and self.timed is not None:
            try:
                handle = self.timed.accept(message, timed)
            except Rejected as rejected:
                return self.error_response(request, rejected)
        return self._append_one(channel, request, message, queue_id, handle)

    def _timed_alone(self, topic: str, text: str) -> dict[str, str] | None:
        """Return what `timed_alone` returns; None if the slow path decides."""
        if self.timed is None or topic.startswith(DLQ_TOPIC_PREFIX):  # a dead letter is not delayed
            return None
        return timed_alone(text)

    def _append_one(
        self,
        channel: Channel,
        request: Command,
        message: MessageInner,
        queue_id: int,
        recall_handle: str | None = None,
    ) -> Command | None:
        """Append a message and park its response, which contains the requested queue_id (QUIRKS 20)."""
        try:
            position, _, queue_offset, _ = self._append(message)
        except RocketError as error:
            return self.error_response(request, error)
        self.is_run_open = True
        if not request.flag & FLAG_ONEWAY:
            waits = self.park is not None and _waits(message.properties)
            self._waiting.append(
                ParkedResponse(channel, request, queue_id, queue_offset, (position,), waits, recall_handle)
            )
        return None

    def _send_slow_path(
        self, channel: Channel, request: Command, header: SendMessageRequestHeader
    ) -> Command | None:
        """Handle a send with all its special cases."""
        try:
            topic, queue_id, properties = self.admit(channel, header, is_single=not header.batch)
            if header.batch:
                return self._store_batch(channel, request, header, topic, queue_id)
            return self._store_one(channel, request, header, topic, queue_id, properties)
        except Rejected as rejected:
            return self.error_response(request, rejected)

    def admit(
        self, channel: Channel, header: SendMessageRequestHeader, *, is_single: bool
    ) -> tuple[TopicConfig, int, dict[str, str] | None]:
        """Return topic and queue id for a message, and what `check_sent` returns.

        is_single: False for batches and replies. Raises Rejected; see `error_response`.
        """
        self._check(header)
        try:
            properties = check_sent(header, is_single=is_single)
            topic = self._topic(header.topic) or self._create_topic(channel, header)
        except UsageError as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if topic is None:
            raise topic_not_found(header.topic)
        queue_id = header.queue_id
        if max(queue_id, 0) >= queue_count(topic):
            remark = (
                f"request queueId[{queue_id}] is illegal, {_topic_text(topic)} "
                f"Producer: {channel.remote_address}"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        if queue_id < 0:
            queue_id = random.randrange(usable_queues(topic) or 1)
        return topic, queue_id, properties

    def _check(self, header: SendMessageRequestHeader) -> None:
        """Raise Rejected for a send that this broker does not accept.

        That is any send to a slave or before `start_accept_ms`, to an ordered topic of a broker without write
        permission, or to a reserved topic.
        """
        topic = self._topic(header.topic)
        slave_rejection = self.store.rejection(Reason.SLAVE)
        if slave_rejection is not None:  # before a topic is made for it
            raise Rejected(_code_of(slave_rejection), str(slave_rejection))
        if self.clock() < self._accepts_from_ms:
            remark = f"broker unable to service, until {self._accepts_from_ms} ms since 1970"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        if topic is not None and topic.order and not self.config.permission & PERM_WRITE:
            remark = f"the broker[{self.config.name}] sending message is forbidden"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        if header.topic in NOT_WRITABLE or header.topic.startswith(REVIVE_TOPIC_PREFIX):
            remark = f"the topic[{header.topic}] is conflict with system reserved words."
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)

    def _create_topic(self, channel: Channel, header: SendMessageRequestHeader) -> TopicConfig | None:
        sys_flag = 0
        if header.unit_mode:
            is_retry = header.topic.startswith(RETRY_TOPIC_PREFIX)
            sys_flag = TopicSysFlag.UNIT_SUB if is_retry else TopicSysFlag.UNIT
        topic = self.topics.create_for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, sys_flag
        )
        if topic is None:
            if header.topic.startswith(RETRY_TOPIC_PREFIX):
                return ensure_topic(self.topics, header.topic, 1, PERM_READ | PERM_WRITE, sys_flag)
            log.info("%s sent to topic %s, which does not exist", channel.remote_address, header.topic)
        return topic

    # -- storing ------------------------------------------------------------------------------

    def _store_one(
        self,
        channel: Channel,
        request: Command,
        header: SendMessageRequestHeader,
        topic: TopicConfig,
        queue_id: int,
        properties: dict[str, str] | None,
    ) -> Command | None:
        text = header.properties or ""
        message = self.message(channel, header, topic, queue_id)
        message.body = request.body
        message.properties = _without_cluster(text).encode() + self._cluster_property
        if header.topic.startswith(RETRY_TOPIC_PREFIX):
            message.queue_id = self.topics.existing_queue(topic.topic_name, queue_id)
            self._move_to_dlq_if_exhausted(request, header, message)
        if properties is not None or header.sys_flag & _TRANSACTION_MASK:
            properties = {} if properties is None else properties
            properties.pop(props.PROPERTY_CLUSTER, None)
            properties[props.PROPERTY_CLUSTER] = self.config.cluster_name
            return self._store_special(channel, request, message, queue_id, properties)
        return self._append_one(channel, request, message, queue_id)

    def _store_special(
        self,
        channel: Channel,
        request: Command,
        message: MessageInner,
        queue_id: int,
        properties: dict[str, str],
    ) -> Command | None:
        """Store a delayed or timed message, or a half message. properties: those of the message."""
        level, handle = 0, None
        if is_half(properties):
            if self.config.send.reject_transactions:
                remark = f"the broker[{self.config.name}] sending transaction message is forbidden"
                raise Rejected(ResponseCode.NO_PERMISSION, remark)
            ensure_topic(self.topics, HALF_TOPIC, 1, PERM_READ | PERM_WRITE)
            to_half_message(message, properties)
        elif message.sys_flag & MessageSysFlag.TRANSACTION_PREPARED:
            remark = "a prepared message without the property TRAN_MSG=true would never be delivered"
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
        elif not message.topic.startswith(DLQ_TOPIC_PREFIX):  # a dead letter is not delayed
            level = delay_level(properties)
            if level > 0:
                if not self._level_max:
                    remark = "messageDelayLevel is empty, so a message cannot be delayed"
                    raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
                without_times(properties)
                level = to_delayed_message(message, properties, level, self._level_max)
            elif self.timed is not None and is_timed(properties):
                handle = self.timed.accept(message, properties)
        rejection = self._append_one(channel, request, message, queue_id, handle)
        if level > 0 and rejection is None:
            self.on_delayed(level)
        return rejection

    def _move_to_dlq_if_exhausted(
        self, request: Command, header: SendMessageRequestHeader, message: MessageInner
    ) -> None:
        """Move a message of a retry topic to the dead letters if it was retried often enough.

        A consumer sends such messages if CONSUMER_SEND_MSG_BACK fails. Raises Rejected.
        """
        group = header.topic.removeprefix(RETRY_TOPIC_PREFIX)
        settings = self.find_group(group)
        if settings is None:
            remark = f"subscription group not exist, {group} {FAQ}"
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if (header.reconsume_times or 0) >= retry_times_max(request, header.max_reconsume_times, settings):
            message.topic, message.queue_id = DLQ_TOPIC_PREFIX + group, 0
            ensure_topic(self.topics, message.topic, 1, PERM_WRITE)

    def message(
        self, channel: Channel, header: SendMessageRequestHeader, topic: TopicConfig, queue_id: int
    ) -> MessageInner:
        """Return a message with the fields that all records of a request share."""
        sys_flag = header.sys_flag
        if topic.topic_filter_type != "SINGLE_TAG":
            sys_flag |= MessageSysFlag.MULTI_TAGS
        return MessageInner(
            header.topic,
            queue_id,
            b"",
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=self._born_hosts.get(channel, _UNKNOWN_HOST),
            reconsume_times=header.reconsume_times or 0,
        )

    def _store_batch(
        self,
        channel: Channel,
        request: Command,
        header: SendMessageRequestHeader,
        topic: TopicConfig,
        queue_id: int,
    ) -> Command | None:
        if header.topic.startswith(RETRY_TOPIC_PREFIX):
            remark = f"batch request does not support retry group {header.topic}"
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
        shared = self.message(channel, header, topic, queue_id)
        shared.body = request.body
        common = (header.properties or "").encode()
        try:
            check_batch(common, request.body)
            receipt = self.store.append_batch(shared)
        except RocketError as error:
            return self.error_response(request, error)
        self.is_run_open = True
        if not request.is_oneway:
            positions = tuple(receipt.physical_offsets)
            waits = self.park is not None and _waits(common)
            parked = ParkedResponse(channel, request, queue_id, receipt.queue_offset, positions, waits)
            self._waiting.append(parked)
        return None

    def append(self, message: MessageInner, stored: OnStored) -> AppendReceipt:
        """Append a message of another handler to the run of this socket buffer.

        stored: called when the message is stored as a send has to be: written, then flushed or replicated if
        the broker is configured so and the message waits; committed in a DLedger group. A flush or slave that
        is too slow counts as success. Raises RocketError if the message cannot be appended.
        """
        receipt = self._append(message)
        self.when_stored(stored, waits=self.park is not None and _waits(message.properties))
        return receipt

    def when_stored(self, stored: OnStored, *, waits: bool = True) -> None:
        """Call `stored` when the run of this socket buffer is stored; see `append`.

        waits: False if nothing of it must be flushed or replicated before.
        """
        self.is_run_open = True
        listeners = self._parked_listeners if waits and self.park is not None else self._stored_listeners
        listeners.append(stored)

    def born_host(self, channel: Channel) -> bytes:
        """Return the address of a client, as in records."""
        return self._born_hosts.get(channel, _UNKNOWN_HOST)

    def stored_record(self, offset: int) -> Record | None:
        """Return the record at a physical offset, after writing the open run if needed; None without one."""
        if offset >= self.store.max_physical_offset:
            self.end_of_buffer()
        data = self.store.look_message(offset) if offset >= 0 else None
        return decode(data, check_crc=False) if data is not None else None

    # -- responding ---------------------------------------------------------------------------

    def end_of_buffer(self) -> None:
        """Write the run and send or park the responses to it."""
        if not (self.is_run_open or self.has_records):
            return
        if self.has_records:
            self.before_write()
        self.is_run_open = self.has_records = False
        waiting, self._waiting = self._waiting, []
        try:
            self.store.write_out()
        except StoreError as error:
            log.error("messages cannot be written, so %d sends fail: %s", len(waiting), error)
            for parked in waiting:
                parked.channel.reply(self.error_response(parked.request, error))
            self._notify_stored(error)
            return
        if self.commits is not None:
            stored_later, self._stored_listeners = self._stored_listeners, []
            self.responses.drop_bodies(waiting)
            self.commits.park_until_commit(waiting, stored_later)
            return
        if self.park is not None:
            waiting = self._park_waiting(waiting, self.park)
        stored = self.responses.stored
        for parked in waiting:
            parked[0].reply(stored(parked))
        if self._stored_listeners:
            self._notify_stored(None)
        self.schedule_dispatch()

    def _notify_stored(self, error: StoreError | None) -> None:
        listeners = [*self._stored_listeners, *self._parked_listeners]
        self._stored_listeners, self._parked_listeners = [], []
        for listener in listeners:
            listener(error)

    def _park_waiting(self, waiting: list[ParkedResponse], park: ParkResponses) -> list[ParkedResponse]:
        """Park the responses whose producers wait for a flush or a slave; return the others."""
        wanting = [parked for parked in waiting if parked.waits]
        self.responses.drop_bodies(wanting)
        # Also an empty list: consumers must not read the run before it is flushed or replicated.
        listeners, self._parked_listeners = self._parked_listeners, []
        park(wanting, self.store.max_physical_offset, listeners)
        return [parked for parked in waiting if not parked.waits]

    def error_response(self, request: Command, error: RocketError) -> Command:
        """Return the response to a send that was not stored, with the code that clients act on."""
        remark = PC_BUSY if isinstance(error, PendingFull) else str(error)
        return self.responses.rejected(request, _code_of(error), remark)

    # -- channels -----------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        """Encode the born host of this connection's messages once."""
        self._born_hosts[channel] = _host(channel.remote_address)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the born host of a closed connection."""
        self._born_hosts.pop(channel, None)


def retry_times_max(request: Command, by_client: int | None, group: SubscriptionGroupConfig) -> int:
    """Return the maximum number of retries: as the consumer says, or else as its group is configured."""
    return by_client if request.version >= _V3_4_9 and by_client is not None else group.retry_max_times


def respond_when_stored(
    channel: Channel,
    request: Command,
    header: Header | None = None,
    failed: str = "",
    remark: str | None = None,
) -> OnStored:
    """Return a callback that responds when a message was stored, or with the error if storing it failed.

    header, remark: of the response if it was stored. failed: what the remark says before the error.
    """

    def respond(error: StoreError | None) -> None:
        if error is None:
            response = request.reply(header=header, remark=remark)
        else:
            response = request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{failed}{error}")
        if not request.is_oneway:
            channel.reply(response)

    return respond


def _host(address: str) -> bytes:
    """Return an address as bytes of a record; zeros if it is not an IP address (memory://)."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]").removeprefix("::ffff:").partition("%")[0]
    try:
        return host_bytes(host, int(port))
    except (RocketError, ValueError, OSError):
        return _UNKNOWN_HOST


def _waits(properties: bytes) -> bool:
    """Return whether a producer waits until its messages are flushed or replicated.

    properties: of the request, in UTF-8. Source: Message.isWaitStoreMsgOK of RocketMQ 4.6.0.
    """
    if properties.count(_WAIT_NAME) == properties.count(_WAIT_TRUE):
        return True  # each property whose name ends in WAIT has the value true
    value = props.find(properties, _WAIT)
    return value is None or value.lower() == b"true"


def _without_cluster(text: str) -> str:
    """Return the properties without CLUSTER, which the broker adds to single sends itself (QUIRKS 22)."""
    if "CLUSTER\x01" in text:
        found = props.decode(text)
        if found.pop(props.PROPERTY_CLUSTER, None) is not None:
            return props.encode(found)
    return text if not text or text[-1] == "\x02" else text + "\x02"


def _topic_text(topic: TopicConfig) -> str:
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def _code_of(error: RocketError) -> int:
    """Return the response code for a send that was not stored."""
    if isinstance(error, Rejected):
        return error.code
    if isinstance(error, PendingFull):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, StoreBusy):
        return ResponseCode.SYSTEM_BUSY
    if isinstance(error, StoreError):
        return ResponseCode.SERVICE_NOT_AVAILABLE  # Java clients try another broker after it
    return ResponseCode.MESSAGE_ILLEGAL
