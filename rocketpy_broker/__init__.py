"""Name server, broker and store that speak Apache RocketMQ 4.6's own formats."""

from rocketpy_broker.broker import Broker, BrokerHealth
from rocketpy_broker.config import BrokerConfig, NamesrvConfig
from rocketpy_broker.config_file import load_broker_config, load_namesrv_config
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
