"""Name server, broker and store that speak Apache RocketMQ 4.6's own formats. They run on Linux only.

PYTEST_DONT_REWRITE: see `rocketpy`.
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"rocketpy_broker and the address embedded: run on Linux only, and this is {sys.platform}. The "
        "client runs here: connect it to servers on Linux, in a container or in WSL 2"
    )

try:
    from rocketpy import Producer as _  # noqa: F401 - asks whose package that is
except ImportError as error:
    raise ImportError(
        f"the package rocketpy is not the client of rocketpy-mq, or is damaged ({error}). The flight "
        "simulator rocketpy from PyPI replaces its files. Repair the environment: "
        "pip uninstall rocketpy rocketpy-mq, then pip install rocketpy-mq"
    ) from None

from rocketpy_broker.broker.broker import Broker, BrokerHealth
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.config.model import BrokerConfig, NamesrvConfig
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.namesrv import NameServer

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerHealth",
    "EmbeddedCluster",
    "NameServer",
    "NamesrvConfig",
    "load_broker_config",
    "load_namesrv_config",
]
