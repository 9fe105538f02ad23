"""Whether a consumer may filter by something other than tags (enablePropertyFilter)."""

from __future__ import annotations

import logging

from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.filter.subscription import SQL92, is_tag_type

log = logging.getLogger("rocketpy.broker.filter")


class ExpressionPolicy:
    """Refuses expressions where they are not allowed, and says in the log, once, which key allows them.

    config: read at each question, since the key may be changed while the broker runs.
    """

    def __init__(self, config: ConsumeConfig) -> None:
        self._config = config
        self._has_said = False

    def refusal(self, kind: str | None, group: str) -> str | None:
        """Return why a group may not filter by a kind of expression, in RocketMQ's words; None if it may."""
        if is_tag_type(kind) or self._config.property_filter:
            return None
        if kind == SQL92 and not self._has_said:
            self._has_said = True
            log.warning(
                "consumer group %.200r is refused its filter by SQL92; enablePropertyFilter=true allows such",
                group,
            )
        return f"The broker does not support consumer to filter message by {kind}"
