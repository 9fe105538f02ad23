"""Asyncio-first client for Apache RocketMQ 4.6 to 5.3. This module only exports the public names.

Each name is imported on its first use, so that a producer does not load what consumers need.

PYTEST_DONT_REWRITE: without this word, pytest warns in a process that has imported this package before.
"""

import sys

from rocketpy._version import __version__ as __version__
from rocketpy._version import warn_of_namesake

# Imports nothing else: Ctrl-C during this import would end the command `rocketpy` with a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Final

    from rocketpy.admin.admin_client import AdminClient as AdminClient
    from rocketpy.admin.dead_letters import DeadLetters as DeadLetters
    from rocketpy.client.message_index import QueryResult as QueryResult
    from rocketpy.client.routing.selectors import ByMachineRoom as ByMachineRoom
    from rocketpy.client.routing.selectors import QueueSelector as QueueSelector
    from rocketpy.client.routing.selectors import RoundRobin as RoundRobin
    from rocketpy.client.routing.selectors import by_hash as by_hash
    from rocketpy.client.routing.selectors import by_random as by_random
    from rocketpy.config import BatchConfig as BatchConfig
    from rocketpy.config import ClientConfig as ClientConfig
    from rocketpy.config import CompressionConfig as CompressionConfig
    from rocketpy.config import ConsumerConfig as ConsumerConfig
    from rocketpy.config import Credentials as Credentials
    from rocketpy.config import LatencyConfig as LatencyConfig
    from rocketpy.config import MessageTraceConfig as MessageTraceConfig
    from rocketpy.config import ProducerConfig as ProducerConfig
    from rocketpy.config import RetryConfig as RetryConfig
    from rocketpy.consumer import LitePullConsumer as LitePullConsumer
    from rocketpy.consumer import PullConsumer as PullConsumer
    from rocketpy.consumer import PushConsumer as PushConsumer
    from rocketpy.consumer import SimpleConsumer as SimpleConsumer
    from rocketpy.consumer.allocation import AllocateAveragely as AllocateAveragely
    from rocketpy.consumer.allocation import AllocateByCircle as AllocateByCircle
    from rocketpy.consumer.allocation import AllocateByConfig as AllocateByConfig
    from rocketpy.consumer.allocation import AllocateByConsistentHash as AllocateByConsistentHash
    from rocketpy.consumer.allocation import AllocateByMachineRoom as AllocateByMachineRoom
    from rocketpy.consumer.allocation import AllocateNearby as AllocateNearby
    from rocketpy.consumer.allocation import AllocationStrategy as AllocationStrategy
    from rocketpy.consumer.config import ConsumeFrom as ConsumeFrom
    from rocketpy.consumer.config import LitePullConfig as LitePullConfig
    from rocketpy.consumer.config import MessageModel as MessageModel
    from rocketpy.consumer.config import PushConfig as PushConfig
    from rocketpy.consumer.config import Sharing as Sharing
    from rocketpy.consumer.config import SimpleConfig as SimpleConfig
    from rocketpy.consumer.fetch.subscription import Sql as Sql
    from rocketpy.consumer.outcomes import ConsumeResult as ConsumeResult
    from rocketpy.consumer.outcomes import Later as Later
    from rocketpy.consumer.typed_topic import TypedTopic as TypedTopic
    from rocketpy.errors import Outcome as Outcome
    from rocketpy.errors import Retry as Retry
    from rocketpy.errors import RocketError as RocketError
    from rocketpy.hooks import FailedAttempt as FailedAttempt
    from rocketpy.hooks import ProcessEvent as ProcessEvent
    from rocketpy.hooks import ProcessListener as ProcessListener
    from rocketpy.hooks import ReceiveEvent as ReceiveEvent
    from rocketpy.hooks import ReceiveListener as ReceiveListener
    from rocketpy.hooks import RpcHook as RpcHook
    from rocketpy.hooks import SendCheck as SendCheck
    from rocketpy.hooks import SendEvent as SendEvent
    from rocketpy.hooks import SendListener as SendListener
    from rocketpy.hooks import SettleEvent as SettleEvent
    from rocketpy.hooks import SettleListener as SettleListener
    from rocketpy.message.columns import MessageColumns as MessageColumns
    from rocketpy.message.message import Message as Message
    from rocketpy.message.message import MessageExt as MessageExt
    from rocketpy.message.message import new_unique_id as new_unique_id
    from rocketpy.producer import Producer as Producer
    from rocketpy.producer.request_reply import create_reply_message as create_reply_message
    from rocketpy.producer.transaction import LocalTransactionState as LocalTransactionState
    from rocketpy.producer.transaction import TransactionSendResult as TransactionSendResult
    from rocketpy.protocol.bodies import MessageQueue as MessageQueue
    from rocketpy.protocol.message.delays import DelayLevels as DelayLevels
    from rocketpy.results import Health as Health
    from rocketpy.results import PullResult as PullResult
    from rocketpy.results import PullStatus as PullStatus
    from rocketpy.results import QueueState as QueueState
    from rocketpy.results import SendResult as SendResult
    from rocketpy.results import SendStatus as SendStatus
    from rocketpy.results import Unfinished as Unfinished


_NAMES: "Final" = {
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
    "rocketpy.consumer": ("LitePullConsumer", "PullConsumer", "PushConsumer", "SimpleConsumer"),
    "rocketpy.consumer.allocation": (
        "AllocateAveragely",
        "AllocateByCircle",
        "AllocateByConfig",
        "AllocateByConsistentHash",
        "AllocateByMachineRoom",
        "AllocateNearby",
        "AllocationStrategy",
    ),
    "rocketpy.consumer.config": (
        "ConsumeFrom",
        "LitePullConfig",
        "MessageModel",
        "PushConfig",
        "Sharing",
        "SimpleConfig",
    ),
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
    "rocketpy.results": (
        "Health",
        "PullResult",
        "PullStatus",
        "QueueState",
        "SendResult",
        "SendStatus",
        "Unfinished",
    ),
}
"""Module -> the public names in it. A test compares them with the imports above."""
_MODULE_OF: "Final" = {name: module for module, names in _NAMES.items() for name in names}
_PARTS: "Final" = frozenset({
    "admin", "client", "config", "consumer", "errors", "hooks", "logs", "message", "producer", "protocol",
    "results", "runtime", "telemetry", "transport",
})  # fmt: skip
"""Modules and packages that ``import rocketpy`` alone makes available."""
_FORMER: "Final" = {
    "rocketpy.consumer.settings": "rocketpy.consumer.config",
    "rocketpy.consumer.subscription": "rocketpy.consumer.fetch.subscription",
    "rocketpy.message_columns": "rocketpy.message.columns",
    "rocketpy.protocol.record": "rocketpy.protocol.message.record",
    "rocketpy.routing": "rocketpy.client.routing",
    "rocketpy.routing.selectors": "rocketpy.client.routing.selectors",
}
"""Path of a module in version 0.1, which pickles and applications use -> its path now."""

if not TYPE_CHECKING:  # a type checker would accept every name
    __all__ = ["__version__"]
    __all__ += list(_MODULE_OF)

    def __getattr__(name: str) -> "Any":
        """Import a public name, or a part of the package, when it is used first."""
        from importlib import import_module

        if name in _MODULE_OF:
            found = getattr(import_module(_MODULE_OF[name]), name)
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
    """Finds modules by their former paths. A module has one object for all its import paths."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        if name not in _FORMER:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self)  # type: ignore[arg-type] # importlib.abc.Loader would load 30 modules

    def create_module(self, spec: "ModuleSpec") -> "ModuleType":
        from importlib import import_module

        module = import_module(_FORMER[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:
            module.__spec__ = (
                module.__spec__.loader_state
            )  # the import system has set the spec of the former path


sys.meta_path.insert(0, _FormerPaths())  # before the finder that would load a module again
warn_of_namesake()
