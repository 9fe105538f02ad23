"""Moves the clients of a broker to others before it stops, as a rolling restart needs.

The broker registers its topics as read-only, so name servers hide them from producers. The broker continues
to serve requests until producers have refreshed their routes, no send arrives, and its slaves have all
messages. The next start registers the topics with their own permissions.

Source: RocketMQ has the first step only, as the command wipeWritePerm of mqadmin. Differs: the broker does it
itself, so that a registration or the restart of a name server does not undo it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.broker.dledger_role import DLedgerReplication
from rocketpy_broker.broker.ha_role import HaReplication
from rocketpy_broker.broker.request_router import RequestRouter
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.services.cluster.registration import Registrar

log = logging.getLogger("rocketpy.broker")

_HEADERS: Final[dict[int, type[SendMessageRequestHeader]]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
}
"""Requests of producers with their headers."""
_NOT_SENT_TO: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, "RMQ_SYS_")
_NAMED_MAX: Final = 5
_QUIET_S: Final = 2.0
"""Time without a send after which producers have left. Busy producers make shorter pauses."""
_POLL_S: Final = 0.05


async def drain(
    config: BrokerConfig,
    topics: Iterable[str],
    registrar: Registrar,
    router: RequestRouter,
    replication: HaReplication | DLedgerReplication,
) -> None:
    """Move producers away from a master; return when its slaves have all messages, too. It may never return.

    Producers of topics that no other broker has are not moved: they would fail now, not only after the stop.
    """
    movable = await registrar.movable_topics()
    if rest := sorted(topic for topic in topics if topic not in movable and not _is_own(topic, config)):
        log.warning(
            "%d topics are on no other broker with a master, so their producers wait or fail until %s is "
            "started again: %s",
            len(rest),
            config.name,
            ", ".join(rest[:_NAMED_MAX]),
        )
    if movable:
        await _move_producers(registrar, router, movable, config.registration.drain_wait_ms)
    # Neither slaves nor sends have an event to wait for, here and below.
    while any(slave.received >= 0 and slave.lag_bytes for slave in replication.slaves()):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


def _is_own(topic: str, config: BrokerConfig) -> bool:
    """Whether a topic belongs to the broker or its consumer groups, and producers do not send to it."""
    return topic in (config.name, config.cluster_name) or topic.startswith(_NOT_SENT_TO)


async def _move_producers(
    registrar: Registrar, router: RequestRouter, topics: frozenset[str], wait_ms: int
) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()

    def note(request: Command) -> None:
        nonlocal last
        if request.header_as(_HEADERS[request.code]).topic in topics:
            last = loop.time()

    router.add_listener(_HEADERS, note)
    await registrar.hide(topics)
    fresh = loop.time() + wait_ms / 1000
    while (rest := max(fresh, last + _QUIET_S) - loop.time()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(rest)
