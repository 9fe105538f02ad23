"""HA replication of a broker: a master serves its log, a slave copies the log of its master.

Every broker has both ends, as in RocketMQ: a slave may have slaves of its own.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from rocketpy.errors import ConfigInvalid, StoreError
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.config.model import BrokerConfig, BrokerRole
from rocketpy_broker.handlers.send.response import ParkResponses, SendResponses
from rocketpy_broker.handlers.send.response_waiters import ReplicaWaiters
from rocketpy_broker.replication.ha.client import HaClient, HaClientState
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves, SlaveState
from rocketpy_broker.replication.ha.epochs import rank
from rocketpy_broker.replication.ha.log import EpochFile, StoreSource
from rocketpy_broker.replication.ha.server import HaServer
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha_status import encode_slaves
from rocketpy_broker.services.cluster.registration import advertised
from rocketpy_broker.store import FlushDiskType, MessageStore
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.ha")


class HaReplication:
    """The HA port of one broker and, on a slave, its connection to the master."""

    def __init__(self, config: BrokerConfig, store: MessageStore, driver: StoreDriver, tasks: Tasks) -> None:
        self._config = config
        self._tasks = tasks
        self._store = store
        self._driver = driver
        self.is_slave = config.is_slave
        """Whether it copies a master."""
        ha = config.ha
        self.epochs = EpochFile(store.disk, config.store.root / "config" / "haEpochs.json")
        self.connected = ConnectedSlaves(
            behind_bytes_max=ha.behind_bytes_max, joined_only=ha.handshake_required
        )
        settings = HaSettings(
            heartbeat_ms=ha.heartbeat_ms,
            silence_ms=ha.silence_ms,
            batch_bytes=ha.batch_bytes,
            secret=ha.secret,
            wants_flushed=config.store.flush.disk_type is FlushDiskType.SYNC_FLUSH,
        )
        self.server = HaServer(
            StoreSource(store, self.epochs),
            self._server_settings(settings),
            self.connected,
            self._acked,
            tasks,
            allowed_names=config.replica_names,
        )
        self.client = HaClient(
            driver,
            self.epochs,
            settings,
            tasks,
            name=config.name,
            broker_id=config.broker_id,
            reconnect_ms=ha.reconnect_ms,
            on_copied=driver.schedule_dispatch,
            options=ChannelOptions(ssl=config.registration.ssl),
        )
        self._waiters: ReplicaWaiters | None = None
        self._is_closing = False
        driver.on_written = self._wake_slaves

    def _server_settings(self, settings: HaSettings) -> HaSettings:
        """Return the settings of the HA port. With access control and no secret, it rejects every slave."""
        config = self._config
        if not config.accepts_any_replica or config.replica_address.scheme == "memory":
            return settings
        if not config.listen.is_open:
            log.info("the HA port rejects all slaves: access control is on and haSecret is not set")
            return replace(settings, secret=secrets.token_hex(32))
        if config.listen.has_access_control or not config.listen.is_local:
            log.warning(
                "any host that reaches the HA port can copy every message: "
                "insecure is true and haSecret is not set"
            )
        return settings

    @property
    def broker_id(self) -> int:
        """Id among the brokers of its name."""
        return self._config.broker_id

    def load(self, *, is_clean: bool) -> None:
        """Load the epochs; the store is open. is_clean: whether the last stop was clean.

        Raises StoreDamaged, StoreError.
        """
        self.epochs.load(is_slave=self.is_slave)
        if self.is_slave:
            self.epochs.become_slave()
            self._store.reject(Reason.SLAVE, StoreError("this broker is a slave"))
        else:
            end, now_ms = self._store.max_physical_offset, self._store.clock()
            if self.epochs.is_older:
                log.warning(
                    "the epochs are an older copy, so a new epoch starts. Slaves reject this broker if "
                    "another one was promoted since; then start this one as a slave with an empty store"
                )
            is_current = is_clean and not self.epochs.is_older
            self.epochs.become_master(end, secrets.token_hex(8), now_ms, is_clean=is_current)

    async def listen(self, address: Address) -> None:
        """Open the HA port. address: listening address of the broker. Raises OSError."""
        options = self._config.listen.options
        if address.scheme == "memory":
            await self.server.start(Address("memory", f"{address.host}-ha"), options)
            return
        wanted, given = self._config.ha_port, self._config.listen.address.port
        port = wanted if wanted is not None else (given + 1 if 0 < given < 65535 else 0)
        try:
            await self.server.start(Address(address.scheme, address.host, port), options)
        except OSError as error:
            if wanted is not None or port == 0:
                raise
            await self.server.start(Address(address.scheme, address.host, 0), options)
            log.warning(
                "HA port %d cannot be used (%s); listening at %s instead. Set haListenPort",
                port,
                error,
                self.server.address,
            )

    @property
    def advertised_address(self) -> str:
        """HA address that the broker registers. Raises ConfigInvalid before `listen`."""
        address = self.server.address
        if address is None:
            raise ConfigInvalid("the HA port is not open")
        return advertised(address, self._config.ha_host or self._config.advertised_host)

    def info(self) -> dict[str, str]:
        """Return the runtime information for operators, which `ha_status` reads."""
        end, address = self._store.max_physical_offset, self.server.address
        table = {
            "haBrokerName": self._config.name,
            "haBrokerId": str(self._config.broker_id),
            "haRole": self._config.ha.role.name,
            "haAddress": "" if address is None else self.advertised_address,
            "haEpoch": str(rank(self.epochs.state, end)[0]),
            "haConnections": str(self.connected.connections),
            "haAckedOffset": str(self.connected.acked),
            "haSlaves": encode_slaves(self.slaves()),
        }
        if self.is_slave:
            table["haMasterAddress"] = str(self.client.address or "")
            table["haState"] = self.client.state.name
            table["haProblem"] = self.client.problem
        elif problem := self.problem():
            table["haProblem"] = problem
        return table

    def health(self) -> None:
        """Return None: there is no DLedger peer."""

    def missing(self) -> int:
        """Return 1 for a SYNC_MASTER without a slave that keeps up, else 0."""
        if self._config.ha.role is not BrokerRole.SYNC_MASTER:
            return 0
        return 0 if self.connected.is_slave_ok(self._store.max_physical_offset) else 1

    def problem(self) -> str:
        """Return why a SYNC_MASTER responds SLAVE_NOT_AVAILABLE to sends; empty if it does not."""
        if not self.missing():
            return ""
        count = self.connected.connections
        if not count:
            reason = "no slave is connected"
        elif self.connected.acked < 0:
            reason = f"no slave copies its log yet ({count} connected)"
        else:
            reason = f"every slave is haSlaveFallbehindMax or more behind ({count} connected)"
        return f"{reason}, so sends get SLAVE_NOT_AVAILABLE and one copy holds their messages"

    def slaves(self) -> list[SlaveState]:
        """Return the states of connected slaves."""
        return self.connected.states(self._store.max_physical_offset)

    def slave_state(self) -> HaClientState | None:
        """Return the state as a slave; None for a master."""
        return self.client.state if self.is_slave else None

    def stalled(self) -> list[str]:
        """Return what a slave has not done for a minute."""
        return self.client.jobs.problems() if self.is_slave else []

    def may_sync(self) -> bool:
        """Whether topics and offsets may be copied from the master."""
        return self.client.state is not HaClientState.REFUSED

    # -- roles --------------------------------------------------------------------------------

    def commits(self, responses: SendResponses) -> None:
        """Return None: sends do not wait for a majority."""

    def park(self, responses: SendResponses, has_unflushed: Callable[[], bool]) -> ParkResponses | None:
        """Return the function that parks responses until a slave has the messages; None without SYNC_MASTER.

        has_unflushed: whether sends wait for a flush, after which they are parked here.
        """
        if self._config.ha.role is not BrokerRole.SYNC_MASTER:
            return None
        self._waiters = ReplicaWaiters(
            self.connected,
            responses,
            self._tasks,
            timeout_ms=self._config.store.flush.sync_timeout_ms,
            has_unflushed=has_unflushed,
            poke=self.server.send_written,
            on_visible=self._driver.schedule_dispatch,
        )
        self._store.dispatcher.limit = self._waiters.limit
        return self._waiters.park

    def _acked(self) -> None:
        if self._waiters is not None:
            self._waiters.acked()

    def start(self) -> None:
        """On a slave, start to copy the configured master, or the one passed to `follow`."""
        if self.is_slave:
            if self._config.ha.master_address is not None:
                self.client.set_master(self._config.ha.master_address)
            self.client.start()

    def follow(self, ha_address: str) -> None:
        """Copy the master at an address from a name server. A configured address takes precedence."""
        if not self.is_slave or self._config.ha.master_address is not None:
            return
        address = Address.parse(ha_address)
        if address.scheme == "tcp" and self._config.listen.address.scheme == "tls":
            address = Address("tls", address.host, address.port)
        self.client.set_master(address)

    def _wake_slaves(self) -> None:
        if not self._is_closing:
            self.server.send_written()

    async def stop_role_changes(self) -> None:
        """Do nothing: the role does not change."""

    async def close(self) -> None:
        """Stop after the responses to parked sends. The store must be open."""
        await self.client.close()
        if self._waiters is not None:
            await self._waiters.drain()
            self._waiters.fail()
        self._is_closing = True
        await self.server.close()
