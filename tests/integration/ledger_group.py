"""A name server and brokers of a DLedger group in this process. Elections start only when a test wants them.

The election timeout is a minute, since a busy machine or a slow disk can delay this process by seconds.
Idle followers receive the committed index ten times as often as in RocketMQ, so that tests wait less for it.
When a leader is stopped, or loses its majority, the clock of the group's peers jumps ahead by that minute.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rocketpy import ClientConfig, Producer, ProducerConfig
from rocketpy.transport import Address
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.model import ListenConfig, NamesrvConfig
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.replication.dledger.core.events import Tick
from rocketpy_broker.replication.ha_status import find_broker_addresses
from tests.waiting import LIMIT_S

_NUMBERS = itertools.count()
Settings = Mapping[str, str]
_NONE: Settings = {}
SETTINGS = {
    "brokerName": "raft",
    "listen": "127.0.0.1:0",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "raft",
    "dLegerHeartbeatMillis": "100",
    "dLegerHeartbeatsMissed": "600",
    "dLegerVoteMillisMin": "20",
    "dLegerVoteMillisMax": "100",
}


class LedgerGroup:
    """A running group. Peers connect over memory://, clients over sockets.

    commit_wait_ms: how long a leader waits for a majority before it asks senders to try again.
    """

    def __init__(
        self,
        root: Path,
        namesrv: NameServer,
        size: int,
        sync_ms: int,
        roleless_ms: int,
        commit_wait_ms: int = 60_000,
    ) -> None:
        self.root = root
        self._sync_ms = sync_ms
        self._roleless_ms = roleless_ms
        self._commit_wait_ms = commit_wait_ms
        self._leapt_ms = 0.0
        self.namesrv_address = str(namesrv.address)
        number = next(_NUMBERS)
        self.names = [f"n{peer}" for peer in range(size)]
        self._peers = ";".join(f"{name}-memory://ledger-group-{number}-{name}" for name in self.names)
        self.running: dict[str, Broker] = {}

    async def start(self, name: str, settings: Settings = _NONE) -> Broker:
        """Start one of the brokers, with its files."""
        given = {
            **SETTINGS,
            "dLegerPeers": self._peers,
            "dLegerSelfId": name,
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(self.root / name),
            **settings,
        }
        config = load_broker_config(overrides=given)
        ha = replace(config.ha, sync_interval_ms=self._sync_ms)
        registration = replace(config.registration, roleless_ms=self._roleless_ms)
        dledger = replace(config.dledger, commit_wait_ms=self._commit_wait_ms, commit_push_ms=100)
        broker = Broker(replace(config, ha=ha, registration=registration, dledger=dledger))
        broker.ledger.peer._now_ms = self.now_ms  # type: ignore[method-assign] # a clock that can jump
        await broker.start()
        self.running[name] = broker
        return broker

    async def stop(self, name: str) -> None:
        """Stop one of the brokers. If it is the leader, the others elect a new one at once."""
        broker = self.running.pop(name)
        is_master = broker.is_master
        await broker.close()
        if is_master:
            await self.end_silence()

    def now_ms(self) -> float:
        """The time of the peers."""
        return asyncio.get_running_loop().time() * 1000 + self._leapt_ms

    def advance(self, ms: float) -> None:
        """Set the clock of the peers ahead by less than the election timeout."""
        self._leapt_ms += ms

    async def end_silence(self) -> None:
        """Move the clock past the election timeout of followers, and a leader's wait for its majority."""
        for _ in range(100):  # until pushes of a stopped leader have arrived
            await asyncio.sleep(0)
        peers = [broker.ledger.peer for broker in self.running.values()]
        self._leapt_ms += max((peer.settings.election_timeout_ms + 1 for peer in peers), default=0)
        for peer in peers:  # all at once: a peer that still follows would refuse its vote
            peer._step(Tick())

    def producer(self, client: ClientConfig | None = None) -> Producer:
        """A producer whose sends time out after a minute, too."""
        config = ProducerConfig(send_timeout_ms=60_000)
        return Producer("g", namesrv=self.namesrv_address, config=config, client=client)

    def masters(self) -> list[Broker]:
        return [broker for broker in self.running.values() if broker.is_master]

    async def master(self) -> Broker:
        """The master, once the name server knows it and all running peers follow it: no candidate is left."""
        namesrv = [Address.parse(self.namesrv_address)]
        async with asyncio.timeout(LIMIT_S):
            while True:
                known = [address for _, id_, address in await find_broker_addresses(namesrv) if id_ == 0]
                masters = self.masters()
                states = [broker.ledger.peer.state for broker in self.running.values()]
                leaders = {(state.term, state.leader_id) for state in states}
                if len(masters) == len(leaders) == 1 and known == [masters[0].advertised_address]:
                    return masters[0]
                await asyncio.sleep(0.02)

    def name_of(self, broker: Broker) -> str:
        return next(name for name, other in self.running.items() if other is broker)

    def slaves(self) -> list[Broker]:
        masters = self.masters()
        return [broker for broker in self.running.values() if broker not in masters]


@asynccontextmanager
async def ledger_group(
    root: Path,
    size: int = 3,
    settings: Settings = _NONE,
    sync_ms: int = 10_000,
    roleless_ms: int = 10_000,
    commit_wait_ms: int = 60_000,
) -> AsyncIterator[LedgerGroup]:
    """A running group; settings are broker.conf keys of every broker.

    sync_ms: how often slaves copy topics, groups and offsets. roleless_ms: when a broker without a role
    registers. commit_wait_ms: see `LedgerGroup`. All three are constants in RocketMQ.
    """
    namesrv = NameServer(NamesrvConfig(listen=ListenConfig(address=Address("tcp", "127.0.0.1", 0))))
    await namesrv.start()
    made = LedgerGroup(root, namesrv, size, sync_ms, roleless_ms, commit_wait_ms)
    try:
        for name in made.names:
            await made.start(name, settings)
        yield made
    finally:
        # The leader stops first, while the others can still store its last entries.
        for broker in sorted(made.running.values(), key=lambda broker: not broker.is_master):
            await broker.close()
        await namesrv.close()
