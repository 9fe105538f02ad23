"""The two ports of a broker for clients: listenPort, and listenPort - 2, RocketMQ's VIP channel.

Java slaves and DLedger followers request topics from their master only at the second port. Java clients with
vipChannelEnabled send most requests there. Both ports serve the same requests.

Source: BrokerController fastRemotingServer, BrokerOuterAPI getAllTopicConfig, MixAll brokerVIPChannel.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from typing import Final

from rocketpy.runtime.tasks import OnFailure
from rocketpy.transport import ChannelOptions, Endpoint, MemoryBudget, Server, serve
from rocketpy_broker.broker.request_router import APPENDING
from rocketpy_broker.config.model import BrokerConfig

log = logging.getLogger("rocketpy.broker")

_VIP_DISTANCE: Final = 2
"""The second port is this far below listenPort."""
_ATTEMPTS: Final = 16
"""With listenPort 0: number of free ports to try until listenPort - 2 is free, too."""


async def serve_ports(config: BrokerConfig, endpoint: Endpoint, on_failure: OnFailure) -> list[Server]:
    """Listen at listenPort, and at listenPort - 2 if `BrokerConfig.vip_channel` allows it.

    Return the servers, that of listenPort first. on_failure: see `serve`. Raises OSError if listenPort is in
    use, or the second port with vipChannelEnable=true; no port is open then.
    """
    memory = config.listen.options.memory_budget()
    attempts_left = 1 if config.listen.address.port else _ATTEMPTS
    while True:
        attempts_left -= 1
        is_last = attempts_left == 0
        first = await _serve_first(config, endpoint, on_failure, memory)
        try:
            second = await _serve_second(config, endpoint, first, on_failure, is_optional=is_last)
        except BaseException as error:  # the first port must not stay open
            await first.close()
            if is_last or not isinstance(error, OSError):
                raise
            continue
        return [first] if second is None else [first, second]


def _options(config: BrokerConfig) -> ChannelOptions:
    return replace(config.listen.options, kept_codes=APPENDING)


async def _serve_first(
    config: BrokerConfig, endpoint: Endpoint, on_failure: OnFailure, memory: MemoryBudget
) -> Server:
    address = config.listen.address
    try:
        return await serve(address, endpoint, _options(config), on_failure, memory=memory)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            error.errno,
            f"{address} is in use: set another listenPort, at least 4 away from that of each other broker on "
            f"this machine. A broker with listenPort {address.port + _VIP_DISTANCE} uses this port, too, "
            "unless it has vipChannelEnable=false",
        ) from None


async def _serve_second(
    config: BrokerConfig, endpoint: Endpoint, first: Server, on_failure: OnFailure, *, is_optional: bool
) -> Server | None:
    """Listen at the second port; return None if the broker has none.

    is_optional: if the port cannot be opened, log a warning instead of raising OSError, unless
    vipChannelEnable=true.
    """
    address = first.address
    if config.vip_channel is False or address.scheme not in ("tcp", "tls") or address.port <= _VIP_DISTANCE:
        return None
    address = replace(address, port=address.port - _VIP_DISTANCE)
    try:
        return await serve(address, endpoint, _options(config), on_failure, memory=first.memory)
    except OSError as error:
        problem = (
            f"{address} (listenPort - 2) cannot be opened: {error.strerror or error}. Java slaves and "
            "DLedger followers will not learn this broker's topics, and Java clients with vipChannelEnabled "
            "will not reach it. Free that port or change listenPort; without such peers set "
            "vipChannelEnable=false"
        )
        if config.vip_channel or not is_optional:
            raise OSError(error.errno, problem) from None
        log.warning("%s", problem)
        return None
