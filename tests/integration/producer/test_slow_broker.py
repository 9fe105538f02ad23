"""A broker process that is stopped in the middle (SIGSTOP): it keeps its connections, and reads nothing."""

from __future__ import annotations

import asyncio
import gc
import signal
import tracemalloc
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy import CompressionConfig, Message, Outcome, Producer, ProducerConfig, PullConsumer, SendStatus
from rocketpy.errors import FlowControlled, RequestTimeout
from tests.integration.processes import start, stop

LONG_MS = 600_000


@asynccontextmanager
async def running(store: Path, config: ProducerConfig) -> AsyncIterator[tuple[Producer, str, Process]]:
    """A producer that has sent a batch, the name server's address, and the process of the servers."""
    process, namesrv = await start(
        "dev", "--store", str(store), "--listen", "127.0.0.1:0", "--set", "listenPort=0"
    )
    assert process.stdout is not None
    assert b"ready" in await process.stdout.readline()  # the broker, too
    try:
        async with Producer("g", namesrv, config=config) as producer:
            await producer.send(Message("T", b"first"))
            await asyncio.gather(*[producer.send(Message("T", b"warm")) for _ in range(3)])
            yield producer, namesrv, process
    finally:
        process.send_signal(signal.SIGCONT)
        await stop(process)


async def bodies(namesrv: str) -> Counter[bytes]:
    """The stored messages."""
    found: Counter[bytes] = Counter()
    async with PullConsumer("readers", namesrv) as consumer:
        for queue in await consumer.fetch_queues("T"):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                offset = pulled.next_offset
                found.update(message.body for message in pulled.messages)
    return found


@pytest.mark.parametrize("batching", [True, False])
async def test_callers_wait_for_a_broker_that_reads_nothing(tmp_path: Path, batching: bool) -> None:
    """A broker that hangs for a while would cost messages, or its producers their memory."""
    config = ProducerConfig(batching=batching, max_in_flight=300)
    async with running(tmp_path, config) as (producer, namesrv, process):
        process.send_signal(signal.SIGSTOP)
        sent = [b"%d" % number for number in range(1000)]
        sends = [asyncio.create_task(producer.send(Message("T", body), timeout_ms=LONG_MS)) for body in sent]
        await asyncio.sleep(0)
        health = producer.health()
        assert (health.in_flight, health.in_flight_bytes) == (300, sum(map(len, sent[:300])))
        with pytest.raises(FlowControlled):
            producer.send_nowait(Message("T", b"one more"))
        with pytest.raises(FlowControlled):
            await producer.send(Message("T", b"impatient"), timeout_ms=1)
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(120):
            results = await asyncio.gather(*sends)
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert producer.health().in_flight == 0
        assert await bodies(namesrv) == Counter(sent) + Counter({b"first": 1, b"warm": 3})


async def test_a_message_that_a_broker_never_read_is_not_stored(tmp_path: Path) -> None:
    """Requests that timed out while the broker hangs would stay queued, and be stored later."""
    config = ProducerConfig(batching=False, compression=CompressionConfig(above_bytes=1 << 20))
    async with running(tmp_path, config) as (producer, namesrv, process):
        process.send_signal(signal.SIGSTOP)
        filling = [b"%03d" % number + bytes(100_000) for number in range(200)]  # exceeds socket buffers
        sends = [producer.send_nowait(Message("T", body), timeout_ms=LONG_MS) for body in filling]
        await asyncio.sleep(0)  # requests are written at the end of a loop iteration
        await asyncio.sleep(0)
        late = [producer.send_nowait(Message("T", b"late"), timeout_ms=50) for _ in range(3)]
        errors = await asyncio.gather(*late, return_exceptions=True)
        assert {type(error) for error in errors} == {RequestTimeout}
        assert {error.outcome for error in errors if isinstance(error, RequestTimeout)} == {Outcome.NOT_SENT}
        assert "timed out after 50 ms waiting for responses of broker broker-a (" in str(errors[0])
        patient = [b"patient %03d" % number + bytes(100_000) for number in range(200)]
        sends += [producer.send_nowait(Message("T", body), timeout_ms=LONG_MS) for body in patient]
        producer.send_nowait(Message("T", b"given up"), timeout_ms=LONG_MS).cancel()
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(120):
            results = await asyncio.gather(*sends)
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert producer.health().in_flight == 0
        stored = Counter([*filling, *patient, b"first"]) + Counter({b"warm": 3})
        assert await bodies(namesrv) == stored


@pytest.mark.slow
@pytest.mark.parametrize("batching", [True, False])
async def test_100_000_sends_in_flight_need_less_than_a_kibibyte_each(tmp_path: Path, batching: bool) -> None:
    """Producers of a broker that hangs would run out of memory before the in-flight limits apply."""
    count, body_bytes = 100_000, 128
    config = ProducerConfig(batching=batching, max_in_flight=count)
    async with running(tmp_path, config) as (producer, _, process):
        process.send_signal(signal.SIGSTOP)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(count):
                producer.send_nowait(Message("T", bytes(body_bytes)), timeout_ms=LONG_MS)
                if number % 500 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert producer.health().in_flight == count
        assert (after - before) / count - body_bytes < 1024
        assert len(await producer.close(timeout_ms=0)) == count
