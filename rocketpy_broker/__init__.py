"""Name server, broker and store that speak Apache RocketMQ 4.6's own formats. They run on Linux only.

Each name is imported on its first use, so that the command ``rocketpy-broker`` handles Ctrl-C from its start.

PYTEST_DONT_REWRITE: see `rocketpy`.
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"rocketpy_broker and the address embedded: run on Linux only, and this is {sys.platform}. The "
        "client runs here: connect it to servers on Linux, in a container or in WSL 2"
    )

try:
    # `__all__` shows which package this is. Reading it does not load the client.
    from rocketpy import __all__ as _client_names  # type: ignore[attr-defined]
except ImportError as error:
    _reason: str | None = str(error)
else:
    _reason = None if "Producer" in _client_names else "it has no Producer"
if _reason is not None:
    raise ImportError(
        f"the package rocketpy is not the client of rocketpy-mq, or is damaged ({_reason}). The flight "
        "simulator rocketpy from PyPI replaces its files. Repair the environment: "
        "pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq"
    )

# Imports nothing else: Ctrl-C during this import would end the command `rocketpy-broker` with a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from rocketpy_broker.broker.broker import Broker as Broker
    from rocketpy_broker.broker.broker import BrokerHealth as BrokerHealth
    from rocketpy_broker.config.file import load_broker_config as load_broker_config
    from rocketpy_broker.config.file import load_namesrv_config as load_namesrv_config
    from rocketpy_broker.config.model import BrokerConfig as BrokerConfig
    from rocketpy_broker.config.model import NamesrvConfig as NamesrvConfig
    from rocketpy_broker.embedded import EmbeddedCluster as EmbeddedCluster
    from rocketpy_broker.namesrv import NameServer as NameServer


_MODULE_OF: "Final" = {
    "Broker": "rocketpy_broker.broker.broker",
    "BrokerConfig": "rocketpy_broker.config.model",
    "BrokerHealth": "rocketpy_broker.broker.broker",
    "EmbeddedCluster": "rocketpy_broker.embedded",
    "NameServer": "rocketpy_broker.namesrv",
    "NamesrvConfig": "rocketpy_broker.config.model",
    "load_broker_config": "rocketpy_broker.config.file",
    "load_namesrv_config": "rocketpy_broker.config.file",
}
"""Public name -> its module. A test compares them with the imports above."""
_PARTS: "Final" = frozenset({
    "broker", "config", "embedded", "filter", "handlers", "metrics", "namesrv", "replication", "security",
    "services", "store",
})  # fmt: skip
"""Modules and packages that ``import rocketpy_broker`` alone makes available."""

if not TYPE_CHECKING:  # a type checker would accept every name
    __all__ = list(_MODULE_OF)

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
