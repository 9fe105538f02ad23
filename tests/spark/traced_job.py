"""A program that tests start: a job with a span, whose tasks send in the job's trace.

    python -m tests.spark.traced_job NAMESRV TOPIC COLLECTOR

Workers get their tracing from the environment, like with `opentelemetry-instrument`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from opentelemetry.baggage import set_baggage
from opentelemetry.propagate import inject

from examples.spark_session import start_session
from tests.otel.collector import Collector, Service

ROWS = 6
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def main(namesrv: str, topic: str, collector: str) -> None:
    """Write rows in two partitions."""
    os.environ |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_SERVICE_NAME": "workers",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    sys.path.insert(0, str(Path(__file__).parent / "worker_site"))
    job = Service("job", Collector(url=collector))
    spark = start_session("rocketpy traced job", "local[2]", SETTINGS)
    frame = spark.range(0, ROWS, 1, 2).selectExpr("concat('row ', id) AS body")
    with job.tracers.get_tracer("job").start_as_current_span("write orders"):
        carrier: dict[str, str] = {}
        inject(carrier, set_baggage("shop", "Bern"))
        writer = frame.write.format("rocketmq").options(nameServer=namesrv, topic=topic, **carrier)
        writer.option("sendTimeoutMs", 30_000).mode("append").save()
    asyncio.run(job.export())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
