"""A broker: creates store, services and handlers, and starts and stops them in order.

Start: open and recover the store; bring consume queues and index up to date; listen; register.
Stop: unregister, reject new requests, respond to parked sends, flush, close the store.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.native import native_form
from rocketpy.protocol.bodies import TopicRouteData
from rocketpy.protocol.message.record import host_bytes
from rocketpy.runtime.tasks import Closable, Step, Tasks, close_all
from rocketpy.telemetry.plugin import find_telemetry
from rocketpy.transport import Address, Endpoint, Server, TlsFiles
from rocketpy_broker.broker.consumer_services import BrokerContext, ConsumerServices
from rocketpy_broker.broker.delivery_services import DeliveryServices
from rocketpy_broker.broker.dledger_role import DLedgerReplication
from rocketpy_broker.broker.drain import drain
from rocketpy_broker.broker.expired_queue_offsets import ExpiredQueueOffsets
from rocketpy_broker.broker.ha_role import HaReplication
from rocketpy_broker.broker.open_files import fit_open_files_limit
from rocketpy_broker.broker.request_router import RequestRouter
from rocketpy_broker.broker.role_change import RoleChangeHandler
from rocketpy_broker.broker.vip_port import serve_ports
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.access import AccessHandler
from rocketpy_broker.handlers.admin import AdminHandler
from rocketpy_broker.handlers.base import handler_table
from rocketpy_broker.handlers.send.response import SendResponses
from rocketpy_broker.handlers.send.response_waiters import FlushWaiters
from rocketpy_broker.handlers.users import UserHandler
from rocketpy_broker.metrics.collecting import BrokerState, MetricSources
from rocketpy_broker.metrics.health import Check, failing_calls, probe_server, upkeep_check
from rocketpy_broker.metrics.reporting import MetricsReporter
from rocketpy_broker.metrics.tracing import SendTracing, TracedResponses
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.replication.ha.client import HaClientState
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS
from rocketpy_broker.security.guard import create_access_guard
from rocketpy_broker.security.lookups import BrokerLookups
from rocketpy_broker.services.cluster.registration import Registrar, advertised
from rocketpy_broker.services.cluster.slave_sync import SlaveSync
from rocketpy_broker.services.metadata.lost_state import restore_tables
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.store import FlushDiskType, MessageStore, RecoveryReport
from rocketpy_broker.store.files.disk import Disk, spare_descriptors
from rocketpy_broker.store.queue.dispatch import Arrivals
from rocketpy_broker.store.upkeep.driver import StoreDriver, StoreHealth

log = logging.getLogger("rocketpy.broker")

_FLUSH_S_MAX = 10.0
"""A longer flush means that the disk hangs."""
_NO_HOST = "127.0.0.1"
"""Host in message ids for an address without an IP address (memory://, a host name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """Health of a broker."""

    is_serving: bool
    """Whether it handles requests and has no `failure`."""
    failure: str | None
    """Failure or full disk that makes it reject messages; None without one. A slave has none by its role."""
    registered_at: tuple[str, ...]
    """Name servers where it is registered."""
    registration_problems: tuple[str, ...]
    """Problems of registrations, also of single topics."""
    connections: int
    """Open connections of clients."""
    store: StoreHealth
    """Health of the store."""
    stalled: tuple[str, ...] = ()
    """What it has tried for a minute without success: a flush, a save of offsets, the delivery of delayed
    messages, the check of transactions, the deletion of files; on a slave, copies from the master. Also
    periodic calls that failed because of a bug."""
    tls_problem: str = ""
    """Error of the last reload of replaced certificates; empty without one."""
    access_problem: str = ""
    """Why a change of auth.json or plain_acl.yml is not in effect; empty without a problem."""
    replication_problem: str = ""
    """Why a SYNC_MASTER has no slave, or which peers do not respond to a DLedger leader; or empty."""


class Broker:
    """A broker. It serves at `address` from `start` to `close`.

    Args:
        config: Settings of the broker.
        disk: File system of the store; None for the real one.
        intercept: Wraps the endpoint that gets the requests of clients, so that tests can delay or refuse
            them; None for no wrapper.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        intercept: Callable[[Endpoint], Endpoint] | None = None,
    ) -> None:
        self.config = config = fit_open_files_limit(config)
        self.store = _store(config, disk)
        self.recovery: RecoveryReport | None = None
        """Result of the recovery of the store, after the start."""
        self.tasks = Tasks(f"broker {config.name}", self._log_failure)
        self.topics = TopicTable(config, config.store.root / "config" / "topics.json", self.tasks)
        self._access = create_access_guard(config.listen, BROKER_CALLERS, self.tasks, config.cluster_name)
        self._endpoint = RequestRouter(self.tasks, self._access)
        self._listener = self._endpoint if intercept is None else intercept(self._endpoint)
        self._driver = StoreDriver(self.store, on_failure=self.tasks.fail_with)
        self._context = BrokerContext(config, self.store, self._driver, self.topics, self.tasks, self._access)
        self.consumers = ConsumerServices(self._context)
        self.delivery = DeliveryServices(self._context, self.consumers)
        self._expired_offsets = None
        if isinstance(self.store, LedgerStore):
            self._expired_offsets = ExpiredQueueOffsets(self.store, self.topics, self.consumers.offsets)
        self._sync = SlaveSync(
            self.topics,
            self.consumers.groups,
            self.consumers.modes,
            self.consumers.offsets,
            self.delivery.delay,
            self.store,
            self.tasks,
            registration=config.registration,
            interval_ms=config.ha.sync_interval_ms,
            drop_queues=self._driver.drop_queues,
            may_sync=self._may_sync,
            copy_more=None if self._expired_offsets is None else self._expired_offsets.copy_from_master,
            adopt_timers=self.delivery.timers.adopt if config.timers.enabled else None,
        )
        self._role_changes: RoleChangeHandler | None = None
        self._replication = self._make_replication()
        self._less_durable: Mapping[int, int] = {}
        self._servers: list[Server] = []
        """Servers at listenPort and at listenPort - 2."""
        self._registrar: Registrar | None = None
        self._waiters: FlushWaiters | None = None
        self.metrics: MetricsReporter | None = None
        """Reporter of metrics, while the broker runs."""
        self.http = probe_server(config.metrics, self.tasks, self.readiness)
        """HTTP server for metrics and probes; None without metricsPort."""
        self._is_serving = False
        self.phase: str | None = "not started"
        """Current step of start or stop; None while it serves."""

    def _make_replication(self) -> HaReplication | DLedgerReplication:
        if not isinstance(self.store, LedgerStore) or self._expired_offsets is None:
            return HaReplication(self.config, self.store, self._driver, self.tasks)
        self._role_changes = RoleChangeHandler(
            self._context,
            self.consumers,
            self.delivery,
            self._sync,
            self._expired_offsets,
            self._refresh_registration,
        )
        return DLedgerReplication(self.config, self.store, self._driver, self._role_changes, self.tasks)

    @property
    def address(self) -> Address:
        """Listening address, with the real port."""
        return self._servers[0].address if self._servers else self.config.listen.address

    @property
    def advertised_address(self) -> str:
        """Address that the broker registers for clients."""
        return advertised(self.address, self.config.advertised_host)

    @property
    def replication(self) -> HaReplication:
        """HA replication of the broker. Raises ConfigInvalid for a broker in a DLedger group."""
        if isinstance(self._replication, DLedgerReplication):
            raise ConfigInvalid(f"{self.config.name} is in a DLedger group")
        return self._replication

    @property
    def ledger(self) -> DLedgerReplication:
        """DLedger replication of the broker. Raises ConfigInvalid for a broker without a DLedger group."""
        if isinstance(self._replication, HaReplication):
            raise ConfigInvalid(f"{self.config.name} is not in a DLedger group")
        return self._replication

    @property
    def is_master(self) -> bool:
        """Whether it accepts messages and is registered at every name server. In a DLedger group, only the
        leader.
        """
        known = self._registrar is not None and len(self._registrar.registered_at) == len(
            self.config.registration.namesrv
        )
        return self._is_serving and known and not self._replication.is_slave

    def health(self) -> BrokerHealth:
        """Return the current health."""
        store = self._driver.health()
        failure = store.failure if self.tasks.failure is None else str(self.tasks.failure)
        replication = self._sync.jobs.problems() + self._replication.stalled()
        return BrokerHealth(
            is_serving=self._is_serving and failure is None,
            failure=failure,
            registered_at=tuple(self._registrar.registered_at) if self._registrar else (),
            registration_problems=tuple(self._registrar.problems) if self._registrar else (),
            connections=sum(len(server.channels) for server in self._servers),
            store=store,
            stalled=(
                *self._local_stalls(),
                *(replication if self._replication.is_slave else ()),
                *self._failing_calls(),
            ),
            tls_problem=self._tls_problem(),
            access_problem="" if self._access is None else self._access.problem,
            replication_problem=self._replication.problem(),
        )

    def _local_stalls(self) -> list[str]:
        jobs = (self.consumers.offsets.jobs, self.consumers.order.jobs)
        return [*self._driver.health().stalled, *(text for each in jobs for text in each.problems())]

    def _failing_calls(self) -> list[str]:
        return failing_calls(self.tasks, self._driver.tasks, *(server.tasks for server in self._servers))

    def _tls_problem(self) -> str:
        used = (self.config.listen.options.ssl, self.config.registration.ssl)
        problems = [tls.problem for tls in used if isinstance(tls, TlsFiles)]
        return "; ".join(filter(None, problems))

    def readiness(self) -> list[Check]:
        """Return the checks of /readyz."""
        health = self.health()
        flushing_s = health.store.current_flush_seconds
        hangs = f"a flush has not finished after {flushing_s:.0f} s" if flushing_s > _FLUSH_S_MAX else None
        name_servers = self.config.registration.namesrv
        unregistered = None
        if name_servers and not health.registered_at:
            reasons = "; ".join(health.registration_problems) or ", ".join(map(str, name_servers))
            unregistered = f"not registered at any name server: {reasons}"
        checks = [
            Check("serving", self.phase),
            Check("store", health.failure),
            Check("disk", hangs or "; ".join(self._local_stalls()) or None),
            Check("registration", unregistered),
            upkeep_check(self._failing_calls()),
        ]
        if (slave_state := self._replication.slave_state()) is not None:
            refused = slave_state is HaClientState.REFUSED
            checks.append(Check("replication", "the master rejected it; see the log" if refused else None))
        if (peer := self._replication.health()) is not None:
            no_leader = None if peer.leader_id is not None else f"no leader in term {peer.term}"
            checks.append(Check("dledger", peer.problem or no_leader))
        return checks

    async def wait_failed(self) -> RocketError:
        """Wait for a failure that needs a restart, and return it."""
        return await self.tasks.wait_failed()

    # -- starting -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the store, then serve and register. On failure, the broker is closed.

        Raises:
            RocketError: The store or a setting is wrong, or name servers cannot be reached.
            OSError: A port or a file cannot be used.
        """
        spare_descriptors.hold()
        try:
            self.phase = "opening the store"
            if self.http is not None:
                await self.http.start()  # for probes during the recovery
            self.recovery = await self._driver.start()
            if self._access is not None:  # the start may write auth.json, which is in the locked store
                self._access.start()
            self.phase = "starting"
            self.topics.load()
            self.consumers.load()
            self.store.dispatch()
            self.delivery.load()
            await self._restore_tables()
            self._replication.load(is_clean=self.recovery.clean)
            await self._listen()
            self._serve()
            self._report()
            await self._register()
            self._replicate()
            self.phase = None
        except BaseException:  # nothing may stay open
            await self.close()
            raise
        log.info("broker %s at %s; hot functions: %s", self.config.name, self.address, native_form())
        self.tasks.every(lambda: self.config.offset_interval_ms / 1000, self._save_tables, "save of tables")

    async def _restore_tables(self) -> None:
        """Reconcile the files of the config directory with the store, or report them. Raises StoreError."""
        consumers = self.consumers
        is_copied = self.config.is_slave or self.config.dledger.enabled
        if not is_copied:
            self.topics.limit_deletions(self.store.max_physical_offset)
        self.store.drop_deleted(self.topics.deleted)  # recovery may have rebuilt their queues
        from_rocketpy = self.recovery is not None and self.recovery.from_rocketpy
        restore_tables(
            self.store,
            self.topics,
            consumers.groups,
            consumers.offsets,
            self.delivery.delay,
            is_certain=from_rocketpy,
            is_copied=is_copied,
        )
        await self._save_tables()

    async def _listen(self) -> None:
        self._servers = await serve_ports(self.config, self._listener, self.tasks.fail_with)
        await self._replication.listen(self.address)

    def _serve(self) -> None:
        """Create the handlers, and start to handle requests."""
        config, store = self.config, self.store
        host = _host_bytes(self.advertised_address)
        store.set_store_host(host)
        is_sync = config.store.flush.disk_type is FlushDiskType.SYNC_FLUSH and not config.dledger.enabled
        tracing = self._tracing()
        responses = self._responses(host, tracing)
        self._less_durable = responses.less_durable
        park = self._replication.park(responses, self._is_flush_pending)
        if tracing is not None and park is not None:
            park = tracing.stage("replication wait", park)
        if is_sync:
            timeout_ms = config.store.flush.sync_timeout_ms
            self._waiters = FlushWaiters(
                self._driver, responses, self.tasks, timeout_ms=timeout_ms, then=park
            )
            park = self._waiters.park
            if tracing is not None:
                park = tracing.stage("flush wait", park)
        commits = self._replication.commits(responses)
        if tracing is not None and commits is not None:
            commits.park = tracing.stage("commit wait", commits.park)
        send, storing = self.delivery.start(host, responses, park, commits)
        if not self._replication.is_slave:
            self.delivery.run()
        consumers = self.consumers
        handlers = handler_table(
            self.tasks,
            *storing,
            AdminHandler(
                store,
                self.topics,
                consumers.groups,
                config,
                offsets=consumers.offsets,
                modes=consumers.modes,
                order=consumers.order,
                remove_check_points=self.delivery.pop.remove_topic,
                delay_offsets=self.delivery.delay.offsets,
                timer_checkpoint=self.delivery.timers.checkpoint,
                timer_metrics=self.delivery.timers.metrics,
                info=self._runtime_info,
                wait_registered=self._wait_registered,
                delete_expired_files=self._driver.clean_now,
                drop_queues=self._driver.drop_queues,
            ),
            *consumers.handlers(self.advertised_address, self._route),
            AccessHandler(
                None if self._access is None else self._access.store, config, address=self.advertised_address
            ),
            UserHandler(None if self._access is None else self._access.store),
        )
        store.set_arrival_listener(self._arrived)
        consumers.start(host)
        if tracing is not None:
            handlers = tracing.handlers(handlers)
        if self._access is not None:
            self._access.connect(
                BrokerLookups(store, consumers.clients, config.cluster_name, send.end_of_buffer)
            )
        self._endpoint.serve(handlers, send=send, closed=(*consumers.closed, self.delivery.channel_closed))
        self._is_serving = True

    def _arrived(self, arrivals: Arrivals) -> None:
        """See `ArrivalListener`."""
        self.consumers.arrived(arrivals)
        self.delivery.arrived(arrivals)

    def _is_flush_pending(self) -> bool:
        """Whether sends wait for a flush."""
        return self._waiters is not None and self._waiters.are_waiting

    def _tracing(self) -> SendTracing | None:
        telemetry = find_telemetry(None) if self.config.metrics.trace_sends else None
        return SendTracing(telemetry, self.config.name) if telemetry is not None else None

    def _responses(self, host: bytes, tracing: SendTracing | None) -> SendResponses:
        make = SendResponses if tracing is None else partial(TracedResponses, tracing)
        send = self.config.send
        return make(store_host=host, region_id=send.region_id, trace_on=send.trace_on)

    async def _route(self, topic: str) -> TopicRouteData | None:
        return None if self._registrar is None else await self._registrar.route(topic)

    async def _wait_registered(self) -> None:
        if self._registrar is not None:
            await self._registrar.wait_registered()

    async def _register(self) -> None:
        self._registrar = Registrar(
            self.config,
            self.topics,
            self.tasks,
            address=self.advertised_address,
            ha_address=self._replication.advertised_address,
            broker_id=self._replication.broker_id,
            on_master=self._on_master_found,
        )
        self.topics.on_change = self._registrar.topics_changed
        await self._registrar.start()

    def _refresh_registration(self, broker_id: int | None) -> None:
        if self._registrar is not None:
            self._registrar.refresh(self._registrar.broker_id if broker_id is None else broker_id)

    def _report(self) -> None:
        consumers = self.consumers
        self.metrics = MetricsReporter(
            MetricSources(
                self.config,
                self.store,
                self.topics,
                consumers.offsets,
                consumers.clients,
                consumers.holds,
                consumers.stats,
                lambda: consumers.puts,
                self._state,
                self.delivery.in_flight,
            ),
            self.http,
        )
        self.metrics.start()

    def _runtime_info(self) -> dict[str, str]:
        health = self.health()
        reloads = [health.tls_problem, health.access_problem]
        problems = [health.failure, *health.stalled, *health.registration_problems, *reloads]
        text = "; ".join(filter(None, problems))
        table = self.delivery.timers.runtime_info() | ({"brokerProblem": text} if text else {})
        return self.consumers.runtime_info() | self._replication.info() | table

    def _state(self) -> BrokerState:
        health = self.health()
        return BrokerState(
            health.is_serving,
            len(health.stalled),
            health.connections,
            self._servers[0].memory,
            len(health.registered_at),
            self.consumers.booted_ms,
            health.store,
            self.delivery.delay.waiting(),
            self.delivery.timers.waiting,
            self.delivery.timers.late_ms,
            self.delivery.halves,
            self._replication.slaves(),
            self._replication.slave_state(),
            self._replication.health(),
            self._replication.missing(),
            self.delivery.pops_held,
            self.delivery.pop.points.revived,
            self.delivery.pop.late_ms,
            self._less_durable,
        )

    def _replicate(self) -> None:
        self._replication.start()
        if self._replication.is_slave and self._role_changes is None:
            self._sync.start()

    def _may_sync(self) -> bool:
        return self._replication.may_sync()

    def _on_master_found(self, address: str, ha_address: str) -> None:
        if address != self.advertised_address and (ha_address or self._role_changes is not None):
            self._replication.follow(ha_address)
            self._sync.follow(address)

    # -- running ------------------------------------------------------------------------------

    async def _save_tables(self) -> None:
        await self.topics.save()
        await self.consumers.save()

    def _log_failure(self, failure: RocketError) -> None:
        log.critical("broker %s has failed and must be restarted: %s", self.config.name, failure)

    # -- stopping -----------------------------------------------------------------------------

    async def drain(self) -> None:
        """Move producers to other brokers before `close`; return when slaves have all messages, too.

        The broker continues to serve, but /readyz fails. There is no time limit: cancel the call to stop
        waiting. On a slave, it returns immediately.
        """
        if self._registrar is None or self._replication.is_slave:
            return
        self.phase = "draining: waiting until producers use other brokers and slaves have all messages"
        await drain(self.config, self.topics.names, self._registrar, self._endpoint, self._replication)

    async def close(self) -> None:
        """Stop in order. `phase` names the current step.

        Raises:
            StoreError: The last flush failed. The broker is closed nevertheless.
        """
        self._is_serving = False
        steps: list[tuple[str, Closable | Step | None]] = [
            ("a change of the role", self._replication.stop_role_changes),
            ("timers of role changes", self._role_changes),
            ("copies of topics and offsets from the master", self._sync),
            ("access control", self._access),
            ("metrics", self.metrics),
            ("consumers", self.consumers),
            ("unregistration at name servers", self._registrar),
            ("new requests", partial(self._endpoint.reject_all, "the broker is shutting down")),
            ("sends that wait for their topics", self.topics.saver.drain),
            ("delayed messages and transactions", self.delivery),
            ("sends that wait for a flush", self._waiters),
            ("replication", self._replication),
            *(("connections of clients", server) for server in self._servers),
            ("background tasks", self.tasks),
            ("held pulls", self.consumers.end_slices),  # the last flush uses the store in a thread
            ("tables and consumer offsets", self._save_tables),
            ("the last flush of the store", self._driver),
            ("probes", self.http),
        ]
        await close_all(*(self._in_phase(name, step) for name, step in steps if step is not None))
        self.phase = "closed"

    def _in_phase(self, name: str, step: Closable | Step) -> Step:
        def run() -> Awaitable[object] | None:
            self.phase = f"stopping: {name}"
            return step() if callable(step) else step.close()

        return run


def _store(config: BrokerConfig, disk: Disk | None) -> MessageStore:
    if config.dledger.enabled:
        directory = config.store.root / f"dledger-{config.dledger.self_id}"
        return LedgerStore(config.store, directory, disk=disk)
    return MessageStore(config.store, disk=disk)


def _host_bytes(address: str) -> bytes:
    """Encode an address as in records and message ids."""
    parsed = Address.parse(address)
    with contextlib.suppress(RocketError):
        return host_bytes(parsed.host, parsed.port)
    return host_bytes(_NO_HOST, parsed.port)
