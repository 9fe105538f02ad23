"""CPU time of the send path in one process: whole sends, and the parts that have a fast path.

`python -m tools.bench.send_path [messages]` prints the best of several rounds, since other work on the
machine can only slow down a round. The broker is a scripted peer in the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import timeit

from rocketpy import Message, Producer, ProducerConfig
from rocketpy.producer.send.request_template import SendTemplate, head_text
from rocketpy.producer.send.response import _read_header
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer

ROUNDS = 5
BURST = 50
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


def best(call: str, **names: object) -> float:
    """Microseconds of one call."""
    return min(timeit.repeat(call, globals=names, number=20_000, repeat=ROUNDS)) / 20_000 * 1e6


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
