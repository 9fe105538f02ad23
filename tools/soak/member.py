"""One member of the crowd: ``python -m tools.soak.member ROLE NAMESRV TOPIC GROUP FIRST PAUSE_MS``.

ROLE: produce, concurrent or orderly. It says a line for each thing it sees, the same as java/Soak.java says:

| line                            | means                                                        |
|---------------------------------|--------------------------------------------------------------|
| ``ready``                       | it has started                                               |
| ``ack NUMBER QUEUE OFFSET``     | a broker has acknowledged message NUMBER there               |
| ``unknown NUMBER``              | a send failed; the message may be stored                     |
| ``got NUMBER QUEUE OFFSET N``   | its handler has taken a message, which had failed N times    |
| ``fail NUMBER``                 | its handler rejects it; it must be redelivered               |

SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

from rocketpy import ConsumeResult, Message, MessageExt, Producer, PushConfig, PushConsumer, SendStatus
from rocketpy.consumer.config import ConsumeFrom
from rocketpy.errors import RocketError

FAILS_EVERY: Final = 211
"""Concurrent handlers fail for every message whose number is a multiple of this, the first time."""


def main() -> None:
    """Run until SIGTERM."""
    role, namesrv, topic, group, first, pause_ms = sys.argv[1:]
    if role == "produce":
        asyncio.run(_produce(namesrv, topic, group, int(first), int(pause_ms)))
    else:
        asyncio.run(_consume(role == "orderly", namesrv, topic, group))


def _stopping() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def _say(line: str) -> None:
    print(line, flush=True)


async def _produce(namesrv: str, topic: str, group: str, first: int, pause_ms: int) -> None:
    stop, number = _stopping(), first
    async with Producer(group, namesrv) as producer:
        _say("ready")
        while not stop.is_set():
            try:
                result = await producer.send(Message(topic, b"%d" % number))
            except RocketError:
                _say(f"unknown {number}")
            else:
                if result.status is SendStatus.SEND_OK:
                    _say(f"ack {number} {result.queue.queue_id} {result.queue_offset}")
            number += 1
            await asyncio.sleep(pause_ms / 1000)


async def _consume(orderly: bool, namesrv: str, topic: str, group: str) -> None:
    async def handle(message: MessageExt) -> ConsumeResult:
        number = int(message.body)
        if not orderly and number % FAILS_EVERY == 0 and message.reconsume_times == 0:
            _say(f"fail {number}")
            return ConsumeResult.LATER
        place = f"{message.queue.queue_id} {message.queue_offset} {message.reconsume_times}"
        _say(f"got {number} {place}")
        return ConsumeResult.SUCCESS

    stop = _stopping()
    config = PushConfig(orderly=orderly, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer(group, namesrv, handle, config=config)
    consumer.subscribe(topic)
    async with consumer:
        _say("ready")
        await stop.wait()


if __name__ == "__main__":
    main()
