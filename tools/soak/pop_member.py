"""SimpleConsumers in one process: ``python -m tools.soak.pop_member``, with the arguments of `main`.

A message has a number as its body. Of 100 messages, one is left at its first delivery, and another is
extended, and acknowledged after its first invisible time. Each line is written before the next step, so that
it survives a kill. Times are ms since 1970:

| line                       | means                                                                   |
|----------------------------|-------------------------------------------------------------------------|
| ``ready``                  | it has started                                                          |
| ``got NUMBER AT UNTIL``    | it has received a message; the broker hides it from AT to UNTIL         |
| ``until NUMBER UNTIL``     | it was extended                                                         |
| ``left NUMBER AT``         | it is left on purpose                                                   |
| ``acked NUMBER AT``        | the broker has confirmed its acknowledgement                            |
| ``failed NUMBER AT ERROR`` | an acknowledgement or extension has failed; nothing more is done for it |

SIGTERM ends it in order: all received messages end before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from rocketpy import ClientConfig, ConsumeFrom, MessageExt, SimpleConfig, SimpleConsumer
from rocketpy.consumer.pop.api import Handle
from rocketpy.errors import AcksFailed, RocketError
from tools.soak.pop_witness import EXPIRED

_MANY: Final = 100
_LEFT, _EXTENDED = 1, 2
_WAIT: Final = timedelta(seconds=1)
_PAUSE_S: Final = 0.1


def main() -> None:
    """Run until SIGTERM."""
    namesrv, topic, group, consumers, invisible_ms = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    asyncio.run(_run(namesrv, topic, group, int(consumers), int(invisible_ms)))


async def _run(namesrv: str, topic: str, group: str, consumers: int, invisible_ms: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    async with AsyncExitStack() as stack:
        workers = []
        for index in range(consumers):
            name = f"{os.getpid()}_{index}"
            client = ClientConfig(namesrv=namesrv, route_refresh_ms=1000, instance_name=name)
            consumer = SimpleConsumer(group, config=config, client=client)
            consumer.subscribe(topic)
            workers.append(_Worker(await stack.enter_async_context(consumer), invisible_ms, stop))
        _say(["ready"])
        async with asyncio.TaskGroup() as tasks:
            for worker in workers:
                tasks.create_task(worker.run())


class _Worker:
    def __init__(self, consumer: SimpleConsumer, invisible_ms: int, stop: asyncio.Event) -> None:
        self._consumer = consumer
        self._invisible = timedelta(milliseconds=invisible_ms)
        self._stop = stop
        self._batches = 0

    async def run(self) -> None:
        """Receive and acknowledge messages until `stop`."""
        async with asyncio.TaskGroup() as extending:
            while not self._stop.is_set():
                try:
                    messages = await self._consumer.receive(32, self._invisible, _WAIT)
                except RocketError:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                _say(f"got {number} {begin} {end}" for number, (begin, end) in map(_reception, messages))
                plain: list[MessageExt] = []
                for message in messages:
                    kind = int(message.body) % _MANY if message.delivery_attempt == 1 else 0
                    if kind == _LEFT:
                        _say([f"left {int(message.body)} {_now_ms()}"])
                    elif kind == _EXTENDED:
                        extending.create_task(self._extend(message))
                    else:
                        plain.append(message)
                await self._acknowledge(plain)

    async def _extend(self, message: MessageExt) -> None:
        """Keep a message for longer than its first invisible time."""
        try:
            await self._consumer.extend(message, 2 * self._invisible)
        except RocketError as error:
            _say([_failed(message, error)])
            return
        number, (_, until_ms) = _reception(message)
        _say([f"until {number} {until_ms}"])
        await asyncio.sleep(1.2 * self._invisible.total_seconds())
        await self._acknowledge([message])

    async def _acknowledge(self, messages: Sequence[MessageExt]) -> None:
        """Acknowledge messages together and, every second time, each by itself."""
        self._batches += 1
        if self._batches % 2:
            await asyncio.gather(*(self._acknowledge_together([message]) for message in messages))
        elif messages:
            await self._acknowledge_together(messages)

    async def _acknowledge_together(self, messages: Sequence[MessageExt]) -> None:
        untils = [_reception(message)[1][1] for message in messages]
        errors: dict[int, RocketError] = {}
        try:
            if len(messages) == 1:
                await self._consumer.ack(messages[0])
            else:
                await self._consumer.ack_many(messages)
        except AcksFailed as failed:
            errors = {id(message): error for message, error in failed.failed}
        except RocketError as error:
            errors = {id(message): error for message in messages}
        now_ms = _now_ms()
        lines = []
        for message, until_ms in zip(messages, untils, strict=True):
            failure = errors.get(id(message))
            if failure is not None:
                lines.append(_failed(message, failure))
            elif now_ms >= until_ms:  # a batch succeeds if one of its messages was in flight
                lines.append(f"failed {int(message.body)} {now_ms} {EXPIRED}")
            else:
                lines.append(f"acked {int(message.body)} {now_ms}")
        _say(lines)


def _reception(message: MessageExt) -> tuple[int, tuple[int, int]]:
    """Return the number of a message, and from when until when the broker hides it."""
    receipt = Handle.of(message).receipt
    return int(message.body), (receipt.pop_time, receipt.pop_time + receipt.invisible_time)


def _failed(message: MessageExt, error: RocketError) -> str:
    return f"failed {int(message.body)} {_now_ms()} {type(error).__name__}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _say(lines: Iterable[str]) -> None:
    if text := "".join(f"{line}\n" for line in lines):
        os.write(1, text.encode())  # at most 32 lines are below PIPE_BUF, so a kill tears none


if __name__ == "__main__":
    main()
