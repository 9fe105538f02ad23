"""Tables of the documentation that map something known to rocketpy: complete, and what a row names exists."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import NamedTuple

import pytest
import typer.main
from starlette.routing import Route
from typer.core import TyperGroup

import rocketpy.config
import rocketpy.sync
from rocketpy import AdminClient, ClientConfig
from rocketpy.consumer.config import LitePullConfig, PushConfig
from rocketpy_cli.app import app
from rocketpy_cli.console.app import Console
from rocketpy_cli.console.settings import ConsoleSettings
from tests.interop import mqadmin
from tests.mqconsumer import CASES
from tests.mqproducer import cases
from tools.import_map import ROOT, SOURCES

Row = list[str]


class Table(NamedTuple):
    """The tables of a page after the text `begin`.

    words: what first cells must name. names: of a first cell. only: whether there are no other names. tests:
    those that the last cells of the rows before `end` must name.
    """

    page: str
    words: str
    names: Callable[[str], list[str]]
    only: bool = False
    begin: str = ""
    end: str = "\n## Not taken over"
    tests: Callable[[], set[str]] | None = None

    def text(self) -> str:
        """The page, from `begin` on."""
        text = (ROOT / "docs" / self.page).read_text("utf-8")
        assert self.begin in text
        return text[text.index(self.begin) :]

    def rows(self) -> list[Row]:
        """The cells of all rows, without headings."""
        return cells(self.text())

    def kept(self) -> list[Row]:
        """The cells of the rows before `end`."""
        return cells(self.text().partition(self.end)[0])


def cells(text: str) -> list[Row]:
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [re.split(r"\s*\|\s*", line)[1:-1] for table in tables for line in table.splitlines()[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def with_argument_counts(cell: str) -> list[str]:
    """`send(msg, mq)` as send/2; settings as they are."""
    names = []
    for name in quoted(cell):
        method = re.fullmatch(r"(\w+)\(([^()]*)\)", name)
        if method is None or method[1].startswith("set"):
            names.append(name.partition("(")[0])
        else:
            names.append(f"{method[1]}/{len(method[2].split(',')) if method[2] else 0}")
    return names


def before_colon(cell: str) -> list[str]:
    return [cell.partition(":")[0]]


def settings_and_methods(cell: str) -> list[str]:
    return [*quoted(cell), *re.findall(r"\((\w+)\)", cell)]


def spark_tests() -> set[str]:
    files = sorted((ROOT / "tests/spark").glob("test_*.py"))
    return {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}


def test_the_page_of_mqadmin_is_complete() -> None:
    """A command that was added to the comparison would be missing on the page until somebody notices."""
    page = mqadmin.PAGE.read_text("utf-8")
    for version in mqadmin.VERSIONS:
        rows = re.findall(rf"^\| `(.+?)` \| [^|]*{re.escape(version)}[^|]*\|", page, re.MULTILINE)
        assert {mqadmin.shown(command) for command in mqadmin.commands(version)} == set(rows), version


TABLES = [
    # The commands that MQAdminStartup of 4.6.0 registers.
    Table(
        "guides/mqadmin.md",
        """
        allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT cleanExpiredCQ cleanUnusedTopic
        cloneGroupOffset clusterAclConfigVersion clusterList clusterRT consumeMessage consumerConnection
        consumerProgress consumerStatus deleteAccessConfig deleteKvConfig deleteSubGroup deleteTopic
        getAccessConfigSubCommand getBrokerConfig getNamesrvConfig printMsg printMsgByQueue
        producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset queryMsgByUniqueKey
        resetOffsetByTime sendMessage sendMsgStatus startMonitoring statsAll topicClusterList topicList
        topicRoute topicStatus updateAclConfig updateBrokerConfig updateGlobalWhiteAddr updateKvConfig
        updateNamesrvConfig updateOrderConf updateSubGroup updateTopic updateTopicPerm wipeWritePerm
        """,
        quoted,
        only=True,
    ),
    # The entries of the navigation of RocketMQ Dashboard.
    Table(
        "guides/console.md",
        "Ops Proxy Dashboard Cluster Topic Consumer Producer Message DLQMessage MessageTrace ACL Login",
        before_colon,
        only=True,
        begin="## From RocketMQ Dashboard",
    ),
    # MQProducer and MQAdmin of 4.6.0, each overload by the number of its arguments; settings of
    # DefaultMQProducer, ClientConfig and TransactionMQProducer.
    Table(
        "reference/mqproducer.md",
        """
        start/0 shutdown/0 fetchPublishMessageQueues/1 send/1 send/2 send/2 send/3 send/2 send/3 send/3 send/4
        send/3 send/4 send/4 send/5 send/1 send/2 send/2 send/3 sendOneway/1 sendOneway/2 sendOneway/3
        sendMessageInTransaction/2 sendMessageInTransaction/3 request/2 request/3 request/4 request/5
        request/3 request/4 createTopic/3 createTopic/4 searchOffset/2 maxOffset/1 minOffset/1
        earliestMsgStoreTime/1 viewMessage/1 viewMessage/2 queryMessage/5
        producerGroup createTopicKey defaultTopicQueueNums sendMsgTimeout compressMsgBodyOverHowmuch
        retryTimesWhenSendFailed retryTimesWhenSendAsyncFailed retryAnotherBrokerWhenNotStoreOK maxMessageSize
        sendLatencyFaultEnable latencyMax notAvailableDuration sendMessageWithVIPChannel setCallbackExecutor
        setAsyncSenderExecutor namesrvAddr clientIP instanceName clientCallbackExecutorThreads namespace
        accessChannel pollNameServerInterval heartbeatBrokerInterval persistConsumerOffsetInterval
        pullTimeDelayMillsWhenException unitMode unitName vipChannelEnabled useTLS language executorService
        checkThreadPoolMinSize checkThreadPoolMaxSize checkRequestHoldMax setTransactionListener
        setTransactionCheckListener
        """,
        with_argument_counts,
        tests=lambda: {name for name in vars(cases) if name.startswith("test_")},
    ),
    # MQPushConsumer, MQConsumer and LitePullConsumer of 4.6.0; settings of DefaultMQPushConsumer,
    # DefaultLitePullConsumer and ClientConfig that consumers use.
    Table(
        "reference/mqconsumer.md",
        """
        start() shutdown() registerMessageListener(MessageListenerConcurrently)
        registerMessageListener(MessageListenerOrderly) subscribe(topic,subExpression)
        subscribe(topic,MessageSelector.bySql(text)) unsubscribe(topic)
        subscribe(topic,fullClassName,source) updateCorePoolSize(n) suspend() resume()
        sendMessageBack(msg,delayLevel) sendMessageBack(msg,delayLevel,brokerName)
        fetchSubscribeMessageQueues(topic) subscribe(topic,selector)
        assign(queues) poll() poll(timeout) seek(mq,offset) pause(queues) resume(queues)
        fetchMessageQueues(topic) offsetForTimestamp(mq,timestamp) commitSync() committed(mq)
        registerTopicMessageQueueChangeListener(topic,listener)
        consumerGroup messageModel consumeFromWhere consumeTimestamp allocateMessageQueueStrategy offsetStore
        consumeThreadMin consumeThreadMax adjustThreadPoolNumsThreshold consumeConcurrentlyMaxSpan
        pullThresholdForQueue pullThresholdSizeForQueue pullThresholdForTopic pullThresholdSizeForTopic
        pullInterval consumeMessageBatchMaxSize pullBatchSize postSubscriptionWhenPull unitMode
        maxReconsumeTimes suspendCurrentQueueTimeMillis consumeTimeout persistConsumerOffsetInterval
        namesrvAddr instanceName pollNameServerInterval heartbeatBrokerInterval namespace
        brokerSuspendMaxTimeMillis consumerTimeoutMillisWhenSuspend consumerPullTimeoutMillis
        messageQueueListener autoCommit pullThreadNums autoCommitIntervalMillis pullThresholdForAll
        consumeMaxSpan pollTimeoutMillis topicMetadataCheckIntervalMillis
        """,
        settings_and_methods,
        tests=lambda: set(CASES),
    ),
    # Options, columns and metrics in Spark 4.1's guide to its Kafka source and sink, and in
    # KafkaSourceProvider.
    Table(
        "guides/spark-from-kafka.md",
        """
        kafka.bootstrap.servers subscribe subscribePattern assign startingOffsets endingOffsets
        startingTimestamp endingTimestamp startingOffsetsByTimestamp endingOffsetsByTimestamp
        startingOffsetsByTimestampStrategy failOnDataLoss maxOffsetsPerTrigger minOffsetsPerTrigger
        maxTriggerDelay minPartitions maxRecordsPerPartition includeHeaders groupIdPrefix kafka.group.id
        kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
        spark.kafka.consumer.cache.* spark.kafka.consumer.fetchedData.cache.* spark.kafka.producer.cache.*
        spark.kafka.clusters.* spark.sql.streaming.kafka.useDeprecatedOffsetFetching kafka.partitioner.class
        key value topic partition offset timestamp timestampType headers minOffsetsBehindLatest
        maxOffsetsBehindLatest avgOffsetsBehindLatest offsetOutOfRange dataLoss
        """,
        quoted,
        begin="## Options of the source",
        end="\n## What Kafka's source and sink do not have",
        tests=spark_tests,
    ),
]


PAGE_OF = attrgetter("page")


@pytest.mark.parametrize("table", TABLES, ids=PAGE_OF)
def test_each_known_word_has_a_row(table: Table) -> None:
    """A user would not find what they know."""
    wanted = Counter(table.words.split())
    found = Counter(name.replace(", ", ",") for row in table.rows() for name in table.names(row[0]))
    if table.only:
        assert set(found) == set(wanted)
    assert wanted - found == Counter(), table.page


@pytest.mark.parametrize("table", TABLES[2:], ids=PAGE_OF)
def test_each_row_names_a_test_or_a_reason(table: Table) -> None:
    """A promise of a table could be broken without a test that fails."""
    assert table.tests is not None
    known, used = table.tests(), set[str]()
    for row in table.kept():
        if row[1] == "no":
            assert row[2], row
            assert not row[3], row
        else:
            used |= (tests := set(quoted(row[-1])))
            assert tests, row
            assert tests <= known, row
    assert used == known or table.tests is spark_tests


@pytest.mark.parametrize("name", ["consumer", "producer"])
@pytest.mark.parametrize("path", ["tests/integration/{}/test_mq{}.py", "tests/interop/cases/test_mq{1}.py"])
def test_the_cases_run_against_both(path: str, name: str) -> None:
    """A row could be tested with rocketpy's broker only, and be wrong with RocketMQ's."""
    text = (ROOT / path.format(name, name)).read_text("utf-8")
    assert "globals().update(CASES)" in text or "vars(cases).items()" in text


# -- what rocketpy's cells name -------------------------------------------------------------------


@cache
def shell() -> object:
    return typer.main.get_command(app)


def is_command(line: str) -> bool:
    command = shell()
    for word in line.split():
        command = command.commands.get(word) if isinstance(command, TyperGroup) else None
    return command is not None


@cache
def pages() -> frozenset[str]:
    """The paths of the console."""
    settings = ConsoleSettings(client=ClientConfig(namesrv="127.0.0.1:1"), cluster="c", token="x" * 16)
    return frozenset(route.path for route in Console(settings).asgi.app.routes if isinstance(route, Route))


@cache
def admin_methods() -> tuple[frozenset[str], ...]:
    """The methods of both admin clients, such as topics.list."""
    found = []
    for admin in (AdminClient("127.0.0.1:1"), rocketpy.sync.AdminClient("127.0.0.1:1")):
        parts = {name: part for name, part in vars(admin).items() if not name.startswith("_")}
        methods = (
            f"{name}.{method}"
            for name, part in parts.items()
            if type(part).__module__.startswith(("rocketpy.admin", "rocketpy.sync.methods"))
            for method in dir(part)
            if not method.startswith("_")
        )
        found.append(frozenset(methods))
    return tuple(found)


PARTS = "topics|groups|brokers|messages|dead_letters|name_servers|accounts"
EXISTS: dict[str, Callable[[str], bool]] = {
    r"`rocketpy ([a-z -]+)`": is_command,
    r"`(/[a-z-]*)`": lambda path: path in pages(),
    rf"`((?:{PARTS})\.\w+)": lambda method: all(method in methods for methods in admin_methods()),
    r"producer\.(\w+)\(": lambda name: hasattr(rocketpy.Producer, name),
    r"consumer\.(\w+)\(": lambda name: any(
        hasattr(kind, name) for kind in (rocketpy.PushConsumer, rocketpy.LitePullConsumer)
    ),
}
"""Pattern of what cells name -> whether it exists."""


@pytest.mark.parametrize("table", TABLES[:4], ids=PAGE_OF)
def test_what_a_row_names_exists(table: Table) -> None:
    """A table would send its reader to a command, page or method that is not there."""
    text = " | ".join(cell for row in table.kept() for cell in row[1:])
    found = [(exists, name) for pattern, exists in EXISTS.items() for name in re.findall(pattern, text)]
    assert len(found) > 10
    assert [name for exists, name in found if not exists(name)] == []


def test_a_page_of_the_dashboard_has_a_counterpart_or_a_reason() -> None:
    """The table would name nothing, and not say why."""
    for row in TABLES[1].rows():
        assert len(row) == 4
        assert re.match(r".*`/|not supported: .{20}", row[1]), row


def test_each_method_of_the_admin_client_is_named() -> None:
    """An operator would not learn of a method."""
    named = set(re.findall(rf"`((?:{PARTS})\.\w+)", TABLES[0].text()))
    for methods in admin_methods():
        assert methods <= named


def test_settings_and_defaults_are_true() -> None:
    """A table would contain a setting that does not exist, or another default."""
    for row in TABLES[2].kept():
        for group, name in re.findall(r"`(\w+Config)\.(\w+)`", row[1]):
            value = getattr(getattr(rocketpy.config, group)(), name)
            if row[2].replace(",", "").isdecimal():
                assert value == int(row[2].replace(",", "")), (group, name)
            elif row[2] in ("False", "none"):
                assert not value, (group, name)
    configs = (PushConfig, LitePullConfig, ClientConfig)
    known = {field.name for config in configs for field in dataclasses.fields(config)}
    settings = cells(TABLES[3].text().partition("DefaultMQPushConsumer: settings")[2].partition("\n## ")[0])
    assert len(settings) > 15
    for row in settings:
        words = [name.rpartition(".")[2] for name in re.findall(r"`([a-z_A-Z.]+)`", row[1])]
        assert {word for word in words if word.islower()} <= known, row


def constants(module: str) -> set[str]:
    """The texts in a module of the Spark package, which is not imported: PySpark is an extra."""
    tree = ast.parse((SOURCES["pyspark_rocketmq"] / module).read_text("utf-8"))
    return {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_spark_has_what_is_named() -> None:
    """The table would send its reader to an option or column that is not there."""
    options = constants("options.py")
    columns = constants("messages_to_rows.py") | constants("rows_to_messages.py")
    for title, known in (
        ("Options of the source", options),
        ("Options and columns of the sink", options | columns),
        ("Columns of the source", columns),
        ("Metrics and modes", constants("__init__.py")),
    ):
        rows = cells(TABLES[4].text().partition(f"## {title}\n")[2].partition("\n## ")[0])
        assert {name for row in rows for name in re.findall(r"`(\w+)`", row[1])} - known == set()


def test_every_option_of_spark_is_in_a_guide() -> None:
    """An option that no guide names would not be found."""
    code = (SOURCES["pyspark_rocketmq"] / "options.py").read_text("utf-8")
    read = set(re.findall(r"options\.(?:text|number|flag|choice|duration_ms)\(\s*\"(\w+)\"", code))
    read |= {name for name in constants("options.py") if re.fullmatch(r"(starting|ending)[A-Z]\w+", name)}
    settings = re.search(r"^_SETTINGS: Final = \{(.*?)^\}", code, re.MULTILINE | re.DOTALL)
    assert settings is not None
    read |= set(re.findall(r": \"(\w+)\"", settings[1]))
    read |= {"subscribe", "subscribePattern", "assign"}
    assert len(read) > 45
    guides = [(ROOT / f"docs/guides/spark-{name}.md").read_text("utf-8") for name in ("source", "sink")]
    assert {name for name in read if f"`{name}`" not in "".join(guides)} == set()


def test_each_yes_of_the_comparison_has_a_test() -> None:
    """A reader would choose rocketpy for something that no test holds."""
    text = (ROOT / "docs/comparison.md").read_text("utf-8")
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if "| Our test |\n" in table]
    rows = [row for table in tables for row in cells(table)]
    assert len(rows) >= 30
    for row in rows:
        assert len(row) == 8
        if row[1].startswith("no"):
            assert row[-1] == ""
            continue
        assert row[1].startswith("yes")
        path, _, name = row[-1].strip("`").partition("::")
        tests = re.findall(r"def (test_\w+)", (ROOT / path).read_text("utf-8"))
        assert name in tests if name else tests, row
