"""A Spark job and a consumer in one trace: the same scenario with the brokers of rocketpy and RocketMQ."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from rocketpy import MessageExt, PullConsumer
from tests.interop.processes import our_environment
from tests.mqproducer.place import eventually
from tests.otel.collector import Collector, Service, collecting
from tests.spark.traced_job import ROWS


async def run_scenario(namesrv: str, topic: str, environment: Mapping[str, str] | None = None) -> Collector:
    """Run the job as a process, then read and process the messages that it wrote. The topic must exist."""
    async with collecting() as collector:
        job = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.spark.traced_job", namesrv, topic, collector.url),
            env={**our_environment(), **(environment or {})},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await job.communicate()
        assert job.returncode == 0, errors.decode()[-3000:]
        archive = Service("archive", collector)
        async with PullConsumer("archive", namesrv, telemetry=archive.telemetry()) as reader:
            messages = await eventually(lambda: _all(reader, topic), 30)
        for message in messages:
            with archive.telemetry(process_as_child=True).process(message, group="archive"):
                pass
        await archive.export()
        return collector


async def _all(reader: PullConsumer, topic: str) -> list[MessageExt] | None:
    found = [
        message
        for queue in await reader.fetch_queues(topic)
        for message in (await reader.pull(queue, 0)).messages
    ]
    return found if len(found) == ROWS else None


def expect_one_trace(collector: Collector, topic: str) -> None:
    """Check that spans of rows and requests are children of the job's, and the consumer's of the row's."""
    job = collector.span("write orders")
    creates, sends, processes = (collector.named(f"{name} {topic}") for name in ("create", "send", "process"))
    assert (job.service, len(creates), len(sends), len(processes)) == ("job", ROWS, 2, ROWS)
    assert {span.service for span in (*creates, *sends)} == {"workers"}
    assert {span.trace_id for span in (*creates, *sends, *processes)} == {job.trace_id}
    assert {span.parent_id for span in (*creates, *sends)} == {job.span_id}
    assert sorted(span.parent_id for span in processes) == sorted(span.span_id for span in creates)
    assert sorted(link for span in sends for link in span.links) == sorted(span.span_id for span in creates)
