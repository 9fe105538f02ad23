"""DLedger replication of a broker: its peer in the group, and the role that follows from it.

A leader becomes the master once all its entries are committed and in its queues. A follower becomes a slave.
Changes of the role run one after the other; each one completes before the next.

Source: DLedgerRoleChangeHandler of RocketMQ 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from rocketpy.errors import InvariantError, RocketError, StoreError
from rocketpy.protocol.bodies import MASTER_ID
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.broker.role_change import RoleChangeHandler
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.send.response import SendResponses
from rocketpy_broker.handlers.send.response_waiters import CommitWaiters
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.replication.dledger.peer import Peer, PeerHealth, PeerState
from rocketpy_broker.replication.ha.connected_slaves import SlaveState
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.dledger")

_NO_ROLE_ID: Final = -1
"""Broker id before the first role; see `Registrar`."""
_POLL_S: Final = 0.01
_DISPATCH_DELAY_S: Final = 0.005
"""A commit may cover a single message. The delay lets several be dispatched together; reads do not wait."""
_CONNECTIONS_MIN: Final = 4
_CONNECTIONS_MAX: Final = 256
_VOTE_WAIT_MS_MAX: Final = 3000
_RETRY_S: Final = 1.0
_CHANGE: Final = "change of the role"
_BEHIND_MS: Final = 30_000
"""A follower that has lacked entries for this long is a problem; replica.lag.time.max.ms of Kafka."""


@dataclass(eq=False)
class DLedgerReplication:
    """The DLedger peer of one broker, and its role."""

    config: BrokerConfig
    store: LedgerStore
    driver: StoreDriver
    role_changes: RoleChangeHandler
    tasks: Tasks

    def __post_init__(self) -> None:
        dledger = self.config.dledger
        own = dledger.peers[dledger.self_id]
        settings = RaftSettings(
            group=dledger.group,
            self_id=dledger.self_id,
            peers={peer: str(address) for peer, address in dledger.peers.items()},
            heartbeat_ms=dledger.heartbeat_ms,
            heartbeats_missed_max=dledger.heartbeats_missed_max,
            vote_interval_ms_min=dledger.vote_interval_ms_min,
            vote_interval_ms_max=dledger.vote_interval_ms_max,
            # A hanging peer delays an election by no more than the election timeout.
            vote_wait_ms=min(_VOTE_WAIT_MS_MAX, dledger.heartbeat_ms * dledger.heartbeats_missed_max),
            commit_push_ms=dledger.commit_push_ms,
            pending_max=dledger.pending_max,
            file_bytes=self.config.store.commit_log.segment_bytes,
            no_op=self.store.log.no_op,
            secret=dledger.secret,
        )
        host = own.host if own.scheme == "memory" else self.config.listen.address.host
        self.peer = Peer(
            settings,
            self.store.ledger,
            self.config.store.root / f"dledger-{dledger.self_id}",
            self.store.disk,
            self,
            listen=Address(own.scheme, host, own.port),
            listen_options=_few_connections(self.config.listen.options),
            connect_options=ChannelOptions(ssl=self.config.registration.ssl),
            allowed_names=self.config.replica_names,
            flush=dledger.flush,
            committed=lambda: self.store.log.committed_index,
        )
        self.store.log.on_expired = self.peer.expire
        self.broker_id = _NO_ROLE_ID
        self._master_term: int | None = None
        """Term in which this broker is the master; None while it is not."""
        self._works = True
        """Whether the work of the current role has started."""
        self._is_started = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiters: CommitWaiters | None = None
        self._leader_id: str | None = None
        self.driver.wait_for_commit = self._wait_for_commit

    # -- start and stop---------------------------------------------------------------------------

    def load(self, *, is_clean: bool) -> None:
        """Reject messages until this broker is the master; the store is open."""
        self.store.reject(Reason.SLAVE, StoreError("this broker does not lead its group"))

    async def listen(self, address: Address) -> None:
        """Join the group. Raises RocketError, OSError."""
        await self.peer.start()
        self._is_started = True

    @property
    def advertised_address(self) -> str:
        """Empty: there is no HA port."""
        return ""

    def follow(self, ha_address: str) -> None:
        """Do nothing: followers know their leader from the group."""

    def park(self, responses: SendResponses, has_unflushed: Callable[[], bool]) -> None:
        """Return None: sends do not wait for HA slaves, but for `commits`."""

    def missing(self) -> int:
        """Return the number of followers that do not respond to this leader."""
        return len(self.peer.health().silent) if self._is_started else 0

    def problem(self) -> str:
        """Return which followers do not respond to this leader, or are behind; empty without any."""
        if not self._is_started:
            return ""
        health, count = self.peer.health(), len(self.config.dledger.peers)
        silent = health.silent
        behind = [
            f"{peer} is {health.lags[peer]} entries and {lag_ms // 1000} s behind this leader"
            for peer, lag_ms in health.lags_ms.items()
            if lag_ms >= _BEHIND_MS and peer not in silent
        ]
        problems = [f"no response to this leader from {', '.join(silent)}: {len(silent)} of {count} peers"]
        problems = [*(problems if silent else []), *behind]
        if not problems:
            return ""
        survived = max(0, (count - 1) // 2 - len(silent) - len(behind))
        return f"{'; '.join(problems)}. The group survives {survived} more failures"

    def slaves(self) -> list[SlaveState]:
        """Return no slaves: there is no HA port."""
        return []

    def slave_state(self) -> None:
        """Return None: it is not an HA slave."""

    def stalled(self) -> list[str]:
        """Return nothing: `health` has the problems of the peer."""
        return []

    def may_sync(self) -> bool:
        """Whether topics and offsets are copied from the master."""
        return self.is_slave

    def commits(self, responses: SendResponses) -> CommitWaiters:
        """Return the waiters for the commit of messages."""
        self._waiters = CommitWaiters(
            responses,
            self.tasks,
            appended=lambda: self.store.appended_offset,
            push=self.peer.process_ready,
            timeout_ms=self.config.dledger.commit_wait_ms,
        )
        return self._waiters

    def start(self) -> None:
        """Start to follow changes of the role."""
        self._task = self.tasks.spawn(self._follow_role_changes(), "roles")

    async def stop_role_changes(self) -> None:
        """Stop changes of the role, as the broker is stopping."""
        await self.tasks.cancel(self._task)

    async def close(self) -> None:
        """Leave the group after the responses to parked sends. The store must be open."""
        await self.stop_role_changes()
        if self._waiters is not None:
            await self._waiters.drain()
        self._stop_leading()
        if self._is_started:
            await self.peer.close()

    async def _wait_for_commit(self) -> None:
        """Wait for the commit of all appended messages. Raises StoreError if this broker is not the
        leader.
        """
        term, until = self._master_term, self.store.appended_offset
        try:
            async with asyncio.timeout(self.config.dledger.commit_wait_ms / 1000):
                while term is not None and term == self._master_term:
                    if self.store.committed_offset >= until:
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise StoreError("no majority of the group responds") from error
        raise StoreError("this broker does not lead its group")

    def info(self) -> dict[str, str]:
        """Return the runtime information for operators, which `dledger_status` reads."""
        if not self._is_started:
            return {}
        dledger, health = self.config.dledger, self.peer.health()
        return {
            "dledgerGroup": dledger.group,
            "dledgerSelfId": dledger.self_id,
            "dledgerRole": health.role.value,
            "dledgerTerm": str(health.term),
            "dledgerLeader": health.leader_id or "",
            "dledgerEndIndex": str(health.end_index),
            "dledgerCommittedIndex": str(health.committed_index),
            "dledgerLeaderChanges": str(health.leader_changes),
            "dledgerLags": msgspec.json.encode(health.lags).decode(),
            "dledgerLagsMillis": msgspec.json.encode(health.lags_ms).decode(),
            "dledgerProblem": health.problem or self.problem(),
            "haBrokerName": self.config.name,
            "haBrokerId": str(self.broker_id),
        }

    def health(self) -> PeerHealth | None:
        """Return the health of the peer; None before it joins."""
        return self.peer.health() if self._is_started else None

    # -- PeerListener -------------------------------------------------------------------------

    def committed(self, index: int) -> None:
        """Release the responses that wait for committed messages, and dispatch these."""
        try:
            self.store.commit(index)
        except StoreError as error:
            self.tasks.fail_with(error)
            return
        if self._waiters is not None:
            self._waiters.committed(self.store.committed_offset)
        self.driver.schedule_dispatch(_DISPATCH_DELAY_S)

    def changed(self, state: PeerState) -> None:
        """Reject messages immediately after a loss of leadership. The rest of the change follows."""
        if self._master_term is not None and not self._is_leading(self._master_term):
            self._stop_leading()
        if state.leader_id is not None and state.leader_id != self._leader_id:
            self._leader_id = state.leader_id
            self.role_changes.leader_changed()
        self._changed.set()

    def failed(self, error: StoreError | InvariantError) -> None:
        """Stop leading, and fail the broker."""
        self._stop_leading()
        self.tasks.fail_with(
            error if isinstance(error, StoreError) else StoreError(str(error) or repr(error))
        )

    # -- roles --------------------------------------------------------------------------------

    @property
    def is_slave(self) -> bool:
        """Whether it is not the master."""
        return self._master_term is None

    def _is_leading(self, term: int) -> bool:
        state = self.peer.state
        return state.role is Role.LEADER and state.term == term

    def _stop_leading(self) -> None:
        """Reject messages. Uncommitted messages may be lost."""
        self._master_term = None
        self.store.reject(Reason.SLAVE, StoreError("this broker does not lead its group"))
        self.store.become_follower()
        if self._waiters is not None:
            self._waiters.fail()

    async def _follow_role_changes(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._change_role(self.peer.state)
                self.driver.jobs.ended(_CHANGE)
            except RocketError as error:
                self.driver.jobs.ended(_CHANGE, error)
                log.error("change of the role failed; retrying in %s s: %s", _RETRY_S, error)
                await asyncio.sleep(_RETRY_S)
                continue
            await self._changed.wait()

    async def _change_role(self, state: PeerState) -> None:
        if self._master_term is not None:  # still the master: the end of its term would have set None
            await self._start_work(self.role_changes.change_to_master)
            return
        if self.broker_id == MASTER_ID or (self.broker_id == _NO_ROLE_ID and state.role is Role.FOLLOWER):
            self.broker_id, self._works = self.config.dledger.slave_id, False
            log.info("%s is a slave, %d, in term %d", self.config.name, self.broker_id, state.term)
        await self._start_work(self.role_changes.change_to_slave)
        if state.role is Role.LEADER and await self._is_caught_up(state.term):
            await self.role_changes.load_delays()
            if not self._is_leading(state.term):
                return
            self.store.become_leader(self.peer)
            self.role_changes.prepare_master()
            self._master_term, self.broker_id, self._works = state.term, MASTER_ID, False
            self.store.reject(Reason.SLAVE, None)
            log.info("%s is the master in term %d", self.config.name, state.term)
            await self._start_work(self.role_changes.change_to_master)

    async def _start_work(self, start: Callable[[], Awaitable[None]]) -> None:
        """Start the work of the current role, unless it has started. Raises RocketError; try again then."""
        if not self._works:
            await start()
            self._works = True

    async def _is_caught_up(self, term: int) -> bool:
        """Wait until all entries are committed and dispatched; return False if it is no longer the leader."""
        while self._is_leading(term):
            if self.peer.committed_index == self.peer.end_index:
                self.store.dispatch()
                if self.store.is_dispatched:
                    return True
            await asyncio.sleep(_POLL_S)
        return False


def _few_connections(options: ChannelOptions) -> ChannelOptions:
    """Return options for the port of peers, which need few connections, so that clients get more."""
    few = max(_CONNECTIONS_MIN, min(_CONNECTIONS_MAX, options.max_connections // 4))
    return replace(options, max_connections=few)
