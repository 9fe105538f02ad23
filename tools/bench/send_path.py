"""CPU time of the send path in one process: whole sends, their parts, and what no client can avoid.

`python -m tools.bench.send_path [messages]` prints the best of several rounds, since other work on the
machine can only slow down a round. The broker is a scripted peer in the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
import timeit

from rocketpy import Message, Producer, ProducerConfig
from rocketpy.producer.send.request_template import SendTemplate, encoded_properties, head_text
from rocketpy.producer.send.response import _read_header, parse_batch_response
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.message_id import UniqueIdGenerator
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer

ROUNDS = 5
CALLS = 2000
BURST = 50
BATCH, BATCHED_BYTES = 128, 215  # messages of a full batch, and bytes of each as it is sent
OFFSET_ID = "7F00000100004E2A0000000000000BCF"
BY_TEMPLATE = "t.frame(1, 0, 5, 7, p, 9, body)"
BY_ENCODER = "encode(t.command(1, 0, 5, 7, p, body))"
MESSAGE = Message("T", b"x" * 128)


def respond(_channel: Channel, request: Command) -> Command:
    """Store one message, or a batch."""
    count = bytes(request.body).count(b"UNIQ_KEY") or 1
    ids = ",".join([OFFSET_ID] * count)
    return request.reply(header=SendMessageResponseHeader(msg_id=ids, queue_id=0, queue_offset=5))


async def cpu_of_sends(*, batching: bool, count: int) -> tuple[float, float]:
    """Microseconds per message, sent in bursts and one by one."""
    bursts, singles = [], []
    async with Peer(respond) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=ProducerConfig(batching=batching)) as producer:
            await producer.send(MESSAGE)
            for _ in range(ROUNDS):
                start = time.process_time()
                for _ in range(count // BURST):
                    await asyncio.gather(*[producer.send_nowait(MESSAGE) for _ in range(BURST)])
                bursts.append((time.process_time() - start) / count)
                start = time.process_time()
                for _ in range(count // 4):
                    await producer.send(MESSAGE)
                singles.append((time.process_time() - start) / (count // 4))
    return min(bursts) * 1e6, min(singles) * 1e6


async def cpu_of_wake_ups(count: int) -> float:
    """Microseconds per future that a coroutine of a task awaits, in batches: asyncio's part of a send."""
    loop, waiting, times = asyncio.get_running_loop(), list[asyncio.Future[None]](), []

    def wake() -> None:
        woken, waiting[:] = waiting[:], []
        for future in woken:
            future.set_result(None)

    async def send() -> None:
        if not waiting:
            loop.call_soon(wake)
        future: asyncio.Future[None] = asyncio.Future(loop=loop)
        waiting.append(future)
        await future

    async def keep_sending() -> None:
        for _ in range(count // BATCH):
            await send()

    for _ in range(ROUNDS):
        start = time.process_time()
        await asyncio.gather(*[keep_sending() for _ in range(BATCH)])
        times.append((time.process_time() - start) / count)
    return min(times) * 1e6


def cpu_of_loopback(size: int) -> float:
    """Microseconds of sending and receiving `size` bytes over loopback, in one process."""
    data, buffer, times = bytes(size), bytearray(size), []
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        for _ in range(1000):
            start = time.process_time()
            here.sendall(data)
            there.recv_into(buffer, size, socket.MSG_WAITALL)
            times.append(time.process_time() - start)
    return min(times) * 1e6


def parts_of_a_batch() -> dict[str, float]:
    """Microseconds per message of the parts of a batch."""
    ids, queue = UniqueIdGenerator(b"\x7f\0\0\1"), MessageQueue("T", "a", 0)
    msg_id = ",".join([OFFSET_ID] * BATCH)
    texts = encoded_properties(ids.take(0, BATCH), [""] * BATCH, wait_store=True)
    names: dict[str, object] = {
        "body": MESSAGE.body, "ids": ids.take(0, BATCH), "take": ids.take,
        "properties": encoded_properties, "encode": encode_batch, "parse": parse_batch_response,
        "queue": queue, "messages": [(0, MESSAGE.body, text) for text in texts], "none": [""] * BATCH,
        "response": Command(
            0, header=SendMessageResponseHeader(msg_id=msg_id, queue_id=0, queue_offset=5)
        ),
    }  # fmt: skip
    calls = {
        "unique ids": f"take(0, {BATCH})",
        "properties": "properties(ids, none, wait_store=True)",
        "body": "encode(messages)",
        "results": "list(parse(response, queue, ids))",
    }
    return {name: best(call, **names) / BATCH for name, call in calls.items()}


def best(call: str, **names: object) -> float:
    """Microseconds of one call."""
    return min(timeit.repeat(call, globals=names, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="?", type=int, default=20_000)
    count = parser.parse_args().messages
    for batching in (True, False):
        burst, single = asyncio.run(cpu_of_sends(batching=batching, count=count))
        print(
            f"batching={batching}: {burst:.2f} us a message in bursts of {BURST}, {single:.2f} us one by one"
        )
    print(f"asyncio alone, for each awaited future: {asyncio.run(cpu_of_wake_ups(50_000)):.2f} us")
    size = BATCH * BATCHED_BYTES
    print(f"loopback, {size} bytes: {cpu_of_loopback(size) / BATCH:.2f} us for each of {BATCH} messages")
    for name, micros in parts_of_a_batch().items():
        print(f"{name}: {micros:.3f} us for each of {BATCH} messages")
    print(f"Message(): {best('new(topic, body)', new=Message, topic='T', body=MESSAGE.body):.3f} us")
    template = SendTemplate(RequestCode.SEND_MESSAGE_V2, "g", "T", "TBW102", 4)
    names = {
        "t": template,
        "p": head_text("7F" * 16, wait_store=True),
        "encode": encode_command,
        "body": b"x",
    }
    reply = Command(0, header=SendMessageResponseHeader(msg_id=OFFSET_ID, queue_id=0, queue_offset=5))
    response = decode_command(FrameDecoder().feed(encode_command(reply))[0])
    decoders = {"r": response, "read": _read_header, "cls": SendMessageResponseHeader}
    print(f"response header by its own decoder: {best('read(r)', **decoders):.2f} us")
    print(f"response header by header_as: {best('r.header_as(cls)', **decoders):.2f} us")
    print(f"frame by template: {best(BY_TEMPLATE, **names):.2f} us")
    print(f"frame by the general encoder: {best(BY_ENCODER, **names):.2f} us")


if __name__ == "__main__":
    main()
