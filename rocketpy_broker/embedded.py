"""A cluster in this process: a name server and brokers, for applications and tests.

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
from collections.abc import Callable, Iterator, Mapping
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
"""Keys that the cluster sets for its brokers, and the reason or the alternative."""
_ADDRESS: Final = frozenset({"bindAddress", "listen", "listenPort"})
_SINGLE_BROKER_KEYS: Final = _ADDRESS | {"brokerName", "haListenPort"}
"""Keys that are possible only with a single broker."""

_NUMBERS: Final = itertools.count(1)
"""One number for each cluster, so that memory:// names are unique in this process."""

_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(128 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""Smaller files for a temporary store."""
_RESERVE_BYTES: Final = 8 << 20
"""Disk blocks that a temporary store allocates ahead of the end of its log; 64 MiB for others."""
_ELECTION_KEYS: Final = {
    "dLegerHeartbeatMillis": "300",
    "dLegerHeartbeatsMissed": "5",
    "dLegerVoteMillisMin": "50",
    "dLegerVoteMillisMax": "250",
}
"""Shorter than between machines, because there is no network between the peers."""
_SYNC_MS: Final = 500
"""Interval of copies of topics, groups and offsets (elsewhere 10 s), and delay of reconnects (5 s)."""
_READY_S: Final = 60
_SLAVES_MAX: Final = 8


class EmbeddedCluster(Lifecycle):
    """A name server and brokers named broker-a, broker-b, …

    Args:
        store: Directory of the messages. With one broker, it is the storePathRootDir. With several, each has
            a directory below it. None: a temporary directory, which is removed at the end.
        brokers: Number of brokers, or of groups of brokers.
        transport: ``tcp`` listens on free loopback ports, ``memory`` on no port.
        replicas: Peers of each broker. 3 or 5 elect a leader (DLedger), and a message is stored when a
            majority has it. 1: no DLedger.
        slaves: Slaves of each broker, which copy its log. With brokerRole=SYNC_MASTER, it waits for them.
        namesrv: Listening address of the name server; None for a free one.
        settings: Keys of broker.conf for every broker, with texts, numbers or booleans. Name and address
            (listenPort, …) are possible only with a single broker.
        make_broker: Makes each broker from its settings; tests may add an `intercept` or a `disk`.

    Raises:
        ConfigInvalid: An argument or a setting is wrong.
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
        make_broker: Callable[[BrokerConfig], Broker] = Broker,
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
        self._make_broker = make_broker
        self._check_settings(brokers * replicas * (1 + slaves))
        if "brokerName" in self._settings:
            self._names = [str(self._settings["brokerName"])]
        self._temporary: Path | None = None
        self.namesrv: NameServer | None = None
        self.brokers: list[Broker] = []

    @property
    def namesrv_address(self) -> str:
        """Address of the name server for clients. Raises ConfigInvalid before the start."""
        if self.namesrv is None:
            raise ConfigInvalid("the embedded cluster is not started")
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
                "settings: brokerRole is the role of masters; slaves=1 adds a slave to each of them"
            )

    @property
    def servers(self) -> list[Broker | NameServer]:
        """The running name server and brokers."""
        return [*([] if self.namesrv is None else [self.namesrv]), *self.brokers]

    async def start(self) -> None:
        """Start the name server and the brokers. On failure, all are stopped.

        Raises:
            RocketError: A server cannot start.
            OSError: A port or a file cannot be used.
            TimeoutError: The brokers are not ready in time.
        """
        try:
            listen = ListenConfig(address=Address.parse(self._namesrv_listen))
            self.namesrv = NameServer(NamesrvConfig(listen=listen))
            await self.namesrv.start()
            root = await self._root()
            self._check_layout(root)
            for name in self._names:
                for settings in self._all_settings(name, root):
                    config = _with_short_intervals(load_broker_config(overrides=settings))
                    if self._store is None:
                        config = _with_small_reserve(config)
                    broker = self._make_broker(config)
                    self.brokers.append(broker)
                    await broker.start()
            await self._ready()
        except BaseException:  # nothing may be left running
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all servers, and remove a temporary store.

        Raises:
            StoreError: A store cannot be flushed.
        """
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
        """Return the directory of a broker and its replicas."""
        return root if len(self._names) == 1 else root / name

    def _check_layout(self, root: Path) -> None:
        """Raise ConfigInvalid for a store of other brokers or replicas, whose messages would be missing."""
        for unexpected in self._unexpected_directories(root):
            raise ConfigInvalid(
                f"{root} contains {unexpected.relative_to(root)}, so it was written with other numbers of "
                "brokers or replicas; use the same numbers, or another directory"
            )

    def _unexpected_directories(self, root: Path) -> Iterator[Path]:
        """Yield directories of a store that this cluster would not read."""
        if len(self._names) > 1:
            yield from root.glob("commitlog")
        yield from (path for path in root.glob("broker-[a-z]") if path not in self._broker_directories(root))
        for directory in self._broker_directories(root):
            peers = {path.name for path in directory.glob("n[0-9]")}
            if peers and peers != set(self._peers):
                yield from directory.glob("n[0-9]")
            if self._peers:
                yield from directory.glob("commitlog")

    def _broker_directories(self, root: Path) -> list[Path]:
        return [self._broker_directory(name, root) for name in self._names]

    @property
    def _peers(self) -> list[str]:
        """Peer ids of each DLedger group; none without DLedger."""
        return [f"n{number}" for number in range(self._replicas)] if self._replicas > 1 else []

    def _all_settings(self, name: str, root: Path) -> Iterator[dict[str, SettingValue]]:
        """Yield the settings of a broker and its slaves, or of its peers."""
        sizes = _SMALL_FILES if self._store is None else {}
        directory = self._broker_directory(name, root)
        own = {**sizes, **self._settings, "brokerName": name, "namesrvAddr": self.namesrv_address}
        if self._replicas == 1:
            listen = {} if _ADDRESS & own.keys() else {"listen": self._listen_text(name)}
            yield {**own, **listen, "storePathRootDir": str(directory)}
            for number in range(1, self._slaves + 1):
                yield {
                    **own,
                    "brokerRole": "SLAVE",
                    "brokerId": number,
                    "listen": self._listen_text(f"{name}-slave-{number}"),
                    "storePathRootDir": str(directory / f"slave-{number}"),
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
                "storePathRootDir": str(directory / peer),
            }

    async def _ready(self) -> None:
        """Wait until every master is registered, and every slave copies. Raises TimeoutError."""
        try:
            async with asyncio.timeout(_READY_S):
                while not (self._has_masters() and self._has_slaves()):  # noqa: ASYNC110 - there is no common event
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            if not self._has_masters():
                problem = "a broker has no registered master"
            else:
                problem = "a slave does not copy its master"
            raise TimeoutError(f"the embedded cluster is not ready after {_READY_S} s: {problem}") from error

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


def _with_small_reserve(config: BrokerConfig) -> BrokerConfig:
    """Reserve few disk blocks at a time, since a temporary directory is often in memory."""
    log = replace(config.store.commit_log, reserve_bytes=_RESERVE_BYTES)
    return replace(config, store=replace(config.store, commit_log=log))


def _with_short_intervals(config: BrokerConfig) -> BrokerConfig:
    """Shorten intervals that are fixed in RocketMQ, for brokers of one process."""
    return replace(config, ha=replace(config.ha, sync_interval_ms=_SYNC_MS, reconnect_ms=_SYNC_MS))


async def open_embedded(path: str | None, options: Mapping[str, str]) -> EmbeddedCluster:
    """Start the cluster of a client address ``embedded:`` (path None) or ``embedded:///path``.

    options: the part after ``?``: brokers, replicas, slaves, flush (sync or async), and keys of broker.conf.
    Entry point of the group "rocketpy.embedded". Raises ConfigInvalid, and the errors of
    `EmbeddedCluster.start`.
    """
    counts = {name: _parse_count(name, options.get(name, default)) for name, default in _COUNTS.items()}
    settings: dict[str, SettingValue] = {}
    for name in sorted(options.keys() - _COUNTS):
        if name == "flush":
            key, value = _flush(options[name], is_ledger=counts["replicas"] > 1)
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
        path,
        counts["brokers"],
        transport="memory",
        replicas=counts["replicas"],
        slaves=counts["slaves"],
        settings=settings,
    )
    await cluster.start()
    return cluster


_COUNTS: Final = {"brokers": "1", "replicas": "1", "slaves": "0"}
"""Numeric options and their defaults."""
_KEYS: Final = frozenset({*LISTEN_KEYS, *BROKER_KEYS, *STORE_KEYS})


def _parse_count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigInvalid(f"embedded:?{name}={text}: a whole number is expected")
    return int(text)


def _flush(text: str, *, is_ledger: bool) -> tuple[str, str]:
    """Return the key and value that make brokers flush before or after the response."""
    if text not in ("sync", "async"):
        raise ConfigInvalid(f"embedded:?flush={text}: sync or async is expected")
    if is_ledger:
        return "dLegerFlush", "quorum" if text == "sync" else "async"
    return "flushDiskType", f"{text.upper()}_FLUSH"
