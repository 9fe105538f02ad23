"""Divides the file descriptors of a process (RLIMIT_NOFILE, ulimit -n) between connections and the store.

Each connection and each file of the store needs a descriptor. Connections never get the share of the store: a
flush or a new file that fails for lack of a descriptor would stop the broker.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.config.model import BrokerConfig, ListenConfig, NamesrvConfig

log = logging.getLogger("rocketpy.broker")

LIMIT_MIN: Final = 64
_FIXED: Final = 32
"""Standard streams, event loop, listening sockets, logs, and lock, checkpoint, index and spare descriptors of
the store."""
_STORE_PART: Final = 8
"""Consume queues get the descriptors divided by this, and files of the commit log get as many."""
_STORE_MIN: Final = 4
_UNLIMITED: Final = 1 << 20


class OpenFileShares(NamedTuple):
    """Shares of the limit of open files."""

    connections: int
    """Maximum of clients; half as many descriptors are left for new connections and for replicas."""
    queue_files: int
    """See `ConsumeQueueConfig.handles_max`."""


def open_files_limit() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> None:
    """Raise the soft limit of this process to the hard one. Only for a process that belongs to the server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files remains %d: %s", open_files_limit(), error)


def share_open_files(limit: int) -> OpenFileShares:
    """Return the shares of a limit. Raises ConfigInvalid below 64."""
    if limit < LIMIT_MIN:
        raise ConfigInvalid(
            f"the limit of open files is {limit}, but a server needs at least {LIMIT_MIN}: raise it "
            "(ulimit -n, or LimitNOFILE of systemd)"
        )
    rest = limit - _FIXED
    queue_files = min(512, max(_STORE_MIN, rest // _STORE_PART))
    return OpenFileShares((rest - 2 * queue_files) * 2 // 3, queue_files)


def fit_open_files_limit(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration with limits that fit the descriptors; log a warning for fewer connections.

    Raises ConfigInvalid if there are too few descriptors.
    """
    limit = open_files_limit()
    shares = share_open_files(limit)
    queues = config.store.consume_queue
    if queues.handles_max > shares.queue_files:
        queues = replace(queues, handles_max=shares.queue_files)
        config = replace(config, store=replace(config.store, consume_queue=queues))
    return replace(config, listen=_lowered(config.listen, limit, shares))


def fit_namesrv_open_files_limit(config: NamesrvConfig) -> NamesrvConfig:
    """Do the same for a name server, which has no store."""
    limit = open_files_limit()
    return replace(config, listen=_lowered(config.listen, limit, share_open_files(limit)))


def _lowered(listen: ListenConfig, limit: int, shares: OpenFileShares) -> ListenConfig:
    options = listen.options
    if options.max_connections <= shares.connections:
        return listen
    log.warning(
        "the limit of open files is %d, so the server accepts %d connections instead of maxConnections=%d. "
        "Raise the limit (ulimit -n, or LimitNOFILE of systemd)",
        limit,
        shares.connections,
        options.max_connections,
    )
    return replace(listen, options=replace(options, max_connections=shares.connections))
