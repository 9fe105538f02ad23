"""A broker's two ports for clients: listenPort, and listenPort - 2, which RocketMQ calls its VIP channel.

Java's slaves and DLedger followers ask their master for topics at the second port only, and Java's clients
with vipChannelEnabled send most of their requests there. Both ports serve the same requests.
Source: BrokerController fastRemotingServer, BrokerOuterAPI getAllTopicConfig, MixAll brokerVIPChannel.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from typing import Final

from rocketpy.runtime.tasks import OnFailure
from rocketpy.transport import MemoryBudget, Server, serve
from rocketpy_broker.broker.request_router import RequestRouter
from rocketpy_broker.config.model import BrokerConfig

log = logging.getLogger("rocketpy.broker")

_BELOW: Final = 2
_TRIES: Final = 16
"""With listenPort 0: how many free ports are tried until the port two below is free, too."""


async def serve_ports(config: BrokerConfig, endpoint: RequestRouter, on_failure: OnFailure) -> list[Server]:
    """Listen at listenPort, and two below it as `BrokerConfig.vip_channel` says; return the open servers.

    With listenPort 0 both ports are any free ones. The first of the servers returned is that of listenPort.
    on_failure: see `serve`. Raises OSError when listenPort is in use, or the second port is and
    vipChannelEnable=true was set; nothing is left open then.
    """
    memory = config.listen.options.memory_budget()
    tries = 1 if config.listen.address.port else _TRIES
    while True:
        tries -= 1
        first = await _serve_first(config, endpoint, on_failure, memory)
        try:
            second = await _serve_second(config, endpoint, first, on_failure, may_fail=not tries)
        except BaseException as error:
            await first.close()
            if tries and isinstance(error, OSError):
                continue
            raise
        return [first] if second is None else [first, second]


async def _serve_first(
    config: BrokerConfig, endpoint: RequestRouter, on_failure: OnFailure, memory: MemoryBudget
) -> Server:
    address = config.listen.address
    try:
        return await serve(address, endpoint, config.listen.options, on_failure, memory=memory)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            error.errno,
            f"{address} is in use. A broker with listenPort {address.port + _BELOW} uses it as second port, "
            "unless it has vipChannelEnable=false: keep listenPorts of one machine at least 4 apart",
        ) from None


async def _serve_second(
    config: BrokerConfig, endpoint: RequestRouter, first: Server, on_failure: OnFailure, *, may_fail: bool
) -> Server | None:
    """Open the second port; None where there is none. may_fail: warn instead of raising an OSError."""
    address = first.address
    if config.vip_channel is False or address.scheme not in ("tcp", "tls") or address.port <= _BELOW:
        return None
    address = replace(address, port=address.port - _BELOW)
    try:
        return await serve(address, endpoint, config.listen.options, on_failure, memory=first.memory)
    except OSError as error:
        problem = (
            f"{address} (listenPort - 2) cannot be opened: {error.strerror or error}. Java slaves and "
            "DLedger followers will not learn this broker's topics, and Java clients with vipChannelEnabled "
            "will not reach it. Free that port or change listenPort; without such peers set "
            "vipChannelEnable=false"
        )
        if config.vip_channel or not may_fail:
            raise OSError(error.errno, problem) from None
        log.warning("%s", problem)
        return None
