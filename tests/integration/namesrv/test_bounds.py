"""Limits of a name server, and limits of clients for responses of name servers, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from rocketpy.errors import Outcome, RemoteProtocolError, RocketError
from rocketpy.protocol.bodies import (
    Body,
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteTopicInNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    PutKVConfigRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address, Channel
from rocketpy_broker import Broker, NameServer, NamesrvConfig, load_broker_config
from rocketpy_broker.config.model import ListenConfig
from tests.integration.raw_client import RawClient
from tests.integration.sdk_peers import Peer
from tests.integration.security.test_access import ACCOUNTS
from tests.integration.small import SMALL
from tests.turns import Turns
from tests.waiting import LIMIT_S, until

LISTEN = ListenConfig(address=Address("tcp", "127.0.0.1", 0))
OPERATOR = Signer("operator", "other-secret")
BROKERS = Signer("the-brokers", "third-secret")
ORDER = "ORDER_TOPIC_CONFIG"


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    """A name server."""
    server = NameServer(NamesrvConfig(listen=LISTEN, routes_max=50))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[NameServer]:
    """A name server with access control."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    listen = ListenConfig(address=Address("tcp", "127.0.0.1", 0), acl_file=accounts)
    server = NameServer(NamesrvConfig(listen=listen))
    await server.start()
    yield server
    await server.close()


async def call(
    client: RawClient, code: int, header: Header, body: bytes = b"", *, by: Signer | None = None
) -> Command:
    request = Command.request(code, header, body)
    if by is not None:
        request.ext, request.header = by.sign(header.ext_fields(), body), None
    return await client.call_frame(encode_command(request))


async def register(
    client: RawClient,
    *topics: TopicConfig,
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "127.0.0.1:10911",
    ha_address: str = "127.0.0.1:10912",
    version: int = 1,
    by: Signer | None = None,
) -> Command:
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table={topic.topic_name: topic for topic in topics},
        data_version=DataVersion(timestamp=version, counter=version),
    )
    header = RegisterBrokerRequestHeader(
        broker_name=name, broker_addr=address, cluster_name="C", ha_server_addr=ha_address,
        broker_id=broker_id, compressed=False, body_crc32=0,
    )  # fmt: skip
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
    return await call(client, RequestCode.REGISTER_BROKER, header, body, by=by)


async def route(client: RawClient, topic: str = "T", by: Signer | None = None) -> TopicRouteData | None:
    header = GetRouteInfoRequestHeader(topic=topic)
    response = await call(client, RequestCode.GET_ROUTEINTO_BY_TOPIC, header, by=by)
    return TopicRouteData.decode(response.body) if response.code == 0 else None


async def master(client: RawClient, by: Signer | None = None) -> str | None:
    """Return the address of the master in the route of T."""
    found = await route(client, by=by)
    return None if found is None else found.broker_datas[0].broker_addrs.get(0)


WRONG: list[tuple[dict[str, object], TopicConfig, str]] = [
    ({}, TopicConfig(topic_name="T", write_queue_nums=2**31 - 1), "2147483647 queues"),
    ({}, TopicConfig(topic_name="T", read_queue_nums=-1), "-1 queues"),
    ({}, TopicConfig(topic_name="T", perm=1 << 20), "permission"),
    ({}, TopicConfig(topic_name="a topic"), "blanks"),
    ({}, TopicConfig(topic_name="x" * 256), "256 characters"),
    ({"name": ""}, TopicConfig(topic_name="T"), "0 characters"),
    ({"broker_id": -7}, TopicConfig(topic_name="T"), "-7"),
    ({"address": "nowhere"}, TopicConfig(topic_name="T"), "nowhere"),
    ({"ha_address": "127.0.0.1:x"}, TopicConfig(topic_name="T"), "127.0.0.1:x"),
]


@pytest.mark.parametrize(("who", "topic", "text"), WRONG, ids=[text for _, _, text in WRONG])
async def test_a_registration_that_no_broker_sends_is_rejected(
    names: NameServer, who: dict[str, object], topic: TopicConfig, text: str
) -> None:
    """A route with 2,147,483,647 queues made a producer hang with 1.6 GB."""
    async with await RawClient.open(names.address) as client:
        response = await register(client, TopicConfig(topic_name="Fine"), topic, **who)  # type: ignore[arg-type] # from a dict
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert text in (response.remark or "")
        assert await route(client, "Fine") is None
        assert (await register(client, TopicConfig(topic_name="T"))).code == 0
        assert await master(client) == "127.0.0.1:10911"


async def test_routes_are_bounded(names: NameServer) -> None:
    """One client could fill a name server's memory with routes."""
    async with await RawClient.open(names.address) as client:
        topics = [TopicConfig(topic_name=f"T{number}") for number in range(60)]
        response = await register(client, *topics)
        assert "maxRoutes is 50" in (response.remark or "")
        assert (await register(client, *topics[:48])).code == 0
        assert (await register(client, topics[0], version=2)).code == 0
        assert (await register(client, topics[50], version=3)).code == ResponseCode.SYSTEM_ERROR
        await call(client, RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvRequestHeader(topic="T0"))
        assert (await register(client, topics[50], version=3)).code == 0
    await until(lambda: not names.routes.entries)  # its connection has ended


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
        (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER}),
    ],
)
async def test_a_table_is_encoded_once_until_it_changes(
    code: int, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of requests for a million topics would take a tenth of a second each, and a copy in memory."""
    monkeypatch.setattr("rocketpy_broker.namesrv.server._SHARED_BYTES_MIN", 1000)
    server = NameServer(NamesrvConfig(listen=LISTEN))
    await server.start()
    encode = Turns(Body.encode)
    try:
        async with await RawClient.open(server.address) as client:
            topics = [TopicConfig(topic_name=f"a-topic-{n}", topic_sys_flag=3) for n in range(1500)]
            assert (await register(client, *topics)).code == 0
            for number in range(300):
                name, address = f"another-broker-{number}", f"127.0.0.1:{20_000 + number}"
                assert (await register(client, name=name, broker_id=1, address=address)).code == 0
                put = PutKVConfigRequestHeader(namespace=ORDER, key=f"topic-{number}", value="b:1;" * 20)
                assert (await call(client, RequestCode.PUT_KV_CONFIG, put)).code == 0
            request = Command.request(code)
            request.ext = fields
            frame = encode_command(request)
            monkeypatch.setattr(Body, "encode", lambda body: encode(body))  # noqa: PLW0108 - a method
            bodies = {(await client.call_frame(frame)).body for _ in range(20)}
            assert encode.total <= 1
            new = TopicConfig(topic_name="b", topic_sys_flag=3)
            assert (await register(client, new, name="n", address="127.0.0.1:1")).code == 0
            put = PutKVConfigRequestHeader(namespace=ORDER, key="n", value="b:1")
            assert (await call(client, RequestCode.PUT_KV_CONFIG, put)).code == 0
            bodies.add((await client.call_frame(frame)).body)
            assert len(bodies) == 2
            assert min(map(len, bodies)) > 1000
    finally:
        encode.stop()
        await server.close()


async def test_routes_follow_every_change(names: NameServer) -> None:
    """An outdated cached route would send clients to brokers that no longer exist."""

    def unregister(address: str) -> Header:
        return UnRegisterBrokerRequestHeader(
            broker_name="broker-a", broker_addr=address, cluster_name="C", broker_id=1
        )

    async with await RawClient.open(names.address) as client:
        assert await route(client) is None
        await register(client, TopicConfig(topic_name="T", write_queue_nums=4))
        seen = [await route(client), await route(client)]
        await register(client, TopicConfig(topic_name="T", write_queue_nums=5), version=2)
        seen.append(await route(client))
        await register(client, broker_id=1, address="127.0.0.1:20911")
        seen.append(await route(client))
        await call(client, RequestCode.UNREGISTER_BROKER, unregister("127.0.0.1:20911"))
        seen.append(await route(client))
        wipe = WipeWritePermOfBrokerRequestHeader(broker_name="broker-a")
        await call(client, RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)
        seen.append(await route(client))
        await call(client, RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvRequestHeader(topic="T"))
        assert await route(client) is None
    found = [
        (one.queue_datas[0].write_queue_nums, one.queue_datas[0].perm, len(one.broker_datas[0].broker_addrs))
        for one in seen
        if one is not None
    ]
    assert found == [(4, 6, 1), (4, 6, 1), (5, 6, 1), (5, 6, 2), (5, 6, 1), (5, 4, 1)]


# -- two brokers with one name and id ------------------------------------------------------------------


async def test_a_broker_that_takes_the_place_of_another_is_reported(
    names: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients would find only one of two brokers with the same name, without a warning."""
    topic = TopicConfig(topic_name="T")
    async with await RawClient.open(names.address) as first, await RawClient.open(names.address) as other:
        assert (await register(first, topic)).code == 0
        with caplog.at_level(logging.WARNING, "rocketpy.namesrv"):
            assert (await register(other, topic, address="127.0.0.1:20911")).code == 0
    assert "127.0.0.1:20911 replaces the one at 127.0.0.1:10911" in caplog.text


async def test_brokers_with_one_address_are_reported(
    names: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients would find only the broker that registered last; containers often have equal addresses."""
    topic = TopicConfig(topic_name="T")
    async with await RawClient.open(names.address) as first, await RawClient.open(names.address) as other:
        assert (await register(first, topic)).code == 0
        with caplog.at_level(logging.WARNING, "rocketpy.namesrv"):
            assert (await register(first, topic)).code == 0
            assert caplog.text == ""
            assert (await register(other, topic, name="broker-b")).code == 0
    assert (
        "broker broker-b at 127.0.0.1:10911 replaces broker broker-a, which is still connected" in caplog.text
    )


async def test_a_registration_over_a_broker_of_another_account_is_rejected(guarded: NameServer) -> None:
    """Any account with the right to register could divert the clients of a broker to itself."""
    topic = TopicConfig(topic_name="T")
    async with (
        await RawClient.open(guarded.address) as first,
        await RawClient.open(guarded.address) as other,
    ):
        assert (await register(first, topic, by=BROKERS)).code == 0
        response = await register(other, topic, address="127.0.0.1:20911", by=OPERATOR)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "of another account" in (response.remark or "")
        response = await register(other, name="broker-b", by=OPERATOR)  # at the address of broker-a
        assert "another account" in (response.remark or "")
        goodbye = UnRegisterBrokerRequestHeader(
            broker_name="broker-a", broker_addr="127.0.0.1:10911", cluster_name="C", broker_id=0
        )
        response = await call(other, RequestCode.UNREGISTER_BROKER, goodbye, by=OPERATOR)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert await master(other, by=OPERATOR) == "127.0.0.1:10911"
        # The same broker, restarted at another address while its old connection still looks open.
        assert (await register(other, topic, address="127.0.0.1:20911", by=BROKERS)).code == 0
        assert await master(other, by=OPERATOR) == "127.0.0.1:20911"


async def test_a_stopped_broker_can_register_with_another_account(guarded: NameServer) -> None:
    """After a stop, a broker could not register with a new account or at a new address."""
    topic = TopicConfig(topic_name="T")
    async with await RawClient.open(guarded.address) as other:
        async with await RawClient.open(guarded.address) as first:
            assert (await register(first, topic, by=BROKERS)).code == 0
        async with asyncio.timeout(LIMIT_S):
            while await master(other, by=OPERATOR) is not None:
                pass
        assert (await register(other, topic, address="127.0.0.1:20911", by=OPERATOR)).code == 0


# -- key-value settings --------------------------------------------------------------------------------


async def test_settings_that_would_stop_registrations_are_rejected(tmp_path: Path) -> None:
    """After 25 values of 900 KB no broker could register, not even after a restart of the name server."""
    config = NamesrvConfig(listen=LISTEN, kv_config_path=tmp_path / "kv.json", kv_bytes_max=1 << 20)
    server = NameServer(config)
    await server.start()
    try:
        async with await RawClient.open(server.address) as client:

            async def put(key: str, size: int) -> Command:
                header = PutKVConfigRequestHeader(namespace=ORDER, key=key, value="v" * size)
                return await call(client, RequestCode.PUT_KV_CONFIG, header)

            assert "maxKvValueBytes" in ((await put("T", 900_000)).remark or "")
            responses = [await put(f"T{number}", 60_000) for number in range(25)]
            assert [response.code for response in responses] == [0] * 17 + [ResponseCode.SYSTEM_ERROR] * 8
            assert "maxKvTotalBytes" in (responses[-1].remark or "")
            response = await register(client)
            assert response.code == 0
            assert len(json.loads(response.body)["table"]) == 17
    finally:
        await server.close()
    again = NameServer(config)
    await again.start()
    await again.close()
    assert again.kv.size == server.kv.size


async def test_puts_of_a_burst_are_saved_together(tmp_path: Path) -> None:
    """Each setting replaced the file in the event loop, so a burst blocked all clients."""
    config = NamesrvConfig(listen=LISTEN, kv_config_path=tmp_path / "kv.json")
    server = NameServer(config)
    await server.start()
    try:
        async with await RawClient.open(server.address) as client:
            requests = []
            for number in range(100):
                header = PutKVConfigRequestHeader(namespace="n", key=f"k{number}", value=str(number))
                requests.append(Command.request(RequestCode.PUT_KV_CONFIG, header))
                requests[-1].opaque = number
            client.writer.write(b"".join(map(encode_command, requests)))
            assert {(await client.next()).code for _ in requests} == {0}
            assert server._kv_saver is not None
            assert server._kv_saver.saves < 20
            table = json.loads((tmp_path / "kv.json").read_bytes())["configTable"]["n"]
            assert table == {f"k{number}": str(number) for number in range(100)}
    finally:
        await server.close()


async def test_an_existing_file_above_the_limit_stops_no_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster whose name server has such a file would have no brokers until the file is edited."""
    path = tmp_path / "kv.json"
    path.write_text(json.dumps({"configTable": {ORDER: {f"T{n}": "v" * 900_000 for n in range(25)}}}))
    server = NameServer(NamesrvConfig(listen=LISTEN, kv_config_path=path))
    await server.start()
    settings = {**SMALL, "storePathRootDir": str(tmp_path / "store"), "namesrvAddr": str(server.address)}
    broker = Broker(load_broker_config(None, {**settings, "listenPort": "0"}))
    try:
        await broker.start()
        assert broker.health().registered_at == (str(server.address),)
    finally:
        await broker.close()
        await server.close()
    assert "brokers receive none of it" in caplog.text


# -- clients --------------------------------------------------------------------------------------------


class Liar(Peer):
    """A name server whose routes have a given number of queues."""

    def __init__(self, reads: int, writes: int, order: str | None = None, brokers: int = 1) -> None:
        super().__init__(self._respond)
        datas = [
            QueueData(broker_name=f"b{number}", read_queue_nums=reads, write_queue_nums=writes, perm=7)
            for number in range(brokers)
        ]
        addresses = [
            BrokerData(cluster="C", broker_name=f"b{number}", broker_addrs={0: "127.0.0.1:1"})
            for number in range(brokers)
        ]
        self.route = TopicRouteData(queue_datas=datas, broker_datas=addresses, order_topic_conf=order)

    def _respond(self, channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.GET_ROUTEINTO_BY_TOPIC:
            return request.reply(body=self.route.encode())
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


LIES = {
    "2147483647 queues": Liar(4, 2**31 - 1),
    "-5 queues": Liar(-5, 4),
    "327680000 queues": Liar(4, 65_536, brokers=5000),
    "order configuration": Liar(4, 4, "b0:99999999999"),
}


@pytest.mark.parametrize("text", LIES)
async def test_clients_reject_impossible_routes(text: str) -> None:
    """A producer hung with 1.6 GB after a route with 2,147,483,647 queues."""
    async with LIES[text] as liar:
        async with Producer("senders", liar.address) as producer:
            with pytest.raises(RocketError, match=text) as failed:
                await producer.send(Message("T", b"x"))
            assert failed.value.outcome is Outcome.NOT_SENT
        async with PullConsumer("readers", liar.address) as consumer:
            with pytest.raises(RemoteProtocolError, match=text):
                await consumer.fetch_queues("T")
        async with LitePullConsumer("readers", liar.address) as lite:
            with pytest.raises(RemoteProtocolError, match=text):
                await lite.fetch_queues("T")


async def test_a_consumer_continues_without_an_invalid_route(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer of many topics would hang because of one, or not report it."""
    async with Liar(2**31 - 1, 4) as liar:

        async def handle(message: object) -> None: ...

        consumer = PushConsumer("readers", liar.address, handle)
        consumer.subscribe("T")
        await consumer.start(wait=False)
        try:
            await until(lambda: "2147483647 queues" in caplog.text)
            (problem,) = consumer.health().problems
            assert "topic T has no route" in problem
            assert "2147483647 queues" in problem
        finally:
            await consumer.close()


async def test_the_next_name_server_is_used() -> None:
    """One broken name server would stop every client, although the others have the route."""
    async with (
        Liar(2**31 - 1, 4) as liar,
        Liar(3, 3) as honest,
        PullConsumer("readers", f"{liar.address};{honest.address}") as consumer,
    ):
        assert len(await consumer.fetch_queues("T")) == 3
