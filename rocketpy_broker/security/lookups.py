"""What the gate of a broker looks up before it admits a request: stored records, connected clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.message.record import Record, decode
from rocketpy.transport import Channel
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.store import MessageStore


class StoredRecords:
    """Finds the records that requests point at. write_run: writes what was appended and is not in the log
    yet.

    A record counts only where its queue has it. Otherwise a sender could put a whole record of any topic into
    a message's body, and have its rights looked up in that.
    """

    def __init__(self, store: MessageStore, cluster_name: str, write_run: Callable[[], None]) -> None:
        self.reply_topic = f"{cluster_name}_REPLY_TOPIC"
        self._store = store
        self._write_run = write_run

    def find(self, offset: int) -> Record | None:
        """The record at a physical offset; None when none starts there.

        Raises RemoteProtocolError for one that is not in its queue, StoreError.
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


class ConnectedClients:
    """Clients by the ids in their heartbeats. The registry has channels as opaque objects."""

    def __init__(self, registry: ClientRegistry) -> None:
        self._registry = registry

    def owner_of(self, client_id: str) -> str | None:
        """See `Clients`."""
        return self._registry.owner_of(client_id)

    def requester(self, client_id: str) -> Channel | None:
        """See `Clients`."""
        return cast(Channel | None, self._registry.producer_channel(client_id))
