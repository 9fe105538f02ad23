"""Settings of clients: frozen dataclasses with keyword-only fields, validated when they are built.

Each field names its unit and the RocketMQ property that it mirrors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, Self, TypeVar

from rocketpy.environment import TLS_SETTINGS, Found, Source, environment_sources, find_settings
from rocketpy.errors import ConfigInvalid
from rocketpy.hooks import RpcHook
from rocketpy.message.message import DEFAULT_TOPIC, TRACE_TOPIC, check_topic
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.checksum import BODY_CHECKSUMS
from rocketpy.protocol.message.compression import DEFAULT_LEVEL
from rocketpy.protocol.message.delays import DEFAULT_DELAY_LEVELS
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.acl import Signer, SignerV2
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ, MAX_FRAME_BYTES
from rocketpy.runtime.pickling import ADDED, get_fields, set_fields
from rocketpy.transport import ChannelOptions, Tls, TlsFiles

__all__ = [
    "BatchConfig",
    "ClientConfig",
    "CompressionConfig",
    "ConsumerConfig",
    "Credentials",
    "LatencyConfig",
    "MessageTraceConfig",
    "ProducerConfig",
    "RetryConfig",
]

C = TypeVar("C")

_LARGEST: Final = 2**63 - 1

CODECS: Final = {"json": CODEC_JSON, "rocketmq": CODEC_ROCKETMQ, "msgpack": CODEC_MSGPACK}

COMPRESSION_TYPES: Final = {
    "zlib": 0,
    "lz4": MessageSysFlag.COMPRESSION_LZ4,
    "zstd": MessageSysFlag.COMPRESSION_ZSTD,
}
"""Bits of a message's sysFlag; zlib has none, since it is the only type in 4.x."""

RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """When a send is retried. All attempts share one timeout; oneway sends are never retried."""

    times: int = 2
    """Attempts after the first. RocketMQ: retryTimesWhenSendFailed, retryTimesWhenSendAsyncFailed."""
    another_broker_when_not_ok: bool = False
    """Also retry when the message was stored with a status other than SEND_OK; that may store it twice.
    RocketMQ: retryAnotherBrokerWhenNotStoreOK."""
    codes: frozenset[int] = RETRIED_CODES
    """Response codes that are retried. Default: those of RocketMQ 4.6.0."""
    pause_ms: int = 100
    """Minimum time between two attempts at the same broker, for topics on one broker. RocketMQ: none."""

    def __post_init__(self) -> None:
        check_number("retry.times", self.times, 0)
        check_number("retry.pause_ms", self.pause_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig:
    """Which bodies are compressed, and how."""

    type: Literal["zlib", "lz4", "zstd"] = "zlib"
    """Brokers and clients of RocketMQ 4.x read zlib only; choose lz4 or zstd when every consumer is rocketpy
    or RocketMQ 5. They need the package lz4 or zstandard. RocketMQ (5.x): compressType."""
    above_bytes: int = 4096
    """Bodies longer than this are compressed. RocketMQ: compressMsgBodyOverHowmuch."""
    level: int = DEFAULT_LEVEL
    """Level of zlib and zstd, 1 (fast) to 9 (small); lz4 ignores it. RocketMQ: the system property
    rocketmq.message.compressLevel."""
    off_loop_above_bytes: int = 64 * 1024
    """Bodies longer than this are compressed in a thread; for a batch, the sum of its long bodies counts.
    Bodies sent to a given queue are compressed on the event loop, to keep their order. RocketMQ: none."""

    def __post_init__(self) -> None:
        if self.type not in COMPRESSION_TYPES:
            raise ConfigInvalid(
                f"compression.type is {self.type!r}; choose one of {', '.join(COMPRESSION_TYPES)}"
            )
        check_number("compression.above_bytes", self.above_bytes, 0)
        check_number("compression.level", self.level, 1, 9)
        check_number("compression.off_loop_above_bytes", self.off_loop_above_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """How `send_batch` splits a long list into requests, and how concurrent sends form batches."""

    max_bytes: int = 1024 * 1024
    """Bytes of the stored records of one request; 1 MiB, well below a broker's 4 MiB."""
    max_gathered: int = 128
    """Maximum number of concurrent sends in one request; larger batches keep client and broker from working
    at the same time. RocketMQ: none, its 4.x clients do not combine sends."""
    linger_ms: int = 0
    """How long a send waits for others to join its batch. 0: only sends of one event loop iteration are
    combined. The timeout of a batched send begins after this time."""

    def __post_init__(self) -> None:
        check_number("batch.max_bytes", self.max_bytes, 1)
        check_number("batch.max_gathered", self.max_gathered, 1)
        check_number("batch.linger_ms", self.linger_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyConfig:
    """Latency fault tolerance: a broker that responded slowly, or not at all, is avoided for a while."""

    enabled: bool = False
    """Whether slow brokers are avoided. RocketMQ: sendLatencyFaultEnable."""
    latency_ms: tuple[int, ...] = (50, 100, 550, 1000, 2000, 3000, 15_000)
    """Latencies, ascending. RocketMQ: latencyMax."""
    not_available_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    """How long a broker is avoided after a response that took at least the entry of `latency_ms` with the
    same index. RocketMQ: notAvailableDuration."""
    failed_ms: int = 30_000
    """The latency that is assumed for a failed attempt. RocketMQ: 30000, fixed."""

    def __post_init__(self) -> None:
        latencies, times = self.latency_ms, self.not_available_ms
        if len(latencies) != len(times) or list(latencies) != sorted(latencies):
            raise ConfigInvalid(
                f"latency.latency_ms has {len(latencies)} entries, not_available_ms {len(times)}; "
                "both need the same number, and latencies must ascend"
            )
        for value in (*self.latency_ms, *self.not_available_ms, self.failed_ms):
            check_number("a time in latency_ms, not_available_ms or failed_ms", value, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTraceConfig:
    """Settings of message trace: reports about messages, sent to a topic that RocketMQ's tools read.

    See `rocketpy.telemetry.message_trace`.
    """

    topic: str = TRACE_TOPIC
    """Where the reports are sent. Brokers with traceTopicEnable create the default topic themselves.
    RocketMQ: customizedTraceTopic."""
    batch_count: int = 100
    """Maximum number of reports in one message. RocketMQ: 100, fixed."""
    linger_ms: int = 5
    """How long a report waits for others to join its message. RocketMQ: 5, fixed."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_number("message_trace.batch_count", self.batch_count, 1)
        check_number("message_trace.linger_ms", self.linger_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer."""

    send_timeout_ms: int = 3000
    """Timeout of a send, with all its attempts. RocketMQ: sendMsgTimeout."""
    max_message_bytes: int = 4 * 1024 * 1024
    """Maximum size of a body. The limit of a broker applies to the whole record, which also has the topic,
    the properties and 91 more bytes. RocketMQ: maxMessageSize."""
    max_in_flight: int = 65_535
    """Maximum number of messages in flight. At this limit `send` waits and `send_nowait` raises
    FlowControlled. RocketMQ: the system property com.rocketmq.remoting.clientAsyncSemaphoreValue."""
    max_in_flight_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of the bodies in flight, with the same effect. One message always passes. RocketMQ:
    none."""
    close_timeout_ms: int = 5000
    """How long `close` waits for messages in flight. RocketMQ: none, it does not wait."""
    default_topic: str = DEFAULT_TOPIC
    """Topic whose route is used for topics that do not exist yet. RocketMQ: createTopicKey."""
    default_topic_queues: int = 4
    """Maximum number of queues of a new topic on one broker. RocketMQ: defaultTopicQueueNums."""
    body_checksum: str = ""
    """Name of a checksum (`protocol.message.checksum.BODY_CHECKSUMS`) that is sent with each message;
    consumers of rocketpy verify it, others ignore it. Empty for none. RocketMQ: none."""
    batching: bool = True
    """Whether `send` and `send_nowait` combine concurrent sends into batches (`BatchConfig`). A broker adds
    its CLUSTER property only to unbatched messages. RocketMQ: none."""
    require_send_ok: bool = field(default=False, metadata=ADDED)
    """Raise NotDurable for a message that is stored with another status than SEND_OK. The log and
    `Health.less_durable` show such messages in any case. RocketMQ: none."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    message_trace: MessageTraceConfig | None = None
    """Report sent messages, for RocketMQ's trace queries; None for no reports. RocketMQ: enableMsgTrace."""
    attempt_timeout_ms: int | None = None
    """Timeout of one attempt within that of the send, from when its request is written. None: what is left
    of the timeout of the send. RocketMQ (5.x): sendMsgMaxTimeoutPerRequest."""
    max_delay_level: int = len(DEFAULT_DELAY_LEVELS.split())
    """Number of delay levels of the brokers (messageDelayLevel). A message with a higher level is refused:
    brokers would deliver it at their last level, after 2 hours by default. RocketMQ: none."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        check_number("send_timeout_ms", self.send_timeout_ms, 1)
        if self.attempt_timeout_ms is not None:
            check_number("attempt_timeout_ms", self.attempt_timeout_ms, 1)
        check_number("max_message_bytes", self.max_message_bytes, 1, MAX_FRAME_BYTES)
        check_number("max_in_flight", self.max_in_flight, 1)
        check_number("max_in_flight_bytes", self.max_in_flight_bytes, 1)
        check_number("close_timeout_ms", self.close_timeout_ms, 0)
        check_number("default_topic_queues", self.default_topic_queues, 1)
        check_number("max_delay_level", self.max_delay_level, 0)
        if self.body_checksum and self.body_checksum not in BODY_CHECKSUMS:
            raise ConfigInvalid(
                f"body_checksum is {self.body_checksum!r}; choose one of {', '.join(BODY_CHECKSUMS)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a pull consumer."""

    pull_timeout_ms: int = 10_000
    """Timeout of a pull. RocketMQ: consumerPullTimeoutMillis."""
    suspend: bool = False
    """Whether the broker may hold a pull at the end of a queue until a message arrives (long polling).
    RocketMQ: pullBlockIfNotFound."""
    suspend_timeout_ms: int = 20_000
    """How long the broker may hold a pull. The client waits `pull_timeout_ms` longer for the response.
    RocketMQ: brokerSuspendMaxTimeMillis."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Limit of an inflated body; a larger one is not decoded. Also the limit of all inflated bodies of one
    pull; messages above it are left to the next pull. RocketMQ: none."""
    verify_checksums: bool = True
    """Verify the CRC of each body, and its end-to-end checksum when the producer set one."""

    def __post_init__(self) -> None:
        check_number("pull_timeout_ms", self.pull_timeout_ms, 1)
        check_number("suspend_timeout_ms", self.suspend_timeout_ms, 1)
        check_number("max_body_bytes", self.max_body_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The account of a client, for brokers with access control. RocketMQ: SessionCredentials."""

    access_key: str
    """Name of the account."""
    secret_key: str = field(repr=False)
    """Signs requests; it is never sent."""
    security_token: str | None = field(default=None, repr=False)
    """Token of a temporary account, sent with each request."""
    signature_version: Literal[1, 2] = 1
    """1: RocketMQ's signature. 2: a signature that also covers the request code, a time and a nonce, which
    prevents replay; only servers of rocketpy accept it. The client never sends the other version."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        if self.signature_version not in (1, 2):
            raise ConfigInvalid(f"signature_version is {self.signature_version!r}; choose 1 or 2")
        check_text("access_key", self.access_key)
        check_text("secret_key", self.secret_key)
        if self.security_token is not None:
            check_text("security_token", self.security_token)
        if not self.access_key or not self.secret_key or self.security_token == "":
            raise ConfigInvalid(
                "credentials need an access_key and a secret_key, and no empty security_token"
            )

    @classmethod
    def from_environment(cls) -> Self | None:
        """Read the account from the environment, as a client without credentials does.

        The variables are ROCKETPY_ACCESS_KEY, ROCKETPY_SECRET_KEY, ROCKETPY_SECURITY_TOKEN and
        ROCKETPY_SIGNATURE_VERSION (1, the default, or 2). Those that begin with ROCKETMQ_ come second.

        Returns:
            The credentials; None when neither key is set.

        Raises:
            ConfigInvalid: Only one of the two keys is set, or the version is invalid.
        """
        return cls.of_settings(find_settings(environment_sources()))

    @classmethod
    def of_settings(cls, found: Mapping[str, Found]) -> Self | None:
        """Return the account in these settings; None for none. Raises ConfigInvalid."""
        keys = ("access_key", "secret_key")
        given = next((found[key] for key in keys if key in found), None)
        if given is None:
            return None
        for key, other in (keys, keys[::-1]):
            if key not in found:
                names = given.source.names
                raise ConfigInvalid(f"{names[key]} is not set, but {names[other]} is; set both or none")
        version, token = found.get("signature_version"), found.get("security_token")
        if version is not None and version.value not in ("1", "2"):
            name = version.source.names["signature_version"]
            raise ConfigInvalid(f"{name} is {version.value!r}; choose 1 or 2")
        return cls(
            access_key=found["access_key"].value,
            secret_key=found["secret_key"].value,
            security_token=token.value if token is not None else None,
            signature_version=2 if version is not None and version.value == "2" else 1,
        )

    def signer(self) -> Signer:
        """Return a new signer of requests."""
        make = Signer if self.signature_version == 1 else SignerV2
        return make(self.access_key, self.secret_key, self.security_token)


def _client_channel() -> ChannelOptions:
    # The header of the response to a batch has one id for each message.
    return ChannelOptions(max_header_bytes=MAX_FRAME_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of connections; producers and consumers with equal settings share their connections."""

    namesrv: str = ""
    """Addresses of name servers, separated by ``;`` or ``,``, or ``embedded:``, which may have a path and
    options (``embedded:///path?slaves=1``). Empty: those of the environment, ROCKETPY_NAMESRV, then
    NAMESRV_ADDR. RocketMQ's VIP channel is not used. RocketMQ: namesrvAddr."""
    instance_name: str = ""
    """Second part of the client id ``ip@name``; processes with one IP address need different ones. Empty: the
    process id and a random part. RocketMQ: instanceName."""
    route_refresh_ms: int = 30_000
    """Interval of route refreshes. RocketMQ: pollNameServerInterval."""
    heartbeat_ms: int = 30_000
    """Interval of heartbeats. RocketMQ: heartbeatBrokerInterval."""
    request_timeout_ms: int = 3000
    """Timeout of requests to name servers, and of other requests without a timeout of their own.
    RocketMQ: mqClientApiTimeout."""
    stalled_after_ms: int = field(default=60_000, metadata=ADDED)
    """What has not succeeded for this time, although it is repeated, is a problem in `health()`: pulls of an
    assigned queue, its lock, commits of offsets, heartbeats, look-ups of routes. RocketMQ: none."""
    codec: Literal["json", "rocketmq", "msgpack"] = "json"
    """Encoding of request headers; msgpack is used only with peers that announce it.
    RocketMQ: the system property rocketmq.serialize.type."""
    channel: ChannelOptions = field(default_factory=_client_channel)
    """Limits of connections."""
    ssl: Tls | None = field(default=None, repr=False)
    """For tls:// addresses: trusted authorities and the client certificate, as `TlsFiles`, which are reloaded
    when they change, or as a context. Rejected when name servers are at plain addresses. None: that of
    `channel`, or those of the environment (ROCKETPY_TLS_CA and others), or the authorities that the system
    trusts.
    RocketMQ: tls.client.*."""
    namespace: str = ""
    """Prefix of the names of topics and groups on the wire, ``namespace%topic``, so that several tenants can
    share brokers. Applications see names without it. Empty: that of the environment, ROCKETPY_NAMESPACE, or
    none. RocketMQ: namespace."""
    credentials: Credentials | None = None
    """Keys that sign every request. None: those of the environment (`Credentials.from_environment`), if any.
    RocketMQ: the AclClientRPCHook given to a client."""
    rpc_hooks: tuple[RpcHook, ...] = ()
    """Called with requests and responses; they disable the fast path of sends. RocketMQ: RPCHook."""
    trust_env: bool = True
    """Whether the environment gives what is not set here: name servers, account, namespace and TLS files.
    RocketMQ: none."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        if not isinstance(self.namesrv, str):
            raise ConfigInvalid(f"namesrv is {self.namesrv!r}; write 'host:9876' or 'host:9876;other:9876'")
        check_text("instance_name", self.instance_name)
        check_text("namespace", self.namespace)
        check_number("route_refresh_ms", self.route_refresh_ms, 10)
        check_number("heartbeat_ms", self.heartbeat_ms, 10)
        check_number("request_timeout_ms", self.request_timeout_ms, 1)
        check_number("stalled_after_ms", self.stalled_after_ms, 1)
        if self.codec not in CODECS:
            raise ConfigInvalid(f"codec is {self.codec!r}; choose one of {', '.join(CODECS)}")

    def at(self, namesrv: str | None) -> Self:
        """Return a copy with other name servers; None keeps the current ones."""
        return self if namesrv is None else replace(self, namesrv=namesrv)


def resolve(config: ClientConfig, sources: Iterable[Source] | None = None) -> ClientConfig:
    """Return a copy in which other sources give what is not set; it does not read the environment again.

    sources: None for the environment, if the settings trust it. Raises ConfigInvalid.
    """
    if sources is None:
        sources = environment_sources() if config.trust_env else ()
    found = find_settings(sources)
    return replace(
        config,
        namesrv=config.namesrv or value_of(found, "namesrv"),
        namespace=config.namespace or value_of(found, "namespace"),
        credentials=config.credentials or Credentials.of_settings(found),
        ssl=config.ssl or config.channel.ssl or tls_files(found),
        trust_env=False,
    )


def value_of(found: Mapping[str, Found], setting: str) -> str:
    """Return the text of a setting; empty if no source gives it."""
    return found[setting].value if setting in found else ""


def tls_files(found: Mapping[str, Found]) -> TlsFiles | None:
    """Return the TLS files in these settings; None for none. Raises ConfigInvalid."""
    given: dict[str, Any] = {
        argument: found[setting].value for setting, argument in TLS_SETTINGS.items() if setting in found
    }
    if not given:
        return None
    used = [found[setting].source for setting in TLS_SETTINGS if setting in found]
    names = {
        argument: (found[setting].source if setting in found else used[0]).names[setting]
        for setting, argument in TLS_SETTINGS.items()
    }
    return TlsFiles(**given, names=names)


def config_of(name: str, given: C | None, kind: type[C]) -> C:
    """Return the given settings, or the defaults for None. Raises ConfigInvalid for another type."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ConfigInvalid(f"{name} is a {type(given).__name__}; it must be a {kind.__name__}")
    return given


def check_number(name: str, value: float, minimum: int, maximum: int | None = None) -> None:
    """Raise ConfigInvalid unless a setting is a number in these bounds; only times may have a fraction."""
    kind = Real if name.endswith(("_ms", "seconds")) else Integral
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "a number" if kind is Real else "a whole number"
        raise ConfigInvalid(f"{name} is {value!r}, a {type(value).__name__}; it must be {wanted}")
    if not minimum <= value <= (_LARGEST if maximum is None else maximum):  # NaN fails both comparisons
        upto = f" and at most {maximum}" if maximum is not None else ""
        raise ConfigInvalid(f"{name} is {value}; it must be at least {minimum}{upto}")


def check_text(name: str, value: object) -> None:
    """Raise ConfigInvalid unless a setting is a string of valid Unicode. The error does not contain it."""
    if not isinstance(value, str):
        raise ConfigInvalid(f"{name} is a {type(value).__name__}; it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigInvalid(f"{name} is not valid Unicode text: {error.reason}") from None


def check_timeout(timeout_ms: float) -> int:
    """Return the timeout of a call, in ms. Raises ConfigInvalid unless it is a number of at least 1."""
    if type(timeout_ms) is not int or not 1 <= timeout_ms <= _LARGEST:
        check_number("timeout_ms", timeout_ms, 1)
    return timeout_ms  # type: ignore[return-value] # fractions of a ms are allowed
