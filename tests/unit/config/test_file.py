"""broker.conf and namesrv.conf, as operators of RocketMQ write them."""

import logging
from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.store.files.properties import change_file

JAVAS_OWN = """
# Licensed to nobody in particular
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""
"""Content of the broker.conf in RocketMQ's distribution."""


def load(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return load_broker_config(path)


def test_rocketmqs_own_file_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A move from RocketMQ would need a new configuration file."""
    config = load(tmp_path, JAVAS_OWN)
    assert (config.name, config.cluster_name, config.broker_id) == ("broker-a", "DefaultCluster", 0)
    assert config.listen.address == Address("tcp", "127.0.0.1", 10911)
    assert config.store.root == Path.home() / "store"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_keys_reach_their_fields(tmp_path: Path) -> None:
    """A setting would be read and then not used."""
    config = load(
        tmp_path,
        f"storePathRootDir={tmp_path}\nmappedFileSizeCommitLog=65536\nlistenPort=0\nautoCreateTopicEnable=false\n"
        "namesrvAddr=127.0.0.1:9876;127.0.0.1:9877\nregisterNameServerPeriod=1\nmaxMessageSize=1024\n",
    )
    assert config.store.root == tmp_path
    assert config.store.commit_log_directory == tmp_path / "commitlog"
    assert config.store.commit_log.segment_bytes == 65536
    assert config.store.commit_log.message_bytes_max == 1024
    assert not config.topics.auto_create
    assert [address.port for address in config.registration.namesrv] == [9876, 9877]
    assert config.registration.period_ms == 10_000  # clamped, as 4.6.0 does


def test_an_unknown_key_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt key would have no effect, without an error."""
    load(tmp_path, "brokerName=a\nbrokerNmae=b\nbrokerid=7\nenableControllerMode=true\n")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/broker.conf:2: unknown key brokerNmae is ignored; did you mean brokerName?",
        f"{tmp_path}/broker.conf:3: unknown key brokerid is ignored; did you mean brokerId?",
        f"{tmp_path}/broker.conf:4: unknown key enableControllerMode is ignored",
    ]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("aclenable=true", "aclEnable"),
        ("tls.server.certpath=server.pem", "tls.server.certPath"),
        ("TLS.config.file=tls.properties", "tls.config.file"),
        ("hasecret=x", "haSecret"),
        ("aclEnabled=true", "aclEnable"),
        ("acl_enable=true", "aclEnable"),
        ("aclEnabel=true", "aclEnable"),
        ("tls.sever.mode=enforcing", "tls.server.mode"),
        ("replicaCertName=a", "replicaCertNames"),
        ("dLegerSecrets=x", "dLegerSecret"),
    ],
)
def test_a_key_that_guards_must_not_be_misspelt(tmp_path: Path, line: str, meant: str) -> None:
    """A misspelt security key would leave the server open, with only a warning in the log."""
    with pytest.raises(ConfigInvalid, match=rf"broker\.conf:1: unknown key .*: write {meant}"):
        load(tmp_path, f"{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "enableAccessTls=true",
        "authenticationNetwork=10.0.0.1",
        "tls.server.ciphers=HIGH",
        "brokerSecretFile=x",
    ],
)
def test_an_unknown_key_that_may_protect_is_rejected(tmp_path: Path, line: str) -> None:
    """A server would be open although its operator asked for protection that this version does not have."""
    with pytest.raises(ConfigInvalid, match="remove it; an ignored key would not protect the server"):
        load(tmp_path, f"{line}\n")


@pytest.mark.parametrize("key", ["haSecret", "hasecret", "dLegerSecret"])
def test_a_security_key_of_brokers_is_none_of_a_name_server(key: str) -> None:
    """The error would tell the user to write what is written there."""
    text = (
        rf"unknown key {key}: remove it, because (haSecret|dLegerSecret) is a setting of brokers; an ignored"
    )
    with pytest.raises(ConfigInvalid, match=text):
        load_namesrv_config(None, {key: "x"})


def test_blanks_around_a_security_key_are_shown() -> None:
    """The unknown key would look like the key to write."""
    with pytest.raises(ConfigInvalid, match="settings: unknown key 'haSecret ': write haSecret; an ignored"):
        load_broker_config(None, {"haSecret ": "x"})


INIT_USER = 'initAuthenticationUser={"username":"boss","password":"boss-secret"}\n'
INNER_USER = 'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}\n'


def test_access_control_of_rocketmq_5_is_understood(tmp_path: Path) -> None:
    """A configuration of RocketMQ 5 would start an open server, or its broker could not sign."""
    text = f"authenticationEnabled=true\nauthorizationEnabled=true\n{INIT_USER}{INNER_USER}"
    config = load(tmp_path, f"storePathRootDir={tmp_path}\n{text}")
    users = config.listen.users
    assert users is not None
    assert (users.file, users.authorizes) == (tmp_path / "config" / "auth.json", True)
    assert [(user.username, user.password, user.user_type) for user in users.initial_users] == [
        ("boss", "boss-secret", "Super"),
        ("inner", "inner-secret", "Super"),
    ]
    credentials = config.registration.credentials
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key) == ("inner", "inner-secret")
    assert "secret" not in repr(config)
    elsewhere = load(tmp_path, f"authenticationEnabled=true\nauthConfigPath={tmp_path}/a\n").listen.users
    assert elsewhere is not None
    assert (elsewhere.file, elsewhere.authorizes) == (tmp_path / "a" / "auth.json", False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "authenticationEnabled=true\naclEnable=true\n",
            r"conf:1: authenticationEnabled excludes aclE",
        ),
        ("authorizationEnabled=true\n", "authorizationEnabled needs authenticationEnabled=true"),
        (INIT_USER, "initAuthenticationUser needs authenticationEnabled=true"),
        ("migrateAuthFromV1Enabled=true\n", "migrateAuthFromV1Enabled needs authenticationEnabled=true"),
        (
            INIT_USER.replace("username", "user"),
            r'initAuthenticationUser: {"username":"…","password":"…"}',
        ),
        ("initAuthenticationUser=boss-secret\n", "initAuthenticationUser: {"),
        ("authenticationenabled=true\n", "unknown key authenticationenabled: write authenticationEnabled"),
        ("autorizationEnabled=true\n", "unknown key autorizationEnabled: write authorizationEnabled"),
        ("authenticationProvider=my.Provider\n", "authenticationProvider=my.Provider is not supported"),
        ("authorizationWhitelist=105\n", "authorizationWhitelist=105 is not supported"),
    ],
)
def test_a_wrong_configuration_of_users_is_rejected(tmp_path: Path, text: str, error: str) -> None:
    """A server would be open although its operator asked for users, or show a password in its log."""
    with pytest.raises(ConfigInvalid, match=error) as caught:
        load(tmp_path, f"{text}aclSignatureV2Required=false\n")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["\ufeffaclEnable=true\n", "acl\u200bEnable=true\n", "\u00a0brokerName=a\n", "\ufeff# comment\n"]
)
def test_a_key_with_an_invisible_character_is_rejected(tmp_path: Path, text: str) -> None:
    """An editor that writes a byte order mark would switch access control off."""
    with pytest.raises(ConfigInvalid, match="a character that no key has"):
        load(tmp_path, text)


def test_a_key_without_meaning_is_named_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator would keep tuning thread pools that do not exist."""
    caplog.set_level(logging.INFO)
    load(tmp_path, "sendMessageThreadPoolNums=16\nuseReentrantLockWhenPutMessage=true\n")
    texts = [record.getMessage() for record in caplog.records]
    assert "broker.conf:1: sendMessageThreadPoolNums has no effect: one event loop" in texts[0]
    assert "useReentrantLockWhenPutMessage" in texts[1]


def test_limits_of_connections_reach_their_fields(tmp_path: Path) -> None:
    """An operator could not limit the resources of unknown clients."""
    config = load(
        tmp_path,
        "maxConnections=10\nmaxConnectionsPerHost=5\nmaxRequestsInFlight=20\nframeTimeoutMillis=3000\n"
        "serverChannelMaxIdleTimeSeconds=60\nwriteLimitBytes=1000\nmaxHeaderBytes=2000\n"
        "com.rocketmq.remoting.frameMaxLength=30000\nunsignedTimeoutMillis=4000\n",
    )
    assert config.listen.options == ChannelOptions(
        max_connections=10, max_connections_per_host=5, max_unanswered=20, frame_timeout_ms=3000,
        idle_timeout_ms=60_000, write_limit_bytes=1000, max_header_bytes=2000, max_frame_bytes=30_000,
    )  # fmt: skip
    assert config.listen.unsigned_timeout_ms == 4000


@pytest.mark.parametrize(
    ("settings", "environment", "found"),
    [
        ("", "", "plain_acl.yml"),
        ("rocketmqHome={0}/home\n", "", "home/conf/plain_acl.yml"),
        ("", "{0}/env", "env/conf/plain_acl.yml"),
        ("rocketmqHome={0}/home\nrocketmq.acl.plain.file=/conf/other.yml\n", "", "home/conf/other.yml"),
        ("rocketmq.acl.plain.file={0}/elsewhere.yml\n", "", "elsewhere.yml"),
    ],
)
def test_accounts_are_found_where_rocketmq_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, environment: str, found: str
) -> None:
    """A broker that moves from RocketMQ would not start, or with other accounts."""
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    if environment:
        monkeypatch.setenv("ROCKETMQ_HOME", environment.format(tmp_path))
    config = load(tmp_path, "aclEnable=true\n" + settings.format(tmp_path))
    assert config.listen.acl_file == tmp_path / found
    assert load(tmp_path, "aclEnable=false\n").listen.acl_file is None


def test_the_older_spelling_of_file_sizes_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """QUIRKS 42: files would differ in size from those that RocketMQ makes with the same settings."""
    caplog.set_level(logging.INFO)
    config = load(tmp_path, "mapedFileSizeCommitLog=1048576\nmapedFileSizeConsumeQueue=6000\n")
    assert config.store.commit_log.segment_bytes == 1 << 30
    assert config.store.consume_queue.segment_bytes == 300_000 * 20
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "mapedFileSizeCommitLog has no effect",
        "mapedFileSizeConsumeQueue has no effect",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("listenPort=abc", "whole number"),
        ("listenPort=70000", "0 to 65535"),
        ("autoCreateTopicEnable=yes", "true or false"),
        ("flushDiskType=SOMETIMES", "ASYNC_FLUSH, SYNC_FLUSH"),
        ("mappedFileSizeCommitLog=5", "it must be from"),
        ("defaultTopicQueueNums=0", "1 to 1024"),
        ("brokerName=a b", "letters"),
        ("brokerName=..", "letters"),
        ("namesrvAddr=nonsense", "is malformed"),
        ("brokerRole=MASTER", "ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("enableDLegerCommitLog=true", "needs dLegerGroup"),
        ("dLegerPeers=n0-a:1;n0-b:2", "peer n0 is listed twice"),
        ("dLegerFlush=never", "quorum, async"),
        ("tls.server.mode=permissive", "needs tls.server.certPath"),
        ("tls.server.need.client.auth=require", "needs tls.server.trustCertPath"),
        ("tls.server.keyPath=server.key", "needs tls.server.certPath"),
        ("tls.server.keyPasswordFile=password", "needs tls.server.certPath"),
        ("tls.server.trustCertPath=ca.pem", "needs tls.server.certPath"),
        ("tls.server.mode=sometimes", "disabled, permissive, enforcing"),
        ("maxConnections=0", "at least 1"),
    ],
)
def test_a_bad_value_is_rejected_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    """A broker would start with other settings than those in its file."""
    with pytest.raises(ConfigInvalid, match=r"broker\.conf:3: ") as failure:
        load(tmp_path, f"# a comment\n\n{line}\n")
    assert says in str(failure.value)


def test_clients_must_show_certificates_only_where_there_is_tls(tmp_path: Path) -> None:
    """A server that requires certificates but has none would serve all clients without TLS."""
    asks = "tls.server.need.client.auth=require\ntls.server.trustCertPath=ca.pem\n"
    with pytest.raises(ConfigInvalid, match=r"needs tls\.server\.certPath"):
        load(tmp_path, asks)
    assert load(tmp_path, asks + "tls.server.mode=disabled\n").listen.options.ssl is None


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    """The file would override --listen and --store."""
    path = tmp_path / "broker.conf"
    path.write_text("listenPort=10911\nbrokerName=file\n")
    config = load_broker_config(path, {"listen": "127.0.0.1:0", "brokerName": "line"})
    assert config.listen.address.port == 0
    assert config.name == "line"


def test_the_environment_names_the_name_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container set up for RocketMQ would not find its name server."""
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9999")
    assert load(tmp_path, "").registration.namesrv == (Address("tcp", "127.0.0.1", 9999),)
    assert load(tmp_path, "namesrvAddr=127.0.0.1:1").registration.namesrv[0].port == 1


def test_other_machines_are_served_only_if_configured(tmp_path: Path) -> None:
    """A broker without access control would be open to its whole network by default."""
    with pytest.raises(ConfigInvalid, match="--insecure"):
        load(tmp_path, "bindAddress=192.0.2.1\n")
    with pytest.raises(ConfigInvalid, match="brokerIP1"):
        load(tmp_path, "bindAddress=0.0.0.0\ninsecure=true\n")
    config = load(tmp_path, "bindAddress=0.0.0.0\ninsecure=true\nbrokerIP1=192.0.2.1\n")
    assert config.advertised_host == "192.0.2.1"
    with pytest.raises(ConfigInvalid, match=r"tls\.server\.certPath"):
        load_namesrv_config(overrides={"listen": "tls://127.0.0.1:0"})


def test_javas_properties_syntax(tmp_path: Path) -> None:
    """A file that Java reads would mean something else here."""
    text = (
        "! comment\n  brokerName : broker\\u002da  \nbrokerClusterName \\\n   Cluster\\_1\nbrokerId=\\\n7\n"
    )
    config = load(tmp_path, text)
    assert (config.name, config.cluster_name, config.broker_id) == ("broker-a", "Cluster_1", 7)
    config = load(tmp_path, "bindAddress=127.0.0.1\nhaSecret \t=\f \u00a0wide\u3000 \f\n")
    assert config.ha.secret == "\u00a0wide\u3000"  # only Java's whitespace is trimmed
    with pytest.raises(ConfigInvalid, match=r"broker\.conf:2: .*hexadecimal"):
        load(tmp_path, "\nbrokerName=\\u12\n")
    with pytest.raises(ConfigInvalid, match=r"broker\.conf:1: the setting has no name"):
        load(tmp_path, "=value\n")


@pytest.mark.parametrize("comment", ["# 配置".encode("gbk"), "# 雲 brokerId=9".encode("gbk"), b"! caf\xe9"])
def test_a_comment_in_any_encoding_is_accepted(tmp_path: Path, comment: bytes) -> None:
    """Comments in GBK, which Java skips, would end in a traceback, or be read as settings."""
    path = tmp_path / "broker.conf"
    path.write_bytes(comment + b"\r\nbrokerName=b\r\nbrokerClusterName=caf\\u00e9\r\nlistenPort=none")
    with pytest.raises(ConfigInvalid, match=r"broker\.conf:4: listenPort"):
        load_broker_config(path)
    path.write_bytes(comment + b"\nkvConfigPath=/caf\xe9\n")
    assert load_namesrv_config(path).kv_config_path == Path("/café")  # as Java reads it
    path.write_bytes("# 配置\nkvConfigPath=/café\n".encode())
    assert load_namesrv_config(path).kv_config_path == Path("/café")


def test_a_changed_file_keeps_its_comments(tmp_path: Path) -> None:
    """Promotion, or a changed setting, would damage comments that are not in UTF-8."""
    path = tmp_path / "broker.conf"
    for comment in ("# 雲 brokerId=9\n".encode("gbk"), "# 雲\n".encode()):
        path.write_bytes(comment + b"brokerId=1\n")
        change_file(path, {"brokerId": "0", "brokerRole": "SYNC_MASTER"})
        assert path.read_bytes() == comment + b"brokerId=0\nbrokerRole=SYNC_MASTER\n"


def test_a_name_servers_settings_are_kept_where_rocketmq_keeps_them(tmp_path: Path) -> None:
    """A name server started without a file would forget its settings."""
    assert load_namesrv_config().kv_config_path == Path.home() / "namesrv" / "kvConfig.json"
    path = tmp_path / "namesrv.conf"
    path.write_text(f"kvConfigPath={tmp_path}/kv.json\norderMessageEnable=true\n")
    config = load_namesrv_config(path)
    assert (config.kv_config_path, config.order_message_enable) == (tmp_path / "kv.json", True)


def test_a_peer_of_a_group(tmp_path: Path) -> None:
    """A broker.conf of RocketMQ's own for DLedger would not start a broker here."""
    config = load(
        tmp_path,
        "brokerName=RaftNode00\nenableDLegerCommitLog=true\ndLegerGroup=RaftNode00\ndLegerSelfId=n2\n"
        "dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913\nsendMessageThreadPoolNums=16\n",
    ).dledger
    assert (config.group, config.self_id, config.slave_id, config.flush) == ("RaftNode00", "n2", 3, True)
    assert config.peers["n1"] == Address("tcp", "127.0.0.1", 40912)
    for wrong, says in (
        ("dLegerSelfId=n3", "n3"),
        ("dLegerPeers=a-b:1", "a letter and a number"),
        ("dLegerPeers=n2-host", "port"),
        ("dLegerPeers=n2-tls://host:1", "certPath"),
        ("brokerRole=SLAVE", "elects its master"),
        ("dLegerVoteMillisMin=1000", "dLegerVoteMillisMin"),
    ):
        text = f"enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n2\ndLegerPeers=n2-h:1\n{wrong}\n"
        with pytest.raises(ConfigInvalid, match=says):
            load(tmp_path, text)
