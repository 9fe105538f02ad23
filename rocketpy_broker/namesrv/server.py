"""The name server: answers brokers and clients from the route table and the key-value settings.

Source: DefaultRequestProcessor of RocketMQ 4.6.0. Differs: a request code it does not know is
answered REQUEST_CODE_NOT_SUPPORTED (4.6.0 is silent, QUIRKS 6), and its configuration can be changed from
afar only as far as its own file allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicList
from rocketpy.protocol.checksum import crc32
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import (
    DeleteKVConfigRequestHeader,
    DeleteTopicInNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    Header,
    Int32,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketpy.runtime.tasks import Tasks, close_all
from rocketpy.transport import Address, Channel, Server, serve
from rocketpy_broker.config import NamesrvConfig
from rocketpy_broker.handlers.settings import answer_update
from rocketpy_broker.live_config import namesrv_settings
from rocketpy_broker.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG, KvConfig
from rocketpy_broker.namesrv.route_table import BrokerIdentity, RouteTable
from rocketpy_broker.security.guard import open_access
from rocketpy_broker.security.permissions import ADD_WRITE_PERM_OF_BROKER, NAMESRV_PERMISSIONS
from rocketpy_broker.store.disk import OsDisk
from rocketpy_broker.store.state_file import load_state, save_state

__all__ = ["NameServer"]

log = logging.getLogger("rocketpy.namesrv")

Handler = Callable[[Channel, Command], Command | None]

_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""What 4.6.0 puts behind some remarks; tools look for it."""


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """The answer to ADD_WRITE_PERM_OF_BROKER: how many topics got the right (RocketMQ 4.9)."""

    add_topic_count: Int32


class NameServer:
    """One name server. `start` it, then it serves at `address` until `close`."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.config = config or NamesrvConfig()
        self.routes = RouteTable()
        self.kv = KvConfig()
        self._server: Server | None = None
        self._scan: asyncio.TimerHandle | None = None
        self.tasks = Tasks("the name server")
        self._access = open_access(self.config.listen, NAMESRV_PERMISSIONS, self.tasks)
        self._live = namesrv_settings(self.config)
        self._handlers = self._handler_table()

    @property
    def address(self) -> Address:
        """Where it is reached, with the real port. Raises ConfigInvalid before `start`."""
        if self._server is None:
            return self.config.listen.address
        return self._server.address

    async def start(self) -> None:
        """Read the key-value settings and begin to serve. Raises OSError, StoreDamaged."""
        if self._access is not None:
            self._access.start()
        path = self.config.kv_config_path
        if path is not None:
            self.kv = load_state(OsDisk(), path, KvConfig.decode) or KvConfig()
        listen = self.config.listen
        self._server = await serve(listen.address, self, listen.options, self.tasks.fail_with)
        self._schedule_scan()
        log.info("name server at %s", self.address)

    async def close(self) -> None:
        """Stop serving; brokers and clients keep what they know and try other name servers."""
        if self._access is not None:
            self._access.close()
        if self._scan is not None:
            self._scan.cancel()
        await close_all(self.tasks, self._server)

    async def wait_failed(self) -> RocketError:
        """Wait until it can no longer do its work, and return why; only a restart helps then."""
        return await self.tasks.wait_failed()

    # -- Endpoint -----------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        """Part of Endpoint."""
        if self._access is not None:
            self._access.opened(channel)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Answer one request."""
        handler = self._handlers.get(request.code)
        if handler is None or request.code not in NAMESRV_PERMISSIONS:
            return request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request type {request.code} not supported by a name server",
            )
        refusal = None if self._access is None else self._access.refusal(channel, request)
        try:
            return handler(channel, request) if refusal is None else refusal
        except InvariantError as error:
            self.tasks.fail(f"request {request.code}", error)
            raise

    def end_of_buffer(self) -> None:
        """Part of Endpoint."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """A broker whose connection is gone is dropped at once."""
        if self._access is not None:
            self._access.closed(channel)
        for broker in self.routes.drop_channel(channel):
            log.warning("broker %s at %s is gone", broker.identity.name, broker.identity.address)

    # -- time ---------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self.config.scan_interval_ms / 1000, self.tasks.run, self._drop_silent)

    def _drop_silent(self) -> None:
        expired_ms = self.config.broker_expired_ms
        for broker in self.routes.drop_silent(self._now_ms(), expired_ms):
            log.warning(
                "broker %s at %s was silent for %d ms",
                broker.identity.name, broker.identity.address, expired_ms,
            )  # fmt: skip
            if isinstance(broker.channel, Channel):
                broker.channel.close()
        self._schedule_scan()

    # -- what brokers ask ---------------------------------------------------------------------

    def _register(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(RegisterBrokerRequestHeader)
        if header.body_crc32 and crc32(request.body) != header.body_crc32:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        body = RegisterBrokerBody()
        if request.body:
            body = RegisterBrokerBody.decode(request.body, compressed=header.compressed)
        topics = body.topic_config_serialize_wrapper
        hint = self.routes.register(
            BrokerIdentity(
                cluster=header.cluster_name,
                name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
            ),
            ha_address=header.ha_server_addr,
            topics=topics.topic_config_table,
            data_version=topics.data_version,
            filter_servers=body.filter_server_list,
            channel=channel,
            now_ms=self._now_ms(),
        )
        answer = RegisterBrokerResponseHeader(ha_server_addr=hint.ha_address, master_addr=hint.address)
        return request.reply(header=answer, body=self._kv_body(NAMESPACE_ORDER_TOPIC_CONFIG) or b"")

    def _unregister(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(UnRegisterBrokerRequestHeader)
        self.routes.unregister(
            BrokerIdentity(
                cluster=header.cluster_name,
                name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
            )
        )
        log.info("broker %s at %s says goodbye", header.broker_name, header.broker_addr)
        return request.reply()

    def _query_data_version(self, channel: Channel, request: Command) -> Command:
        address = request.header_as(QueryDataVersionRequestHeader).broker_addr
        changed = self.routes.is_changed(address, DataVersion.decode(request.body))
        if not changed:
            self.routes.touch(address, self._now_ms())
        known = self.routes.data_version_of(address)
        return request.reply(
            header=QueryDataVersionResponseHeader(changed=changed),
            body=b"" if known is None else known.encode(),
        )

    # -- what clients ask ---------------------------------------------------------------------

    def _route(self, channel: Channel, request: Command) -> Command:
        topic = request.header_as(GetRouteInfoRequestHeader).topic
        route = self.routes.route(topic)
        if route is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic}{_FAQ}",
            )
        if self.config.order_message_enable:
            route.order_topic_conf = self.kv.get(NAMESPACE_ORDER_TOPIC_CONFIG, topic)
        return request.reply(body=route.encode())

    def _cluster_info(self, channel: Channel, request: Command) -> Command:
        return request.reply(body=self.routes.cluster_info().encode())

    def _topics(self, channel: Channel, request: Command) -> Command:
        return _topic_list(request, self.routes.topics())

    def _topics_by_cluster(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(GetTopicsByClusterRequestHeader)
        return _topic_list(request, self.routes.topics_of_cluster(header.cluster))

    def _system_topics(self, channel: Channel, request: Command) -> Command:
        return _topic_list(request, *self.routes.system_topics())

    def _unit_topics(self, channel: Channel, request: Command) -> Command:
        return _topic_list(request, self.routes.unit_topics())

    def _unit_sub_topics(self, channel: Channel, request: Command) -> Command:
        return _topic_list(request, self.routes.unit_sub_topics())

    def _unit_sub_un_unit_topics(self, channel: Channel, request: Command) -> Command:
        return _topic_list(request, self.routes.unit_sub_un_unit_topics())

    # -- what operators ask -------------------------------------------------------------------

    def _wipe_write_perm(self, channel: Channel, request: Command) -> Command:
        name = request.header_as(WipeWritePermOfBrokerRequestHeader).broker_name
        count = self.routes.wipe_write_perm(name)
        log.info("%s wiped the write permission of %s: %d topics", channel.remote_address, name, count)
        return request.reply(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def _add_write_perm(self, channel: Channel, request: Command) -> Command:
        name = request.header_as(WipeWritePermOfBrokerRequestHeader).broker_name
        count = self.routes.add_write_perm(name)
        log.info("%s added the write permission of %s: %d topics", channel.remote_address, name, count)
        return request.reply(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    def _delete_topic(self, channel: Channel, request: Command) -> Command:
        topic = request.header_as(DeleteTopicInNamesrvRequestHeader).topic
        self.routes.delete_topic(topic)
        log.info("%s deleted topic %s", channel.remote_address, topic)
        return request.reply()

    def _put_kv(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(PutKVConfigRequestHeader)
        self.kv.put(header.namespace, header.key, header.value)
        self._save_kv()
        return request.reply()

    def _get_kv(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(GetKVConfigRequestHeader)
        value = self.kv.get(header.namespace, header.key)
        if value is not None:
            return request.reply(header=GetKVConfigResponseHeader(value=value))
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND,
            remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            header=GetKVConfigResponseHeader(),
        )

    def _delete_kv(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(DeleteKVConfigRequestHeader)
        self.kv.delete(header.namespace, header.key)
        self._save_kv()
        return request.reply()

    def _kv_list(self, channel: Channel, request: Command) -> Command:
        namespace = request.header_as(GetKVListByNamespaceRequestHeader).namespace
        body = self._kv_body(namespace)
        if body is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}"
            )
        return request.reply(body=body)

    def _kv_body(self, namespace: str) -> bytes | None:
        table = self.kv.namespace(namespace)
        return None if table is None else KVTable(table=table).encode()

    def _save_kv(self) -> None:
        path = self.config.kv_config_path
        if path is not None:
            save_state(OsDisk(), path, self.kv.encode())

    def _get_config(self, channel: Channel, request: Command) -> Command:
        return request.reply(body=self._live.text().encode())

    def _update_config(self, channel: Channel, request: Command) -> None:
        answer_update(self.tasks, self._live, channel, request)

    def _handler_table(self) -> dict[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINTO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_un_unit_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }


def _topic_list(request: Command, topics: list[str], broker_addr: str | None = None) -> Command:
    return request.reply(body=TopicList(topic_list=topics, broker_addr=broker_addr).encode())
