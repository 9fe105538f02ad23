"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else.

Each name is imported on its first use, so that a producer does not load what consumers need.

PYTEST_DONT_REWRITE: without this word, pytest warns in a process that has imported this package before.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from rocketpy._version import __version__, warn_of_namesake

if TYPE_CHECKING:
    from rocketpy.admin.admin_client import AdminClient
    from rocketpy.admin.dead_letters import DeadLetters
    from rocketpy.client.message_index import QueryResult
    from rocketpy.client.routing.selectors import ByMachineRoom, QueueSelector, RoundRobin, by_hash, by_random
    from rocketpy.config import (
        BatchConfig,
        ClientConfig,
        CompressionConfig,
        ConsumerConfig,
        Credentials,
        LatencyConfig,
        MessageTraceConfig,
        ProducerConfig,
        RetryConfig,
    )
    from rocketpy.consumer import LitePullConsumer, PullConsumer, PushConsumer
    from rocketpy.consumer.allocation import (
        AllocateAveragely,
        AllocateByCircle,
        AllocateByConfig,
        AllocateByConsistentHash,
        AllocateByMachineRoom,
        AllocateNearby,
        AllocationStrategy,
    )
    from rocketpy.consumer.config import ConsumeFrom, LitePullConfig, MessageModel, PushConfig
    from rocketpy.consumer.fetch.subscription import Sql
    from rocketpy.consumer.outcomes import ConsumeResult, Later
    from rocketpy.consumer.typed_topic import TypedTopic
    from rocketpy.errors import Outcome, Retry, RocketError
    from rocketpy.hooks import (
        FailedAttempt,
        ProcessEvent,
        ProcessListener,
        ReceiveEvent,
        ReceiveListener,
        RpcHook,
        SendCheck,
        SendEvent,
        SendListener,
        SettleEvent,
        SettleListener,
    )
    from rocketpy.message.columns import MessageColumns
    from rocketpy.message.message import Message, MessageExt, new_unique_id
    from rocketpy.producer import Producer
    from rocketpy.producer.request_reply import create_reply_message
    from rocketpy.producer.transaction import LocalTransactionState, TransactionSendResult
    from rocketpy.protocol.bodies import MessageQueue
    from rocketpy.protocol.message.delays import DelayLevels
    from rocketpy.results import Health, PullResult, PullStatus, SendResult, SendStatus, Unfinished

__all__ = [
    "AdminClient",
    "AllocateAveragely",
    "AllocateByCircle",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateNearby",
    "AllocationStrategy",
    "BatchConfig",
    "ByMachineRoom",
    "ClientConfig",
    "CompressionConfig",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerConfig",
    "Credentials",
    "DeadLetters",
    "DelayLevels",
    "FailedAttempt",
    "Health",
    "LatencyConfig",
    "Later",
    "LitePullConfig",
    "LitePullConsumer",
    "LocalTransactionState",
    "Message",
    "MessageColumns",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageTraceConfig",
    "Outcome",
    "ProcessEvent",
    "ProcessListener",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConfig",
    "PushConsumer",
    "QueryResult",
    "QueueSelector",
    "ReceiveEvent",
    "ReceiveListener",
    "Retry",
    "RetryConfig",
    "RocketError",
    "RoundRobin",
    "RpcHook",
    "SendCheck",
    "SendEvent",
    "SendListener",
    "SendResult",
    "SendStatus",
    "SettleEvent",
    "SettleListener",
    "Sql",
    "TransactionSendResult",
    "TypedTopic",
    "Unfinished",
    "__version__",
    "by_hash",
    "by_random",
    "create_reply_message",
    "new_unique_id",
]

_NAMES: Final = {
    "rocketpy.admin.admin_client": ("AdminClient",),
    "rocketpy.admin.dead_letters": ("DeadLetters",),
    "rocketpy.client.message_index": ("QueryResult",),
    "rocketpy.client.routing.selectors": (
        "ByMachineRoom",
        "QueueSelector",
        "RoundRobin",
        "by_hash",
        "by_random",
    ),
    "rocketpy.config": (
        "BatchConfig",
        "ClientConfig",
        "CompressionConfig",
        "ConsumerConfig",
        "Credentials",
        "LatencyConfig",
        "MessageTraceConfig",
        "ProducerConfig",
        "RetryConfig",
    ),
    "rocketpy.consumer": ("LitePullConsumer", "PullConsumer", "PushConsumer"),
    "rocketpy.consumer.allocation": (
        "AllocateAveragely",
        "AllocateByCircle",
        "AllocateByConfig",
        "AllocateByConsistentHash",
        "AllocateByMachineRoom",
        "AllocateNearby",
        "AllocationStrategy",
    ),
    "rocketpy.consumer.config": ("ConsumeFrom", "LitePullConfig", "MessageModel", "PushConfig"),
    "rocketpy.consumer.fetch.subscription": ("Sql",),
    "rocketpy.consumer.outcomes": ("ConsumeResult", "Later"),
    "rocketpy.consumer.typed_topic": ("TypedTopic",),
    "rocketpy.errors": ("Outcome", "Retry", "RocketError"),
    "rocketpy.hooks": (
        "FailedAttempt",
        "ProcessEvent",
        "ProcessListener",
        "ReceiveEvent",
        "ReceiveListener",
        "RpcHook",
        "SendCheck",
        "SendEvent",
        "SendListener",
        "SettleEvent",
        "SettleListener",
    ),
    "rocketpy.message.columns": ("MessageColumns",),
    "rocketpy.message.message": ("Message", "MessageExt", "new_unique_id"),
    "rocketpy.producer": ("Producer",),
    "rocketpy.producer.request_reply": ("create_reply_message",),
    "rocketpy.producer.transaction": ("LocalTransactionState", "TransactionSendResult"),
    "rocketpy.protocol.bodies": ("MessageQueue",),
    "rocketpy.protocol.message.delays": ("DelayLevels",),
    "rocketpy.results": ("Health", "PullResult", "PullStatus", "SendResult", "SendStatus", "Unfinished"),
}
"""Module -> the public names in it. A test compares them with the imports above."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names}
_PARTS: Final = frozenset({
    "admin", "client", "config", "consumer", "errors", "hooks", "logs", "message", "producer", "protocol",
    "results", "runtime", "telemetry", "transport",
})  # fmt: skip
"""Modules and packages that ``import rocketpy`` alone makes available."""
_FORMER: Final = {
    "rocketpy.consumer.settings": "rocketpy.consumer.config",
    "rocketpy.consumer.subscription": "rocketpy.consumer.fetch.subscription",
    "rocketpy.message_columns": "rocketpy.message.columns",
    "rocketpy.protocol.record": "rocketpy.protocol.message.record",
    "rocketpy.routing": "rocketpy.client.routing",
    "rocketpy.routing.selectors": "rocketpy.client.routing.selectors",
}
"""Path of a module in version 0.1, which pickles and applications use -> its path now."""

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a part of the package, when it is used first."""
        if name in _HOMES:
            found = getattr(import_module(_HOMES[name]), name)
        elif name in _PARTS:
            found = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """Return the names of the module with those that are not imported yet."""
        return sorted({*globals(), *__all__, *_PARTS})


class _FormerPaths:
    """Finds modules by their former paths. A module has one object, whatever path it is imported by."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        # Not a Loader of importlib.abc, which loads 30 modules.
        return ModuleSpec(name, self) if name in _FORMER else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_FORMER[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state  # the import system set that of the former path


sys.meta_path.insert(0, _FormerPaths())  # before the finder that would load a module again
warn_of_namesake()
