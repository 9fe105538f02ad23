"""The clients of a Python worker, shared by its successive tasks.

Spark reuses its Python workers and forks them from a daemon, so a client belongs to the process that created
it.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Final, Generic, Protocol, TypeVar

from pyspark_rocketmq.options import Connection, SinkOptions, SourceOptions
from rocketpy import ConsumerConfig
from rocketpy.sync import Producer, PullConsumer

_CLIENTS_MAX: Final = 4
"""Maximum number of clients in a cache; the least recently used one is evicted and closed."""


class Client(Protocol):
    """A client that can be cached."""

    def start(self, *, wait: bool = True) -> None:
        """Connect; called once."""

    def close(self) -> object:
        """Disconnect; called on eviction and when the process ends."""


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Client)


class ClientCache(Generic[K, C]):
    """Started clients by the settings that they were created from."""

    def __init__(self, make: Callable[[K], C]) -> None:
        self._make = make
        self._clients: OrderedDict[tuple[int, K], C] = OrderedDict()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def get(self, settings: K) -> C:
        """Return this process's started client. It is closed on eviction, or when the process ends."""
        with self._lock:
            key = (os.getpid(), settings)
            client = self._clients.get(key)
            if client is None:
                client = self._make(settings)
                client.start(wait=False)  # tasks retry with their own timeouts
                self._clients[key] = client
            self._clients.move_to_end(key)
            while len(self._clients) > _CLIENTS_MAX:
                self._evict()
            return client

    def close(self) -> None:
        """Close the clients of this process."""
        while self._clients:
            self._evict()

    def _evict(self) -> None:
        (pid, _), client = self._clients.popitem(last=False)
        if pid == os.getpid():  # a forked copy belongs to the parent
            client.close()


def _producer(options: SinkOptions) -> Producer:
    client = options.connection.client_config()
    return Producer(options.group, config=options.producer_config(), client=client)


def _consumer(settings: tuple[Connection, str, ConsumerConfig]) -> PullConsumer:
    connection, group, config = settings
    return PullConsumer(group, config=config, client=connection.client_config())


_producers: Final = ClientCache(_producer)
_consumers: Final = ClientCache(_consumer)


def producer_for(options: SinkOptions) -> Producer:
    """Return this worker's started producer.

    Raises ConfigInvalid, for example if a compression package is missing.
    """
    return _producers.get(options)


def consumer_for(options: SourceOptions) -> PullConsumer:
    """Return this worker's started consumer. Raises ConfigInvalid."""
    return _consumers.get((options.connection, options.group, options.consumer_config()))


@cache
def freeze_modules() -> None:
    """Exclude from garbage collection the objects that exist after a worker's first task.

    Spark collects garbage after each task, which traverses 100,000 objects of imported modules: about 20 ms.
    """
    gc.freeze()
