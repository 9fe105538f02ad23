"""How the groups of one broker request the messages of a topic, by pulls or pops: messageRequestMode.json.

Source: MessageRequestModeManager of RocketMQ 5.3.3. Differs: the modes of a deleted topic or group are
removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from rocketpy.protocol.bodies import (
    DataVersion,
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
)
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.services.metadata.persistent_table import PersistentTable, TableChange
from rocketpy_broker.store.files.disk import Clock, Disk, system_clock

Modes = Mapping[str, SetMessageRequestModeRequestBody]
"""Group -> mode, of one topic."""


class RequestModeTable(PersistentTable[Modes, MessageRequestModeSerializeWrapper]):
    """The modes by topic and group."""

    def __init__(
        self, path: Path, tasks: Tasks, *, clock: Clock = system_clock, disk: Disk | None = None
    ) -> None:
        super().__init__(
            path,
            tasks,
            {},
            wrapper=MessageRequestModeSerializeWrapper,
            field="message_request_mode_map",
            clock=clock,
            disk=disk,
        )
        self._changing = asyncio.Lock()
        """Held during a change, which replaces all modes of a topic."""

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that an operator has set, or None."""
        return (self.get(topic) or {}).get(group)

    async def set(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set the mode of a topic and a group, and save that. Raises StoreError; then nothing has changed."""
        await self._change(mode.topic, lambda modes: {**modes, mode.consumer_group: mode})

    async def remove_topic(self, topic: str) -> None:
        """Remove the modes of a topic, and save that. Raises StoreError."""
        await self._change(topic, lambda _: {})

    async def remove_group(self, group: str) -> None:
        """Remove the modes of a group, and save that. Raises StoreError."""
        for topic in [topic for topic, modes in self._table.items() if group in modes]:
            await self._change(topic, lambda modes: {k: v for k, v in modes.items() if k != group})

    async def _change(self, topic: str, change: Callable[[Modes], Modes]) -> None:
        async with self._changing:
            modes = change(self.get(topic) or {})
            if modes != (self.get(topic) or {}):
                await self.saver.save(TableChange({topic: modes}) if modes else TableChange(removed=(topic,)))

    async def adopt(self, wrapper: MessageRequestModeSerializeWrapper) -> None:
        """Take over a master's modes, if they differ. Raises StoreError.

        A master of RocketMQ sends no version.
        """
        version = wrapper.data_version
        if version == DataVersion() and wrapper.message_request_mode_map != self._table:
            version = self.version.next(self._clock())
        if version != DataVersion():
            await self._adopt(wrapper.message_request_mode_map, version)
