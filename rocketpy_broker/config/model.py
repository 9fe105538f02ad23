"""Settings of a broker and a name server, built in code or from RocketMQ's files (`load_broker_config`).

A field for a key of RocketMQ's files names this key (`setting`). It has the default of RocketMQ 4.6.0 unless
its description gives a reason.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from ssl import CERT_REQUIRED
from typing import ClassVar, Final

from rocketpy.config import Credentials
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import PERM_READ, PERM_WRITE, RequestMode, UserInfo
from rocketpy.transport import Address, ChannelOptions, Tls
from rocketpy_broker.config.readers import (
    read_address,
    read_addresses,
    read_dledger_flush,
    read_names,
    read_peers,
    read_port,
)
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.setting import LIVE, NEXT_START, CheckedSettings, check_range, setting

DEFAULT_BROKER_PORT: Final = 10911
DEFAULT_NAMESRV_PORT: Final = 9876


_PEER_ID = re.compile(r"[A-Za-z][0-9]{1,9}")
_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")
_HOUR_MS = 3_600_000
_HEARTBEAT_LATE_MS: Final = 1000
"""Replicas check their timers a few times a second, so a heartbeat may be sent that much later."""


def _check_name(name: str, value: str) -> None:
    if not _NAME.fullmatch(value) or len(value) > 127 or not value.strip("."):
        raise ConfigInvalid(f"{name} is {value!r}; 1 to 127 letters, digits and any of . _ - % | are allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class UsersConfig:
    """Access control by users and policies (ACL 2.0 of RocketMQ 5.x). The keys are RocketMQ 5's."""

    file: Path
    """auth.json in authConfigPath: the users and policies (RocketMQ: RocksDB there)."""
    authorizes: bool = True
    """authorizationEnabled: policies are checked. If not, every user may do everything."""
    initial_users: tuple[UserInfo, ...] = field(default=(), repr=False)
    """initAuthenticationUser and innerClientAuthenticationCredentials: users of the type Super, which are
    created at the start if they do not exist."""
    migrate_from: Path | None = None
    """migrateAuthFromV1Enabled: the plain_acl.yml whose accounts are copied at the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenConfig:
    """The address that a server listens on, and who may connect.

    A server that other machines can reach needs access control, TLS, or the explicit setting `insecure`.
    RocketMQ listens on every address.
    """

    address: Address
    """bindAddress (a key of later versions) and listenPort. Port 0: any free port."""
    insecure: bool = False
    """Serve other machines without TLS or access control (not in RocketMQ; ``--insecure``)."""
    acl_file: Path | None = None
    """aclEnable: the plain_acl.yml with the accounts. None: no accounts of ACL 1.0."""
    users: UsersConfig | None = None
    """authenticationEnabled: users and policies. None: no access control of ACL 2.0."""
    requires_signature_v2: bool = False
    """aclSignatureV2Required (not in RocketMQ): access control rejects RocketMQ's signature, which can be
    replayed. Then only clients of this project can sign."""
    unsigned_timeout_ms: int = 10_000
    """unsignedTimeoutMillis (not in RocketMQ): access control closes a connection after this time without an
    accepted request."""
    options: ChannelOptions = field(default_factory=ChannelOptions)
    """Limits of a connection, and `ssl` for an address with tls://."""

    def __post_init__(self) -> None:
        if self.address.scheme == "tls" and self.options.ssl is None:
            raise ConfigInvalid(
                f"{self.address} needs a certificate: set tls.server.certPath and tls.server.keyPath"
            )
        if self.acl_file is not None and self.users is not None:
            raise ConfigInvalid(
                "authenticationEnabled excludes aclEnable=true: a server has either users (ACL 2.0) or "
                "accounts (ACL 1.0); rocketpy-broker migrate-acl copies accounts to users"
            )
        if self.requires_signature_v2 and not self.has_access_control:
            raise ConfigInvalid(
                "aclSignatureV2Required=true needs aclEnable=true or authenticationEnabled=true, because "
                "clients sign only then"
            )
        check_range("unsignedTimeoutMillis", self.unsigned_timeout_ms, 1, _HOUR_MS)
        is_safe = self.has_access_control or (self.address.scheme == "tls" and not self.options.also_plain)
        if not (self.insecure or is_safe or self.is_local):
            raise ConfigInvalid(
                f"will not serve {self.address} to other machines without TLS or access control; "
                "bind to 127.0.0.1, use tls://, set aclEnable=true or authenticationEnabled=true, or insist "
                "with --insecure (insecure=true)"
            )

    @property
    def has_access_control(self) -> bool:
        """Whether requests must be signed."""
        return self.acl_file is not None or self.users is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine, or this process, can reach the address."""
        if self.address.scheme not in ("tcp", "tls") or self.address.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.address.host).is_loopback
        except ValueError:
            return False

    @property
    def is_open(self) -> bool:
        """Whether replicas need no authentication: with `insecure`, or local and without access control."""
        return self.insecure or (self.is_local and not self.has_access_control)

    @property
    def requires_certificates(self) -> bool:
        """Whether every client must use TLS with a trusted certificate."""
        tls = self.options.ssl
        return tls is not None and not self.options.also_plain and tls.verify_mode is CERT_REQUIRED

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every address of this machine."""
        return self.address.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicsConfig(CheckedSettings):
    """Topics that the broker creates without a request, and their limits."""

    auto_create: bool = setting("autoCreateTopicEnable", True, change=LIVE)
    """Whether a message to an unknown topic creates the topic, after the template topic TBW102."""
    default_queue_nums: int = setting("defaultTopicQueueNums", 8, change=NEXT_START)
    """Queues of TBW102, and the maximum number of queues of a topic that is created automatically."""
    cluster_topic: bool = setting("clusterTopicEnable", True, change=NEXT_START)
    """Whether there is a system topic with the name of the cluster."""
    broker_topic: bool = setting("brokerTopicEnable", True, change=NEXT_START)
    """Whether there is a system topic with the name of the broker."""
    trace_topic: bool = setting("traceTopicEnable", False, change=NEXT_START)
    """Whether there is a topic for message traces."""
    trace_topic_name: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    """Name of the topic for message traces."""
    mixed_type: bool = setting("enableMixedMessageType", False, change=LIVE)
    """Whether the attribute message.type of a topic may be set to MIXED (since RocketMQ 5)."""
    topics_max: int = setting("maxTopics", 20_000, limits=(1, 1_000_000))
    """Maximum number of topics besides system topics (not in RocketMQ). The broker itself may create as many
    again, for the retries and dead letters of groups."""
    queues_max: int = setting("maxTopicQueues", 1024, limits=(1, 65_536))
    """Maximum number of read queues, and of write queues, of a new topic (not in RocketMQ)."""

    def __post_init__(self) -> None:
        self._check_limits()
        check_range("defaultTopicQueueNums", self.default_queue_nums, 1, self.queues_max)
        _check_name("msgTraceTopicName", self.trace_topic_name)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistrationConfig(CheckedSettings):
    """How the broker registers at name servers."""

    namesrv: tuple[Address, ...] = setting("namesrvAddr", (), read=read_addresses)
    """Name servers, separated by semicolons. Empty: the broker does not register."""
    period_ms: int = setting("registerNameServerPeriod", 30_000, change=LIVE)
    """Registration interval. A value outside of 10 to 60 s counts as the nearer limit, as in 4.6.0."""
    timeout_ms: int = setting("registerBrokerTimeoutMills", 6000, limits=(1, 600_000), change=LIVE)
    """How long to wait for the response of one name server."""
    compressed: bool = setting("compressedRegister", False, change=LIVE)
    """Whether registrations are compressed."""
    drain_wait_ms: int = setting("drainWaitMs", 30_000, limits=(0, _HOUR_MS), change=LIVE)
    """Shortest drain before a stop (not in RocketMQ): the interval at which producers refresh routes
    (`ClientConfig.route_refresh_ms`, Java's pollNameServerInterval)."""
    roleless_ms: int = 10_000
    """A DLedger broker that has no role this long after its start registers with the id -1. So consumers can
    read from it (fixed in RocketMQ)."""
    credentials: Credentials | None = None
    """Account of the broker at name servers with access control. A broker.conf has no key for it; the
    environment has ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY (`rocketpy.environment`)."""
    ssl: Tls | None = field(default=None, repr=False)
    """tls.client.*, or the environment's ROCKETPY_TLS_CA and others: for connections to name servers, masters
    and peers with tls://. None: the certificate authorities of this machine, and no client certificate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "period_ms", min(max(self.period_ms, 10_000), 60_000))
        self._check_limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class SendConfig:
    """How sends are handled."""

    region_id: str = setting("regionId", "DefaultRegion")
    """MSG_REGION of every send response, for message traces."""
    trace_on: bool = setting("traceOn", True, change=NEXT_START)
    """Whether clients with message traces record the messages of this broker."""
    start_accept_ms: int = setting("startAcceptSendRequestTimeStamp", 0, change=NEXT_START)
    """Time, in ms since 1970, before which sends are rejected."""
    reject_transactions: bool = setting("rejectTransactionMessage", False, change=LIVE)
    """Whether transactional messages are rejected."""
    store_replies: bool = setting("storeReplyMessageEnable", True, change=LIVE)
    """Whether replies of request-reply are also stored, in `<cluster>_REPLY_TOPIC`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionConfig(CheckedSettings):
    """When the broker checks open transactions with their producers."""

    timeout_ms: int = setting("transactionTimeOut", 6000, limits=(0, 2**31), change=NEXT_START)
    """Age of a half message at its first check. Its CHECK_IMMUNITY_TIME_IN_SECONDS takes precedence."""
    check_interval_ms: int = setting("transactionCheckInterval", 60_000, limits=(1, 2**31), change=NEXT_START)
    """Time between two checks."""
    check_max: int = setting("transactionCheckMax", 15, limits=(1, 2**31), change=NEXT_START)
    """After this many checks without a result, the message moves to TRANS_CHECK_MAX_TIME_TOPIC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumeConfig(CheckedSettings):
    """How consumers are served."""

    auto_create_group: bool = setting("autoCreateSubscriptionGroup", True, change=NEXT_START)
    """Whether a consumer of an unknown group creates the group, with default settings."""
    long_polling: bool = setting("longPollingEnable", True, change=LIVE)
    """Whether a pull without messages is held for the time that its request gives."""
    short_polling_ms: int = setting("shortPollingTimeMills", 1000, limits=(1, 600_000), change=LIVE)
    """How long a pull is held when longPollingEnable is false."""
    notify_ids_changed: bool = setting("notifyConsumerIdsChangedEnable", True, change=LIVE)
    """Whether the members of a group are notified when one joins or leaves."""
    slave_read: bool = setting("slaveReadEnable", False, change=LIVE)
    """Whether consumers that are far behind are sent to a slave, and whether a slave serves them."""
    property_filter: bool = setting("enablePropertyFilter", False, change=LIVE)
    """Whether consumers may filter by SQL92 expressions."""
    filter_retries: bool = setting("filterSupportRetry", False, change=LIVE)
    """Whether retried messages must pass the SQL92 filter of their original topic."""
    default_mode: RequestMode = setting("defaultMessageRequestMode", RequestMode.PULL, change=LIVE)
    """Mode of groups without `mqadmin setConsumeMode`, for consumers whose queues the broker assigns."""
    default_pop_shares: int = setting("defaultPopShareQueueNum", -1, limits=(-1, 2**31 - 1), change=LIVE)
    """With POP as the default mode, the popShareQueueNum of these groups."""
    assigns_queues: bool = setting("serverLoadBalancerEnable", True, change=LIVE)
    """Whether the broker assigns queues to members. Without it, each member that asks gets all of them."""
    route_refresh_ms: int = setting(
        "loadBalancePollNameServerInterval", 30_000, limits=(1, _HOUR_MS), change=LIVE
    )
    """Age at which the broker requests the route of an assigned topic again."""
    groups_max: int = setting("maxConsumerGroups", 20_000, limits=(1, 1_000_000))
    """Maximum number of groups besides those of the system (not in RocketMQ)."""
    new_groups_max: int = setting("maxNewGroupsPerHeartbeat", 256, limits=(1, 1_000_000))
    """Maximum number of unknown groups in one heartbeat (not in RocketMQ)."""
    offsets_max: int = setting("maxConsumerOffsets", 1_000_000, limits=(1, 100_000_000))
    """Maximum number of stored offsets, one for each queue and group (not in RocketMQ)."""


class BrokerRole(Enum):
    """Role of a broker among the brokers of its name."""

    ASYNC_MASTER = "responds when it has stored a message"
    SYNC_MASTER = "responds when a slave has the message, too"
    SLAVE = "copies its master"


@dataclass(frozen=True, kw_only=True, slots=True)
class HaConfig(CheckedSettings):
    """Replication between a master and its slaves."""

    role: BrokerRole = setting("brokerRole", BrokerRole.ASYNC_MASTER)
    """Role of the broker."""
    master_address: Address | None = setting("haMasterAddress", None, read=read_address)
    """For a slave, the HA port of its master. None: name servers return it."""
    heartbeat_ms: int = setting("haSendHeartbeatInterval", 5000, limits=(1, _HOUR_MS), change=NEXT_START)
    """Interval of heartbeats."""
    silence_ms: int = setting("haHousekeepingInterval", 20_000, limits=(1, _HOUR_MS), change=NEXT_START)
    """A peer that sends nothing for this long is disconnected."""
    batch_bytes: int = setting("haTransferBatchSize", 32 * 1024, limits=(1, 4 << 20), change=NEXT_START)
    """Maximum bytes of the log in one frame."""
    behind_bytes_max: int = setting("haSlaveFallbehindMax", 256 << 20, limits=(0, 2**62), change=NEXT_START)
    """With all slaves further behind, a SYNC_MASTER responds SLAVE_NOT_AVAILABLE."""
    secret: str = setting("haSecret", "", is_private=True)
    """Shared secret of master and slaves (not in RocketMQ, whose replicas have none). Empty: replicas are not
    authenticated, and a broker with access control accepts no slave."""
    handshake_required: bool = setting("haHandshakeRequired", False)
    """Whether a SYNC_MASTER waits only for slaves of rocketpy, which send a handshake (not in RocketMQ)."""
    reconnect_ms: int = 5000
    """How long a slave waits before it connects to its master again (fixed in RocketMQ)."""
    sync_interval_ms: int = 10_000
    """How often a slave copies topics, groups and offsets (fixed in RocketMQ)."""

    def __post_init__(self) -> None:
        self._check_limits()
        if self.heartbeat_ms + _HEARTBEAT_LATE_MS > self.silence_ms:
            raise ConfigInvalid(
                f"haSendHeartbeatInterval is {self.heartbeat_ms}; it must be at least "
                f"{_HEARTBEAT_LATE_MS} ms below haHousekeepingInterval, {self.silence_ms}, or idle replicas "
                "disconnect"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DLedgerConfig(CheckedSettings):
    """A peer of a group that elects its leader."""

    enabled: bool = setting("enableDLegerCommitLog", False)
    """Whether the broker is a DLedger peer."""
    group: str = setting("dLegerGroup", "")
    """Name of the group, the same at every peer; usually the brokerName."""
    peers: dict[str, Address] = setting("dLegerPeers", {}, read=read_peers)
    """Addresses of all peers by id: ``n0-host:port;n1-host:port;…``. An id is a letter and a number. A
    follower registers with that number + 1 as its broker id."""
    self_id: str = setting("dLegerSelfId", "")
    """Id of this peer."""
    flush: bool = setting("dLegerFlush", True, read=read_dledger_flush)
    """``quorum`` or ``async``: whether a majority flushes a message before it is acknowledged (not in
    RocketMQ). DLedger 0.1 flushes every 10 ms."""
    heartbeat_ms: int = setting("dLegerHeartbeatMillis", 2000, limits=(10, 60_000))
    """Interval of the leader's heartbeats (not in RocketMQ; heartBeatTimeIntervalMs in DLedger 0.1). It and
    the next three settings must be the same at every peer."""
    heartbeats_missed_max: int = setting("dLegerHeartbeatsMissed", 3, limits=(2, 1000))
    """Missed heartbeats after which a follower starts an election (not in RocketMQ; maxHeartBeatLeak)."""
    vote_interval_ms_min: int = setting("dLegerVoteMillisMin", 300)
    """Shortest time between two elections of a candidate (not in RocketMQ; minVoteIntervalMs)."""
    vote_interval_ms_max: int = setting("dLegerVoteMillisMax", 1000, limits=(2, 600_000))
    """Longest time between two elections of a candidate (not in RocketMQ; maxVoteIntervalMs)."""
    commit_wait_ms: int = 2500
    """How long a send waits for a majority (fixed in RocketMQ; maxWaitAckTimeMs in DLedger 0.1)."""
    commit_push_ms: int = 1000
    """Interval in which idle followers receive the committed index (fixed in DLedger 0.1)."""
    pending_max: int = setting("dLegerPendingMax", 10_000, limits=(1, 10_000_000))
    """With this many uncommitted messages, sends are rejected (not in RocketMQ; maxPendingRequestsNum)."""
    secret: str = setting("dLegerSecret", "", is_private=True)
    """Shared secret of the peers (not in RocketMQ, whose peers have none). Empty: peers are not
    authenticated."""

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
        check_range("dLegerVoteMillisMin", self.vote_interval_ms_min, 1, self.vote_interval_ms_max - 1)
        self._check_limits()

    @property
    def slave_id(self) -> int:
        """Broker id of a follower; never 0, which is the leader's."""
        return int(self.self_id[1:]) + 1


_NO_SLOT_LIMIT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerConfig(CheckedSettings):
    """Timers: messages with any due time. The keys are RocketMQ 5's; 4.6.0 has none of them."""

    NO_SLOT_LIMIT: ClassVar[int] = _NO_SLOT_LIMIT
    enabled: bool = setting("timerWheelEnable", True)
    """Whether messages with a due time are accepted, and delivered. If not, those that wait are kept."""
    max_delay_s: int = setting(
        "timerMaxDelaySec", 3 * 24 * 3600, limits=(1, 100 * 366 * 24 * 3600), change=LIVE
    )
    """Longest time in seconds until a message is due. Any number of years is possible."""
    window_slots: int = setting("timerRollWindowSlot", 2 * 24 * 3600, limits=(2, 7 * 24 * 3600 - 60))
    """After this many seconds, a message that is not due is stored again. At most half of fileReservedTime
    counts, also when it changes, so that no message is deleted before."""
    slot_messages_max: int = setting(
        "timerCongestNumEachSlot", _NO_SLOT_LIMIT, limits=(1, 2**40), change=LIVE
    )
    """Number of messages that are due in one second above which more are rejected, with a probability that
    grows to 1 at twice this number. The default is no limit."""
    messages_max: int = setting("timerMessagesMax", 0, limits=(0, 2**40), change=LIVE)
    """Number of waiting messages at which more are rejected (not in RocketMQ). 0: no limit."""
    log_file_bytes: int = setting("mappedFileSizeTimerLog", 100 << 20, limits=(104, 1 << 31))
    """Length of a file of the timer log. It cannot be changed once the store has timers."""
    save_interval_ms: int = setting("timerFlushIntervalMs", 1000, limits=(1, _HOUR_MS))
    """How often the progress of timers is saved while it changes."""
    recalls: bool = setting("recallMessageEnable", True, change=LIVE)
    """Whether producers may take timed messages back (RocketMQ: False)."""

    def window_of(self, reserved_hours: int) -> int:
        """Return `window_slots`, or half of the time that files are kept if that is shorter."""
        return max(2, min(self.window_slots, reserved_hours * 1800))


@dataclass(frozen=True, kw_only=True, slots=True)
class PopConfig(CheckedSettings):
    """Message-level sharing (POP). The keys are RocketMQ 5's; 4.6.0 has none of them."""

    revive_queues: int = setting("reviveQueueNum", 8, limits=(1, 128))
    """Number of queues of the revive topic, which has the check points of messages in flight."""
    retry_share: int = setting("popFromRetryProbability", 20, limits=(0, 100), change=LIVE)
    """Percentage of pops that look for retries first. The others do when they find too few new messages."""
    retry_v2: bool = setting("enableRetryTopicV2", False, change=LIVE)
    """Whether retries go to ``%RETRY%group+topic`` instead of ``%RETRY%group_topic``. Both are read."""
    shows_retry_topic: bool = setting("popResponseReturnActualRetryTopic", False, change=LIVE)
    """Whether retries have the name of their retry topic in responses, instead of the original topic."""
    in_flight_max: int = setting("maxPopCheckPoints", 1_000_000, limits=(1, 100_000_000), change=LIVE)
    """Limit of pops with messages in flight, about 1 kB of memory each (not in RocketMQ). Further pops are
    rejected."""
    held_per_queue_max: int = setting("popPollingSize", 10_000, limits=(1, 10_000_000), change=LIVE)
    """Number of pops of a group for one topic, or for one queue, that wait for messages. RocketMQ: 1024; a
    larger group would ask in a loop."""
    held_max: int = setting("maxPopPollingSize", 100_000, limits=(1, 10_000_000), change=LIVE)
    """Number of all pops that wait for messages."""
    save_interval_ms: int = setting(None, 1000, limits=(1, _HOUR_MS))
    """How often the offsets of pops are committed (not in RocketMQ)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsConfig:
    """Metrics, probes and traces. RocketMQ has none of these keys."""

    port: int | None = setting("metricsPort", None, read=read_port)
    """Port of the HTTP server for GET /metrics (brokers only), /livez and /readyz. 0: any free port. None: no
    HTTP server."""
    host: str = setting("metricsHost", "127.0.0.1", is_private=True)
    """Address of the HTTP server, which has neither TLS nor passwords."""
    trace_sends: bool = setting("traceSends", False)
    """Whether the broker records spans for messages with a trace context, if telemetry is installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig(CheckedSettings):
    """Settings of one broker."""

    store: StoreConfig
    """The message store. The broker replaces its `store_host` by its own address."""
    listen: ListenConfig = field(
        default_factory=lambda: ListenConfig(address=Address("tcp", "127.0.0.1", DEFAULT_BROKER_PORT))
    )
    """Address, TLS, access control and limits of the port for clients."""
    name: str = setting("brokerName", "broker-a")
    """Name of the broker, which a master and its slaves share (RocketMQ: name of the machine)."""
    cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    """Name of the cluster."""
    broker_id: int = setting("brokerId", 0, limits=(0, 2**63 - 1))
    """Id among the brokers of the name; 0 for the master."""
    advertised_host: str | None = setting("brokerIP1", None)
    """Host that clients connect to, also in message ids. None: the address of `listen`."""
    ha_host: str | None = setting("brokerIP2", None)
    """Host that slaves connect to. None: as for clients."""
    ha_port: int | None = setting("haListenPort", None, read=read_port)
    """Port for slaves. None: listenPort + 1, or any free port if that one is in use."""
    vip_channel: bool | None = setting("vipChannelEnable", None)
    """Whether the broker also listens at listenPort - 2 (not in RocketMQ, which always does). None: yes, with
    a warning if that port is in use. True: the start fails in this case."""
    offset_interval_ms: int = setting("flushConsumerOffsetInterval", 5000, limits=(1, _HOUR_MS), change=LIVE)
    """How often consumer offsets are saved."""
    delay_offset_interval_ms: int = setting(
        "flushDelayOffsetInterval", 10_000, limits=(1, _HOUR_MS), change=NEXT_START
    )
    """How often the progress of delayed messages is saved."""
    permission: int = setting("brokerPermission", PERM_READ | PERM_WRITE, limits=(0, 7), change=LIVE)
    """4 to read, 2 to write, 6 for both. A value without both replaces the permissions of topics."""
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    registration: RegistrationConfig = field(default_factory=RegistrationConfig)
    send: SendConfig = field(default_factory=SendConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    timers: TimerConfig = field(default_factory=TimerConfig)
    pop: PopConfig = field(default_factory=PopConfig)
    consume: ConsumeConfig = field(default_factory=ConsumeConfig)
    updatable_file: Path | None = None
    """remoteConfigUpdateEnable (not in RocketMQ): file whose settings administrators may change by
    request. None: they may change nothing."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    ha: HaConfig = field(default_factory=HaConfig)
    dledger: DLedgerConfig = field(default_factory=DLedgerConfig)
    without_effect: dict[str, str] = field(default_factory=dict)
    """Keys of RocketMQ that the file sets and that have no effect here, as texts. Administrators see them."""
    replica_names: frozenset[str] = setting("replicaCertNames", frozenset(), read=read_names)
    """Names of certificates, separated by semicolons (not in RocketMQ). A peer at the HA or DLedger port must
    show a certificate with one of them. Empty: any name is accepted."""

    @property
    def is_slave(self) -> bool:
        """Whether it starts as the slave of another broker."""
        return self.ha.role is BrokerRole.SLAVE

    @property
    def replica_address(self) -> Address:
        """Address for replicas: of the DLedger peer, or transport and host of the HA port."""
        own = self.dledger.peers.get(self.dledger.self_id) if self.dledger.enabled else None
        return self.listen.address if own is None else own

    @property
    def accepts_any_replica(self) -> bool:
        """Whether the port for replicas has no authentication."""
        secret = self.dledger.secret if self.dledger.enabled else self.ha.secret
        return not secret and not self.replica_names

    def _check_replicas(self) -> None:
        """Raise ConfigInvalid if other machines could copy every message without authentication."""
        listen, port = self.listen, self.replica_address
        if self.replica_names and not (port.scheme == "tls" and listen.requires_certificates):
            raise ConfigInvalid(
                "replicaCertNames needs TLS at the port for replicas: tls.server.mode=enforcing and "
                "tls.server.need.client.auth=require, and tls:// in dLegerPeers"
            )
        if port.scheme == "memory" or listen.is_open or not self.accepts_any_replica:
            return
        why = (
            "with access control"
            if listen.is_local
            else f"at {listen.address}, which other machines can reach,"
        )
        if self.dledger.enabled:
            raise ConfigInvalid(
                f"{why} the DLedger port would let any host join the group: set dLegerSecret to the same "
                "long random text at every peer, or replicaCertNames with TLS; RocketMQ's peers support "
                "neither, and join only with insecure=true"
            )
        if not listen.is_local or self.ha.role is BrokerRole.SYNC_MASTER:
            raise ConfigInvalid(
                f"{why} the HA port would let any host copy all messages: set haSecret to the same long "
                "random text at master and slaves, or replicaCertNames with TLS; RocketMQ's slaves support "
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
            raise ConfigInvalid("brokerRole is SLAVE, but brokerId is 0, the id of the master")
        _check_name("brokerName", self.name)
        _check_name("brokerClusterName", self.cluster_name)
        self._check_limits()
        if self.listen.is_wildcard and self.advertised_host is None:
            raise ConfigInvalid(
                f"{self.listen.address} means every address of this machine; "
                "set brokerIP1 to the one that clients can reach"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NamesrvConfig(CheckedSettings):
    """Settings of one name server."""

    listen: ListenConfig = field(
        default_factory=lambda: ListenConfig(address=Address("tcp", "127.0.0.1", DEFAULT_NAMESRV_PORT))
    )
    kv_config_path: Path | None = setting("kvConfigPath", None)
    """File of the key-value settings (RocketMQ: ~/namesrv/kvConfig.json). None: in memory only."""
    order_message_enable: bool = setting("orderMessageEnable", False, change=LIVE)
    """Whether routes contain the ORDER_TOPIC_CONFIG of their topic."""
    broker_expired_ms: int = setting(None, 120_000, limits=(1, _HOUR_MS))
    """A broker without a registration for this long is removed (fixed in RocketMQ)."""
    scan_interval_ms: int = setting(None, 5000, limits=(1, _HOUR_MS))
    """How often the name server looks for such brokers (RocketMQ: 10 s)."""
    kv_value_bytes_max: int = setting("maxKvValueBytes", 64 * 1024, limits=(1, 1 << 20))
    """Maximum bytes of a key-value setting with its names (not in RocketMQ)."""
    kv_bytes_max: int = setting("maxKvTotalBytes", 4 << 20, limits=(1, 8 << 20))
    """Maximum bytes of all key-value settings together (not in RocketMQ). The response to each registration
    holds all order configurations."""
    routes_max: int = setting("maxRoutes", 1_000_000, limits=(1, 100_000_000))
    """Limit of the sum of brokers, pairs of a cluster and a broker, and pairs of a topic and a broker (not in
    RocketMQ). A registration that exceeds it is rejected."""
    updatable_file: Path | None = None
    """See `BrokerConfig.updatable_file`."""
    without_effect: dict[str, str] = field(default_factory=dict)
    """See `BrokerConfig.without_effect`."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """Port and host of the HTTP server. A name server has probes, but no metrics."""
