"""Look-ups of the access guard: stored records and connected clients.

Some requests do not name their topic or their owner, only a message id or a client id. The guard has to look
these up before it can decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rocketpy.errors import RemoteProtocolError
from rocketpy.message import REPLY_TOPIC_SUFFIX
from rocketpy.protocol.message.record import Record, decode
from rocketpy.transport import Channel
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.store import MessageStore


class BrokerLookups:
    """Finds the records that requests refer to, and clients by the ids in their heartbeats.

    A record is accepted only if a consume queue refers to it. Otherwise a sender could put a whole record of
    another topic into the body of a message. The guard would then check the rights for that topic.
    """

    def __init__(
        self, store: MessageStore, clients: ClientRegistry, cluster_name: str, write_run: Callable[[], None]
    ) -> None:
        """write_run: writes the run, the appended messages that are not in the log yet."""
        self.reply_topic = cluster_name + REPLY_TOPIC_SUFFIX
        """Topic of stored replies. Every account may send them there."""
        self._store = store
        self._clients = clients
        self._write_run = write_run

    def find(self, offset: int) -> Record | None:
        """Return the record at a physical offset; None if no record starts there.

        Raises RemoteProtocolError for a record that is not in its queue, StoreError.
        """
        if offset < 0:
            return None
        if offset >= self._store.max_physical_offset:
            self._write_run()
        data = self._store.look_message(offset)
        if data is None:
            return None
        record = decode(data, check_crc=False)
        units = self._store.units(record.topic, record.queue_id, record.queue_offset, 1)
        if not units or units[0][:2] != (record.physical_offset, len(data)):
            raise RemoteProtocolError(f"No queue has the message at offset {offset}")
        return record

    def owner_of(self, client_id: str) -> str | None:
        """Return the account whose connection has this client id; None for an unknown client id."""
        return self._clients.owner_of(client_id)

    def requester(self, client_id: str) -> Channel | None:
        """Return the connection that receives the replies for a client."""
        # The registry stores channels as opaque objects.
        return cast(Channel | None, self._clients.producer_channel(client_id))
