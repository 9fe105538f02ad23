"""Options for a broker that requires TLS and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trustme
from pyspark.errors import PySparkException

from tests.interop.processes import OurBroker, OurNameServer
from tests.spark.conftest import PATIENT

pytestmark = pytest.mark.spark

ACCOUNTS = """
- accessKey: spark-jobs
  secretKey: '12345678'
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
  topicPerms:
  - Closed=DENY
"""


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options of a job for servers with TLS and access control."""
    run = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(run / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(run / "server.pem")
    (run / "plain_acl.yml").write_text(f"accounts:{ACCOUNTS}")
    tls = {
        "tls.server.mode": "permissive",  # the test setup checks readiness without TLS
        "tls.server.certPath": run / "server.pem",
        "tls.server.keyPath": run / "server.pem",
    }
    access = {"aclEnable": "true", "rocketmq.acl.plain.file": run / "plain_acl.yml"}
    with (
        OurNameServer(run, conf=tls) as names,
        OurBroker(run, names.address, conf={**PATIENT, **tls, **access}),
    ):
        yield {
            "nameServer": names.address,
            "tls": "true",
            "tlsCaFile": str(run / "ca.pem"),
            "accessKey": "spark-jobs",
            "secretKey": "12345678",
            "deliveryTimeoutMs": "1",
        }


def write(frame: Any, options: dict[str, str], **more: str) -> None:
    frame.write.format("rocketmq").options(**options, **more).mode("append").save()


def test_rows_are_written_and_read_with_tls_and_signatures(spark: Any, options: dict[str, str]) -> None:
    """Jobs could not write to, or read from, a secured broker."""
    frame = spark.range(100).selectExpr("cast(id AS string) AS body", "'t' AS tags")
    write(frame, options, topic="Open", sendTimeoutMs="30000")
    given = {name: value for name, value in options.items() if name != "deliveryTimeoutMs"}
    rows = spark.read.format("rocketmq").options(**given, topic="Open").load().collect()
    assert sorted(int(row.body) for row in rows) == list(range(100))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tlsCaFile": ""}, "certificate was rejected"),
        ({"accessKey": "", "secretKey": ""}, "No accessKey is configured"),
        ({"secretKey": "87654321"}, "Check signature failed"),
        ({"topic": "Closed"}, "No default permission for topic:Closed"),
    ],
)
def test_errors_name_the_reason_of_a_rejection(
    spark: Any, options: dict[str, str], changed: dict[str, str], words: str
) -> None:
    """A job would hang, or fail with an error that names no key, permission or certificate."""
    frame = spark.range(2).selectExpr("cast(id AS string) AS body").coalesce(1)
    with pytest.raises(PySparkException, match=rf"(?s)0 to 1 of partition 0 not sent.*{words}.*not_sent"):
        write(frame, {**options, "topic": "Open", "sendTimeoutMs": "2000", **changed})
