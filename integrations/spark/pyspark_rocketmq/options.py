"""Options of the data source, parsed from Spark's strings and validated.

Names are matched ignoring case, as in Spark. Unknown options are rejected: a misspelt `retries` would
otherwise be ignored silently.
"""

from __future__ import annotations

import logging
import platform
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, Final

from pyspark_rocketmq.offsets import (
    EARLIEST,
    LATEST,
    Position,
    QueueName,
    read_offsets,
    read_queues,
    read_times,
)
from rocketpy import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    Credentials,
    ProducerConfig,
    RetryConfig,
    Sql,
)
from rocketpy.client.name_servers import split_addresses
from rocketpy.config import value_of
from rocketpy.consumer.fetch.subscription import Expression
from rocketpy.environment import (
    TLS_SETTINGS,
    Found,
    Source,
    environment_sources,
    find_settings,
    no_name_server,
)
from rocketpy.errors import ConfigInvalid, MessageInvalid
from rocketpy.message import check_group, check_topic
from rocketpy.message.message import check_properties
from rocketpy.protocol.java import trim
from rocketpy.protocol.message.checksum import BODY_CHECKSUMS
from rocketpy.protocol.remoting.frame import MAX_FRAME_BYTES
from rocketpy.transport import TlsFiles

ROW_ID_PROPERTY: Final = "SPARK_ROW_ID"
"""Default name of the property with the row id; see `dedupe`."""

_SPARK_OPTIONS: Final = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "outputmode"}
    | {"provider", "owner", "location", "external", "is_managed_location", "comment", "collation"}
)
"""Options for Spark itself and properties of its tables, which the data source ignores."""
_TABLE_PREFIX: Final = "option."
"""Prefix of options of CREATE TABLE. Spark passes each of them twice, with and without the prefix."""
_SETTINGS: Final = {
    "namesrv": "nameServer",
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "security_token": "securityToken",
    "signature_version": "signatureVersion",
    "namespace": "namespace",
    "tls_ca": "tlsCaFile",
    "tls_cert": "tlsCertFile",
    "tls_key": "tlsKeyFile",
}
"""Setting of `rocketpy.environment` -> option. The environment may give these, too."""
_TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")
_NO_COMPRESSION_BYTES: Final = 1 << 40
"""A threshold above the size of any body, so that none is compressed."""
_DELIVERY_TIMEOUT_MS: Final = 120_000
"""How long requests are retried while a server is unreachable; Kafka's default of delivery.timeout.ms."""
_SQL_SIGNS: Final = frozenset(" \t\n<>='\"()|")
"""Characters that a tag is unlikely to have: the expression is probably an SQL92 condition."""
_SELECTIONS: Final = ("topic", "subscribe", "subscribePattern", "assign")
"""Options that select what to read; exactly one of them must be set."""
_STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""Of `_STARTING` and of `_ENDING`, the first option that is set has effect, as in Spark's Kafka source."""
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsets")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_GROUP_LENGTH_MAX: Final = 255
_GROUP_HASH_DIGITS: Final = 16
_KAFKA_NAMES: Final = {
    "kafka.bootstrap.servers": "nameserver",
    "kafka.group.id": "group",
    "kafkaconsumer.polltimeoutms": "pulltimeoutms",
}
"""Options of Spark's Kafka source and sink that have another name here, in lower case."""
_DURATION: Final = re.compile(r"(\d{1,12})\s*([a-z]*)")
_UNIT_MS: Final = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000
}  # fmt: skip
"""Units of Spark's durations."""
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})

log = logging.getLogger("pyspark_rocketmq")


class Options:
    """Reads options one by one, and reports unknown options.

    Names are matched ignoring case. An option that is not set has the value `default`.
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items() if value is not None}
        self._names: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no option is given."""
        return not self._given

    def text(self, name: str, default: str = "") -> str:
        """Return an option as it was written."""
        self._names[name.lower()] = name
        return self._given.get(name.lower(), default)

    def number(self, name: str, default: int, minimum: int = 0, maximum: int | None = None) -> int:
        """Return a whole number. Raises ConfigInvalid, also if it is below `minimum` or above `maximum`."""
        text = self.text(name, str(default))
        try:
            value = int(text)
        except ValueError:
            raise ConfigInvalid(f"option {name} is {text!r}; it must be a whole number") from None
        if value < minimum:
            raise ConfigInvalid(f"option {name} is {value}; it must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise ConfigInvalid(f"option {name} is {value}; it must be at most {maximum}")
        return value

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration such as `15m` in ms; a plain number is in ms. Raises ConfigInvalid."""
        text = self.text(name, default)
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None or match[2] not in _UNIT_MS:
            raise ConfigInvalid(f"option {name} is {text!r}; write a duration such as 500ms, 30s, 15m or 2h")
        return int(match[1]) * _UNIT_MS[match[2]]

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean. Raises ConfigInvalid."""
        text = self.text(name, str(default)).lower()
        if text not in _TRUE | _FALSE:
            raise ConfigInvalid(f"option {name} is {text!r}; it must be true or false")
        return text in _TRUE

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        """Return one of the choices, in lower case. Raises ConfigInvalid for any other value."""
        text = self.text(name, default).lower()
        if text not in choices:
            raise ConfigInvalid(f"option {name} is {text!r}; choose one of {', '.join(choices)}")
        return text

    def is_set(self, name: str) -> bool:
        """Whether an option is given, and not empty."""
        return bool(self._given.get(name.lower()))

    def reject(self, names: Iterable[str], reason: str) -> None:
        """Raise ConfigInvalid if one of these options is given."""
        for name in filter(self.is_set, names):
            raise ConfigInvalid(f"option {name} {reason}")

    def reject_unknown(self) -> None:
        """Raise ConfigInvalid for an option that was not read."""
        for name in sorted(self._given.keys() - self._names.keys() - _SPARK_OPTIONS):
            if name.startswith(_TABLE_PREFIX):
                continue
            near = get_close_matches(_KAFKA_NAMES.get(name, name), self._names, n=1)
            hint = f" (did you mean {self._names[near[0]]}?)" if near else ""
            known = ", ".join(sorted(self._names.values(), key=str.lower))
            raise ConfigInvalid(f"unknown option {name!r}{hint}; known options: {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connection to the servers. A plain value: it is pickled for executors.

    The driver reads its environment for what the options do not give, so that all tasks use the same cluster.
    """

    name_server: str
    namespace: str
    credentials: Credentials | None
    """None: those of the environment of each process that connects, if any."""
    tls_files: tuple[tuple[str, str, str], ...]
    """Arguments of `TlsFiles`: name, path, and what users call it."""
    request_timeout_ms: int

    def __repr__(self) -> str:
        return f"Connection({self.name_server!r})"

    @classmethod
    def read(cls, options: Options) -> Connection:
        """Read the connection options. Raises ConfigInvalid."""
        given = {setting: options.text(name) for setting, name in _SETTINGS.items()}
        tls = options.flag("tls", default=False)
        if options.is_empty:
            raise ConfigInvalid(
                "there are no options: Spark does not pass those of CREATE TABLE to Python data sources; "
                "name them in each statement: SELECT * FROM orders WITH (nameServer = 'host:9876', "
                "topic = 'Orders'), or INSERT INTO orders WITH (…) VALUES …"
            )
        names = {setting: f"option {name}" for setting, name in _SETTINGS.items()}
        found = find_settings([Source(given, names), *environment_sources()])
        if "namesrv" not in found:
            raise ConfigInvalid(no_name_server("the option nameServer"))
        name_server = _name_servers(found["namesrv"], tls=tls)
        connection = cls(
            name_server=name_server,
            namespace=value_of(found, "namespace"),
            credentials=Credentials.of_settings(found),
            tls_files=tuple(
                (argument, found[setting].value, found[setting].source.names[setting])
                for setting, argument in TLS_SETTINGS.items()
                if setting in found
            ),
            request_timeout_ms=options.number("requestTimeoutMs", 3000, 1),
        )
        connection._check(found)
        return connection

    def _check(self, found: Mapping[str, Found]) -> None:
        """Raise ConfigInvalid for a setting without another one that it requires."""
        uses_tls = self.name_server.startswith("tls://")
        for setting, required, is_given in (
            ("security_token", "option accessKey", self.credentials is not None),
            ("signature_version", "option accessKey", self.credentials is not None),
            ("tls_ca", "option tls=true", uses_tls),
            ("tls_cert", "option tls=true", uses_tls),
            ("tls_key", "option tlsCertFile", "tls_cert" in found),
        ):
            if setting in found and not is_given:
                name = found[setting].source.names[setting]
                raise ConfigInvalid(f"{name} requires {required}")

    def client_config(self) -> ClientConfig:
        """Return the settings of a client. Raises ConfigInvalid for TLS files that cannot be used.

        Each process that connects creates them, since a TLS context cannot be pickled. The driver of a sink
        does not connect, so it needs no TLS files.
        """
        return ClientConfig(
            namesrv=self.name_server,
            namespace=self.namespace,
            credentials=self.credentials or Credentials.from_environment(),
            ssl=self._open_tls_files() if self.tls_files else None,
            request_timeout_ms=self.request_timeout_ms,
            trust_env=False,
        )

    def _open_tls_files(self) -> TlsFiles:
        given: dict[str, Any] = {argument: path for argument, path, _ in self.tls_files}
        try:
            return TlsFiles(**given, names={argument: name for argument, _, name in self.tls_files})
        except ConfigInvalid as error:
            raise ConfigInvalid(f"on host {platform.node()}: {error}") from None


def _name_servers(found: Found, *, tls: bool) -> str:
    """Return the addresses, all with or all without tls://. tls: the option tls. Raises ConfigInvalid."""
    name = found.source.names["namesrv"]
    if found.value.startswith(("embedded:", "memory:")):
        raise ConfigInvalid(f"{name} is {found.value!r}; Spark's workers need host:port")
    try:
        return ";".join(split_addresses(found.value, tls=tls))
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a write. `docs/guides/spark-sink.md` has the table of options."""

    connection: Connection
    group: str
    topic: str
    format: str
    batch_rows: int
    batch_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    max_message_bytes: int
    max_delay_level: int
    send_timeout_ms: int
    retries: int
    delivery_timeout_ms: int
    compression: str
    compress_above_bytes: int
    body_checksum: str
    require_send_ok: bool
    row_id_property: str
    trace_context: tuple[tuple[str, str], ...] = ()
    """Names and values of the W3C trace context: traceparent, tracestate, baggage."""

    @classmethod
    def read(cls, given: Mapping[str, object]) -> SinkOptions:
        """Read options. Raises ConfigInvalid, TopicInvalid and GroupInvalid."""
        options = Options(given)
        topic = options.text("topic")
        sink = cls(
            connection=Connection.read(options),
            group=check_group(options.text("group", "spark-sink")),
            topic=check_topic(topic) if topic else "",
            format=options.choice("format", "raw", ("raw", "json", "msgpack")),
            batch_rows=options.number("batchSize", 1000, 1),
            batch_bytes=options.number("batchBytes", 1 << 20, 1),
            max_in_flight=options.number("maxInFlight", 16, 1),
            max_in_flight_bytes=options.number("maxInFlightBytes", 4 << 20, 1),
            max_message_bytes=options.number("maxMessageBytes", 4 << 20, 1, MAX_FRAME_BYTES),
            max_delay_level=options.number("maxDelayLevel", 18),
            send_timeout_ms=options.number("sendTimeoutMs", 3000, 1),
            retries=options.number("retries", 2),
            delivery_timeout_ms=options.number("deliveryTimeoutMs", _DELIVERY_TIMEOUT_MS),
            compression=options.choice("compression", "zlib", ("none", "zlib", "lz4", "zstd")),
            compress_above_bytes=options.number("compressAboveBytes", 4096),
            body_checksum=options.choice("bodyChecksum", "none", ("none", *BODY_CHECKSUMS)),
            require_send_ok=options.flag("requireSendOk", default=True),
            row_id_property=_property_name(options, "dedupProperty", ROW_ID_PROPERTY),
            trace_context=tuple((name, text) for name in _TRACE_CONTEXT if (text := options.text(name))),
        )
        options.reject_unknown()
        return sink

    def producer_config(self) -> ProducerConfig:
        """Return the settings of the producer."""
        compression = CompressionConfig(above_bytes=_NO_COMPRESSION_BYTES)
        if self.compression != "none":
            compression = CompressionConfig(
                type=self.compression,  # type: ignore[arg-type] # one of the choices above
                above_bytes=self.compress_above_bytes,
            )
        return ProducerConfig(
            send_timeout_ms=max(self.delivery_timeout_ms, self.send_timeout_ms),
            attempt_timeout_ms=self.send_timeout_ms,
            max_message_bytes=self.max_message_bytes,
            max_delay_level=self.max_delay_level,
            # The sink enforces maxInFlightBytes itself; this limit must never be reached.
            max_in_flight_bytes=max(2 * self.max_in_flight_bytes, 64 << 20),
            body_checksum="" if self.body_checksum == "none" else self.body_checksum,
            retry=RetryConfig(times=self.retries),
            compression=compression,
            batch=BatchConfig(max_bytes=self.batch_bytes),
        )


def _property_name(options: Options, option: str, default: str) -> str:
    """Return the name of a property, or an empty string. Raises ConfigInvalid for one that is reserved."""
    name = options.text(option, default)
    if name:
        try:
            check_properties((name,))
        except MessageInvalid as error:
            raise ConfigInvalid(f"option {option} is {name!r}: {error}") from None
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a read. `docs/guides/spark-source.md` has the table of options. A limit of 0 means that
    there is none.
    """

    connection: Connection
    group: str
    topics: tuple[str, ...]
    """The topics to read; empty if `pattern` selects them."""
    pattern: re.Pattern[str] | None
    assigned: frozenset[QueueName]
    """The queues to read; empty for all queues of the topics."""
    starting: Position
    ending: Position
    needs_match: bool
    """Whether a starting time after the last message of a queue is an error."""
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    trigger_delay_ms: int
    min_partitions: int
    max_partition_rows: int
    include_headers: bool
    fail_on_data_loss: bool
    commit_offsets: bool
    tags: frozenset[str]
    """Only messages with one of these tags are read; empty for all."""
    pushdown: bool
    """Whether the broker selects the tags, instead of the task."""
    sql: str
    """An SQL92 condition, which the broker evaluates; empty for none."""
    pull_rows: int
    pull_timeout_ms: int
    delivery_timeout_ms: int

    @classmethod
    def read(cls, given: Mapping[str, object], *, streaming: bool | None) -> SourceOptions:
        """Read options.

        streaming: whether it is a stream; None at `load()`, when the kind of the read is not known yet. Then
        options that are invalid for only one kind are accepted. Raises ConfigInvalid, TopicInvalid and
        GroupInvalid.
        """
        options = Options(given)
        connection = Connection.read(options)
        topics, pattern, assigned = _read_topics(options)
        expression = options.text("subExpression", "*")
        is_sql = options.choice("subExpressionType", "tag", ("tag", "sql92")) == "sql92"
        if is_sql and expression.strip() in {"", "*"}:
            raise ConfigInvalid("option subExpressionType is SQL92; set subExpression to a condition")
        source = cls(
            connection=connection,
            group=_read_group(options, pattern.pattern if pattern else "|".join(sorted(topics))),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=_read_position(options, _STARTING, "latest" if streaming else "earliest"),
            ending=_read_position(options, _ENDING, "latest"),
            needs_match=options.choice(_STRATEGY, "latest", ("error", "latest")) == "error",
            max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", 0),
            min_offsets_per_trigger=options.number("minOffsetsPerTrigger", 0),
            trigger_delay_ms=options.duration_ms("maxTriggerDelay", "15m"),
            min_partitions=options.number("minPartitions", 0),
            max_partition_rows=options.number("maxRecordsPerPartition", 0),
            include_headers=options.flag("includeHeaders", default=True),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            commit_offsets=options.flag("commitOffsets", default=False),
            tags=frozenset() if is_sql else _tags(expression),
            pushdown=options.flag("pushdown", default=False),
            sql=expression if is_sql else "",
            pull_rows=options.number("pullBatchSize", 1024, 1),
            pull_timeout_ms=options.number("pullTimeoutMs", 10_000, 1),
            delivery_timeout_ms=options.number("deliveryTimeoutMs", _DELIVERY_TIMEOUT_MS),
        )
        options.reject_unknown()
        if streaming is not None:
            kind, other = ("stream", "batch read") if streaming else ("batch read", "stream")
            options.reject(_ENDING if streaming else _STREAM_ONLY, f"is for a {other}, and this is a {kind}")
        source._check(options, streaming=streaming)
        return source

    def _check(self, options: Options, *, streaming: bool | None) -> None:
        """Raise ConfigInvalid for options that contradict each other."""
        if streaming is False and self.starting == Position("startingOffsets", LATEST):
            raise ConfigInvalid("option startingOffsets is latest: a batch read would have nothing to read")
        if self.ending == Position("endingOffsets", EARLIEST):
            raise ConfigInvalid("option endingOffsets is earliest: the read would have nothing to read")
        start, end = self.starting, self.ending
        if (
            start.is_time
            and end.is_time
            and isinstance(start.value, int)
            and isinstance(end.value, int)
            and end.value < start.value
        ):
            raise ConfigInvalid(
                f"option endingTimestamp is {end.value}, before startingTimestamp, {start.value}"
            )
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise ConfigInvalid(
                f"option minOffsetsPerTrigger is {self.min_offsets_per_trigger}, above maxOffsetsPerTrigger, "
                f"{self.max_offsets_per_trigger}"
            )
        if options.is_set("maxTriggerDelay") and not self.min_offsets_per_trigger:
            raise ConfigInvalid("option maxTriggerDelay requires option minOffsetsPerTrigger")
        if options.is_set(_STRATEGY) and not start.is_time:
            raise ConfigInvalid(
                f"option {_STRATEGY} requires startingTimestamp or startingOffsetsByTimestamp"
            )

    def consumer_config(self) -> ConsumerConfig:
        """Return the settings of the consumer."""
        return ConsumerConfig(pull_timeout_ms=self.pull_timeout_ms)

    @property
    def named_queues(self) -> frozenset[QueueName]:
        """The queues to read that the options name; empty if they name only topics."""
        if self.assigned:
            return self.assigned
        positions = (self.starting.value, self.ending.value)
        named = {queue for value in positions if isinstance(value, dict) for queue in value}
        return frozenset(queue for queue in named if self.selects(queue.topic))

    def selects(self, topic: str) -> bool:
        """Whether the options select a topic."""
        return topic in self.topics if self.pattern is None else bool(self.pattern.fullmatch(topic))

    @property
    def broker_filter(self) -> Expression:
        """The expression by which the broker selects messages."""
        if self.sql:
            return Sql(self.sql)
        return " || ".join(sorted(self.tags)) if self.pushdown and self.tags else "*"


def _read_topics(options: Options) -> tuple[tuple[str, ...], re.Pattern[str] | None, frozenset[QueueName]]:
    """Return (topics, pattern of topics, assigned queues). Raises ConfigInvalid, TopicInvalid.

    The topics are empty with a pattern. The queues are empty unless option assign is set.
    """
    given = {name: options.text(name).strip() for name in _SELECTIONS}
    chosen = [name for name, text in given.items() if text]
    if len(chosen) != 1:
        found = f"options {' and '.join(chosen)} exclude each other" if chosen else "option topic is missing"
        raise ConfigInvalid(f"{found}; set one of {', '.join(_SELECTIONS)}")
    (name,) = chosen
    text = given[name]
    if name == "subscribePattern":
        return (), _read_pattern(name, text), frozenset()
    if name == "assign":
        assigned = read_queues(name, text)
        topics = sorted({queue.topic for queue in assigned})
    else:
        assigned = frozenset()
        topics = [topic.strip() for topic in text.split(",") if topic.strip()]
    if not topics:
        raise ConfigInvalid(f"option {name} is {text!r}, which names no topic")
    return tuple(dict.fromkeys(map(check_topic, topics))), None, assigned


def _read_pattern(name: str, text: str) -> re.Pattern[str]:
    r"""Compile a regular expression.

    Most expressions mean the same in Java and Python for the characters of topic names. Syntax that only Java
    supports, such as `\Q` and nested character classes, raises ConfigInvalid.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # nested character classes
            return re.compile(text, re.ASCII)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise ConfigInvalid(f"option {name} is {text!r}, which is not supported: {error}") from None


def _read_group(options: Options, selection: str) -> str:
    """Return the consumer group: option group, or else a name made of groupIdPrefix and the selected topics.

    Equal options give equal names. A name that is too long is cut, and ends with a hash to keep it unique:
    queries with the same group would overwrite each other's committed offsets.

    selection: a pattern, or topics separated by `|`. Raises GroupInvalid.
    """
    prefix = options.text("groupIdPrefix", "spark-source")
    group = options.text("group")
    if group and options.is_set("groupIdPrefix"):
        log.warning("option groupIdPrefix is ignored, because option group is set")
    name = f"{prefix}-" + re.sub(r"[^%|\w-]+", "-", selection, flags=re.ASCII)
    if len(name) > _GROUP_LENGTH_MAX:
        suffix = f"-{sha256(f'{prefix}-{selection}'.encode()).hexdigest()[:_GROUP_HASH_DIGITS]}"
        name = name[: _GROUP_LENGTH_MAX - len(suffix)] + suffix
    return check_group(group or name)


def _read_position(options: Options, names: tuple[str, str, str], default: str) -> Position:
    """Return the start or end of a read, from the first of its options that is set. Raises ConfigInvalid.

    names: the options for one time, for a time of each queue, and for offsets. All three are validated.
    """
    time_option, queue_times_option, offsets_option = names
    at_time = Position(time_option, options.number(time_option, 0), is_time=True)
    queue_times = read_times(queue_times_option, options.text(queue_times_option, "{}"))
    offsets = read_offsets(offsets_option, options.text(offsets_option, default))
    if options.is_set(time_option):
        return at_time
    if options.is_set(queue_times_option):
        return Position(queue_times_option, queue_times, is_time=True)
    return Position(offsets_option, offsets)


def _tags(expression: str) -> frozenset[str]:
    """Return the tags of ``a || b``; empty for ``*``. Raises ConfigInvalid for a condition."""
    tags = frozenset(trim(tag) for tag in expression.split("||")) - {""}
    if "*" in tags or not trim(expression):
        return frozenset()
    if not tags:
        raise ConfigInvalid(f"option subExpression is {expression!r}; write * for all, or tags as a || b")
    for tag in tags:
        if not _SQL_SIGNS.isdisjoint(tag):
            raise ConfigInvalid(
                f"option subExpression is {expression!r}, and {tag!r} is not a tag; write tags as a || b, or "
                "set subExpressionType to SQL92 for a condition on properties"
            )
    return tags
