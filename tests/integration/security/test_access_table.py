"""Every request code without a signature, with a wrong one, and without a right to a resource that it names.

The cases come from the tables of allowed callers and headers. A new request code is included at once, and
fails until its callers and rights are listed. Requests with an offset are also tried with records of other
accounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import pytest

from rocketpy.protocol.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    QueryAssignmentRequestBody,
    SubscriptionData,
)
from rocketpy.protocol.codes import RequestCode, name_of
from rocketpy.protocol.message.message_id import message_id
from rocketpy_broker.security.allowed_callers import (
    BROKER_CALLERS,
    NAMESRV_CALLERS,
    AllowedCaller,
)
from rocketpy_broker.security.required_rights import has_rule
from tests.integration.access_place import Sent, Servers, Thread, is_refused
from tests.protocol_tables import HEADERLESS_REQUESTS, REQUEST_HEADERS

NOTHING_NEEDED: Final = {
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "names that every broker has",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: "names of clusters and brokers",
    RequestCode.GET_BROKER_CLUSTER_INFO: "addresses, which routes contain too",
}
"""Codes that any account may use, and why."""
TOPIC_FIELDS: Final = {"topic", "b", "originTopic"}
GROUP_FIELDS: Final = {"consumerGroup", "group", "compareGroup"}
PRODUCER_GROUP_COUNTS: Final = {RequestCode.END_TRANSACTION, RequestCode.GET_PRODUCER_CONNECTION_LIST}
OFFSET_FIELDS: Final = {"offset", "commitLogOffset"}
"""Offsets in the log; those of `OF_QUEUES` are of a queue."""
OF_QUEUES: Final = {RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
EVERY_CODE: Final = {**NAMESRV_CALLERS, **BROKER_CALLERS}


class Target(NamedTuple):
    """The resources of a request."""

    topic: str
    group: str
    offset: int = 0
    queue_offset: int = 0


def fields_of(code: int, target: Target) -> dict[str, str]:
    """The ext fields of a request that its handler requires."""
    header = REQUEST_HEADERS.get(code)
    found: dict[str, str] = {}
    for field in () if header is None else msgspec.structs.fields(header):
        name = field.encode_name
        if name in TOPIC_FIELDS:
            found[name] = target.topic
        elif name in GROUP_FIELDS or (name == "producerGroup" and code in PRODUCER_GROUP_COUNTS):
            found[name] = target.group
        elif name in OFFSET_FIELDS and code not in OF_QUEUES:
            found[name] = str(target.offset)
        elif name == "tranStateTableOffset":
            found[name] = str(target.queue_offset)
        elif name == "msgId":
            found[name] = message_id(bytes(8), target.offset)
        elif code == RequestCode.GET_KV_CONFIG:
            found[name] = {"namespace": "ORDER_TOPIC_CONFIG", "key": target.topic}[name]
        elif name == "commitOrRollback":
            found[name] = "8"
        elif field.required:
            found[name] = {str: "sample", bool: "false"}.get(field.type, "0")
    return found


def body_of(code: int, target: Target) -> bytes:
    """The body of a request whose resources are named in its body."""
    subscription = SubscriptionData(topic=target.topic, sub_string="*")
    if code == RequestCode.HEART_BEAT:
        consumer = ConsumerData(group_name=target.group, subscription_data_set=[subscription])
        return HeartbeatData(client_id="sample", consumer_data_set=[consumer]).encode()
    if code == RequestCode.CHECK_CLIENT_CONFIG:
        return CheckClientRequestBody(
            client_id="sample", group=target.group, subscription_data=subscription
        ).encode()
    if code == RequestCode.QUERY_ASSIGNMENT:
        return QueryAssignmentRequestBody(
            topic=target.topic, consumer_group=target.group, client_id="sample"
        ).encode()
    if code == RequestCode.BATCH_ACK_MESSAGE:
        ack = BatchAck(
            consumer_group=target.group, topic=target.topic, retry="0", start_offset=0, queue_id=0,
            revive_queue_id=0, pop_time=0, invisible_time=0, bit_set=b"\x01",
        )  # fmt: skip
        return BatchAckMessageRequestBody(acks=[ack]).encode()
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queue = MessageQueue(target.topic, "broker-a", 0)
        return LockBatchRequestBody(consumer_group=target.group, client_id="sample", mq_set=[queue]).encode()
    return b""


def says(code: int, what: str) -> bool:
    """Whether a request names this kind of resource: "topic", "group" or "offset"."""
    here = Target("T", "g")
    there = {"topic": Target("U", "g"), "group": Target("T", "h"), "offset": Target("T", "g", 7)}[what]
    return fields_of(code, here) != fields_of(code, there) or body_of(code, here) != body_of(code, there)


def is_for_administrators(code: int) -> bool:
    return EVERY_CODE[code] in (AllowedCaller.ADMIN, AllowedCaller.BROKER)


def cases() -> list[tuple[int, str]]:
    """Request codes, and the error in each request."""
    found: list[tuple[int, str]] = []
    for code in EVERY_CODE:
        found += [(code, "unsigned"), (code, "wrong signature")]
        if code not in NOTHING_NEEDED:
            found.append((code, "no rights"))
        if not is_for_administrators(code):
            found.append((code, "own"))
            found += [(code, f"foreign {what}") for what in ("topic", "group") if says(code, what)]
            if says(code, "offset"):
                is_end = code == RequestCode.END_TRANSACTION
                found += [(code, f"foreign {record}") for record in (ENDED if is_end else RECORDS)]
        else:
            found.append((code, "administrator"))
    return found


RECORDS: Final = ("record", "half message", "delayed record", "retry", "dead letter")
ENDED: Final = ("half message",)
"""For other records, the handler responds that there is no such half message."""
SIGNED_BY: Final = {
    "unsigned": "", "wrong signature": "wrong", "no rights": "no rights", "administrator": "operator",
}  # fmt: skip
REASONS: Final = {
    "unsigned": "No accessKey is configured",
    "wrong signature": "Check signature failed for accessKey=operator",
}


class Place:
    """Servers, and the messages stored in the broker."""

    def __init__(self, servers: Servers, thread: Thread, records: dict[str, Sent]) -> None:
        self.servers, self.thread, self.records = servers, thread, records


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Servers that all cases share; no case leaves data that another one sees."""
    thread = Thread()
    with pytest.MonkeyPatch.context() as environment:
        servers = Servers(tmp_path_factory.mktemp("access"), environment)
        thread.run(servers.__aenter__())
    try:
        yield Place(servers, thread, thread.run(store(servers)))
    finally:
        thread.run(servers.__aexit__())
        thread.close()


async def store(servers: Servers) -> dict[str, Sent]:
    """Messages of both accounts."""
    return {
        "own record": await servers.send("mine", "Mine"),
        "foreign record": await servers.send("other", "Foreign"),
        "foreign half message": await servers.send_half("other", "Foreign", "theirs"),
        "foreign delayed record": await servers.send("other", "Foreign", DELAY="18"),
        "foreign retry": await servers.send_copy("other", "theirs", "Foreign"),
        "foreign dead letter": await servers.send_copy(
            "other", "theirs", "Foreign", reconsume_times=1, max_reconsume_times=1
        ),
    }


def target_of(place: Place, code: int, wrong: str) -> Target:
    """The resources of one case's request: this account's own, except for the wrong one."""
    if wrong == "administrator":
        return Target("Scratch", "scratch")
    record = place.records["own record"]
    if code == RequestCode.END_TRANSACTION:
        record = place.thread.run(place.servers.send_half("mine", "Mine", "mygroup"))
    record = place.records.get(wrong, record)
    return Target(
        "Foreign" if wrong == "foreign topic" else "Mine",
        "theirs" if wrong == "foreign group" else "mygroup",
        record.offset,
        record.queue_offset,
    )


@pytest.mark.parametrize(
    ("code", "wrong"),
    cases(),
    ids=lambda value: value if isinstance(value, str) else name_of(RequestCode, value),
)
def test_a_request_is_admitted_with_every_right_it_needs(place: Place, code: int, wrong: str) -> None:
    """An account could read or change data of others, or not its own."""
    target = target_of(place, code, wrong)
    at = place.servers.names if code in NAMESRV_CALLERS else place.servers.address
    request = place.servers.ask(
        SIGNED_BY.get(wrong, "mine"), code, fields_of(code, target), body_of(code, target), at=at
    )
    response = place.thread.run(request)
    reason = (response.remark or "").partition("AclException: ")[2]
    assert is_refused(response) == (wrong not in ("own", "administrator")), response
    if wrong in REASONS:
        assert reason == REASONS[wrong]
    elif is_refused(response) and is_for_administrators(code):
        assert reason.startswith(f"Need admin permission for request code={code}")
    elif is_refused(response):
        assert reason.startswith("No default permission for "), reason


def test_the_rights_for_every_request_are_known() -> None:
    """A handler for a new request code would be open to every account."""
    for code, caller in EVERY_CODE.items():
        needs_rule = caller not in (AllowedCaller.ADMIN, AllowedCaller.BROKER)
        assert has_rule(code) >= needs_rule, f"there is no rule for {name_of(RequestCode, code)}"
        known = code in REQUEST_HEADERS or code in HEADERLESS_REQUESTS
        assert known, f"no header is known for {name_of(RequestCode, code)}, so no case names its topic"


def test_every_request_without_named_resources_is_listed() -> None:
    """A request that names its resources in its body could be open to every account."""
    for code, caller in EVERY_CODE.items():
        if caller not in (AllowedCaller.ADMIN, AllowedCaller.BROKER):
            names = any(says(code, what) for what in ("topic", "group", "offset"))
            assert names != (code in NOTHING_NEEDED), name_of(RequestCode, code)
