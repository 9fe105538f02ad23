"""A whole cluster in this process: one name server and some brokers, for applications and tests.

```python
async with EmbeddedCluster() as cluster:
    async with Producer("group", namesrv=cluster.namesrv_address) as producer:
        await producer.send(Message("Topic", b"hello"))
```
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from rocketpy.client.lifecycle import Lifecycle
from rocketpy.errors import ConfigInvalid
from rocketpy.runtime.tasks import close_all
from rocketpy.transport import Address
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.keys import BROKER_KEYS, LISTEN_KEYS, STORE_KEYS, SettingValue
from rocketpy_broker.config.model import BrokerConfig, ListenConfig, NamesrvConfig
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.replication.ha.client import HaClientState

_SET_BY_CLUSTER: Final = {
    "brokerId": "a master has the id 0, and its slaves have 1, 2, …",
    "namesrvAddr": "the brokers use the name server of the cluster",
    "storePathRootDir": "give the directory as the cluster's store (of the command: --store)",
}
"""Keys that the cluster sets for its brokers, and what to do instead."""
_ADDRESS: Final = frozenset({"bindAddress", "listen", "listenPort"})
_SINGLE_BROKER_KEYS: Final = _ADDRESS | {"brokerName", "haListenPort"}
"""Keys that can hold for a single broker only."""

_NUMBERS: Final = itertools.count(1)
"""One a cluster, so that memory:// names of this process differ."""

_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(128 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""Smaller files for a store that is thrown away."""


_ELECTION_KEYS: Final = {
    "dLegerHeartbeatMillis": "300",
    "dLegerHeartbeatsMissed": "5",
    "dLegerVoteMillisMin": "50",
    "dLegerVoteMillisMax": "250",
}
"""Shorter than between machines: peers of one process hear each other at once."""
_SYNC_MS: Final = 500
"""How often copies ask for topics, groups and offsets, which is every 10 s between machines."""
_READY_S: Final = 60
_SLAVES_MAX: Final = 8


class EmbeddedCluster(Lifecycle):
    """A name server and `brokers` brokers, broker-a, broker-b, ….

    replicas: how many peers each of them has; 3 or 5 elect a leader (DLedger), and a message is kept when
    most of them have it. 1: a broker on its own. slaves: how many slaves each of them has, which copy its
    log; the key brokerRole says whether it waits for them (SYNC_MASTER).
    store: directory that is kept (one broker: its storePathRootDir; several: one below it each). None: a
    temporary one, removed at the end. transport: tcp listens on free loopback ports, memory on none.
    namesrv: where the name server listens instead. settings: broker.conf keys for every broker, with texts,
    numbers and booleans; name and address (listenPort, …) only for a single broker.

    Raises ConfigInvalid.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        brokers: int = 1,
        transport: Literal["tcp", "memory"] = "tcp",
        *,
        replicas: int = 1,
        slaves: int = 0,
        namesrv: str | None = None,
        settings: Mapping[str, SettingValue] | None = None,
    ) -> None:
        if not 1 <= brokers <= 26:
            raise ConfigInvalid(f"an embedded cluster has 1 to 26 brokers, not {brokers}")
        if transport not in ("tcp", "memory"):
            raise ConfigInvalid(f"transport is {transport!r}; tcp or memory is expected")
        self._store = None if store is None else Path(store)
        self._names = [f"broker-{chr(ord('a') + index)}" for index in range(brokers)]
        if replicas not in (1, 3, 5):
            raise ConfigInvalid(f"an embedded broker has 1, 3 or 5 replicas, not {replicas}")
        self._replicas = replicas
        if not 0 <= slaves <= _SLAVES_MAX:
            raise ConfigInvalid(f"an embedded broker has 0 to {_SLAVES_MAX} slaves, not {slaves}")
        if slaves and replicas > 1:
            raise ConfigInvalid(
                f"replicas={replicas} elect their master, so they have no slaves; give one of both"
            )
        self._slaves = slaves
        self._prefix = f"rocketpy-{next(_NUMBERS)}"
        self._memory = self._prefix if transport == "memory" else None
        self._namesrv_listen = namesrv or self._listen_text("namesrv")
        self._settings = dict(settings or {})
        self._check_settings(brokers * replicas * (1 + slaves))
        if "brokerName" in self._settings:
            self._names = [str(self._settings["brokerName"])]
        self._temporary: Path | None = None
        self.namesrv: NameServer | None = None
        self.brokers: list[Broker] = []

    @property
    def namesrv_address(self) -> str:
        """What clients are given as the name server's address. Raises ConfigInvalid before the start."""
        if self.namesrv is None:
            raise ConfigInvalid("the embedded cluster was not started")
        return str(self.namesrv.address)

    def _check_settings(self, members: int) -> None:
        for key in sorted(self._settings):
            if key in _SET_BY_CLUSTER:
                raise ConfigInvalid(f"settings: {key} cannot be set: {_SET_BY_CLUSTER[key]}")
            if key in _SINGLE_BROKER_KEYS and members > 1:
                raise ConfigInvalid(f"settings: {key} cannot be the same for {members} brokers")
            if key in _ADDRESS and self._memory is not None:
                raise ConfigInvalid(f"settings: {key} needs transport='tcp'")
        if str(self._settings.get("brokerRole", "")).strip() == "SLAVE":
            raise ConfigInvalid(
                "settings: brokerRole is that of masters; slaves=1 gives each of them a slave"
            )

    @property
    def servers(self) -> list[Broker | NameServer]:
        """All that runs."""
        return [*([] if self.namesrv is None else [self.namesrv]), *self.brokers]

    async def start(self) -> None:
        """Start all of it. Raises RocketError, OSError; nothing is left running then."""
        try:
            listen = ListenConfig(address=Address.parse(self._namesrv_listen))
            self.namesrv = NameServer(NamesrvConfig(listen=listen))
            await self.namesrv.start()
            root = await self._root()
            self._check_layout(root)
            for name in self._names:
                for settings in self._all_settings(name, root):
                    broker = Broker(_with_short_intervals(load_broker_config(overrides=settings)))
                    self.brokers.append(broker)
                    await broker.start()
            await self._ready()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all of it; a temporary store is removed. Raises what closing a store raises."""
        brokers, self.brokers = self.brokers, []
        await close_all(*reversed(brokers), self._close_namesrv, self._remove_store)

    async def _close_namesrv(self) -> None:
        namesrv, self.namesrv = self.namesrv, None
        if namesrv is not None:
            await namesrv.close()

    async def _remove_store(self) -> None:
        directory, self._temporary = self._temporary, None
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _root(self) -> Path:
        if self._store is not None:
            return self._store
        self._temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rocketpy-"))
        return self._temporary

    def _listen_text(self, role: str) -> str:
        return "127.0.0.1:0" if self._memory is None else f"memory://{self._memory}-{role}"

    def _broker_directory(self, name: str, root: Path) -> Path:
        """The directory of a broker and its copies."""
        return root if len(self._names) == 1 else root / name

    def _check_layout(self, root: Path) -> None:
        """Raise ConfigInvalid for a store of other brokers or replicas, whose messages would be missed."""
        for unexpected in self._unexpected_directories(root):
            raise ConfigInvalid(
                f"{root} has {unexpected.relative_to(root)}, so it was written with other numbers of "
                "brokers or replicas; give the same numbers as then, or another directory"
            )

    def _unexpected_directories(self, root: Path) -> Iterator[Path]:
        """What lies in a store that this cluster would not read."""
        if len(self._names) > 1:
            yield from root.glob("commitlog")
        yield from (path for path in root.glob("broker-[a-z]") if path not in self._broker_directories(root))
        for place in self._broker_directories(root):
            peers = {path.name for path in place.glob("n[0-9]")}
            if peers and peers != set(self._peers):
                yield from place.glob("n[0-9]")
            if self._peers:
                yield from place.glob("commitlog")

    def _broker_directories(self, root: Path) -> list[Path]:
        return [self._broker_directory(name, root) for name in self._names]

    @property
    def _peers(self) -> list[str]:
        """The ids of each group's peers; none for brokers on their own."""
        return [f"n{number}" for number in range(self._replicas)] if self._replicas > 1 else []

    def _all_settings(self, name: str, root: Path) -> Iterator[dict[str, SettingValue]]:
        """Settings of each member of a broker, masters first."""
        sizes = _SMALL_FILES if self._store is None else {}
        place = self._broker_directory(name, root)
        own = {**sizes, **self._settings, "brokerName": name, "namesrvAddr": self.namesrv_address}
        if self._replicas == 1:
            listen = {} if _ADDRESS & own.keys() else {"listen": self._listen_text(name)}
            yield {**own, **listen, "storePathRootDir": str(place)}
            for number in range(1, self._slaves + 1):
                yield {
                    **own,
                    "brokerRole": "SLAVE",
                    "brokerId": number,
                    "listen": self._listen_text(f"{name}-slave-{number}"),
                    "storePathRootDir": str(place / f"slave-{number}"),
                }
            return
        peers = self._peers
        group = {
            **_ELECTION_KEYS,
            **own,
            "enableDLegerCommitLog": "true",
            "dLegerGroup": name,
            "dLegerPeers": ";".join(f"{peer}-memory://{self._prefix}-{name}-{peer}" for peer in peers),
        }
        for peer in peers:
            yield {
                **group,
                "dLegerSelfId": peer,
                "listen": self._listen_text(f"{name}-{peer}-clients"),
                "storePathRootDir": str(place / peer),
            }

    async def _ready(self) -> None:
        """Wait until each broker has a master that the name server knows, and each slave copies.

        Raises TimeoutError.
        """
        try:
            async with asyncio.timeout(_READY_S):
                while not (self._has_masters() and self._has_slaves()):  # noqa: ASYNC110 - no event in common
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            lacking = "slave copies its master" if self._slaves else "leader was elected"
            raise TimeoutError(
                f"the embedded cluster is not ready after {_READY_S} s: no {lacking}"
            ) from error

    def _has_masters(self) -> bool:
        return {broker.config.name for broker in self.brokers if broker.is_master} == set(self._names)

    def _has_slaves(self) -> bool:
        if not self._slaves:
            return True
        slaves = [broker.replication for broker in self.brokers if broker.config.is_slave]
        masters = [broker.replication for broker in self.brokers if not broker.config.is_slave]
        return all(slave.slave_state() is HaClientState.COPIES for slave in slaves) and all(
            len(master.slaves()) == self._slaves and master.connected.acked >= 0 for master in masters
        )


def _with_short_intervals(config: BrokerConfig) -> BrokerConfig:
    """With the times between members of one process that are fixed in RocketMQ."""
    return replace(config, ha=replace(config.ha, sync_interval_ms=_SYNC_MS, reconnect_ms=_SYNC_MS))


async def open_embedded(path: str | None, options: Mapping[str, str]) -> EmbeddedCluster:
    """Start what the client's address ``embedded:`` (path None) or ``embedded:///path`` means.

    options: what follows ``?``: brokers, replicas, slaves, flush (sync or async), and keys of broker.conf.
    Entry point of the group "rocketpy.embedded". Raises ConfigInvalid, and what `EmbeddedCluster.start` does.
    """
    brokers, replicas, slaves = (_number(name, options.get(name, few)) for name, few in _COUNTS.items())
    settings: dict[str, SettingValue] = {}
    for name in sorted(options.keys() - _COUNTS):
        if name == "flush":
            key, value = _flush(options[name], is_ledger=replicas > 1)
            settings[key] = value
        elif name in _KEYS:
            settings[name] = options[name]
        else:
            near = get_close_matches(name, [*_COUNTS, "flush", *_KEYS], n=1)
            hint = f" did you mean {near[0]}?" if near else ""
            raise ConfigInvalid(
                f"embedded: has no option {name!r};{hint} known are {', '.join(_COUNTS)}, flush "
                "and the keys of broker.conf"
            )
    cluster = EmbeddedCluster(
        path, brokers, transport="memory", replicas=replicas, slaves=slaves, settings=settings
    )
    await cluster.start()
    return cluster


_COUNTS: Final = {"brokers": "1", "replicas": "1", "slaves": "0"}
"""Options that are numbers, and what they are when left out."""
_KEYS: Final = frozenset({*LISTEN_KEYS, *BROKER_KEYS, *STORE_KEYS})


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigInvalid(f"embedded:?{name}={text}: a whole number is expected")
    return int(text)


def _flush(text: str, *, is_ledger: bool) -> tuple[str, str]:
    """The key and value by which brokers flush before they answer, or later."""
    if text not in ("sync", "async"):
        raise ConfigInvalid(f"embedded:?flush={text}: sync or async is expected")
    if is_ledger:
        return "dLegerFlush", "quorum" if text == "sync" else "async"
    return "flushDiskType", f"{text.upper()}_FLUSH"
