"""What the request handlers of a slave do differently: its copied tables may be older than its log.

Differs from RocketMQ 4.6.0, whose slave says that something does not exist if it has not copied it.
"""

from __future__ import annotations

from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.handlers.base import Rejected
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.busy import Reason


def is_slave(store: MessageStore) -> bool:
    """Return whether a broker is a slave, or a DLedger peer that does not lead."""
    return store.rejection(Reason.SLAVE) is not None


def absent(store: MessageStore, what: str, rejection: Rejected) -> Rejected:
    """Return the rejection of a request for what this broker does not have: `rejection` on a master.

    A slave copies topics, groups and offsets from its master, and may be behind. It says so instead, with a
    code after which clients try again.
    """
    if not is_slave(store):
        return rejection
    text = f"this broker is a slave, and may not have copied {what} from its master yet; try again"
    return Rejected(ResponseCode.SYSTEM_BUSY, text)
