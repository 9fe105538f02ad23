"""RocketMQ 4.6.0's configuration keys: the supported ones, and the reason for each one without an effect.

Keys of brokers, stores and name servers stand next to their fields (`setting`); this module collects them.
Source: BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig, NamesrvConfig.
"""

from __future__ import annotations

from typing import Final

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.config.model import BrokerConfig, NamesrvConfig
from rocketpy_broker.config.readers import (
    one_of,
    read_initial_user,
    read_inner_user,
    read_listen_address,
    read_port,
    read_positive,
    read_seconds,
)
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.setting import Key, groups_of, keys_of, read_boolean, read_text

SettingValue = str | int | float | bool
"""Value of a key that is set in code."""


def to_text(value: SettingValue) -> str:
    """Return a value as a text for RocketMQ's files. Raises TypeError for a value of another type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # A caller without a type checker may pass anything.
    if not isinstance(value, str | int | float):
        raise TypeError(f"a text, a number, True or False is expected, not {type(value).__name__}")
    return str(value)


def _in_seconds(value_ms: int) -> int:
    return value_ms // 1000


LISTEN_KEYS: Final = {
    "bindAddress": Key("listen", "host", read_text),
    "listenPort": Key("listen", "port", read_port),
    "insecure": Key("listen", "insecure", read_boolean),
    "listen": Key("listen", "listen", read_listen_address),
    "serverChannelMaxIdleTimeSeconds": Key("listen", "idle_timeout_ms", read_seconds, _in_seconds),
    "tls.server.mode": Key("listen", "tls_mode", one_of("disabled", "permissive", "enforcing")),
    "tls.server.need.client.auth": Key("listen", "tls_client_auth", one_of("none", "optional", "require")),
    **{
        f"tls.{end}.{name}": Key("listen", f"{end}_{part}", read_text)
        for end in ("server", "client")
        for name, part in (
            ("certPath", "cert"), ("keyPath", "key"), ("keyPassword", "password"),
            ("keyPasswordFile", "password_file"), ("trustCertPath", "trust"),
        )
    },
    "aclEnable": Key("listen", "acl_enable", read_boolean),
    "aclSignatureV2Required": Key("listen", "requires_signature_v2", read_boolean),
    "rocketmq.acl.plain.file": Key("listen", "acl_file", read_text),
    "rocketmqHome": Key("listen", "home", read_text),
    "authenticationEnabled": Key("listen", "authentication", read_boolean),
    "authorizationEnabled": Key("listen", "authorization", read_boolean),
    "authConfigPath": Key("listen", "users_path", read_text),
    "initAuthenticationUser": Key("listen", "init_user", read_initial_user),
    "innerClientAuthenticationCredentials": Key("listen", "inner_user", read_inner_user),
    "migrateAuthFromV1Enabled": Key("listen", "migrates", read_boolean),
    "com.rocketmq.remoting.frameMaxLength": Key("listen", "max_frame_bytes", read_positive),
    "maxHeaderBytes": Key("listen", "max_header_bytes", read_positive),
    "maxConnections": Key("listen", "max_connections", read_positive),
    "maxConnectionsPerHost": Key("listen", "max_connections_per_host", read_positive),
    "maxRequestsInFlight": Key("listen", "max_unanswered", read_positive),
    "frameTimeoutMillis": Key("listen", "frame_timeout_ms", read_positive),
    "unsignedTimeoutMillis": Key("listen", "unsigned_timeout_ms", read_positive),
    "maxConnectionBytes": Key("listen", "connection_bytes_max", read_positive),
    "maxTotalBytes": Key("listen", "total_bytes_max", read_positive),
    "writeLimitBytes": Key("listen", "write_limit_bytes", read_positive),
}  # fmt: skip
"""Keys of both servers. The tls keys are from RocketMQ's tls.properties, the other two with dots are its
system properties. RocketMQ has no `insecure`, `listen`, `aclSignatureV2Required`, `keyPasswordFile`,
`unsignedTimeoutMillis`, and none of the limits that follow `com.rocketmq.remoting.frameMaxLength`."""

BROKER_GROUPS: Final[dict[str, type]] = {
    name: group for name, group in groups_of(BrokerConfig).items() if name not in {"store", "listen"}
}
"""Groups of settings in BrokerConfig, by their field there."""
STORE_GROUPS: Final = groups_of(StoreConfig)
"""Groups of settings in StoreConfig, by their field there."""


def _keys(groups: dict[str, type]) -> dict[str, Key]:
    return {name: key for group, config in groups.items() for name, key in keys_of(config, group).items()}


BROKER_KEYS: Final = _keys({"broker": BrokerConfig, **BROKER_GROUPS})
STORE_KEYS: Final = _keys({"store": StoreConfig, **STORE_GROUPS})
NAMESRV_KEYS: Final = _keys({"namesrv": NamesrvConfig}) | {
    name: BROKER_KEYS[name] for name in ("metricsPort", "metricsHost")
}

UNSUPPORTED_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "tls.test.mode.enable": ("false",),
    **{
        f"auth{kind}Provider": ("", f"org.apache.rocketmq.auth.auth{kind}.provider.DefaultAuth{kind}Provider")
        for kind in ("entication", "orization")
    },
    **{
        f"auth{kind}MetadataProvider": (
            "",
            f"org.apache.rocketmq.auth.auth{kind}.provider.LocalAuth{kind}MetadataProvider",
        )
        for kind in ("entication", "orization")
    },
    **{
        f"auth{kind}Strategy": (
            "",
            *(
                f"org.apache.rocketmq.auth.auth{kind}.strategy.State{form}Auth{kind}Strategy"
                for form in ("less", "ful")
            ),
        )
        for kind in ("entication", "orization")
    },
    "authenticationWhitelist": ("",),
    "authorizationWhitelist": ("",),
    "timerPrecisionMs": ("1000",),
    **dict.fromkeys(("timerStopEnqueue", "timerStopDequeue", "timerInterceptDelayLevel"), ("false",)),
}
"""Key -> values that this version implements; it rejects any other. The last ones are of RocketMQ 5."""

_REASONS: Final = {
    "all users and policies are in memory, and a change applies immediately": """
        userCacheMaxNum userCacheExpiredSecond userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond
        aclCacheRefreshSecond statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond
        statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    """,
    "one event loop does the work, without thread pools and their queues": """
        sendMessageThreadPoolNums=1 pullMessageThreadPoolNums=20 processReplyMessageThreadPoolNums=20
        queryMessageThreadPoolNums=10 adminBrokerThreadPoolNums=16 clientManageThreadPoolNums=32
        consumerManageThreadPoolNums=32 heartbeatThreadPoolNums=2 endTransactionThreadPoolNums=12
        sendThreadPoolQueueCapacity=10000 pullThreadPoolQueueCapacity=100000
        replyThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000
        clientManagerThreadPoolQueueCapacity=1000000 consumerManagerThreadPoolQueueCapacity=1000000
        heartbeatThreadPoolQueueCapacity=50000 endTransactionPoolQueueCapacity=100000
        useReentrantLockWhenPutMessage=false debugLockEnable=false timerGetMessageThreadNum
        timerPutMessageThreadNum timerEnableDisruptor timerWarmEnable
    """,
    "there is no Netty; the limits of a connection are in ListenConfig.options": """
        serverWorkerThreads=8 serverCallbackExecutorThreads=0 serverSelectorThreads=3
        serverOnewaySemaphoreValue=256 serverAsyncSemaphoreValue=64 serverSocketSndBufSize=131072
        serverSocketRcvBufSize=131072 serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false
        clientWorkerThreads=4 clientCallbackExecutorThreads=2 clientOnewaySemaphoreValue=65535
        clientAsyncSemaphoreValue=65535 connectTimeoutMillis=3000 channelNotActiveInterval=60000
        clientChannelMaxIdleTimeSeconds=120 clientSocketSndBufSize=131072 clientSocketRcvBufSize=131072
        clientPooledByteBufAllocatorEnable=false clientCloseSocketIfTimeout=false useTLS=false
        transferMsgByHeap=true highSpeedMode=false
    """,
    "the event loop handles requests in order, so no queue has a timeout": """
        waitTimeMillsInPullQueue=5000 waitTimeMillsInHeartbeatQueue=31000
        waitTimeMillsInTransactionQueue=3000
    """,
    "records are written with pwrite, not through a mapped file": """
        mapedFileSizeCommitLog mapedFileSizeConsumeQueue commitIntervalCommitLog=200
        flushCommitLogTimed=false commitCommitLogLeastPages=4 flushLeastPagesWhenWarmMapedFile=4096
        flushConsumeQueueLeastPages=2 commitCommitLogThoroughInterval=200
        flushConsumeQueueThoroughInterval=60000 warmMapedFileEnable=false transientStorePoolEnable=false
        transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false messageIndexSafe=false
        redeleteHangedFileInterval=120000 deleteConsumeQueueFilesInterval=100
    """,
    "it counts messages for a product of Alibaba": """
        commercialEnable=true commercialTimerCount=1 commercialTransCount=1 commercialBigCount=1
        commercialBaseCount=1
    """,
    "the servers of 4.6.0 do not read it either": """
        flushConsumerOffsetHistoryInterval=60000 putMsgIndexHightWater=600000 maxDelayTime=40
        configStorePath
    """,
    "no group is stopped for being far behind": """
        disableConsumeIfConsumerReadSlowly=false consumerFallbehindThreshold=17179869184
    """,
    "expressions are evaluated for each message; no bit maps are stored beside the consume queues": """
        enableCalcFilterBitMap=false expectConsumerNumUseFilter=32 maxErrorRateOfBloomFilter=20
        filterDataCleanTimeSpan=86400000 enableConsumeQueueExt=false mappedFileSizeConsumeQueueExt=50331648
        bitMapLengthConsumeQueueExt=112
    """,
    "it names a test environment of name servers": "productEnvName=center clusterTest=false",
    "filter servers, which 4.6.0 deprecates, are not supported": "filterServerNums=0",
    "a slave holds a pull from an offset that it does not have": "offsetCheckInSlave=false",
    "a log is not replayed from a copy; replicas are slaves or DLedger peers": "duplicationEnable=false",
    "a timer is delivered until it succeeds; its progress is reported as a metric": """
        timerSkipUnknownError timerEnableRetryUntilSuccess timerEnableCheckMetrics timerCheckMetricsWhen
        timerProgressLogIntervalMs timerMetricSmallThreshold
    """,
    "the lag of consumers is reported as a metric": "diskFallRecorded=true",
    "a query by unique id returns up to 32 messages, its default": "defaultQueryMaxNum=32",
    "the broker always sends its registration, which name servers compare by version": "forceRegister=true",
    "a client certificate is always verified, if one is required": "tls.server.authClient",
    "a server certificate is always verified": "tls.client.authServer",
    "addresses with tls:// use TLS: tls://host:port in namesrvAddr": "tls.enable",
    "it names a Java class": "messageStorePlugIn=",
    "namesrvAddr has the addresses of name servers": "fetchNamesrvAddrByAddressServer=false",
}
"""Reason why keys of 4.6.0 have no effect -> these keys. Where its tools show a key, its default follows."""
IGNORED_KEYS: Final = {
    word.partition("=")[0]: reason for reason, words in _REASONS.items() for word in words.split()
}
"""Keys of 4.6.0 that have no effect, with the reason."""
_IGNORED_DEFAULTS: Final = {
    name: value
    for words in _REASONS.values()
    for name, is_shown, value in (word.partition("=") for word in words.split())
    if is_shown
}
_OF_NAMESRV_ONLY: Final = ("clusterTest", "productEnvName")
IGNORED_BROKER_DEFAULTS: Final = {
    name: value for name, value in _IGNORED_DEFAULTS.items() if name not in _OF_NAMESRV_ONLY
}
"""Keys without an effect that 4.6.0's broker shows, with their defaults. Those of thread pools depend on the
number of processors there; these are of two."""
IGNORED_NAMESRV_DEFAULTS: Final = {
    name: value
    for name, value in _IGNORED_DEFAULTS.items()
    if name in _OF_NAMESRV_ONLY or name == "useEpollNativeSelector" or name.startswith("server")
} | {"serverSocketSndBufSize": "65535", "serverSocketRcvBufSize": "65535"}
"""The same of its name server."""

for _name in (*LISTEN_KEYS, *BROKER_KEYS, *STORE_KEYS, *NAMESRV_KEYS):
    if _name in IGNORED_KEYS or _name in UNSUPPORTED_KEYS:
        raise ConfigInvalid(f"configuration key {_name} is in two tables")
