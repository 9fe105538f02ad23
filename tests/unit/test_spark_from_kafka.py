"""docs/guides/spark-from-kafka.md: complete, and each row covered by a test that exists."""

from __future__ import annotations

import ast
import re

import pytest

from tools.import_map import ROOT, SOURCES

GUIDES = ROOT / "docs/guides"
PAGE = (GUIDES / "spark-from-kafka.md").read_text("utf-8")

# Options, columns and metrics in Spark 4.1's guide to its Kafka source and sink, and in KafkaSourceProvider.
KAFKA = re.findall(
    r"\S+",
    """
    kafka.bootstrap.servers subscribe subscribePattern assign startingOffsets endingOffsets startingTimestamp
    endingTimestamp startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    failOnDataLoss maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions
    maxRecordsPerPartition includeHeaders groupIdPrefix kafka.group.id kafkaConsumer.pollTimeoutMs
    fetchOffset.numRetries fetchOffset.retryIntervalMs spark.kafka.consumer.cache.*
    spark.kafka.consumer.fetchedData.cache.* spark.kafka.producer.cache.* spark.kafka.clusters.*
    spark.sql.streaming.kafka.useDeprecatedOffsetFetching kafka.partitioner.class
    key value topic partition offset timestamp timestampType headers
    minOffsetsBehindLatest maxOffsetsBehindLatest avgOffsetsBehindLatest offsetOutOfRange dataLoss
    """,
)


def constants(module: str) -> set[str]:
    """The texts in a module of the package, which is not imported: PySpark is an extra."""
    tree = ast.parse((SOURCES["pyspark_rocketmq"] / module).read_text("utf-8"))
    return {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def section(title: str) -> list[list[str]]:
    """The cells of each row of a table: Kafka's words, ours, the difference, the test."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and "| Kafka |" not in line]
    return [re.split(r"\s*\|\s*", line.strip())[1:5] for line in lines]


def rows(*titles: str) -> list[list[str]]:
    """The rows of several sections."""
    return [row for title in titles for row in section(title)]


OPTIONS = ("Options of the source", "Options and columns of the sink")
ALL = (*OPTIONS, "Columns of the source", "Metrics and modes")


@pytest.mark.parametrize("word", KAFKA)
def test_every_word_of_kafkas_is_there(word: str) -> None:
    """A user who migrates a job would not find an option."""
    assert any(f"`{word}`" in row[0] for row in rows(*ALL))


def test_each_row_names_a_test_or_a_reason() -> None:
    """A promise of the table could be broken without a test that fails."""
    files = sorted((ROOT / "tests/spark").glob("test_*.py"))
    known = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    assert len(rows(*ALL)) > 50
    for kafka, here, difference, test in rows(*ALL):
        if here == "no":
            assert difference, kafka
            assert not test, kafka
        else:
            names = test.split(", ")
            assert all(name.strip("`") in known for name in names), (kafka, names)


def test_what_is_named_exists() -> None:
    """The table would send its reader to an option or column that is not there."""
    options = constants("options.py")
    columns = constants("messages_to_rows.py") | constants("rows_to_messages.py")
    for title, known in (
        (OPTIONS[0], options),
        (OPTIONS[1], options | columns),
        ("Columns of the source", columns),
        ("Metrics and modes", constants("__init__.py")),
    ):
        named = {name for row in rows(title) for name in re.findall(r"`(\w+)`", row[1])}
        assert named - known == set()


def test_every_option_is_in_a_guide() -> None:
    """An option that no guide names would not be found."""
    code = (SOURCES["pyspark_rocketmq"] / "options.py").read_text("utf-8")
    read = set(re.findall(r"options\.(?:text|number|flag|choice|duration_ms)\(\s*\"(\w+)\"", code))
    read |= {name for name in constants("options.py") if re.fullmatch(r"(starting|ending)[A-Z]\w+", name)}
    read |= {"subscribe", "subscribePattern", "assign"}
    assert len(read) > 45
    guides = "".join((GUIDES / f"spark-{name}.md").read_text("utf-8") for name in ("source", "sink"))
    assert {name for name in read if f"`{name}`" not in guides} == set()
