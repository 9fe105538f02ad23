"""The clients of a Python worker: made once, used by one task after the other.

Spark keeps its Python workers and forks them from a daemon, so a client belongs to the process that made it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from pyspark_rocketmq.options import Connection, SinkOptions, SourceOptions
from rocketpy import ConsumerConfig
from rocketpy.sync import Producer, PullConsumer

_KEPT: Final = 4
"""Clients with different options that one worker keeps; the one unused for longest is closed first."""


class Client(Protocol):
    """What is kept."""

    def start(self, *, wait: bool = True) -> None:
        """Called once."""

    def close(self) -> object:
        """Called when it is put away."""


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Client)


class Kept(Generic[K, C]):
    """Started clients by what they were made from."""

    def __init__(self, make: Callable[[K], C]) -> None:
        self._make = make
        self._clients: OrderedDict[tuple[int, K], C] = OrderedDict()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def get(self, made_from: K) -> C:
        """This process's client, started. It is closed when the process ends."""
        with self._lock:
            key = (os.getpid(), made_from)
            client = self._clients.get(key)
            if client is None:
                client = self._make(made_from)
                client.start(wait=False)  # tasks have their own patience with servers that are away
                self._clients[key] = client
            self._clients.move_to_end(key)
            while len(self._clients) > _KEPT:
                self._put_away()
            return client

    def close(self) -> None:
        """Close those of this process."""
        while self._clients:
            self._put_away()

    def _put_away(self) -> None:
        (pid, _), client = self._clients.popitem(last=False)
        if pid == os.getpid():  # not a copy of the parent's
            client.close()


def _producer(options: SinkOptions) -> Producer:
    client = options.connection.client_config()
    return Producer(options.group, config=options.producer_config(), client=client)


def _consumer(made_from: tuple[Connection, str, ConsumerConfig]) -> PullConsumer:
    connection, group, config = made_from
    return PullConsumer(group, config=config, client=connection.client_config())


_producers: Final = Kept(_producer)
_consumers: Final = Kept(_consumer)


def producer_for(options: SinkOptions) -> Producer:
    """This worker's producer. Raises ConfigInvalid, among others where a compression's package is missing."""
    return _producers.get(options)


def consumer_for(options: SourceOptions) -> PullConsumer:
    """This worker's consumer. Raises ConfigInvalid."""
    return _consumers.get((options.connection, options.group, options.consumer_config()))
