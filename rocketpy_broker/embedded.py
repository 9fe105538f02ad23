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
from pathlib import Path
from typing import Final, Literal

from rocketpy.errors import ConfigInvalid
from rocketpy.lifecycle import Lifecycle
from rocketpy.transport import Address
from rocketpy_broker.broker import Broker
from rocketpy_broker.config import ListenConfig, NamesrvConfig
from rocketpy_broker.config_file import load_broker_config
from rocketpy_broker.config_keys import Value
from rocketpy_broker.namesrv import NameServer

__all__ = ["EmbeddedCluster", "open_embedded"]

_DECIDED: Final = {
    "namesrvAddr": "the brokers use the name server of the cluster",
    "storePathRootDir": "give the directory as the cluster's store (of the command: --store)",
}
"""Keys that the cluster sets for its brokers, and what to do instead."""
_ADDRESS: Final = frozenset({"bindAddress", "listen", "listenPort"})
_OF_ONE: Final = _ADDRESS | {"brokerName"}
"""Keys that can hold for a single broker only."""

_NUMBERS: Final = itertools.count(1)
"""One a cluster, so that memory:// names of this process differ."""

_TEMPORARY: Final = {
    "mappedFileSizeCommitLog": str(128 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""Smaller files for a store that is thrown away."""


_ELECTING: Final = {
    "dLegerHeartbeatMillis": "300",
    "dLegerHeartbeatsMissed": "5",
    "dLegerVoteMillisMin": "50",
    "dLegerVoteMillisMax": "250",
}
"""Shorter than between machines: peers of one process hear each other at once."""
_ELECTION_S: Final = 60


class EmbeddedCluster(Lifecycle):
    """A name server and `brokers` brokers, broker-a, broker-b, ….

    replicas: how many peers each of them has; 3 or 5 elect a leader (DLedger), and a message is kept when
    most of them have it. 1: a broker on its own.
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
        namesrv: str | None = None,
        settings: Mapping[str, Value] | None = None,
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
        self._prefix = f"rocketpy-{next(_NUMBERS)}"
        self._memory = self._prefix if transport == "memory" else None
        self._namesrv_listen = namesrv or self._listen_text("namesrv")
        self._settings = dict(settings or {})
        self._check_settings(brokers * replicas)
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
            if key in _DECIDED:
                raise ConfigInvalid(f"settings: {key} cannot be set: {_DECIDED[key]}")
            if key in _OF_ONE and members > 1:
                raise ConfigInvalid(f"settings: {key} cannot be the same for {members} brokers")
            if key in _ADDRESS and self._memory is not None:
                raise ConfigInvalid(f"settings: {key} needs transport='tcp'")

    async def start(self) -> None:
        """Start all of it. Raises RocketError, OSError; nothing is left running then."""
        try:
            listen = ListenConfig(address=Address.parse(self._namesrv_listen))
            self.namesrv = NameServer(NamesrvConfig(listen=listen))
            await self.namesrv.start()
            root = await self._root()
            for name in self._names:
                for settings in self._all_settings(name, root):
                    broker = Broker(load_broker_config(overrides=settings))
                    self.brokers.append(broker)
                    await broker.start()
            await self._elected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all of it; a temporary store is removed. Raises what closing a store raises."""
        brokers, self.brokers = self.brokers, []
        try:
            for broker in brokers:
                await broker.close()
        finally:
            if self.namesrv is not None:
                await self.namesrv.close()
                self.namesrv = None
            if self._temporary is not None:
                await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)
                self._temporary = None

    async def _root(self) -> Path:
        if self._store is not None:
            return self._store
        self._temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rocketpy-"))
        return self._temporary

    def _listen_text(self, role: str) -> str:
        return "127.0.0.1:0" if self._memory is None else f"memory://{self._memory}-{role}"

    def _all_settings(self, name: str, root: Path) -> Iterator[dict[str, Value]]:
        """Settings of each replica of a broker."""
        sizes = _TEMPORARY if self._store is None else {}
        place = root if len(self._names) == 1 else root / name
        own = {**sizes, **self._settings, "brokerName": name, "namesrvAddr": self.namesrv_address}
        if self._replicas == 1:
            listen = {} if _ADDRESS & own.keys() else {"listen": self._listen_text(name)}
            yield {**own, **listen, "storePathRootDir": str(place)}
            return
        peers = [f"n{number}" for number in range(self._replicas)]
        group = {
            **_ELECTING,
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

    async def _elected(self) -> None:
        """Wait until each broker has a master that the name server knows. Raises RocketError."""
        if self._replicas == 1:
            return
        async with asyncio.timeout(_ELECTION_S):
            while not self._has_masters():  # noqa: ASYNC110 - its peers have no event in common
                await asyncio.sleep(0.01)

    def _has_masters(self) -> bool:
        return {broker.config.name for broker in self.brokers if broker.is_master} == set(self._names)


async def open_embedded(path: str | None) -> EmbeddedCluster:
    """Start what the client's address ``embedded:`` (path None) or ``embedded:///path`` means.

    Entry point of the group "rocketpy.embedded".
    """
    cluster = EmbeddedCluster(path, transport="memory")
    await cluster.start()
    return cluster
