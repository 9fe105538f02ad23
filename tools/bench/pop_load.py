"""Consumers of the POP benchmark: they pop and acknowledge for a fixed time on request (loads.LoadProcess).

Input line: {"broker", "broker_name", "topic", "group", "consumers", "count", "acks", "seconds"}; the output
line is that of sdk_load.py: `sent` is the number of messages popped and acknowledged, the latencies are those
of a pop with its acknowledgements. Each consumer has a connection, and has one pop at a time. It reads no
messages, so that the broker is the bottleneck.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final, cast

from rocketpy.protocol.bodies import BatchAck, BatchAckMessageRequestBody, bit_set
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ANY_QUEUE,
    INIT_AT_MIN,
    AckMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketpy.protocol.message.receipt import (
    QueueKey,
    Receipt,
    parse_message_offsets,
    parse_start_offsets,
)
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Address
from tools.bench.sdk_load import Tally, main

SINGLE, BATCH = "ack each", "batch ack"
"""One ACK_MESSAGE for each message, sent together; or one BATCH_ACK_MESSAGE for a pop."""
INVISIBLE_S: Final = 5
_POLL_MS: Final = 1000


class Consumer(asyncio.Protocol):
    """One connection, which pops and acknowledges."""

    def __init__(self, what: dict[str, Any]) -> None:
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._responses: list[Command] = []
        self._wanted = 0
        self._done: asyncio.Future[None] | None = None
        self.topic, self.group, self.broker_name = what["topic"], what["group"], what["broker_name"]
        self.acks = what["acks"]
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=what["count"],
            invisible_time=INVISIBLE_S * 1000,
            poll_time=_POLL_MS,
            born_time=0,
            init_mode=INIT_AT_MIN,
            exp_type="TAG",
            exp="*",
        )
        self._pop = encode_command(Command.request(RequestCode.POP_MESSAGE, header))

    async def run(self, until: float, tally: Tally) -> None:
        """Pop and acknowledge until the time is over."""
        while (begin := time.perf_counter()) < until:
            (response,) = await self._call([self._pop])
            if response.code == ResponseCode.POLLING_TIMEOUT:
                continue
            if response.code != ResponseCode.SUCCESS:
                raise RuntimeError(f"a pop got code {response.code}: {response.remark}")
            taken = response.header_as(PopMessageResponseHeader)
            offsets = parse_message_offsets(taken.msg_offset_info)
            acks = (
                self._batch_ack(taken, offsets) if self.acks == BATCH else self._single_acks(taken, offsets)
            )
            failed = sum(response.code != ResponseCode.SUCCESS for response in await self._call(acks))
            end = time.perf_counter()
            if end < until:
                tally.sent += sum(map(len, offsets.values()))
                tally.failed += failed
                tally.nanoseconds.append(int((end - begin) * 1e9))

    def _single_acks(
        self, taken: PopMessageResponseHeader, offsets: dict[QueueKey, list[int]]
    ) -> list[bytes]:
        acks = []
        for (kind, queue_id), start in parse_start_offsets(taken.start_offset_info).items():
            receipt = Receipt(
                start,
                taken.pop_time,
                taken.invisible_time,
                taken.revive_qid,
                kind,
                self.broker_name,
                queue_id,
            )
            for offset in offsets[kind, queue_id]:
                header = AckMessageRequestHeader(
                    consumer_group=self.group,
                    topic=kind.topic(self.topic, self.group),
                    queue_id=queue_id,
                    extra_info=receipt._replace(queue_offset=offset).encode(),
                    offset=offset,
                )
                acks.append(encode_command(Command.request(RequestCode.ACK_MESSAGE, header)))
        return acks

    def _batch_ack(self, taken: PopMessageResponseHeader, offsets: dict[QueueKey, list[int]]) -> list[bytes]:
        acks = [
            BatchAck(
                consumer_group=self.group,
                topic=self.topic,
                retry=kind,
                start_offset=start,
                queue_id=queue_id,
                revive_queue_id=taken.revive_qid,
                pop_time=taken.pop_time,
                invisible_time=taken.invisible_time,
                bit_set=bit_set(offset - start for offset in offsets[kind, queue_id]),
            )
            for (kind, queue_id), start in parse_start_offsets(taken.start_offset_info).items()
        ]
        body = BatchAckMessageRequestBody(broker_name=self.broker_name, acks=acks).encode()
        return [encode_command(Command.request(RequestCode.BATCH_ACK_MESSAGE, body=body))]

    async def _call(self, frames: list[bytes]) -> list[Command]:
        """Send requests together, and return their responses."""
        if self._transport is None:
            raise ConnectionError("not connected")
        self._responses, self._wanted = [], len(frames)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join(frames))
        await self._done
        return self._responses

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio

    def data_received(self, data: bytes) -> None:
        """Collect responses. The broker sends a consumer without heartbeats no requests."""
        self._responses += map(decode_command, self._decoder.feed(data))
        if len(self._responses) == self._wanted and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the call in flight."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(error or ConnectionError("the broker closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def measure_load(what: dict[str, Any]) -> dict[str, Any]:
    """Pop and acknowledge as the request `what` describes; return the result line."""
    address, loop, tally = Address.parse(what["broker"]), asyncio.get_running_loop(), Tally()
    consumers = []
    for _ in range(what["consumers"]):
        _, consumer = await loop.create_connection(lambda: Consumer(what), address.host, address.port)
        consumers.append(consumer)
    until = time.perf_counter() + what["seconds"]
    try:
        async with asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(consumer.run(until, tally))
    finally:
        for consumer in consumers:
            consumer.close()
    return tally.report(what["seconds"])


async def serve() -> None:
    """Respond to requests until the input ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await measure_load(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(serve)
