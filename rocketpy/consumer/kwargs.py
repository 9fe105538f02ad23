"""Keyword arguments of the consumers, for wrappers that pass them on (PEP 692)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.consumer.config import LitePullConfig, PushConfig
from rocketpy.consumer.outcomes import BatchHandler
from rocketpy.hooks import ProcessListener, ReceiveListener
from rocketpy.telemetry.plugin import TelemetryChoice


class _ConsumerOptions(TypedDict, total=False):
    client: ClientConfig | None
    telemetry: TelemetryChoice


class PushConsumerOptions(_ConsumerOptions, total=False):
    """Keyword arguments of `rocketpy.PushConsumer`."""

    batch_handler: BatchHandler | None
    config: PushConfig | None
    listeners: Iterable[ProcessListener]


class LitePullConsumerOptions(_ConsumerOptions, total=False):
    """Keyword arguments of `rocketpy.LitePullConsumer`."""

    config: LitePullConfig | None


class PullConsumerOptions(_ConsumerOptions, total=False):
    """Keyword arguments of `rocketpy.PullConsumer`."""

    config: ConsumerConfig | None
    listeners: Iterable[ReceiveListener]
