"""Access control: which requests a broker and a name server accept, with which signatures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from rocketpy import ClientConfig, Message, Producer, PullConsumer, PullStatus
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import (
    ConsumerData,
    DataVersion,
    GetBrokerClusterAclConfigResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    UNIQUE_KEY_QUERY,
    ConsumerSendMsgBackRequestHeader,
    CreateAccessConfigRequestHeader,
    CreateTopicRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    GetRouteInfoRequestHeader,
    Header,
    PullMessageRequestHeader,
    QueryMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_ROCKETMQ
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS, NAMESRV_CALLERS
from tests.integration.access_place import is_refused
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.mqproducer.place import eventually
from tests.waiting import LIMIT_S

ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: application
  secretKey: its-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [Orders=PUB|SUB, Inbox=PUB, News=SUB]
  groupPerms: [closed=DENY]
- accessKey: operator
  secretKey: other-secret
  admin: true
- accessKey: the-brokers
  secretKey: third-secret
  admin: true
"""
SIGNERS = {"application": Signer("application", "its-secret"), "operator": Signer("operator", "other-secret")}


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker and its name server, both with access control."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "namesrv.conf").write_text(f"aclEnable=true\nlistenPort=0\nkvConfigPath={tmp_path}/kv.json\n")
    names = NameServer(load_namesrv_config(tmp_path / "namesrv.conf"))
    await names.start()
    (tmp_path / "broker.conf").write_text("aclEnable=true\nlistenPort=0\n")
    settings = {**SMALL, "storePathRootDir": str(tmp_path / "store"), "namesrvAddr": str(names.address)}
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "the-brokers")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "third-secret")
    running = Broker(load_broker_config(tmp_path / "broker.conf", settings))
    monkeypatch.delenv("ROCKETMQ_ACCESS_KEY")
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    await running.start()
    try:
        yield running
    finally:
        await running.close()
        await names.close()


async def call(
    broker: Broker,
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    by: str | Signer = "operator",
) -> Command:
    """The response to one request. by: the account that signs it, or "" for none."""
    request = Command.request(code, header, body)
    signer = by if isinstance(by, Signer) else SIGNERS.get(by)
    if signer is not None:
        request = Command.request(code, None, body)
        request.ext = signer.sign({} if header is None else header.ext_fields(), body)
    async with await RawClient.open(broker.address) as client:
        return await client.call_frame(encode_command(request))


def send(topic: str) -> tuple[int, Header]:
    header = SendMessageRequestHeaderV2(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    return RequestCode.SEND_MESSAGE_V2, header


def pull(topic: str, group: str) -> tuple[int, Header]:
    header = PullMessageRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=32, sys_flag=4,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
    )  # fmt: skip
    return RequestCode.PULL_MESSAGE, header


def heartbeat(topic: str, group: str) -> bytes:
    consumer = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=topic)])
    return HeartbeatData(client_id="me", consumer_data_set=[consumer]).encode()


async def test_the_second_port_requires_signatures_too(broker: Broker) -> None:
    """Each client that connects to listenPort - 2 could read and change everything without an account."""
    second = replace(broker.address, port=broker.address.port - 2)
    async with await RawClient.open(second) as client:
        assert is_refused(await client.call(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert is_refused(await client.call(*send("Orders"), b"x"))
        request = Command.request(*send("Orders")[:1], None, b"x")
        request.ext = SIGNERS["application"].sign(send("Orders")[1].ext_fields(), b"x")
        assert (await client.call_frame(encode_command(request))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_a_client_with_an_account_works(broker: Broker, codec: Literal["json", "rocketmq"]) -> None:
    """After access control is enabled, no client could send or read."""
    keys = Credentials(access_key="application", secret_key="its-secret")
    client = ClientConfig(
        namesrv=str(broker.config.registration.namesrv[0]), credentials=keys, codec=codec, heartbeat_ms=100
    )
    async with Producer("p", client=client) as producer, PullConsumer("c", client=client) as consumer:
        await producer.send(Message("Orders", b"first"))
        await producer.send_batch([Message("Orders", b"second"), Message("Orders", b"third")])
        bodies: list[bytes] = []
        for queue in await consumer.fetch_queues("Orders"):
            result = await consumer.pull(queue, 0)
            if result.status is PullStatus.FOUND:
                bodies += [message.body for message in result.messages]
        assert sorted(bodies) == [b"first", b"second", b"third"]
        with pytest.raises(BrokerError, match="No default permission for topic:Other"):
            await producer.send(Message("Other", b"x"), timeout_ms=500)


@pytest.mark.parametrize("unsigned", [(), (UNIQUE_KEY_QUERY,), ("maxNum",)])
async def test_a_query_may_leave_one_field_unsigned(broker: Broker, unsigned: tuple[str, ...]) -> None:
    """Java clients up to 4.9.3 could not look up messages, as they do not sign this field; later ones do."""
    header = QueryMessageRequestHeader(
        topic="News", key="k", max_num=8, begin_timestamp=0, end_timestamp=1, unique_key_query=False
    )
    fields = header.ext_fields()
    request = Command.request(RequestCode.QUERY_MESSAGE)
    signed = SIGNERS["application"].sign({n: v for n, v in fields.items() if n not in unsigned}, b"")
    request.ext = {**fields, **signed}
    async with await RawClient.open(broker.address) as client:
        response = await client.call_frame(encode_command(request))
    is_refused = "Check signature failed" in (response.remark or "")
    assert is_refused == ("maxNum" in unsigned), response.remark


APP = SIGNERS["application"]
CASES: list[tuple[str, tuple[int, Header | None, bytes], str | Signer, str]] = [
    ("no signature", (*send("Orders"), b"x"), "", "No accessKey is configured"),
    ("nobody", (*send("Orders"), b"x"), Signer("nobody", "its-secret"), "No acl config for nobody"),
    ("wrong secret", (*send("Orders"), b"x"), Signer("application", "wrong"),
     "Check signature failed for accessKey=application"),
    ("may send", (*send("Inbox"), b"x"), APP, ""),
    ("may not send", (*send("News"), b"x"), APP, "No default permission for topic:News"),
    ("retry topic of a group", (*send("%RETRY%mine"), b"x"), APP, "No default permission for group:mine"),
    ("batch", (RequestCode.SEND_BATCH_MESSAGE, send("News")[1], b"x"), APP,
     "No default permission for topic:News"),
    ("long header", (RequestCode.SEND_MESSAGE, SendMessageRequestHeader(
        producer_group="g", topic="News", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0), b"x"), APP, "No default permission for topic:News"),
    ("a reply", (RequestCode.SEND_REPLY_MESSAGE_V2, send("DefaultCluster_REPLY_TOPIC")[1], b"x"), APP, ""),
    ("no reply", (RequestCode.SEND_REPLY_MESSAGE_V2, send("News")[1], b"x"), APP,
     "No default permission for topic:News"),
    ("may read", (*pull("News", "mine"), b""), APP, ""),
    ("may not read", (*pull("Inbox", "mine"), b""), APP, "No default permission for topic:Inbox"),
    ("not as this group", (*pull("News", "closed"), b""), APP, "No default permission for group:closed"),
    ("heartbeat", (RequestCode.HEART_BEAT, None, heartbeat("News", "mine")), APP, ""),
    ("heartbeat for a topic", (RequestCode.HEART_BEAT, None, heartbeat("Inbox", "mine")), APP,
     "No default permission for topic:Inbox"),
    ("heartbeat of a group", (RequestCode.HEART_BEAT, None, heartbeat("News", "closed")), APP,
     "No default permission for group:closed"),
    ("heartbeat of nonsense", (RequestCode.HEART_BEAT, None, b"["), APP, "AclException"),
    ("goodbye", (RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(
        client_id="me", consumer_group="closed"), b""), APP, "No default permission for group:closed"),
    ("goodbye of a producer", (RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(
        client_id="me", producer_group="closed"), b""), APP, ""),
    ("commit", (RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader(
        consumer_group="closed", topic="News", queue_id=0, commit_offset=0), b""), APP,
     "No default permission for group:closed"),
    ("lock", (RequestCode.LOCK_BATCH_MQ, None, LockBatchRequestBody(
        consumer_group="closed", client_id="me").encode()), APP, "No default permission for group:closed"),
    ("lock for a concurrent member", (RequestCode.LOCK_BATCH_MQ, None, LockBatchRequestBody(
        consumer_group="%RETRY%mine", client_id="me").encode()), APP, ""),
    ("lock for a concurrent member of a group", (RequestCode.LOCK_BATCH_MQ, None, LockBatchRequestBody(
        consumer_group="%RETRY%closed", client_id="me").encode()), APP,
     "No default permission for group:closed"),
    ("send back", (RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(
        offset=0, group="mine", delay_level=0, origin_topic="News"), b""), APP,
     "No default permission for topic:News"),
    ("send back of nothing", (RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(
        offset=0, group="mine", delay_level=0), b""), APP, "No default permission for topic:"),
    ("make a topic", (RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader(
        topic="Orders", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG", order=False), b""), APP,
     "Need admin permission for request code=17, but accessKey=application is not"),
    ("read the accounts", (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, None, b""), APP,
     "Need admin permission for request code=54"),
    ("a slave's question", (RequestCode.GET_ALL_CONSUMER_OFFSET, None, b""), APP,
     "Need admin permission for request code=43"),
    ("an operator may", (*send("News"), b"x"), SIGNERS["operator"], ""),
]  # fmt: skip


async def test_rights(broker: Broker) -> None:
    """A client could read, write or change data of others, or not its own."""
    for name, request, by, says in CASES:
        response = await call(broker, *request, by=by)
        assert is_refused(response) == bool(says), (name, response)
        if says:
            assert (response.code, says in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), name


async def test_without_a_signature_every_request_is_rejected(broker: Broker) -> None:
    """A request code without a rule would be open to every client."""
    for code in BROKER_CALLERS:
        assert is_refused(await call(broker, code, by="")), code
    async with await RawClient.open(broker.config.registration.namesrv[0]) as client:
        for code in NAMESRV_CALLERS:
            assert is_refused(await client.call(code)), code
    assert (await call(broker, 9999, by="")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_signature_covers_each_field_and_the_body(broker: Broker) -> None:
    """The owner of one captured signature could sign other requests."""
    code, header = send("Orders")
    signed = APP.sign(header.ext_fields(), b"body")
    for fields, body, fits in (
        (signed, b"body", True),
        (signed, b"Body", False),
        ({**signed, "e": "1"}, b"body", False),
        ({**signed, "Signature": signed["Signature"].lower()}, b"body", False),
        ({**signed, "Signature": "\u00e4"}, b"body", False),
        ({key: value for key, value in signed.items() if key != "Signature"}, b"body", False),
    ):
        request = Command.request(code, None, body)
        request.ext = fields
        for codec in (0, CODEC_ROCKETMQ):
            async with await RawClient.open(broker.address) as client:
                response = await client.call_frame(encode_command(request, codec))
            assert is_refused(response) != fits


async def test_operators_change_accounts_and_never_see_a_secret(broker: Broker, tmp_path: Path) -> None:
    """Mqadmin's updateAclConfig would do nothing, or the listed accounts would contain their secrets."""
    create = CreateAccessConfigRequestHeader(
        access_key="newcomer", secret_key="fresh-secret", topic_perms="News=SUB,Orders=PUB"
    )  # fmt: skip
    assert (await call(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, create)).code == 0
    newcomer = Signer("newcomer", "fresh-secret")
    assert (await call(broker, *send("Orders"), b"x", by=newcomer)).code == 0
    listing = await call(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    body = GetBrokerClusterAclConfigResponseBody.decode(listing.body)
    assert [account.access_key for account in body.plain_access_configs or []] == [
        "application", "operator", "the-brokers", "newcomer",
    ]  # fmt: skip
    assert b"secret" not in listing.body
    info = (await call(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)).header_as(
        GetBrokerAclConfigResponseHeader
    )
    assert (info.broker_name, DataVersion.decode(info.version.encode()).counter) == ("broker-a", 1)
    gone = DeleteAccessConfigRequestHeader(access_key="newcomer")
    assert (await call(broker, RequestCode.DELETE_ACL_CONFIG, gone)).code == 0
    assert is_refused(await call(broker, *send("Orders"), b"x", by=newcomer))
    again = await call(broker, RequestCode.DELETE_ACL_CONFIG, gone)
    assert again.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
    wrong = CreateAccessConfigRequestHeader(access_key="newcomer", default_topic_perm="ALL")
    refused = await call(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, wrong)
    assert refused.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    white = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs="127.0.0.*,10.1.1.1")
    assert (await call(broker, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)).code == 0
    assert (await call(broker, *send("News"), b"x", by="")).code == 0
    assert "- 127.0.0.*" in (tmp_path / "plain_acl.yml").read_text()


async def test_a_broker_without_access_control_reports_it(tmp_path: Path) -> None:
    """Mqadmin would wait for its timeout, and an operator believe that an account was created."""
    async with running_broker(tmp_path, "") as broker:
        for code in (RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG):
            assert "aclEnable=false" in ((await call(broker, code, by="")).remark or "")
        header = DeleteAccessConfigRequestHeader(access_key="x")
        response = await call(broker, RequestCode.DELETE_ACL_CONFIG, header, by="")
        assert response.code == ResponseCode.DELETE_ACL_CONFIG_FAILED


async def test_a_changed_file_has_effect_at_once(broker: Broker, tmp_path: Path) -> None:
    """A leaked key would stay valid until the next restart."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS.replace("its-secret", "new-secret"))

    async def is_closed_out() -> bool | None:
        return is_refused(await call(broker, *send("Orders"), b"x", by="application")) or None

    await eventually(is_closed_out)


async def test_an_unauthenticated_client_cannot_hold_a_connection(tmp_path: Path) -> None:
    """Clients without an account could use up the connections that others need."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    settings = "aclEnable=true\nunsignedTimeoutMillis=200\n"
    async with running_broker(tmp_path, settings) as broker:
        unknown = await RawClient.open(broker.address)
        known = await RawClient.open(broker.address)
        code, header = send("Orders")
        request = Command.request(code, None, b"x")
        request.ext = APP.sign(header.ext_fields(), b"x")
        assert (await known.call_frame(encode_command(request))).code == 0
        assert is_refused(await unknown.call(code, header, b"x"))
        async with asyncio.timeout(LIMIT_S):
            assert await unknown.reader.read() == b""
        assert (await known.call_frame(encode_command(request))).code == 0
        for client in (unknown, known):
            client.writer.close()


class running_broker:  # noqa: N801 - used like a function
    """A broker without a name server, closed at the end."""

    def __init__(self, tmp_path: Path, settings: str) -> None:
        (tmp_path / "broker.conf").write_text(f"{settings}listenPort=0\n")
        store = {**SMALL, "storePathRootDir": str(tmp_path / "store")}
        self.broker = Broker(load_broker_config(tmp_path / "broker.conf", store))

    async def __aenter__(self) -> Broker:
        await self.broker.start()
        return self.broker

    async def __aexit__(self, *_: object) -> None:
        await self.broker.close()


async def test_a_signed_route_request_gets_a_response(broker: Broker) -> None:
    """A name server with access control would reject the route requests of its own clients."""
    names = broker.config.registration.namesrv[0]
    request = Command.request(RequestCode.GET_ROUTEINTO_BY_TOPIC)
    request.ext = APP.sign(GetRouteInfoRequestHeader(topic="TBW102").ext_fields(), b"")
    async with await RawClient.open(names) as client:

        async def is_known() -> bool | None:
            return (await client.call_frame(encode_command(request))).code == 0 or None

        await eventually(is_known)
