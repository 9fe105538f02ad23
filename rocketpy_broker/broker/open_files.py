"""How a server shares out the files that its process may have open (RLIMIT_NOFILE, ulimit -n).

Each connection takes one, and so does each file of the store. The store's share is never given to
connections: a flush or a new file that fails because no descriptor is left would stop the broker.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.config.model import BrokerConfig, ListenConfig, NamesrvConfig

if sys.platform != "win32":
    import resource

log = logging.getLogger("rocketpy.broker")

LIMIT_MIN: Final = 64
_FIXED: Final = 32
"""Standard streams, event loop, listening sockets, logs, and the store's lock, checkpoint, index and spare
descriptors."""
_STORE_PART: Final = 8
"""Consume queues get one for so many, and the files of the commit log as many again."""
_STORE_MIN: Final = 4
_UNLIMITED: Final = 1 << 20


class OpenFileShares(NamedTuple):
    """connections: of clients. Half as many again are left for connections that are being made and for those
    of replicas. queue_files: see `ConsumeQueueConfig.handles_max`.
    """

    connections: int
    queue_files: int


def open_files_limit() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return _UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> None:
    """Raise the soft limit of this process to the hard one; for a process that does nothing else."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files stays at %d: %s", open_files_limit(), error)


def share_open_files(limit: int) -> OpenFileShares:
    """Return who gets how many. Raises ConfigInvalid for less than 64."""
    if limit < LIMIT_MIN:
        raise ConfigInvalid(
            f"the limit of open files is {limit}, and a server needs {LIMIT_MIN} or more: raise it "
            "(ulimit -n, or LimitNOFILE of systemd)"
        )
    rest = limit - _FIXED
    queue_files = min(512, max(_STORE_MIN, rest // _STORE_PART))
    return OpenFileShares((rest - 2 * queue_files) * 2 // 3, queue_files)


def fit_open_files_limit(config: BrokerConfig) -> BrokerConfig:
    """Return a configuration that this process has files enough for; says what had to be lowered.

    Raises ConfigInvalid when there are too few for anything.
    """
    limit = open_files_limit()
    shares = share_open_files(limit)
    queues = config.store.consume_queue
    if queues.handles_max > shares.queue_files:
        queues = replace(queues, handles_max=shares.queue_files)
        config = replace(config, store=replace(config.store, consume_queue=queues))
    return replace(config, listen=_lowered(config.listen, limit, shares))


def fit_namesrv_open_files_limit(config: NamesrvConfig) -> NamesrvConfig:
    """The same for a name server, which has no store."""
    limit = open_files_limit()
    return replace(config, listen=_lowered(config.listen, limit, share_open_files(limit)))


def _lowered(listen: ListenConfig, limit: int, shares: OpenFileShares) -> ListenConfig:
    options = listen.options
    if options.max_connections <= shares.connections:
        return listen
    log.warning(
        "the limit of open files is %d: %d connections instead of maxConnections=%d, and %d open files of "
        "queues. Raise the limit (ulimit -n, or LimitNOFILE of systemd)",
        limit,
        shares.connections,
        options.max_connections,
        shares.queue_files,
    )
    return replace(listen, options=replace(options, max_connections=shares.connections))
