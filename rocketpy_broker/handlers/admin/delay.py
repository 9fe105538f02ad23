"""GET_ALL_DELAY_OFFSET: how far the delay levels are, as slaves copy it.

Source: AdminBrokerProcessor of RocketMQ 4.6.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketpy.protocol.bodies import DelayOffsetSerializeWrapper
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.services.delay.scheduler import DelayService


class DelayHandler:
    """Answers from the delay levels."""

    def __init__(self, delay: DelayService) -> None:
        self._delay = delay

    @property
    def requests(self) -> Mapping[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.all_offsets}

    def all_offsets(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_DELAY_OFFSET; compact JSON, which a slave keeps as it is (QUIRKS 56)."""
        return request.reply(body=DelayOffsetSerializeWrapper(offset_table=self._delay.offsets()).encode())
