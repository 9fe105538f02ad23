"""Attacks of one account on others: by transactions, client ids, and forged records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpy.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    SubscriptionData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    EndTransactionRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record, decode, encode
from rocketpy.protocol.remoting.acl import SIGNING_FIELDS
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from tests.integration.access_place import (
    Servers,
    asked,
    copy_fields,
    is_refused,
    producer_beat,
    send_fields,
)
from tests.integration.delays import jump_ahead
from tests.integration.raw_client import RawClient
from tests.integration.security.test_access import pull, running_broker
from tests.mqproducer.place import eventually

CHECKS = {"transactionTimeOut": "1", "transactionCheckInterval": "100", "transactionCheckMax": "1000"}


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    """A broker and a name server with access control."""
    async with Servers(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
async def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    """Such servers that check transactions ten times a second."""
    async with Servers(tmp_path, monkeypatch, settings=CHECKS) as running:
        yield running


async def beat(client: RawClient, by: str, client_id: str, group: str) -> Command:
    return await asked(client, by, RequestCode.HEART_BEAT, None, producer_beat(client_id, group))


def end_fields(offset: int, queue_offset: int, group: str, decision: int) -> dict[str, str]:
    return EndTransactionRequestHeader(
        producer_group=group, tran_state_table_offset=queue_offset, commit_log_offset=offset,
        commit_or_rollback=decision, msg_id="id",
    ).ext_fields()  # fmt: skip


async def bodies(servers: Servers, by: str, topic: str, group: str) -> list[bytes]:
    """The messages that an account finds in queue 0 of a topic."""
    code, header = pull(topic, group)
    response = await servers.ask(by, code, header.ext_fields())
    found, rest = [], response.body
    while rest:
        record = decode(rest, check_crc=False)
        found.append(record.body)
        rest = rest[record.size :]
    return found


async def test_only_accounts_that_may_send_get_transaction_checks(asking: Servers) -> None:
    """Another account in the producer group would read a message, and decide about it."""
    servers = asking
    async with await RawClient.open(servers.address) as mine, await RawClient.open(servers.address) as theirs:
        assert (await beat(mine, "mine", "me@1", "theirs")).code == 0
        half = await servers.send_half("other", "Foreign", "theirs", b"secret")
        asked_of_theirs = 0
        assert (await beat(theirs, "other", "they@1", "theirs")).code == 0
        for _ in range(3):  # checks alternate between members: a second one would reach the other account
            question = await theirs.next()
            asked_of_theirs += question.code == RequestCode.CHECK_TRANSACTION_STATE
            assert decode(question.body, check_crc=False).body == b"secret"
        assert asked_of_theirs == 3
        assert (await beat(mine, "mine", "me@1", "theirs")).code == 0
        assert mine.received == []
    fields = end_fields(half.offset, half.queue_offset, "theirs", 8)
    assert is_refused(await servers.ask("mine", RequestCode.END_TRANSACTION, fields))
    assert await bodies(servers, "other", "Foreign", "theirs") == []


async def test_a_half_message_needs_a_right_to_its_group(servers: Servers) -> None:
    """Producers of another account's group would get checks of foreign messages, and decide about them."""
    properties = {"TRAN_MSG": "true", "PGROUP": "theirs"}
    response = await servers.ask("mine", RequestCode.SEND_MESSAGE_V2, send_fields("Mine", **properties), b"x")
    assert response.remark is not None
    assert response.remark.endswith("No default permission for group:theirs")


async def test_a_client_id_belongs_to_its_account(servers: Servers) -> None:
    """Replies, and locks of ordered queues, would go to another account with the same client id."""
    async with await RawClient.open(servers.address) as theirs, await RawClient.open(servers.address) as mine:
        assert (await beat(theirs, "other", "they@1", "p")).code == 0
        stolen = await beat(mine, "mine", "they@1", "p")
        assert is_refused(stolen)
        assert "client id:they@1" in (stolen.remark or "")
        lock = LockBatchRequestBody(consumer_group="mygroup", client_id="they@1").encode()
        assert is_refused(await asked(mine, "mine", RequestCode.UNLOCK_BATCH_MQ, None, lock))
        reply = {"REPLY_TO_CLIENT": "they@1", "CORRELATION_ID": "1", "MSG_TYPE": "reply"}
        fields = send_fields("DefaultCluster_REPLY_TOPIC", **reply)
        pending = asyncio.ensure_future(
            servers.ask("mine", RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"the reply")
        )
        push = await theirs.next()
        assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"the reply")
        theirs.writer.write(encode_command(push.reply()))
        assert (await pending).code == 0
        # A client that reconnects: its old connection is still open here.
        async with await RawClient.open(servers.address) as again:
            assert (await beat(again, "other", "they@1", "p")).code == 0
            pending = asyncio.ensure_future(
                servers.ask("mine", RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"second")
            )
            push = await again.next()
            assert push.body == b"second"
            again.writer.write(encode_command(push.reply()))
            assert (await pending).code == 0

    async def is_free() -> bool | None:
        async with await RawClient.open(servers.address) as later:
            return (await beat(later, "mine", "they@1", "p")).code == 0 or None

    await eventually(is_free)


async def test_replies_go_only_to_accounts_that_may_have_requested_them(servers: Servers) -> None:
    """Any account could push messages to every client that is connected."""
    async with await RawClient.open(servers.address) as theirs:
        assert (await beat(theirs, "other", "they@1", "p")).code == 0
        reply = send_fields("DefaultCluster_REPLY_TOPIC", REPLY_TO_CLIENT="they@1", CORRELATION_ID="1")
        response = await servers.ask("no rights", RequestCode.SEND_REPLY_MESSAGE_V2, reply, b"junk")
        assert is_refused(response)
        assert theirs.received == []
        for nobody in ({}, {"REPLY_TO_CLIENT": "nobody@1"}):
            junk = send_fields("DefaultCluster_REPLY_TOPIC", **nobody)
            assert is_refused(
                await servers.ask("no rights", RequestCode.SEND_REPLY_MESSAGE_V2, junk, b"junk")
            )
            assert not is_refused(await servers.ask("mine", RequestCode.SEND_REPLY_MESSAGE_V2, junk, b"junk"))
        other_topic = send_fields("Some_REPLY_TOPIC", REPLY_TO_CLIENT="they@1", CORRELATION_ID="1")
        assert is_refused(await servers.ask("mine", RequestCode.SEND_REPLY_MESSAGE_V2, other_topic, b"junk"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_without_accounts_a_client_id_belongs_to_its_host(tmp_path: Path, host: str) -> None:
    """A client that reconnects would get no replies, or one of another machine would get them."""
    async with running_broker(tmp_path, "") as broker, await RawClient.open(broker.address) as first:
        assert (await beat(first, "", "they@1", "p")).code == 0
        async with await open_from(host, broker.address) as second:
            assert (await beat(second, "", "they@1", "p")).code == 0
            reply = send_fields("DefaultCluster_REPLY_TOPIC", REPLY_TO_CLIENT="they@1", CORRELATION_ID="1")
            request = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, None, b"x")
            request.ext = reply
            request.flag = 2
            async with await RawClient.open(broker.address) as replier:
                replier.writer.write(encode_command(request))
                gets_it, other = (second, first) if host == "127.0.0.1" else (first, second)
                assert (await gets_it.next()).code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
                assert other.received == []


async def open_from(host: str, address: Address) -> RawClient:
    """A connection from another address of this machine."""
    return RawClient(*await asyncio.open_connection(address.host, address.port, local_addr=(host, 0)))


async def test_a_copy_for_a_retry_needs_the_rights_to_its_group_and_topic(servers: Servers) -> None:
    """An account that may only send to one topic could have messages delivered as those of another."""
    for by, group, topic, wanted in (
        ("mine", "mygroup", "Mine", True),
        ("mine", "mygroup", "Foreign", False),
        ("mine", "theirs", "Mine", False),
        ("other", "theirs", "Foreign", True),
        ("no rights", "theirs", "Foreign", False),
        ("operator", "theirs", "Foreign", True),
    ):
        response = await servers.ask(by, RequestCode.SEND_MESSAGE_V2, copy_fields(group, topic), b"x")
        assert is_refused(response) != wanted, (by, group, topic, response)
        assert (response.code == 0) == wanted
    bare = send_fields("%RETRY%theirs", ORIGIN_MESSAGE_ID="0" * 32)
    assert is_refused(await servers.ask("mine", RequestCode.SEND_MESSAGE_V2, bare, b"x"))
    for topic in ("Mine", "%DLQ%theirs"):  # an administrator may send to both, but not such a message
        fields = send_fields(topic, RETRY_TOPIC="Foreign")
        response = await servers.ask("operator", RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert response.code == ResponseCode.MESSAGE_ILLEGAL


async def test_consumers_may_send_copies_without_a_right_to_produce(servers: Servers, tmp_path: Path) -> None:
    """A consumer whose send-back failed could not return a message, and would hold its queue."""
    rules = tmp_path / "plain_acl.yml"
    readers = (
        rules.read_text().replace("[Mine=PUB|SUB", "[Mine=SUB").replace("mygroup=PUB|SUB", "mygroup=SUB")
    )
    rules.write_text(readers)

    async def is_changed() -> bool | None:
        sent = await servers.ask("mine", RequestCode.SEND_MESSAGE_V2, send_fields("Mine"), b"x")
        return is_refused(sent) or None

    await eventually(is_changed)
    fields = copy_fields("mygroup", "Mine")
    assert (await servers.ask("mine", RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == 0


async def test_the_key_index_shows_no_message_of_another_topic(servers: Servers) -> None:
    """Collisions of Java's hash are easy to find: a chosen key would show messages of another topic."""
    await servers.send("other", "Foreign", b"secret", KEYS="invoice-1")
    await servers.send("mine", "Mine", b"mine", KEYS="k")
    key = colliding("Mine#", java_hash("Foreign#invoice-1"))
    assert java_hash(f"Mine#{key}") == java_hash("Foreign#invoice-1")
    for by in ("mine", "operator"):  # the key of a message is compared, whoever asks
        header = QueryMessageRequestHeader(
            topic="Mine", key=key, max_num=10, begin_timestamp=0, end_timestamp=2**62
        )
        response = await servers.ask(by, RequestCode.QUERY_MESSAGE, header.ext_fields())
        assert response.code == ResponseCode.QUERY_NOT_FOUND, (by, response)
        header.key = "k"
        response = await servers.ask(by, RequestCode.QUERY_MESSAGE, header.ext_fields())
        assert decode(response.body).body == b"mine"


def java_hash(text: str, start: int = 0) -> int:
    for letter in text:
        start = (start * 31 + ord(letter)) & 0xFFFF_FFFF
    return start


def colliding(start: str, wanted: int) -> str:
    """A text of eight characters with which `start` has this hash."""
    digits = 8
    rest = (wanted - java_hash("0" * digits, java_hash(start))) & 0xFFFF_FFFF
    found = ""
    for place in reversed(range(digits)):
        found += chr(ord("0") + min(rest // 31**place, 30))
        rest -= (ord(found[-1]) - ord("0")) * 31**place
    assert java_hash(start + found) == wanted
    return found


async def test_a_record_inside_a_body_is_not_read(servers: Servers) -> None:
    """A sender could put a forged half message into a body, and with its offset end another transaction."""
    victim = await servers.send_half("other", "Foreign", "theirs", b"secret")
    probe = await servers.send("mine", "Mine", b"probe")
    header = ViewMessageRequestHeader(offset=probe.offset)
    seen = decode((await servers.ask("mine", RequestCode.VIEW_MESSAGE_BY_ID, header.ext_fields())).body)
    body_at = encode(seen).index(b"probe")
    forged_at = probe.offset + seen.size + body_at
    half = props.encode({"TRAN_MSG": "true", "PGROUP": "mygroup", "REAL_TOPIC": "Mine", "REAL_QID": "0"})
    forged = encode(
        Record(
            "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0, victim.queue_offset, forged_at, 0, 1, seen.born_host, 1,
            seen.store_host, 0, 0, b"forged", half.encode(),
        )
    )  # fmt: skip
    carrier = await servers.send("mine", "Mine", forged)
    assert carrier.offset + body_at == forged_at, "the broker would not find the forged record at all"
    assert servers.broker.store.look_message(forged_at) == forged
    fields = end_fields(forged_at, victim.queue_offset, "mygroup", 12)
    refused = await servers.ask("mine", RequestCode.END_TRANSACTION, fields)
    assert (refused.remark or "").endswith(f"No queue has the message at offset {forged_at}")
    fields = end_fields(victim.offset, victim.queue_offset, "theirs", 8)
    assert (await servers.ask("other", RequestCode.END_TRANSACTION, fields)).code == 0
    assert await bodies(servers, "other", "Foreign", "theirs") == [b"secret"]


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT",
        "DefaultCluster_REPLY_TOPIC",
    ],
)  # fmt: skip
async def test_default_rights_do_not_open_internal_topics(servers: Servers, topic: str) -> None:
    """An account that may not read some topics would find their messages in the broker's own topics."""
    code, header = pull(topic, "any")
    assert is_refused(await servers.ask("defaults", code, header.ext_fields()))
    offset = {"consumerGroup": "any", "topic": topic, "queueId": "0", "commitOffset": "7"}
    assert is_refused(await servers.ask("defaults", RequestCode.UPDATE_CONSUMER_OFFSET, offset))
    assert not is_refused(await servers.ask("operator", code, header.ext_fields()))


async def test_a_client_never_gets_the_signature_of_a_request_about_it(servers: Servers) -> None:
    """A consumer could use the operator's signature for other requests."""
    async with await RawClient.open(servers.address) as consumer:
        data = ConsumerData(
            group_name="mygroup", subscription_data_set=[SubscriptionData(topic="Mine", sub_string="*")]
        )
        body = HeartbeatData(
            client_id="me@1", consumer_data_set=[data], producer_data_set=[ProducerData(group_name="p")]
        ).encode()
        assert (await asked(consumer, "mine", RequestCode.HEART_BEAT, None, body)).code == 0
        consumer.received.clear()  # the notification about a new member
        fields = {"consumerGroup": "mygroup", "clientId": "me@1", "jstackEnable": "false"}
        question = asyncio.ensure_future(
            servers.ask("operator", RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        )
        while (passed := await consumer.next()).code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            pass
        assert passed.ext_fields() == fields
        assert not SIGNING_FIELDS & passed.ext_fields().keys()
        consumer.writer.write(encode_command(passed.reply(body=b"{}")))
        assert (await question).code == 0


async def test_a_right_to_dead_letters_is_no_right_to_their_topics(servers: Servers, tmp_path: Path) -> None:
    """An account with the dead letters of a group would read messages of all topics of the group."""
    sent = await servers.send("other", "Foreign", b"secret")
    fields = {"offset": str(sent.offset), "group": "theirs", "delayLevel": "-1", "originTopic": "Foreign"}
    assert (await servers.ask("other", RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    store = servers.broker.store

    async def has_come() -> int | None:
        units = store.units("%DLQ%theirs", 0, 0, 1)
        return units[0][0] if units else None

    view = ViewMessageRequestHeader(offset=await eventually(has_come)).ext_fields()
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(rules.read_text().replace("[Mine=PUB|SUB", "['%DLQ%theirs=SUB', Mine=PUB|SUB"))

    async def may_name_it() -> bool | None:
        config = {"topic": "%DLQ%theirs"}
        return not is_refused(await servers.ask("mine", RequestCode.GET_TOPIC_CONFIG, config)) or None

    await eventually(may_name_it)
    response = await servers.ask("mine", RequestCode.VIEW_MESSAGE_BY_ID, view)
    assert (is_refused(response), response.body) == (True, b"")
    assert "topic:Foreign" in (response.remark or "")
    response = await servers.ask("operator", RequestCode.VIEW_MESSAGE_BY_ID, view)
    assert decode(response.body).body == b"secret"


@pytest.mark.parametrize("listed", ["topicPerms: [Shared=SUB]", "groupPerms: [mygroup=SUB]"])
async def test_an_administrator_with_listed_rights_has_only_these(
    servers: Servers, tmp_path: Path, listed: str
) -> None:
    """An administrator with rights to a group only would read the messages of every topic."""
    await servers.send("mine", "Mine", b"secret")
    code, header = pull("Mine", "mygroup")
    assert (await servers.ask("operator", code, header.ext_fields())).body
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(rules.read_text().replace("admin: true", f"admin: true, {listed}"))

    async def is_limited() -> bool | None:
        return is_refused(await servers.ask("operator", code, header.ext_fields())) or None

    await eventually(is_limited)
    code, header = pull("Mine", "theirs")
    response = await servers.ask("operator", code, header.ext_fields())
    assert (is_refused(response), response.body) == (True, b"")
    topics = await servers.ask("operator", RequestCode.GET_ALL_TOPIC_CONFIG)
    assert topics.code == 0, "requests of administrators need no listed right"


async def test_a_message_that_was_sent_back_stays_readable_for_its_group(servers: Servers) -> None:
    """An account could not have its own dead letters resent."""
    own = await servers.send("mine", "Mine", b"again")
    fields = {"offset": str(own.offset), "group": "mygroup", "delayLevel": "1", "originTopic": "Mine"}
    assert (await servers.ask("mine", RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    jump_ahead(servers.broker)

    async def has_come() -> bool | None:
        return await bodies(servers, "mine", "%RETRY%mygroup", "mygroup") == [b"again"] or None

    await eventually(has_come)


@pytest.mark.parametrize(
    ("rule", "changed"),
    [("my-account", "renamed-account"), ("Mine=PUB|SUB", "Mine=PUB"), ("mygroup=PUB|SUB", "mygroup=PUB")],
)
async def test_a_held_pull_ends_when_its_permission_is_removed(
    servers: Servers, tmp_path: Path, rule: str, changed: str
) -> None:
    """A held pull would deliver one more message after its account or its permission was removed."""
    await servers.send("mine", "Mine", b"first")
    code, header = pull("Mine", "mygroup")
    now = header
    header = msgspec.structs.replace(header, queue_offset=1, sys_flag=4 | 2, suspend_timeout_millis=20_000)
    async with await RawClient.open(servers.address) as client:
        held = asyncio.ensure_future(asked(client, "mine", code, header.ext_fields()))
        holds = servers.broker.consumers.holds

        async def is_held() -> bool | None:
            return bool(holds.queues) or None

        await eventually(is_held)
        rules = tmp_path / "plain_acl.yml"
        rules.write_text(rules.read_text().replace(rule, changed))

        async def is_changed() -> bool | None:
            return is_refused(await servers.ask("mine", code, now.ext_fields())) or None

        await eventually(is_changed)
        await servers.send("operator", "Mine", b"secret")
        response = await held
        assert is_refused(response)
        assert "rights of the account have changed" in (response.remark or "")
        assert response.body == b""
