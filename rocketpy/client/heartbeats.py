"""What brokers answer to heartbeats: one that refuses them knows nothing of who lives in the client."""

from __future__ import annotations

import logging
from collections.abc import Collection

from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.rate_limited_log import RateLimitedLog


class HeartbeatResponses:
    """Those of a client's brokers; refusals, as for want of a right key, are logged and remembered."""

    def __init__(self) -> None:
        self._refused: dict[str, BrokerError] = {}
        self._limited_log = RateLimitedLog(logging.getLogger("rocketpy.client"))

    def heard(self, address: str, answer: Command) -> None:
        """A broker has answered."""
        if answer.code == ResponseCode.SUCCESS:
            self._refused.pop(address, None)
            return
        self._refused[address] = error = BrokerError(answer.code, answer.remark, f"broker {address}")
        self._limited_log.warning(str(error), "a heartbeat was refused: %s", error)

    def problems(self, addresses: Collection[str]) -> list[str]:
        """A sentence for each of these brokers that refused the last one."""
        return [
            f"a heartbeat was refused: {error}"
            for address, error in self._refused.items()
            if address in addresses
        ]
