"""Tables of RocketMQ 4.6.0's configuration keys: what each becomes here, or why it becomes nothing.

Source: BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig, NamesrvConfig.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address
from rocketpy_broker.config.model import BrokerRole
from rocketpy_broker.store.config import FlushDiskType

SettingValue = str | int | float | bool
"""Of a key that is set in code."""


def text_of(value: SettingValue) -> str:
    """Return a value as RocketMQ's files have it. Raises TypeError for one that they cannot have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # A caller without a type checker may give anything.
    if not isinstance(value, str | int | float):
        raise TypeError(f"a text, a number, True or False is expected, not {type(value).__name__}")
    return str(value)


class Key(NamedTuple):
    """Where a key goes, and how its text is read."""

    group: str
    field: str
    read: Callable[[str], Any]
    """Raises ValueError or ConfigInvalid for a text that the key cannot have."""

    def written(self, value: Any) -> Any:
        """The field's value in the unit of the key."""
        if self.read is _seconds:
            return value // 1000
        return value / 100 if self.read is _percent else value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a value is missing")
    return value.strip()


def _integer(value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise ValueError("a whole number is expected") from None


def _positive(value: str) -> int:
    number = _integer(value)
    if number < 1:
        raise ValueError("a number of at least 1 is expected")
    return number


def _boolean(value: str) -> bool:
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false is expected")
    return word == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)} is expected")
        return word

    return read


def _path(value: str) -> Path:
    return Path(_text(value)).expanduser()


def _flush_type(value: str) -> FlushDiskType:
    try:
        return FlushDiskType[value.strip()]
    except KeyError:
        raise ValueError(f"one of {', '.join(FlushDiskType.__members__)} is expected") from None


def _role(value: str) -> BrokerRole:
    try:
        return BrokerRole[value.strip()]
    except KeyError:
        raise ValueError(f"one of {', '.join(BrokerRole.__members__)} is expected") from None


def _port(value: str) -> int:
    port = _integer(value)
    if not 0 <= port <= 65535:
        raise ValueError("a port from 0 to 65535 is expected")
    return port


def _address(value: str) -> Address:
    return Address.parse(value.strip())


def _addresses(value: str) -> tuple[Address, ...]:
    return tuple(Address.parse(part.strip()) for part in value.split(";") if part.strip())


def _listen_address(value: str) -> tuple[str | None, str, int]:
    """A whole address; its scheme is left open when none was written, so that a certificate decides."""
    address = Address.parse(value.strip())
    return address.scheme if "://" in value else None, address.host, address.port


def parse_peers(value: str) -> dict[str, Address]:
    """Return addresses by id: what dLegerPeers says. Raises ValueError, ConfigInvalid."""
    peers: dict[str, Address] = {}
    for part in filter(None, map(str.strip, value.split(";"))):
        peer, _, address = part.partition("-")
        if peer in peers:
            raise ValueError(f"{peer} is there twice")
        peers[peer] = Address.parse(address)
    return peers


def _names(value: str) -> frozenset[str]:
    """Names of certificates, separated by semicolons."""
    return frozenset(filter(None, (name.strip().lower() for name in _text(value).split(";"))))


def _flushes(value: str) -> bool:
    return _one_of("quorum", "async")(value) == "quorum"


def _percent(value: str) -> int:
    """A ratio from 0 to 1, as RocketMQ's system properties have it."""
    try:
        return round(100 * float(value))
    except ValueError:
        raise ValueError("a number from 0 to 1 is expected") from None


def _seconds(value: str) -> int:
    return _integer(value) * 1000


LISTEN_KEYS: Final = {
    "bindAddress": Key("listen", "host", _text),
    "listenPort": Key("listen", "port", _port),
    "insecure": Key("listen", "insecure", _boolean),
    "listen": Key("listen", "listen", _listen_address),
    "serverChannelMaxIdleTimeSeconds": Key("listen", "idle_timeout_ms", _seconds),
    "tls.server.mode": Key("listen", "tls_mode", _one_of("disabled", "permissive", "enforcing")),
    "tls.server.need.client.auth": Key("listen", "tls_client_auth", _one_of("none", "optional", "require")),
    **{
        f"tls.{end}.{name}": Key("listen", f"{end}_{part}", _text)
        for end in ("server", "client")
        for name, part in (
            ("certPath", "cert"), ("keyPath", "key"), ("keyPassword", "password"),
            ("keyPasswordFile", "password_file"), ("trustCertPath", "trust"),
        )
    },
    "aclEnable": Key("listen", "acl_enable", _boolean),
    "aclSignatureV2Required": Key("listen", "requires_signature_v2", _boolean),
    "rocketmq.acl.plain.file": Key("listen", "acl_file", _text),
    "rocketmqHome": Key("listen", "home", _text),
    "com.rocketmq.remoting.frameMaxLength": Key("listen", "max_frame_bytes", _positive),
    "maxHeaderBytes": Key("listen", "max_header_bytes", _positive),
    "maxConnections": Key("listen", "max_connections", _positive),
    "maxConnectionsPerHost": Key("listen", "max_connections_per_host", _positive),
    "maxRequestsInFlight": Key("listen", "max_unanswered", _positive),
    "frameTimeoutMillis": Key("listen", "frame_timeout_ms", _positive),
    "unsignedTimeoutMillis": Key("listen", "unsigned_timeout_ms", _positive),
    "maxConnectionBytes": Key("listen", "connection_bytes_max", _positive),
    "maxTotalBytes": Key("listen", "total_bytes_max", _positive),
    "writeLimitBytes": Key("listen", "write_limit_bytes", _positive),
}  # fmt: skip
"""For both servers. The tls keys are those of RocketMQ's tls.properties, two with dots its system properties;
`insecure`, `listen`, `aclSignatureV2Required`, `keyPasswordFile`, `unsignedTimeoutMillis` and the limits are
ours."""

BROKER_KEYS: Final = {
    "brokerName": Key("broker", "name", _text),
    "brokerClusterName": Key("broker", "cluster_name", _text),
    "brokerId": Key("broker", "broker_id", _integer),
    "brokerIP1": Key("broker", "advertised_host", _text),
    "brokerIP2": Key("broker", "ha_host", _text),
    "haListenPort": Key("broker", "ha_port", _port),
    "vipChannelEnable": Key("broker", "vip_channel", _boolean),
    "brokerPermission": Key("broker", "permission", _integer),
    "flushConsumerOffsetInterval": Key("broker", "offset_interval_ms", _integer),
    "namesrvAddr": Key("registration", "namesrv", _addresses),
    "registerNameServerPeriod": Key("registration", "period_ms", _integer),
    "registerBrokerTimeoutMills": Key("registration", "timeout_ms", _integer),
    "compressedRegister": Key("registration", "compressed", _boolean),
    "autoCreateTopicEnable": Key("topics", "auto_create", _boolean),
    "defaultTopicQueueNums": Key("topics", "default_queue_nums", _integer),
    "clusterTopicEnable": Key("topics", "cluster_topic", _boolean),
    "brokerTopicEnable": Key("topics", "broker_topic", _boolean),
    "traceTopicEnable": Key("topics", "trace_topic", _boolean),
    "msgTraceTopicName": Key("topics", "trace_topic_name", _text),
    "maxTopics": Key("topics", "topics_max", _integer),
    "maxTopicQueues": Key("topics", "queues_max", _integer),
    "maxConsumerGroups": Key("consume", "groups_max", _integer),
    "maxNewGroupsPerHeartbeat": Key("consume", "new_groups_max", _integer),
    "maxConsumerOffsets": Key("consume", "offsets_max", _integer),
    "regionId": Key("send", "region_id", _text),
    "traceOn": Key("send", "trace_on", _boolean),
    "startAcceptSendRequestTimeStamp": Key("send", "start_accept_ms", _integer),
    "rejectTransactionMessage": Key("send", "reject_transactions", _boolean),
    "storeReplyMessageEnable": Key("send", "store_replies", _boolean),
    "flushDelayOffsetInterval": Key("broker", "delay_offset_interval_ms", _integer),
    "transactionTimeOut": Key("transactions", "timeout_ms", _integer),
    "transactionCheckInterval": Key("transactions", "check_interval_ms", _integer),
    "transactionCheckMax": Key("transactions", "check_max", _integer),
    "autoCreateSubscriptionGroup": Key("consume", "auto_create_group", _boolean),
    "longPollingEnable": Key("consume", "long_polling", _boolean),
    "shortPollingTimeMills": Key("consume", "short_polling_ms", _integer),
    "notifyConsumerIdsChangedEnable": Key("consume", "notify_ids_changed", _boolean),
    "slaveReadEnable": Key("consume", "slave_read", _boolean),
    "enablePropertyFilter": Key("consume", "property_filter", _boolean),
    "filterSupportRetry": Key("consume", "filter_retries", _boolean),
    "metricsPort": Key("metrics", "port", _port),
    "metricsHost": Key("metrics", "host", _text),
    "traceSends": Key("metrics", "trace_sends", _boolean),
    "brokerRole": Key("ha", "role", _role),
    "haMasterAddress": Key("ha", "master_address", _address),
    "haSendHeartbeatInterval": Key("ha", "heartbeat_ms", _integer),
    "haHousekeepingInterval": Key("ha", "silence_ms", _integer),
    "haTransferBatchSize": Key("ha", "batch_bytes", _integer),
    "haSlaveFallbehindMax": Key("ha", "behind_bytes_max", _integer),
    "replicaCertNames": Key("broker", "replica_names", _names),
    "haSecret": Key("ha", "secret", _text),
    "haHandshakeRequired": Key("ha", "handshake_required", _boolean),
    "enableDLegerCommitLog": Key("dledger", "enabled", _boolean),
    "dLegerGroup": Key("dledger", "group", _text),
    "dLegerPeers": Key("dledger", "peers", parse_peers),
    "dLegerSelfId": Key("dledger", "self_id", _text),
    "dLegerFlush": Key("dledger", "flush", _flushes),
    "dLegerHeartbeatMillis": Key("dledger", "heartbeat_ms", _integer),
    "dLegerHeartbeatsMissed": Key("dledger", "heartbeats_missed_max", _integer),
    "dLegerVoteMillisMin": Key("dledger", "vote_interval_ms_min", _integer),
    "dLegerVoteMillisMax": Key("dledger", "vote_interval_ms_max", _integer),
    "dLegerSecret": Key("dledger", "secret", _text),
    "dLegerPendingMax": Key("dledger", "pending_max", _integer),
}

STORE_KEYS: Final = {
    "storePathRootDir": Key("store", "root", _path),
    "messageDelayLevel": Key("store", "delay_levels", _text),
    "storePathCommitLog": Key("commit_log", "directory", _path),
    "mappedFileSizeCommitLog": Key("commit_log", "segment_bytes", _integer),
    "maxMessageSize": Key("commit_log", "message_bytes_max", _integer),
    "mappedFileSizeConsumeQueue": Key("consume_queue", "segment_bytes", _integer),
    "messageIndexEnable": Key("index", "enabled", _boolean),
    "maxHashSlotNum": Key("index", "slots", _integer),
    "maxIndexNum": Key("index", "entries", _integer),
    "maxMsgsNumBatch": Key("index", "query_count_max", _integer),
    "flushDiskType": Key("flush", "disk_type", _flush_type),
    "flushIntervalCommitLog": Key("flush", "commit_log_interval_ms", _integer),
    "flushIntervalConsumeQueue": Key("flush", "consume_queue_interval_ms", _integer),
    "syncFlushTimeout": Key("flush", "sync_timeout_ms", _integer),
    "maxTransferBytesOnMessageInMemory": Key("read", "memory_bytes_max", _integer),
    "maxTransferCountOnMessageInMemory": Key("read", "memory_count_max", _integer),
    "maxTransferBytesOnMessageInDisk": Key("read", "disk_bytes_max", _integer),
    "maxTransferCountOnMessageInDisk": Key("read", "disk_count_max", _integer),
    "accessMessageInMemoryMaxRatio": Key("read", "memory_ratio_percent", _integer),
    "checkCRCOnRecover": Key("recovery", "check_crc", _boolean),
    "brokerFastFailureEnable": Key("busy", "enabled", _boolean),
    "waitTimeMillsInSendQueue": Key("busy", "wait_ms", _integer),
    "osPageCacheBusyTimeOutMills": Key("busy", "page_cache_ms", _integer),
    "fileReservedTime": Key("retention", "reserved_hours", _integer),
    "deleteWhen": Key("retention", "delete_when", _text),
    "diskMaxUsedSpaceRatio": Key("retention", "max_used_percent", _integer),
    "rocketmq.broker.diskSpaceCleanForciblyRatio": Key("retention", "clean_percent", _percent),
    "rocketmq.broker.diskSpaceWarningLevelRatio": Key("retention", "refuse_percent", _percent),
    "cleanFileForciblyEnable": Key("retention", "clean_forcibly", _boolean),
    "cleanResourceInterval": Key("retention", "interval_ms", _integer),
    "deleteCommitLogFilesInterval": Key("retention", "file_pause_ms", _integer),
    "destroyMapedFileIntervalForcibly": Key("retention", "grace_ms", _integer),
    "flushCommitLogLeastPages": Key("flush", "commit_log_least_pages", _integer),
    "flushCommitLogThoroughInterval": Key("flush", "commit_log_thorough_ms", _integer),
}

NAMESRV_KEYS: Final = {
    "kvConfigPath": Key("namesrv", "kv_config_path", _path),
    "orderMessageEnable": Key("namesrv", "order_message_enable", _boolean),
    "metricsPort": Key("metrics", "port", _port),
    "metricsHost": Key("metrics", "host", _text),
    "maxKvValueBytes": Key("namesrv", "kv_value_bytes_max", _integer),
    "maxKvTotalBytes": Key("namesrv", "kv_bytes_max", _integer),
    "maxRoutes": Key("namesrv", "routes_max", _integer),
}

UNSUPPORTED_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "tls.test.mode.enable": ("false",),
}
"""Key -> the values that are true of this version; any other is refused."""

_ONE_LOOP = "one event loop does the work; there are no thread pools and no queues before them"
_NETTY = "there is no Netty; the limits of a connection are in ListenConfig.options"
_FAIR = "the event loop takes requests in order, so none waits in a queue to be timed out"
_WRITES = "records are written with pwrite, not through a mapped file"
_PAID = "it counts messages for a product of Alibaba"

IGNORED_KEYS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "sendMessageThreadPoolNums", "pullMessageThreadPoolNums", "processReplyMessageThreadPoolNums",
            "queryMessageThreadPoolNums", "adminBrokerThreadPoolNums", "clientManageThreadPoolNums",
            "consumerManageThreadPoolNums", "heartbeatThreadPoolNums", "endTransactionThreadPoolNums",
            "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "replyThreadPoolQueueCapacity",
            "queryThreadPoolQueueCapacity", "clientManagerThreadPoolQueueCapacity",
            "consumerManagerThreadPoolQueueCapacity", "heartbeatThreadPoolQueueCapacity",
            "endTransactionPoolQueueCapacity", "useReentrantLockWhenPutMessage", "debugLockEnable",
        ),
        _ONE_LOOP,
    ),
    **dict.fromkeys(
        (
            "serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads",
            "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverSocketSndBufSize",
            "serverSocketRcvBufSize", "serverPooledByteBufAllocatorEnable", "useEpollNativeSelector",
            "clientWorkerThreads", "clientCallbackExecutorThreads", "clientOnewaySemaphoreValue",
            "clientAsyncSemaphoreValue", "connectTimeoutMillis", "channelNotActiveInterval",
            "clientChannelMaxIdleTimeSeconds", "clientSocketSndBufSize", "clientSocketRcvBufSize",
            "clientPooledByteBufAllocatorEnable", "clientCloseSocketIfTimeout", "useTLS",
            "transferMsgByHeap", "highSpeedMode",
        ),
        _NETTY,
    ),
    **dict.fromkeys(
        (
            "waitTimeMillsInPullQueue",
            "waitTimeMillsInHeartbeatQueue", "waitTimeMillsInTransactionQueue",
        ),
        _FAIR,
    ),
    **dict.fromkeys(
        (
            "mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue", "commitIntervalCommitLog",
            "flushCommitLogTimed", "commitCommitLogLeastPages",
            "flushLeastPagesWhenWarmMapedFile", "flushConsumeQueueLeastPages",
            "commitCommitLogThoroughInterval",
            "flushConsumeQueueThoroughInterval", "warmMapedFileEnable",
            "transientStorePoolEnable", "transientStorePoolSize", "fastFailIfNoBufferInStorePool",
            "messageIndexSafe", "redeleteHangedFileInterval", "deleteConsumeQueueFilesInterval",
        ),
        _WRITES,
    ),
    **dict.fromkeys(
        (
            "commercialEnable", "commercialTimerCount", "commercialTransCount", "commercialBigCount",
            "commercialBaseCount",
        ),
        _PAID,
    ),
    **dict.fromkeys(
        ("flushConsumerOffsetHistoryInterval", "putMsgIndexHightWater", "maxDelayTime", "configStorePath"),
        "4.6.0 has the key, but nothing in its servers reads it",
    ),
    **dict.fromkeys(
        ("disableConsumeIfConsumerReadSlowly", "consumerFallbehindThreshold"),
        "no group is stopped for being far behind",
    ),
    **dict.fromkeys(
        (
            "enableCalcFilterBitMap", "expectConsumerNumUseFilter", "maxErrorRateOfBloomFilter",
            "filterDataCleanTimeSpan", "enableConsumeQueueExt", "mappedFileSizeConsumeQueueExt",
            "bitMapLengthConsumeQueueExt",
        ),
        "expressions are evaluated for each message; no bit maps are stored beside the consume queues",
    ),
    **dict.fromkeys(
        ("productEnvName", "clusterTest"), "it names a test environment that name servers of 4.6.0 can be in"
    ),
    "filterServerNums": "filter servers, which are deprecated in 4.6.0, are not started",
    "offsetCheckInSlave": "a slave never corrects an offset that it does not have; it holds the pull",
    "duplicationEnable": "a log is not replayed from a copy; replicas are slaves or DLedger peers",
    "diskFallRecorded": "how far consumers are behind is reported as a metric",
    "defaultQueryMaxNum": "a look-up by unique id returns up to 32 messages, its default",
    "forceRegister": "the broker always sends its registration, which name servers compare by version",
    "tls.server.authClient": "a client's certificate, where one is wanted, is always checked",
    "tls.client.authServer": "a server's certificate is always checked",
    "tls.enable": "an address says it: tls://host:port in namesrvAddr",
    "messageStorePlugIn": "it names a Java class",
    "fetchNamesrvAddrByAddressServer": "name servers are named by namesrvAddr",
}  # fmt: skip
"""Keys of 4.6.0 that are accepted, and why they change nothing here."""

for _name in (*LISTEN_KEYS, *BROKER_KEYS, *STORE_KEYS, *NAMESRV_KEYS):
    if _name in IGNORED_KEYS or _name in UNSUPPORTED_KEYS:
        raise ConfigInvalid(f"configuration key {_name} is in two tables")
