"""What a broker and a name server can be told. Built in code, or from RocketMQ's files by `config_file`.

Each field names the RocketMQ key it mirrors and keeps 4.6.0's default unless it says why not.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from ssl import CERT_REQUIRED
from typing import Final

from rocketpy.config import Credentials
from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address, ChannelOptions, Tls
from rocketpy_broker.store.config import StoreConfig

DEFAULT_BROKER_PORT: Final = 10911
DEFAULT_NAMESRV_PORT: Final = 9876

PERM_READ: Final = 4
PERM_WRITE: Final = 2

_PEER_ID = re.compile(r"[A-Za-z][0-9]{1,9}")
_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")
_BEAT_LATE_MS: Final = 1000
"""Replicas look at their clocks a few times a second, so what is due may be said that much later."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigInvalid(f"{name} is {value}; it must be from {low} to {high}")


def _check_name(name: str, value: str) -> None:
    if not _NAME.fullmatch(value) or len(value) > 127 or not value.strip("."):
        raise ConfigInvalid(f"{name} is {value!r}; 1 to 127 letters, digits and any of . _ - % | are allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenConfig:
    """Where a server is reached, and by whom.

    A server that other machines can reach needs access control or TLS, or must be asked for by `insecure`
    (RocketMQ listens on every address).
    """

    address: Address
    """bindAddress and listenPort (the former is a key of later versions). Port 0: any free one."""
    insecure: bool = False
    """Ours (``--insecure``): serve another address than this machine's without TLS or access control."""
    acl_file: Path | None = None
    """aclEnable: clients are admitted as this plain_acl.yml says. None: nobody is asked who they are."""
    requires_signature_v2: bool = False
    """Ours (aclSignatureV2Required): with access control, RocketMQ's signature is refused, which can be sent
    again; only clients of this project can sign then."""
    unsigned_timeout_ms: int = 10_000
    """Ours (unsignedTimeoutMillis): with access control, a connection of which no request was admitted for
    so long is closed."""
    options: ChannelOptions = field(default_factory=ChannelOptions)
    """Limits of a connection; `ssl` in it for an address with tls://."""

    def __post_init__(self) -> None:
        if self.address.scheme == "tls" and self.options.ssl is None:
            raise ConfigInvalid(
                f"{self.address} needs a certificate: set tls.server.certPath and tls.server.keyPath"
            )
        if self.requires_signature_v2 and self.acl_file is None:
            raise ConfigInvalid(
                "aclSignatureV2Required=true needs aclEnable=true, without which nobody must sign"
            )
        _check_range("unsignedTimeoutMillis", self.unsigned_timeout_ms, 1, 3_600_000)
        is_safe = self.acl_file is not None or (self.address.scheme == "tls" and not self.options.also_plain)
        if not (self.insecure or is_safe or self.is_local):
            raise ConfigInvalid(
                f"refusing to serve {self.address} to other machines without TLS or access control; "
                "bind to 127.0.0.1, use tls://, set aclEnable=true, or insist with --insecure (insecure=true)"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine, or this process, reaches the address."""
        if self.address.scheme not in ("tcp", "tls") or self.address.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.address.host).is_loopback
        except ValueError:
            return False

    @property
    def is_open(self) -> bool:
        """Whether whoever reaches the address may read every message: replicas need no guard then."""
        return self.insecure or (self.is_local and self.acl_file is None)

    @property
    def asks_certificates(self) -> bool:
        """Whether nobody connects by TLS without a trusted certificate, and nobody without TLS."""
        tls = self.options.ssl
        return tls is not None and not self.options.also_plain and tls.verify_mode is CERT_REQUIRED

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of this machine."""
        return self.address.host in ("0.0.0.0", "::")  # noqa: S104 - it is compared, not bound


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsConfig:
    """Which topics exist without being asked for."""

    auto_create: bool = True
    """autoCreateTopicEnable: a send to a topic that is not there makes it, after the model TBW102."""
    default_queue_nums: int = 8
    """defaultTopicQueueNums: queues of TBW102, and the most that an auto-created topic gets."""
    cluster_topic: bool = True
    """clusterTopicEnable: a system topic named as the cluster."""
    broker_topic: bool = True
    """brokerTopicEnable: a system topic named as the broker."""
    trace_topic: bool = False
    """traceTopicEnable: the topic of message traces."""
    trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """msgTraceTopicName."""
    topics_max: int = 20_000
    """maxTopics (ours): topics that may exist besides the system's; one more is refused. As many again may be
    made by the broker itself, for the retries and dead letters of groups."""
    queues_max: int = 1024
    """maxTopicQueues (ours): queues that a topic may get, of either kind. Topics that have more keep them."""

    def __post_init__(self) -> None:
        _check_range("maxTopics", self.topics_max, 1, 1_000_000)
        _check_range("maxTopicQueues", self.queues_max, 1, 65_536)
        _check_range("defaultTopicQueueNums", self.default_queue_nums, 1, self.queues_max)
        _check_name("msgTraceTopicName", self.trace_topic_name)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistrationConfig:
    """How the broker keeps its name servers informed."""

    namesrv: tuple[Address, ...] = ()
    """namesrvAddr, separated by semicolons. Empty: the broker is found by its address only."""
    period_ms: int = 30_000
    """registerNameServerPeriod. A value outside 10 to 60 s counts as the nearest of them, as in 4.6.0."""
    timeout_ms: int = 6000
    """registerBrokerTimeoutMills: how long to wait for one name server."""
    compressed: bool = False
    """compressedRegister."""
    roleless_ms: int = 10_000
    """A broker of a DLedger group that has no role for so long after its start registers with id -1, so that
    what it has can be read (fixed in RocketMQ)."""
    credentials: Credentials | None = None
    """The broker's account at name servers with access control. A broker.conf has no key for it; the
    environment's ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY count."""
    ssl: Tls | None = field(default=None, repr=False)
    """tls.client.*: for name servers, masters and peers with tls://. None: the authorities that this machine
    trusts, and no certificate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "period_ms", min(max(self.period_ms, 10_000), 60_000))
        _check_range("registerBrokerTimeoutMills", self.timeout_ms, 1, 600_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendConfig:
    """What sends are answered."""

    region_id: str = "DefaultRegion"
    """regionId: MSG_REGION of every answer, for message traces."""
    trace_on: bool = True
    """traceOn: whether clients that trace shall trace this broker's messages."""
    start_accept_ms: int = 0
    """startAcceptSendRequestTimeStamp: ms since 1970 before which sends are refused."""
    reject_transactions: bool = False
    """rejectTransactionMessage."""
    store_replies: bool = True
    """storeReplyMessageEnable: keep the replies of request-reply in `<cluster>_REPLY_TOPIC` too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionConfig:
    """When producers are asked what became of their transactions."""

    timeout_ms: int = 6000
    """transactionTimeOut: age at which a half message is asked about for the first time, unless it has
    a CHECK_IMMUNITY_TIME_IN_SECONDS of its own."""
    check_interval_ms: int = 60_000
    """transactionCheckInterval."""
    check_max: int = 15
    """transactionCheckMax: after so many questions in vain it goes to TRANS_CHECK_MAX_TIME_TOPIC."""
    reserved_ms: int = 72 * 3_600_000
    """It goes there at this age too (RocketMQ takes fileReservedTime for it, 72 h)."""

    def __post_init__(self) -> None:
        _check_range("transactionTimeOut", self.timeout_ms, 0, 2**31)
        _check_range("transactionCheckInterval", self.check_interval_ms, 1, 2**31)
        _check_range("transactionCheckMax", self.check_max, 1, 2**31)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumeConfig:
    """How consumers are served."""

    auto_create_group: bool = True
    """autoCreateSubscriptionGroup: a consumer of an unknown group makes it, with the usual settings."""
    long_polling: bool = True
    """longPollingEnable: a pull that finds nothing is held for as long as its consumer says."""
    short_polling_ms: int = 1000
    """shortPollingTimeMills: how long it is held when longPollingEnable is off."""
    notify_ids_changed: bool = True
    """notifyConsumerIdsChangedEnable: tell a group's members when one comes or leaves."""
    slave_read: bool = False
    """slaveReadEnable: send consumers that are far behind to a slave, and serve them on a slave."""
    property_filter: bool = False
    """enablePropertyFilter: consumers may filter by SQL92 expressions."""
    filter_retries: bool = False
    """filterSupportRetry: retried messages pass the filter of their first topic again."""
    groups_max: int = 20_000
    """maxConsumerGroups (ours): groups that may exist besides the system's; one more is refused."""
    new_groups_max: int = 256
    """maxNewGroupsPerHeartbeat (ours): unknown groups that one heartbeat may name."""
    offsets_max: int = 1_000_000
    """maxConsumerOffsets (ours): offsets, one a queue and group, that are kept; a new one more is refused."""

    def __post_init__(self) -> None:
        _check_range("shortPollingTimeMills", self.short_polling_ms, 1, 600_000)
        _check_range("maxConsumerGroups", self.groups_max, 1, 1_000_000)
        _check_range("maxNewGroupsPerHeartbeat", self.new_groups_max, 1, 1_000_000)
        _check_range("maxConsumerOffsets", self.offsets_max, 1, 100_000_000)


class BrokerRole(Enum):
    """What a broker is among those of its name."""

    ASYNC_MASTER = "answers when a message is stored here"
    SYNC_MASTER = "answers when a slave has it too"
    SLAVE = "copies its master"


@dataclass(frozen=True, kw_only=True, slots=True)
class HaConfig:
    """Replication between a master and its slaves."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    """brokerRole."""
    master_address: Address | None = None
    """haMasterAddress: for a slave, its master's HA port. None: as the name servers say."""
    heartbeat_ms: int = 5000
    """haSendHeartbeatInterval."""
    silence_ms: int = 20_000
    """haHousekeepingInterval: a peer that says nothing for so long is disconnected."""
    batch_bytes: int = 32 * 1024
    """haTransferBatchSize: largest piece of the log in one frame."""
    behind_bytes_max: int = 256 << 20
    """haSlaveFallbehindMax: with all slaves further behind, a SYNC_MASTER answers SLAVE_NOT_AVAILABLE."""
    secret: str = field(default="", repr=False)
    """haSecret (ours): what a peer must know to replicate. RocketMQ's replicas know none. Empty: nobody is
    asked; with access control no slave is served then."""
    handshake_required: bool = False
    """haHandshakeRequired (ours): slaves that do not speak our handshake, so RocketMQ's, do not make a
    message safe for a SYNC_MASTER."""
    reconnect_ms: int = 5000
    """How long a slave waits before it tries its master again (fixed in RocketMQ)."""
    sync_interval_ms: int = 10_000
    """How often a slave copies topics, groups and offsets (fixed in RocketMQ)."""

    def __post_init__(self) -> None:
        _check_range("haSendHeartbeatInterval", self.heartbeat_ms, 1, 3_600_000)
        _check_range("haHousekeepingInterval", self.silence_ms, 1, 3_600_000)
        if self.heartbeat_ms + _BEAT_LATE_MS > self.silence_ms:
            raise ConfigInvalid(
                f"haSendHeartbeatInterval is {self.heartbeat_ms}; it must be at least {_BEAT_LATE_MS} ms "
                f"below haHousekeepingInterval, {self.silence_ms}, or replicas with nothing to say disconnect"
            )
        _check_range("haTransferBatchSize", self.batch_bytes, 1, 4 << 20)
        _check_range("haSlaveFallbehindMax", self.behind_bytes_max, 0, 2**62)


@dataclass(frozen=True, kw_only=True, slots=True)
class DLedgerConfig:
    """A broker that is a peer of a group which elects its leader."""

    enabled: bool = False
    """enableDLegerCommitLog."""
    group: str = ""
    """dLegerGroup: the same at every peer; mostly the brokerName."""
    peers: dict[str, Address] = field(default_factory=dict)
    """dLegerPeers, ``n0-host:port;n1-host:port;…``: each peer's id and where the others reach it. The id is a
    letter and a number; a broker that follows registers with that number + 1."""
    self_id: str = ""
    """dLegerSelfId: which of them this broker is."""
    flush: bool = True
    """dLegerFlush (ours), ``quorum`` or ``async``: whether a majority has flushed a message before it is
    acknowledged. DLedger 0.1 only flushes later on, every 10 ms."""
    heartbeat_ms: int = 2000
    """dLegerHeartbeatMillis (ours; 0.1's heartBeatTimeIntervalMs): how often a leader says that it leads. The
    same at every peer, as the three that follow; RocketMQ cannot change them."""
    heartbeats_missed_max: int = 3
    """dLegerHeartbeatsMissed (ours; maxHeartBeatLeak): after so many intervals of silence others stand."""
    vote_interval_ms_min: int = 300
    """dLegerVoteMillisMin (ours; minVoteIntervalMs): a candidate waits from this to …"""
    vote_interval_ms_max: int = 1000
    """dLegerVoteMillisMax (ours; maxVoteIntervalMs): … this, before it asks again."""
    commit_wait_ms: int = 2500
    """How long a send waits for a majority (0.1's maxWaitAckTimeMs; fixed in RocketMQ)."""
    pending_max: int = 10_000
    """dLegerPendingMax (ours; maxPendingRequestsNum): with so many messages that no majority has, sends are
    refused."""
    secret: str = field(default="", repr=False)
    """dLegerSecret (ours): what every peer of the group must know. RocketMQ's peers know none. Empty: nobody
    is asked."""

    def __post_init__(self) -> None:
        if not self.enabled:
            return
        if not self.group:
            raise ConfigInvalid("enableDLegerCommitLog needs dLegerGroup")
        for peer in self.peers:
            if not _PEER_ID.fullmatch(peer):
                raise ConfigInvalid(f"dLegerPeers names {peer!r}; an id is a letter and a number, as n0")
        if self.self_id not in self.peers:
            raise ConfigInvalid(f"dLegerSelfId is {self.self_id!r}; dLegerPeers names {sorted(self.peers)}")
        for peer, address in self.peers.items():
            if address.scheme != "memory" and not address.port:
                raise ConfigInvalid(f"dLegerPeers: {peer} at {address} has no port")
        _check_range("dLegerHeartbeatMillis", self.heartbeat_ms, 10, 60_000)
        _check_range("dLegerHeartbeatsMissed", self.heartbeats_missed_max, 2, 1000)
        _check_range("dLegerVoteMillisMin", self.vote_interval_ms_min, 1, self.vote_interval_ms_max - 1)
        _check_range("dLegerVoteMillisMax", self.vote_interval_ms_max, 2, 600_000)
        _check_range("dLegerPendingMax", self.pending_max, 1, 10_000_000)

    @property
    def slave_id(self) -> int:
        """The broker's id while it follows: never 0, which is the leader's."""
        return int(self.self_id[1:]) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsConfig:
    """Where metrics and probes are, and what is traced. The keys are ours."""

    port: int | None = None
    """metricsPort: where GET /metrics (brokers only), /livez and /readyz are answered; 0 is any free one.
    None: nowhere."""
    host: str = "127.0.0.1"
    """metricsHost: the address to listen at. It is plain HTTP without a password."""
    trace_sends: bool = False
    """traceSends: whether sends that carry a trace context get spans of the broker's, where telemetry is
    installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """One broker."""

    store: StoreConfig
    """Where and how messages are kept; its `store_host` is replaced by this broker's own address."""
    listen: ListenConfig = field(
        default_factory=lambda: ListenConfig(address=Address("tcp", "127.0.0.1", DEFAULT_BROKER_PORT))
    )
    name: str = "broker-a"
    """brokerName (RocketMQ: the machine's name). A master and its slaves share it."""
    cluster_name: str = "DefaultCluster"
    """brokerClusterName."""
    broker_id: int = 0
    """brokerId: 0 for a master."""
    advertised_host: str | None = None
    """brokerIP1: what clients are told to connect to, and the host in message ids. None: the bind address."""
    ha_host: str | None = None
    """brokerIP2: what slaves are told to connect to. None: as for clients."""
    ha_port: int | None = None
    """haListenPort. None: listenPort + 1, or any free port where that is taken."""
    vip_channel: bool | None = None
    """vipChannelEnable (ours; RocketMQ always opens it): whether listenPort - 2 is served, too. None: yes,
    with a warning where that port is in use; true: the start fails then; false: it is not opened."""
    offset_interval_ms: int = 5000
    """flushConsumerOffsetInterval: how often the offsets of consumer groups are saved."""
    delay_offset_interval_ms: int = 10_000
    """flushDelayOffsetInterval: how often it is saved which delayed messages were delivered."""
    permission: int = PERM_READ | PERM_WRITE
    """brokerPermission: 4 read, 2 write."""
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    registration: RegistrationConfig = field(default_factory=RegistrationConfig)
    send: SendConfig = field(default_factory=SendConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    consume: ConsumeConfig = field(default_factory=ConsumeConfig)
    updatable_file: Path | None = None
    """remoteConfigUpdateEnable (ours): the file that administrators may change some settings in from afar."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    ha: HaConfig = field(default_factory=HaConfig)
    dledger: DLedgerConfig = field(default_factory=DLedgerConfig)
    replica_names: frozenset[str] = frozenset()
    """replicaCertNames (ours): names of certificates, separated by semicolons. At the HA and DLedger ports a
    peer must show a certificate with one of them. Empty: any name will do."""

    @property
    def is_slave(self) -> bool:
        """Whether it begins as the copy of another broker."""
        return self.ha.role is BrokerRole.SLAVE

    @property
    def replica_address(self) -> Address:
        """Where replicas connect to: the DLedger peer's address, or of the HA port the transport and host."""
        own = self.dledger.peers.get(self.dledger.self_id) if self.dledger.enabled else None
        return self.listen.address if own is None else own

    @property
    def accepts_any_replica(self) -> bool:
        """Whether whoever reaches the port of replicas may take part."""
        secret = self.dledger.secret if self.dledger.enabled else self.ha.secret
        return not secret and not self.replica_names

    def _check_replicas(self) -> None:
        """Raise ConfigInvalid where whoever reaches the port of replicas would get every message."""
        listen, port = self.listen, self.replica_address
        if self.replica_names and not (port.scheme == "tls" and listen.asks_certificates):
            raise ConfigInvalid(
                "replicaCertNames needs TLS at the port of replicas: tls.server.mode=enforcing and "
                "tls.server.need.client.auth=require, and tls:// in dLegerPeers"
            )
        if port.scheme == "memory" or listen.is_open or not self.accepts_any_replica:
            return
        why = "with aclEnable" if listen.is_local else f"at {listen.address}, which other machines can reach,"
        if self.dledger.enabled:
            raise ConfigInvalid(
                f"{why} the DLedger port would let anybody into the group: set dLegerSecret to the same long "
                "random text at every peer, or replicaCertNames with TLS; RocketMQ's peers know neither, and "
                "join only with insecure=true"
            )
        if not listen.is_local or self.ha.role is BrokerRole.SYNC_MASTER:
            raise ConfigInvalid(
                f"{why} the HA port would give anybody every message: set haSecret to the same long "
                "random text at master and slaves, or replicaCertNames with TLS; RocketMQ's slaves know "
                "neither, and copy only with insecure=true"
            )

    def __post_init__(self) -> None:
        self._check_replicas()
        own = self.dledger.peers.get(self.dledger.self_id) if self.dledger.enabled else None
        if own is not None and own.scheme == "tls" and self.listen.options.ssl is None:
            raise ConfigInvalid(
                f"dLegerPeers has {own} for this peer, which needs tls.server.certPath and tls.server.keyPath"
            )
        if self.is_slave and self.dledger.enabled:
            raise ConfigInvalid(
                "brokerRole is SLAVE, but with enableDLegerCommitLog a group elects its master"
            )
        if self.is_slave and self.broker_id == 0:
            raise ConfigInvalid("brokerRole is SLAVE, and brokerId 0, which stands for the master")
        _check_name("brokerName", self.name)
        _check_name("brokerClusterName", self.cluster_name)
        _check_range("brokerId", self.broker_id, 0, 2**63 - 1)
        _check_range("flushConsumerOffsetInterval", self.offset_interval_ms, 1, 3_600_000)
        _check_range("flushDelayOffsetInterval", self.delay_offset_interval_ms, 1, 3_600_000)
        _check_range("brokerPermission", self.permission, 0, 7)
        if self.listen.is_wildcard and self.advertised_host is None:
            raise ConfigInvalid(
                f"{self.listen.address} means every address of this machine; "
                "set brokerIP1 to the one that clients can reach"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NamesrvConfig:
    """One name server."""

    listen: ListenConfig = field(
        default_factory=lambda: ListenConfig(address=Address("tcp", "127.0.0.1", DEFAULT_NAMESRV_PORT))
    )
    kv_config_path: Path | None = None
    """kvConfigPath: where key-value settings are kept (RocketMQ: ~/namesrv/kvConfig.json).
    None: in memory only."""
    order_message_enable: bool = False
    """orderMessageEnable: put a topic's ORDER_TOPIC_CONFIG into its routes."""
    broker_expired_ms: int = 120_000
    """A broker that was silent for this long is dropped (fixed in RocketMQ)."""
    scan_interval_ms: int = 5000
    """How often that is looked for (RocketMQ: 10 s)."""
    kv_value_bytes_max: int = 64 * 1024
    """maxKvValueBytes (ours): of a key-value setting with its names; a larger one is refused."""
    kv_bytes_max: int = 4 << 20
    """maxKvTotalBytes (ours): of all settings together. Each broker gets the order configurations, all of
    them, in the answer to its registration."""
    routes_max: int = 1_000_000
    """maxRoutes (ours): brokers, pairs of a cluster and a broker, and pairs of a topic and a broker; a
    registration with more is refused."""
    updatable_file: Path | None = None
    """As a broker's."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """As a broker's; a name server has no metrics, but probes."""

    def __post_init__(self) -> None:
        _check_range("maxKvValueBytes", self.kv_value_bytes_max, 1, 1 << 20)
        _check_range("maxKvTotalBytes", self.kv_bytes_max, 1, 8 << 20)
        _check_range("maxRoutes", self.routes_max, 1, 100_000_000)
        _check_range("broker_expired_ms", self.broker_expired_ms, 1, 3_600_000)
        _check_range("scan_interval_ms", self.scan_interval_ms, 1, 3_600_000)
