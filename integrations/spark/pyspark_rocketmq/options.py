"""Options of the data source, parsed from Spark's strings and validated.

Names are matched ignoring case, as in Spark. Unknown options are rejected: a misspelt `retries` would
otherwise be ignored silently.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, read_offsets
from rocketpy import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    Credentials,
    ProducerConfig,
    RetryConfig,
)
from rocketpy.errors import ConfigInvalid
from rocketpy.message import check_group, check_topic

ROW_ID_PROPERTY: Final = "SPARK_ROW_ID"
"""Default name of the property with the row id; see `dedupe`."""

_SPARK_OPTIONS: Final = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options for Spark itself, which the data source ignores."""
_TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")
_NEVER_BYTES: Final = 1 << 40
"""Larger than any body."""
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})


class Options:
    """Reads options one by one, and reports unknown options."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items() if value is not None}
        self._names: dict[str, str] = {}

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        self._names[name.lower()] = name
        return self._given.get(name.lower(), default)

    def number(self, name: str, default: int, minimum: int = 0) -> int:
        """A whole number. Raises ConfigInvalid."""
        text = self.text(name, str(default))
        try:
            value = int(text)
        except ValueError:
            raise ConfigInvalid(f"option {name} is {text!r}; it must be a whole number") from None
        if value < minimum:
            raise ConfigInvalid(f"option {name} is {value}; it must be at least {minimum}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean. Raises ConfigInvalid."""
        text = self.text(name, str(default)).lower()
        if text not in _TRUE | _FALSE:
            raise ConfigInvalid(f"option {name} is {text!r}; it must be true or false")
        return text in _TRUE

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        """One of the choices. Raises ConfigInvalid."""
        text = self.text(name, default).lower()
        if text not in choices:
            raise ConfigInvalid(f"option {name} is {text!r}; choose one of {', '.join(choices)}")
        return text

    def reject_unknown(self) -> None:
        """Raise ConfigInvalid for an option that was not read."""
        for name in sorted(self._given.keys() - self._names.keys() - _SPARK_OPTIONS):
            near = get_close_matches(name, self._names, n=1)
            hint = f" (did you mean {self._names[near[0]]}?)" if near else ""
            known = ", ".join(sorted(self._names.values(), key=str.lower))
            raise ConfigInvalid(f"unknown option {name!r}{hint}; known options: {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connection to the servers. A plain value: it is pickled for executors."""

    name_server: str
    namespace: str
    access_key: str
    secret_key: str
    security_token: str
    signature_version: int
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    request_timeout_ms: int

    def __repr__(self) -> str:
        return f"Connection({self.name_server!r})"

    @classmethod
    def read(cls, options: Options) -> Connection:
        """Read the connection options. Raises ConfigInvalid."""
        name_server = options.text("nameServer")
        if not name_server:
            raise ConfigInvalid(
                "option nameServer is missing; set it to host:port;host:port of the name servers"
            )
        if name_server.startswith(("embedded:", "memory:")):
            raise ConfigInvalid(f"option nameServer is {name_server!r}; Spark's workers need host:port")
        connection = cls(
            name_server=name_server,
            namespace=options.text("namespace"),
            access_key=options.text("accessKey"),
            secret_key=options.text("secretKey"),
            security_token=options.text("securityToken"),
            signature_version=int(options.choice("signatureVersion", "1", ("1", "2"))),
            tls=options.flag("tls", default=False),
            tls_ca_file=options.text("tlsCaFile"),
            tls_cert_file=options.text("tlsCertFile"),
            tls_key_file=options.text("tlsKeyFile"),
            request_timeout_ms=options.number("requestTimeoutMs", 3000, 1),
        )
        if bool(connection.access_key) != bool(connection.secret_key):
            raise ConfigInvalid("options accessKey and secretKey require each other; one of them is missing")
        for name, value, required, is_set in (
            ("securityToken", connection.security_token, "accessKey", connection.access_key),
            (
                "signatureVersion",
                connection.signature_version == 2,
                "accessKey",
                connection.access_key,
            ),
            ("tlsCaFile", connection.tls_ca_file, "tls=true", connection.tls),
            ("tlsCertFile", connection.tls_cert_file, "tls=true", connection.tls),
            ("tlsKeyFile", connection.tls_key_file, "tlsCertFile", connection.tls_cert_file),
        ):
            if value and not is_set:
                raise ConfigInvalid(f"option {name} requires option {required}")
        return connection

    def client_config(self) -> ClientConfig:
        """The SDK's settings, created where they are used, since a TLS context cannot be pickled.

        Raises ConfigInvalid for unusable TLS files. A sink's driver needs none.
        """
        addresses = self.name_server.replace(",", ";").split(";")
        if self.tls:
            addresses = [text if "://" in text else f"tls://{text.strip()}" for text in addresses]
        credentials = None
        if self.access_key:
            credentials = Credentials(
                access_key=self.access_key,
                secret_key=self.secret_key,
                security_token=self.security_token or None,
                signature_version=1 if self.signature_version == 1 else 2,
            )
        return ClientConfig(
            namesrv=";".join(addresses),
            namespace=self.namespace,
            credentials=credentials,
            ssl=self._ssl_context() if self.tls else None,
            request_timeout_ms=self.request_timeout_ms,
        )

    def _ssl_context(self) -> ssl.SSLContext:
        for name, path in (
            ("tlsCaFile", self.tls_ca_file),
            ("tlsCertFile", self.tls_cert_file),
            ("tlsKeyFile", self.tls_key_file),
        ):
            if path:
                _check_readable(name, path)
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
        except ssl.SSLError as error:
            raise ConfigInvalid(
                f"option tlsCaFile is {self.tls_ca_file!r}, which contains no certificates: {error}"
            ) from None
        if self.tls_cert_file:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
            except ssl.SSLError as error:
                raise ConfigInvalid(
                    f"options tlsCertFile and tlsKeyFile are {self.tls_cert_file!r} and "
                    f"{self.tls_key_file!r}, which are not a certificate and its key: {error}"
                ) from None
        return context


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigInvalid(
            f"option {name} is {path!r}, which cannot be read on this machine: {error.strerror}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a write. `docs/guides/spark-sink.md` has the table of options.

    trace_context: names and values in the propagators' format.
    """

    connection: Connection
    group: str
    topic: str
    format: str
    batch_rows: int
    batch_bytes: int
    max_in_flight: int
    send_timeout_ms: int
    retries: int
    delivery_timeout_ms: int
    compression: str
    compress_above_bytes: int
    require_send_ok: bool
    row_id_property: str
    trace_context: tuple[tuple[str, str], ...] = ()

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
            batch_rows=options.number("batchSize", 500, 1),
            batch_bytes=options.number("batchBytes", 1 << 20, 1),
            max_in_flight=options.number("maxInFlight", 16, 1),
            send_timeout_ms=options.number("sendTimeoutMs", 3000, 1),
            retries=options.number("retries", 2),
            delivery_timeout_ms=options.number("deliveryTimeoutMs", 120_000),
            compression=options.choice("compression", "zlib", ("none", "zlib", "lz4", "zstd")),
            compress_above_bytes=options.number("compressAboveBytes", 4096),
            require_send_ok=options.flag("requireSendOk", default=True),
            row_id_property=options.text("dedupProperty", ROW_ID_PROPERTY),
            trace_context=tuple((name, text) for name in _TRACE_CONTEXT if (text := options.text(name))),
        )
        options.reject_unknown()
        return sink

    @property
    def sends_singly_above(self) -> int:
        """Larger bodies are sent individually, since batches cannot be compressed."""
        return self.batch_bytes if self.compression == "none" else self.compress_above_bytes

    def producer_config(self) -> ProducerConfig:
        """The SDK's settings."""
        compression = CompressionConfig(above_bytes=_NEVER_BYTES)
        if self.compression != "none":
            compression = CompressionConfig(
                type=self.compression,  # type: ignore[arg-type] # one of the choices above
                above_bytes=self.compress_above_bytes,
            )
        return ProducerConfig(
            send_timeout_ms=self.send_timeout_ms,
            retry=RetryConfig(times=self.retries),
            compression=compression,
            batch=BatchConfig(max_bytes=self.batch_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a read. `docs/guides/spark-source.md` has the table of options.

    starting, ending: EARLIEST, LATEST, or offsets of queues. starting_ms, ending_ms: times that take
    precedence, 0 for none. tags: of the selected messages; empty for all. pushdown: the broker filters them.
    """

    connection: Connection
    group: str
    topics: tuple[str, ...]
    starting: int | Offsets
    ending: int | Offsets
    starting_ms: int
    ending_ms: int
    most_per_trigger: int
    min_partitions: int
    fail_on_data_loss: bool
    commit_offsets: bool
    tags: frozenset[str]
    pushdown: bool
    pull_rows: int
    pull_timeout_ms: int

    @classmethod
    def read(cls, given: Mapping[str, object], *, streaming: bool) -> SourceOptions:
        """Read options. Raises ConfigInvalid, TopicInvalid and GroupInvalid."""
        options = Options(given)
        topics = tuple(
            check_topic(topic.strip()) for topic in options.text("topic").split(",") if topic.strip()
        )
        if not topics:
            raise ConfigInvalid("option topic is missing; set one topic, or several separated by commas")
        starting = options.text("startingOffsets", "latest" if streaming else "earliest")
        source = cls(
            connection=Connection.read(options),
            group=check_group(options.text("group", f"spark-source-{topics[0]}"[:255])),
            topics=topics,
            starting=read_offsets("startingOffsets", starting),
            ending=LATEST
            if streaming
            else read_offsets("endingOffsets", options.text("endingOffsets", "latest")),
            starting_ms=options.number("startingTimestamp", 0),
            ending_ms=0 if streaming else options.number("endingTimestamp", 0),
            most_per_trigger=options.number("maxOffsetsPerTrigger", 0) if streaming else 0,
            min_partitions=options.number("minPartitions", 0),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            commit_offsets=options.flag("commitOffsets", default=False) if streaming else False,
            tags=_tags(options.text("subExpression", "*")),
            pushdown=options.flag("pushdown", default=False),
            pull_rows=options.number("pullBatchSize", 32, 1),
            pull_timeout_ms=options.number("pullTimeoutMs", 10_000, 1),
        )
        options.reject_unknown()
        if not streaming and source.starting == LATEST and not source.starting_ms:
            raise ConfigInvalid("option startingOffsets is latest: a batch read would have nothing to read")
        if 0 < source.ending_ms < source.starting_ms:
            raise ConfigInvalid(
                f"option endingTimestamp is {source.ending_ms}, before startingTimestamp, "
                f"{source.starting_ms}"
            )
        if source.ending == EARLIEST:
            raise ConfigInvalid("option endingOffsets is earliest: the read would have nothing to read")
        return source

    def consumer_config(self) -> ConsumerConfig:
        """The SDK's settings."""
        return ConsumerConfig(pull_timeout_ms=self.pull_timeout_ms)


def _tags(expression: str) -> frozenset[str]:
    """The tags of ``a || b``; empty for ``*``."""
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    return frozenset() if "*" in tags else tags
