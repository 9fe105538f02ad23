"""Defaults of servers: those of a recorded 4.6.0 broker, the times fixed in it, and those of this project."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.keys import BROKER_KEYS, IGNORED_BROKER_DEFAULTS, IGNORED_KEYS, STORE_KEYS
from rocketpy_broker.config.model import BrokerConfig, NamesrvConfig
from rocketpy_broker.replication.dledger import peer
from rocketpy_broker.replication.dledger import peer_transport as links
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.ha import client as ha_client
from rocketpy_broker.replication.ha import server as ha_server
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.services.delay import due_calls
from rocketpy_broker.services.metadata import clients, locks
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.files import checkpoint
from rocketpy_broker.store.log import log_scan
from rocketpy_broker.store.replica import backlog
from tests import golden_data

Row = tuple[Callable[[BrokerConfig], object], object]
KEYS = {**BROKER_KEYS, **STORE_KEYS}

SET_WHILE_RECORDING = {
    "registerNameServerPeriod": "30000",
    "flushDelayOffsetInterval": "10000",
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "60000",
    "enablePropertyFilter": "false",
    "mappedFileSizeCommitLog": str(1 << 30),
    "diskMaxUsedSpaceRatio": "75",
    "brokerClusterName": "DefaultCluster",
}
"""Keys that the recording set otherwise, with the defaults of 4.6.0's BrokerConfig and MessageStoreConfig."""

DIFFERENT: dict[str, object] = {
    "flushCommitLogLeastPages": 0,
    "cleanFileForciblyEnable": False,
    "maxTransferCountOnMessageInMemory": 1024,
}
"""Our own default for a key of RocketMQ. docs/differences.md has the reasons."""

OF_ONE_MACHINE = {
    "brokerIP1", "brokerIP2", "haListenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog",
}  # fmt: skip
"""Addresses and paths: the recorded ones are of the machine that recorded."""


def recorded() -> dict[str, str]:
    """The body of the recorded GET_BROKER_CONFIG."""
    bodies = [
        frame.info["bodyText"]
        for frame in golden_data.frames("json-admin")
        if frame.info.get("requestCodeName") == "GET_BROKER_CONFIG"
    ]
    return dict(line.split("=", 1) for line in bodies[0].splitlines() if line)


RECORDED = recorded()


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    """The configuration of a broker without a file and without environment variables."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    return load_broker_config()


def value_of(config: BrokerConfig, name: str) -> Any:
    """The value of RocketMQ's key `name`."""
    key = KEYS[name]
    owner: object = config.store if name in STORE_KEYS else config
    group = owner if key.group in ("broker", "store") else getattr(owner, key.group)
    return getattr(group, key.field)


@pytest.mark.parametrize("name", sorted(set(KEYS) & set(RECORDED) - OF_ONE_MACHINE))
def test_a_key_has_the_default_of_rocketmq(name: str, config: BrokerConfig) -> None:
    """A broker.conf without a key would have another meaning here than in RocketMQ."""
    default = DIFFERENT.get(name, KEYS[name].read(SET_WHILE_RECORDING.get(name, RECORDED[name])))
    assert value_of(config, name) == default


def test_every_recorded_key_has_a_meaning_or_a_reason() -> None:
    """An operator would be warned of a misspelt key that RocketMQ itself lists."""
    listening = {"listenPort", "serverChannelMaxIdleTimeSeconds", "aclEnable", "rocketmqHome"}
    assert set(RECORDED) - set(KEYS) - set(IGNORED_KEYS) == listening


def test_keys_without_an_effect_are_shown_with_the_defaults_of_rocketmq() -> None:
    """Tools would show another value than RocketMQ's broker."""
    assert set(IGNORED_BROKER_DEFAULTS) == set(IGNORED_KEYS) & set(RECORDED)
    recorded_otherwise = {"serverWorkerThreads": "4", "serverSelectorThreads": "2", "forceRegister": "false"}
    shown = IGNORED_BROKER_DEFAULTS | recorded_otherwise
    assert {name: RECORDED[name] for name in shown} == shown


def test_ports_and_idle_connections_are_as_there(config: BrokerConfig) -> None:
    """A client with RocketMQ's defaults would not find the servers, or lose its connections earlier."""
    assert config.listen.address.port == 10911
    assert config.listen.options.idle_timeout_ms == 1000 * int(RECORDED["serverChannelMaxIdleTimeSeconds"])
    assert NamesrvConfig().listen.address.port == 9876
    assert NamesrvConfig().listen.options.idle_timeout_ms == 120_000


def test_paths_are_in_the_home_folder(config: BrokerConfig) -> None:
    """A broker that moves from RocketMQ would not find its store."""
    assert config.store.root == Path.home() / "store"
    assert config.store.commit_log_directory == Path.home() / "store/commitlog"


# Source: HAService, BrokerController, SlaveSynchronize, RebalanceLockManager, Producer-/ConsumerManager,
# RouteInfoManager, StoreCheckpoint and system properties of 4.6.0; DLedgerConfig and
# DLedgerEntryPusher of DLedger 0.1.
FIXED: dict[str, Row] = {
    "a slave connects again after": (lambda broker: broker.ha.reconnect_ms, 5000),
    "a slave copies topics, offsets and groups every": (lambda broker: broker.ha.sync_interval_ms, 10_000),
    "a disk is cleaned forcibly above": (lambda broker: broker.store.retention.clean_percent, 85),
    "a disk takes no messages above": (lambda broker: broker.store.retention.refuse_percent, 90),
    "files deleted in one pass": (lambda broker: broker.store.retention.batch_files_max, 10),
    "half messages are kept for": (lambda broker: broker.store.retention.reserved_ms, 72 * 3_600_000),
    "a consumer's lock of a queue lasts": (lambda _: locks.LOCK_MS, 60_000),
    "a client without heartbeats is gone after": (lambda _: clients.EXPIRED_MS, 120_000),
    "a broker without registrations is gone after": (lambda _: NamesrvConfig().broker_expired_ms, 120_000),
    "margin of the checkpoint": (lambda _: checkpoint._MARGIN_MS, 3000),
    "DLedger: a heartbeat every": (lambda _: raft().heartbeat_ms, 2000),
    "DLedger: heartbeats that may be missing": (lambda _: raft().heartbeats_missed_max, 3),
    "DLedger: a vote at least every": (lambda _: raft().vote_interval_ms_min, 300),
    "DLedger: a vote at most every": (lambda _: raft().vote_interval_ms_max, 1000),
    "DLedger: a round of votes ends after": (lambda _: raft().vote_wait_ms, 3000),
    "DLedger: a push is repeated after": (lambda _: raft().push_timeout_ms, 1000),
    "DLedger: the commit is sent every": (lambda _: raft().commit_push_ms, 1000),
    "DLedger: appends that may wait": (lambda _: raft().pending_max, 10_000),
    "DLedger: pushes without a response": (lambda _: raft().in_flight_max, 1000),
    "DLedger: size of a file": (lambda _: raft().file_bytes, 1 << 30),
    "DLedger: a broker's heartbeat every": (lambda broker: broker.dledger.heartbeat_ms, 2000),
    "DLedger: a broker's missing heartbeats": (lambda broker: broker.dledger.heartbeats_missed_max, 3),
    "DLedger: a broker votes at least every": (lambda broker: broker.dledger.vote_interval_ms_min, 300),
    "DLedger: a broker votes at most every": (lambda broker: broker.dledger.vote_interval_ms_max, 1000),
    "DLedger: a send waits for a majority": (lambda broker: broker.dledger.commit_wait_ms, 2500),
    "DLedger: a broker sends the commit every": (lambda broker: broker.dledger.commit_push_ms, 1000),
    "DLedger: a broker's appends that may wait": (lambda broker: broker.dledger.pending_max, 10_000),
    "HA link: a sign of life every": (lambda _: HaSettings().heartbeat_ms, 5000),
    "HA link: a silent peer is gone after": (lambda _: HaSettings().silence_ms, 20_000),
    "HA link: largest frame": (lambda _: HaSettings().batch_bytes, 32_768),
}  # fmt: skip

OURS: dict[str, Row] = {
    "blocks reserved ahead of the log": (lambda broker: broker.store.commit_log.reserve_bytes, 64 << 20),
    "open files of consume queues": (lambda broker: broker.store.consume_queue.handles_max, 512),
    "units kept back before a write": (lambda broker: broker.store.consume_queue.pending_bytes_max, 4096),
    "damage is never cut": (lambda broker: broker.store.recovery.cut_damage, False),
    "recovery begins at the checkpoint": (lambda broker: broker.store.recovery.use_progress, True),
    "appends that a full backlog holds": (lambda _: backlog._WAITING_MAX, 10_000),
    "bytes scanned at a time": (lambda _: log_scan._WINDOW_BYTES, 4 << 20),
    "a torn tail is at most": (lambda _: log_scan._TAIL_BYTES, 16 << 20),
    "HA link: a hello is awaited for": (lambda _: HaSettings().hello_timeout_ms, 1000),
    "HA link: a slave asks for the handshake": (lambda _: HaSettings().handshake, True),
    "HA link: slaves acknowledge what they received": (lambda _: HaSettings().wants_flushed, False),
    "HA: bytes on their way to a slave": (lambda _: ha_server._POLL_BYTES, 512 * 1024),
    "HA: RocketMQ's slaves count": (lambda broker: broker.ha.handshake_required, False),
    "HA: a slave that cannot write tries again after": (lambda _: ha_client._RETRY_S, 1.0),
    "DLedger: a quorum flushes": (lambda broker: broker.dledger.flush, True),
    "DLedger: bytes of pushes without a response": (lambda _: raft().in_flight_bytes_max, 4 << 20),
    "DLedger: a COMPARE is repeated after": (lambda _: raft().retry_ms, 500),
    "DLedger: a call waits for": (lambda _: links.REQUEST_TIMEOUT_MS, 3000),
    "DLedger: a connection is opened again after": (lambda _: links._RETRY_S, 0.2),
    "DLedger: time moves every": (lambda _: peer._TICK_S, 0.01),
    "DLedger: the checkpoint is written every": (lambda _: peer._CHECKPOINT_S, 3.0),
    "DLedger: files are flushed every": (lambda _: peer._FLUSH_S, 0.01),
    "DLedger: a full disk is looked at every": (lambda _: peer._DISK_FULL_RETRY_S, 0.5),
    "a failed delivery is repeated after": (lambda _: due_calls._RETRY_MS, 1000),
    "name servers look for silent brokers every": (lambda _: NamesrvConfig().scan_interval_ms, 5000),
    "metrics are nowhere": (lambda broker: broker.metrics.port, None),
    "metrics are for this machine": (lambda broker: broker.metrics.host, "127.0.0.1"),
    "sends are not traced": (lambda broker: broker.metrics.trace_sends, False),
}  # fmt: skip
"""Settings and durations that RocketMQ does not have."""


def raft() -> RaftSettings:
    """Settings of a peer with the required values only."""
    return RaftSettings(group="g", self_id="n0", peers={"n0": "127.0.0.1:1"})


@pytest.mark.parametrize("name", FIXED)
def test_fixed_durations_are_those_of_rocketmq(name: str, config: BrokerConfig) -> None:
    """Replicas and clients that rely on these durations would wait too long, or give up too early."""
    read, value = FIXED[name]
    assert read(config) == value


@pytest.mark.parametrize("name", OURS)
def test_our_own_settings_keep_their_defaults(name: str, config: BrokerConfig) -> None:
    """A documented default would change by accident."""
    read, value = OURS[name]
    assert read(config) == value


def test_a_store_in_code_has_the_defaults_of_a_file(config: BrokerConfig) -> None:
    """A store opened by a tool would have other settings than the same store opened by the broker."""
    alone = StoreConfig(root=config.store.root)
    assert alone == config.store
