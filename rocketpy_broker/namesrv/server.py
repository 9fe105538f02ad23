"""The name server: handles requests of brokers and clients with the route table and key-value settings.

Source: DefaultRequestProcessor of RocketMQ 4.6.0. Differs: the response to an unknown request code is
REQUEST_CODE_NOT_SUPPORTED; 4.6.0 sends none (QUIRKS 6). Settings change by request only if the server's own
file allows that. A registration with impossible values is rejected, and so is one with the name and id of
another account's broker; see decision 0020.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rocketpy.errors import InvariantError, RocketError, UsageError
from rocketpy.protocol.bodies import (
    ORDER_TOPIC_NAMESPACE,
    Body,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicList,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicInNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketpy.protocol.message.checksum import crc32
from rocketpy.protocol.remoting.acl import ACCESS_KEY
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import PeriodicCall, Tasks, close_all
from rocketpy.transport import Address, Channel, Server, TlsFiles, serve
from rocketpy_broker.broker.open_files import fit_namesrv_open_files_limit
from rocketpy_broker.config.live import namesrv_live_config
from rocketpy_broker.config.model import NamesrvConfig
from rocketpy_broker.handlers.base import FAQ, Rejected, error_response, respond_later, update_settings
from rocketpy_broker.metrics.health import Check, failing_calls, probe_server, task_check, upkeep_check
from rocketpy_broker.namesrv.kv_config import KvChange, KvConfig
from rocketpy_broker.namesrv.registration_checks import check_registration
from rocketpy_broker.namesrv.route_table import BrokerIdentity, RouteTable
from rocketpy_broker.security.allowed_callers import NAMESRV_CALLERS
from rocketpy_broker.security.guard import create_access_guard
from rocketpy_broker.store.files.batch_saver import BatchSaver
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.files.state_file import load_state, save_state

log = logging.getLogger("rocketpy.namesrv")

Handler = Callable[[Channel, Command], Command | None]

_ORDER_BYTES_MAX: Final = 8 << 20
"""Limit of order configurations in the response to a registration; none are sent above it. An older file may
hold more."""

_SHARED_BYTES_MIN: Final = 16 << 10
"""A smaller table is encoded for each request."""


class NameServer:
    """A name server. It serves at `address` from `start` to `close`.

    Args:
        config: Settings; None for the defaults.
    """

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.config = fit_namesrv_open_files_limit(config or NamesrvConfig())
        self.routes = RouteTable()
        self.kv = KvConfig()
        self._server: Server | None = None
        self.memory: Final = self.config.listen.options.memory_budget()
        """Memory of its connections."""
        self._scan: PeriodicCall | None = None
        self.tasks = Tasks("the name server")
        self._access = create_access_guard(self.config.listen, NAMESRV_CALLERS, self.tasks)
        kv_path = self.config.kv_config_path
        self._kv_saver: BatchSaver[KvChange] | None = None
        """Saves key-value settings; None without a file."""
        if kv_path is not None:
            prepare = partial(self._prepare_kv, kv_path)
            self._kv_saver = BatchSaver(self.tasks, "kvConfig.json", prepare=prepare, use=self._use_kv)
        self._kv_unsaved_bytes = 0
        self._routes: dict[str, bytes] = {}
        """Encoded routes by topic, valid while `RouteTable.changes` is `_routes_at`."""
        self._tables: dict[tuple[int, str], bytes] = {}
        """Large responses by request code and cluster, valid as long."""
        self._routes_at = 0
        self._kv_bodies: dict[str, bytes] = {}
        """Encoded key-value settings by namespace."""
        self._live = namesrv_live_config(self.config)
        self.http = probe_server(self.config.metrics, self.tasks, self.readiness)
        """HTTP server for probes; None without metricsPort."""
        self.phase: str | None = "not started"
        """Current step of start or stop; None while it serves."""
        self._handlers = self._handler_table()

    @property
    def address(self) -> Address:
        """Address of the server; before `start`, the configured one."""
        return self.config.listen.address if self._server is None else self._server.address

    async def start(self) -> None:
        """Read the key-value settings and start to serve. On failure, the server is closed.

        Raises:
            OSError: A port or a file cannot be used.
            StoreDamaged: The file of the key-value settings is damaged.
        """
        try:
            await self._start()
        except BaseException:  # nothing may stay open
            await self.close()
            raise

    async def _start(self) -> None:
        if self._access is not None:
            self._access.start()
        path = self.config.kv_config_path
        if path is not None:
            self.kv = load_state(OsDisk(), path, KvConfig.decode).value or KvConfig()
            self._check_kv_bytes()
        listen = self.config.listen
        if self.http is not None:
            await self.http.start()
        try:
            self._server = await serve(
                listen.address, self, listen.options, self.tasks.fail_with, memory=self.memory
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                error.errno,
                f"{listen.address} is in use, perhaps by another name server: stop that, or set an address "
                "with --listen HOST:PORT or listenPort",
            ) from None
        self._scan = self.tasks.every(self.config.scan_interval_ms / 1000, self._drop_silent, "broker scan")
        self.phase = None
        log.info("name server at %s", self.address)

    async def close(self) -> None:
        """Stop the server. Brokers and clients continue with the routes that they have."""
        self.phase = "stopping: connections"
        if self._scan is not None:
            self._scan.stop()
        await close_all(self._access, self.tasks, self._server, self.http)
        self.phase = "closed"

    def readiness(self) -> list[Check]:
        """Return the checks of /readyz."""
        parts = [] if self._server is None else [self._server.tasks]
        return [
            Check("serving", self.phase),
            task_check(self.tasks),
            upkeep_check(failing_calls(self.tasks, *parts)),
        ]

    @property
    def tls_problem(self) -> str:
        """Error of the last reload of replaced certificates; empty without one."""
        tls = self.config.listen.options.ssl
        return tls.problem if isinstance(tls, TlsFiles) else ""

    @property
    def access_problem(self) -> str:
        """Why a change of auth.json or plain_acl.yml is not in effect; empty without a problem."""
        return "" if self._access is None else self._access.problem

    async def wait_failed(self) -> RocketError:
        """Wait for a failure that needs a restart, and return it."""
        return await self.tasks.wait_failed()

    # -- Endpoint -----------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        """Start the authentication timeout of a new connection."""
        if self._access is not None:
            self._access.opened(channel)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Handle one request."""
        handler = self._handlers.get(request.code)
        if handler is None or request.code not in NAMESRV_CALLERS:
            return request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request type {request.code} not supported by a name server",
            )
        rejection = None if self._access is None else self._access.check(channel, request)
        try:
            return handler(channel, request) if rejection is None else rejection
        except Rejected as rejected:
            return error_response(request, rejected)
        except InvariantError as error:
            self.tasks.fail(f"request {request.code}", error)
            raise

    def end_of_buffer(self) -> None:
        """Do nothing: requests are handled one by one."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Remove the brokers of a closed connection."""
        if self._access is not None:
            self._access.closed(channel)
        for broker in self.routes.drop_channel(channel):
            log.warning("broker %s at %s disconnected", broker.identity.name, broker.identity.address)

    # -- time ---------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _drop_silent(self) -> None:
        expired_ms = self.config.broker_expired_ms
        for broker in self.routes.drop_inactive(self._now_ms(), expired_ms):
            log.warning(
                "broker %s at %s is removed: it was silent for %d ms",
                broker.identity.name, broker.identity.address, expired_ms,
            )  # fmt: skip
            if isinstance(broker.channel, Channel):
                broker.channel.close()

    # -- requests of brokers -------------------------------------------------------------------

    def _register(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(RegisterBrokerRequestHeader)
        if header.body_crc32 and crc32(request.body) != header.body_crc32:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = RegisterBrokerBody()
        if request.body:
            body = RegisterBrokerBody.decode(request.body, compressed=header.compressed)
        topics = body.topic_config_serialize_wrapper
        broker = _identity(header)
        account = self._account(channel, request)
        try:
            check_registration(
                broker, header.ha_server_addr, topics.topic_config_table.values(), body.filter_server_list
            )
            self._check_route_limit(broker, topics.topic_config_table)
            self._check_duplicate(broker, channel, account)
        except UsageError as error:
            remark = f"broker {broker.name[:200]} is not registered: {error}"
            log.warning("%s: %s", channel.remote_address, remark)
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        master = self.routes.register(
            broker,
            ha_address=header.ha_server_addr,
            topics=topics.topic_config_table,
            data_version=topics.data_version,
            filter_servers=body.filter_server_list,
            channel=channel,
            now_ms=self._now_ms(),
            account=account,
        )
        response_header = RegisterBrokerResponseHeader(
            ha_server_addr=master.ha_address, master_addr=master.address
        )
        order = self._kv_body(ORDER_TOPIC_NAMESPACE) or b""
        return request.reply(header=response_header, body=order if len(order) <= _ORDER_BYTES_MAX else b"")

    def _account(self, channel: Channel, request: Command) -> str:
        """Return the account of a request, or the host if it has none. Empty without access control."""
        if self._access is None:
            return ""
        return request.ext_fields().get(ACCESS_KEY) or f"host {channel.remote_host}"

    def _check_route_limit(self, broker: BrokerIdentity, topics: Mapping[str, TopicConfig]) -> None:
        new = self.routes.count_new(broker, topics)
        if new and self.routes.entries + new > self.config.routes_max:
            raise UsageError(
                f"{new} new routes and {self.routes.entries} known ones are too many; the limit of maxRoutes "
                f"is {self.config.routes_max}"
            )

    def _check_duplicate(self, broker: BrokerIdentity, channel: Channel, account: str) -> None:
        """Warn if a broker replaces a connected one. Raise UsageError if that belongs to another account.

        A broker that restarted at another address, or a replica that leads now, has the same account. A
        broker without a connection can be replaced.
        """
        known = self.routes.live_broker(broker.address)
        if known is not None and known.identity.name != broker.name and known.account != account:
            raise UsageError(
                f"{broker.address} is the address of broker {known.identity.name}, which another account "
                "registered; set brokerIP1 or listenPort to an address of its own"
            )
        if known is not None and known.identity.name != broker.name and known.channel is not channel:
            log.warning(
                "broker %s at %s replaces broker %s, which is still connected and has that address, too; set "
                "brokerIP1 or listenPort of one of them, or clients find only one",
                broker.name,
                broker.address,
                known.identity.name,
            )
        duplicate = self.routes.find_duplicate(broker)
        if duplicate is None or duplicate.channel is channel:
            return
        where = f"brokerName={broker.name} and brokerId={broker.broker_id}"
        if duplicate.account != account:
            raise UsageError(
                f"the broker at {duplicate.identity.address}, of another account, is registered with "
                f"{where}; stop it first, or use its account"
            )
        log.warning(
            "the broker at %s replaces the one at %s, which is still connected and has %s, too. Unless a "
            "replica took over, two brokers have the same identity: change that of one",
            broker.address,
            duplicate.identity.address,
            where,
        )

    def _unregister(self, channel: Channel, request: Command) -> Command:
        header = request.header_as(UnRegisterBrokerRequestHeader)
        live = self.routes.live_broker(header.broker_addr)
        if live is not None and live.account != self._account(channel, request):
            remark = f"the broker at {header.broker_addr} was registered by another account"
            log.warning("unregistration by %s rejected: %s", channel.remote_address, remark)
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        self.routes.unregister(_identity(header))
        log.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
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

    # -- requests of clients ------------------------------------------------------------------

    def _route(self, channel: Channel, request: Command) -> Command:
        topic = request.header_as(GetRouteInfoRequestHeader).topic
        self._drop_outdated()
        known = self._routes.get(topic)
        if known is not None:
            return request.reply(body=known)
        route = self.routes.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{FAQ}"
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        if self.config.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPIC_NAMESPACE, topic)
            return request.reply(body=route.encode())
        body = self._routes[topic] = route.encode()
        return request.reply(body=body)

    def _drop_outdated(self) -> None:
        """Drop encoded responses if the routes have changed."""
        if self._routes_at != self.routes.changes:
            self._routes_at = self.routes.changes
            self._routes.clear()
            self._tables.clear()

    def _table(self, request: Command, make: Callable[[], Body], cluster: str = "") -> Command:
        """Respond with a table. Large ones are encoded once for each state of the routes, and shared."""
        self._drop_outdated()
        key = request.code, cluster
        body = self._tables.get(key)
        if body is None:
            body = make().encode()
            if len(body) > _SHARED_BYTES_MIN:  # small ones are cheap, and clients may name any cluster
                self._tables[key] = body
        return request.reply(body=body)

    def _cluster_info(self, channel: Channel, request: Command) -> Command:
        return self._table(request, self.routes.cluster_info)

    def _topics_by_cluster(self, channel: Channel, request: Command) -> Command:
        cluster = request.header_as(GetTopicsByClusterRequestHeader).cluster
        return self._table(
            request, lambda: TopicList(topic_list=self.routes.topics_of_cluster(cluster)), cluster
        )

    def _system_topics(self, channel: Channel, request: Command) -> Command:
        def make() -> TopicList:
            topics, broker_addr = self.routes.system_topics()
            return TopicList(topic_list=topics, broker_addr=broker_addr)

        return self._table(request, make)

    # -- requests of operators ---------------------------------------------------------------

    def _wipe_write_perm(self, channel: Channel, request: Command) -> Command:
        count = self._set_write_perm(channel, request, is_writable=False)
        return request.reply(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def _add_write_perm(self, channel: Channel, request: Command) -> Command:
        count = self._set_write_perm(channel, request, is_writable=True)
        return request.reply(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    def _set_write_perm(self, channel: Channel, request: Command, *, is_writable: bool) -> int:
        name = request.header_as(WipeWritePermOfBrokerRequestHeader).broker_name
        count = self.routes.set_write_perm(name, is_writable=is_writable)
        verb = "added" if is_writable else "wiped"
        log.info("%s %s the write permission of %s: %d topics", channel.remote_address, verb, name, count)
        return count

    def _delete_topic(self, channel: Channel, request: Command) -> Command:
        topic = request.header_as(DeleteTopicInNamesrvRequestHeader).topic
        self.routes.delete_topic(topic)
        log.info("%s deleted topic %s", channel.remote_address, topic)
        return request.reply()

    def _put_kv(self, channel: Channel, request: Command) -> None:
        header = request.header_as(PutKVConfigRequestHeader)
        change = KvChange(header.namespace, header.key, header.value)
        self.kv.check(
            change,
            value_bytes_max=self.config.kv_value_bytes_max,
            bytes_max=self.config.kv_bytes_max,
            reserved=self._kv_unsaved_bytes,
        )
        respond_later(self.tasks, channel, request, self._change_kv(request, change))

    async def _change_kv(self, request: Command, change: KvChange) -> Command:
        if self._kv_saver is None:
            self._use_kv([change])
        else:
            self._kv_unsaved_bytes += change.size
            try:
                await self._kv_saver.save(change)
            finally:
                self._kv_unsaved_bytes -= change.size
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

    def _delete_kv(self, channel: Channel, request: Command) -> None:
        header = request.header_as(DeleteKVConfigRequestHeader)
        change = KvChange(header.namespace, header.key, None)
        respond_later(self.tasks, channel, request, self._change_kv(request, change))

    def _kv_list(self, channel: Channel, request: Command) -> Command:
        namespace = request.header_as(GetKVListByNamespaceRequestHeader).namespace
        body = self._kv_body(namespace)
        if body is None:
            raise Rejected(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.reply(body=body)

    def _kv_body(self, namespace: str) -> bytes | None:
        """Return the encoded settings of a namespace; None without any."""
        table = self.kv.namespace(namespace)
        if table is None:
            return None
        body = self._kv_bodies.get(namespace)
        if body is None:
            body = self._kv_bodies[namespace] = KVTable(table=table).encode()
        return body

    def _prepare_kv(self, path: Path, changes: Sequence[KvChange]) -> Callable[[], None]:
        return partial(save_state, OsDisk(), path, self.kv.encode(changes))

    def _use_kv(self, changes: Sequence[KvChange]) -> None:
        self._kv_bodies.clear()
        for change in changes:
            self.kv.apply(change)

    def _check_kv_bytes(self) -> None:
        """Log an error for an older file with more order configurations than a response may hold."""
        order = self._kv_body(ORDER_TOPIC_NAMESPACE) or b""
        if len(order) > _ORDER_BYTES_MAX:
            log.error(
                "%s has %d bytes in %s; brokers receive none of it above %d bytes. Delete unused keys",
                self.config.kv_config_path,
                len(order),
                ORDER_TOPIC_NAMESPACE,
                _ORDER_BYTES_MAX,
            )

    def _update_config(self, channel: Channel, request: Command) -> None:
        work = update_settings(self._live, channel, request, self._settings_changed)
        respond_later(self.tasks, channel, request, work)

    async def _settings_changed(self, keys: frozenset[str]) -> None:
        self._routes.clear()  # they have no order configurations

    def _handler_table(self) -> dict[int, Handler]:
        def lists(topics: Callable[[], list[str]]) -> Handler:
            return lambda _, request: self._table(request, lambda: TopicList(topic_list=topics()))

        routes = self.routes
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
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lists(routes.topics),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: lists(routes.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lists(routes.unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lists(routes.unit_sub_un_unit_topics),
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: lambda _, request: request.reply(body=self._live.text().encode()),
        }


def _identity(header: RegisterBrokerRequestHeader | UnRegisterBrokerRequestHeader) -> BrokerIdentity:
    return BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
    )
