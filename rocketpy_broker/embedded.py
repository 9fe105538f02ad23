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
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address
from rocketpy_broker.broker import Broker
from rocketpy_broker.config import ListenConfig, NamesrvConfig
from rocketpy_broker.config_file import load_broker_config
from rocketpy_broker.namesrv import NameServer

__all__ = ["EmbeddedCluster", "open_embedded"]

_NUMBERS: Final = itertools.count(1)
"""One a cluster, so that memory:// names of this process differ."""

_TEMPORARY: Final = {
    "mappedFileSizeCommitLog": str(128 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""Smaller files for a store that is thrown away."""


class EmbeddedCluster:
    """A name server and `brokers` brokers, broker-a, broker-b, ….

    store: directory that is kept (one broker: its storePathRootDir; several: one below it each). None: a
    temporary one, removed at the end. transport: tcp listens on free loopback ports, memory on none.
    namesrv: where the name server listens instead. settings: broker.conf keys for every broker.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        brokers: int = 1,
        transport: Literal["tcp", "memory"] = "tcp",
        *,
        namesrv: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= brokers <= 26:
            raise ConfigInvalid(f"an embedded cluster has 1 to 26 brokers, not {brokers}")
        if transport not in ("tcp", "memory"):
            raise ConfigInvalid(f"transport is {transport!r}; tcp or memory is expected")
        self._store = None if store is None else Path(store)
        self._names = [f"broker-{chr(ord('a') + index)}" for index in range(brokers)]
        self._memory = f"rocketpy-{next(_NUMBERS)}" if transport == "memory" else None
        self._namesrv_listen = namesrv or self._listen_text("namesrv")
        self._settings = dict(settings or {})
        self._temporary: Path | None = None
        self.namesrv: NameServer | None = None
        self.brokers: list[Broker] = []

    @property
    def namesrv_address(self) -> str:
        """What clients are given as the name server's address. Raises ConfigInvalid before the start."""
        if self.namesrv is None:
            raise ConfigInvalid("the embedded cluster was not started")
        return str(self.namesrv.address)

    async def start(self) -> None:
        """Start all of it. Raises RocketError, OSError; nothing is left running then."""
        try:
            listen = ListenConfig(address=Address.parse(self._namesrv_listen))
            self.namesrv = NameServer(NamesrvConfig(listen=listen))
            await self.namesrv.start()
            root = await self._root()
            for name in self._names:
                broker = Broker(load_broker_config(overrides=self._broker_settings(name, root)))
                self.brokers.append(broker)
                await broker.start()
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

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _root(self) -> Path:
        if self._store is not None:
            return self._store
        self._temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rocketpy-"))
        return self._temporary

    def _listen_text(self, role: str) -> str:
        return "127.0.0.1:0" if self._memory is None else f"memory://{self._memory}-{role}"

    def _broker_settings(self, name: str, root: Path) -> dict[str, str]:
        sizes = _TEMPORARY if self._store is None else {}
        return {
            **sizes,
            **self._settings,
            "brokerName": name,
            "listen": self._listen_text(name),
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(root if len(self._names) == 1 else root / name),
        }


async def open_embedded(path: str | None) -> EmbeddedCluster:
    """Start what the client's address ``embedded:`` (path None) or ``embedded:///path`` means.

    Entry point of the group "rocketpy.embedded".
    """
    cluster = EmbeddedCluster(path, transport="memory")
    await cluster.start()
    return cluster
