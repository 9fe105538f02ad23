"""Reads see all that was written, although dispatch is put off until it is worth a run."""

from __future__ import annotations

from pathlib import Path

from rocketpy_broker.store import GetMessageStatus, MessageInner, MessageStore, StoreConfig


def test_readers_see_messages_whose_dispatch_waits(tmp_path: Path) -> None:
    """A consumer that pulls right after an acknowledged send would get no message."""
    with MessageStore(StoreConfig(root=tmp_path)) as store:
        message = MessageInner("Orders", 0, b"body", b"KEYS\x0142\x02UNIQ_KEY\x01id\x02", born_timestamp=1)
        receipt = store.put_message(message)
        assert store.dispatcher.waiting == 1
        assert store.max_offset_in_queue("Orders", 0) == 1
        store.put_message(message)
        assert store.get_message("Orders", 0, 1, 1).status is GetMessageStatus.FOUND
        store.put_message(message)
        found = store.query_message("Orders", "42", 32, 0, receipt.store_timestamp + 60_000)
        assert len(found.records) == 3
