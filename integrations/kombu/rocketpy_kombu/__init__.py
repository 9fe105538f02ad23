"""A kombu transport: Celery and other users of kombu on RocketMQ.

Importing this module registers ``rocketmq://`` and ``rocketmq+embedded://`` with kombu:

    import rocketpy_kombu
    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

Several name servers are separated by commas; an account and a namespace may follow the form
``rocketmq://access_key:secret_key@host:9876,other:9876/namespace``. Needs kombu (extra ``kombu``) and brokers
with message-level consumption (POP): rocketpy's, or those of RocketMQ 5.
"""

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

from rocketpy_kombu.transport import Transport

__all__ = ["Transport"]

_ALIAS: Final = "rocketmq"

TRANSPORT_ALIASES[_ALIAS] = f"{__name__}:{Transport.__name__}"
