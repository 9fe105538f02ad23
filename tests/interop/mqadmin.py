"""Every command of RocketMQ's mqadmin on servers of either make, and the page that compares the output.

`python -m tests.interop.mqadmin` runs mqadmin of each version on RocketMQ's servers of this version and on
rocketpy's, and writes docs/reference/mqadmin.md. tests/interop/cases/test_mqadmin_alike.py does the same.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.config.keys import (
    BROKER_KEYS,
    IGNORED_BROKER_DEFAULTS,
    IGNORED_NAMESRV_DEFAULTS,
    LISTEN_KEYS,
    NAMESRV_KEYS,
    STORE_KEYS,
)
from tests.interop import probe
from tests.interop.accounts import MIGRATED, has_acl_2
from tests.interop.cluster import Cluster, Make
from tests.interop.java_peer import DEFAULT_VERSION, REPOSITORY, JavaPeer, ToolsMissing, make_home
from tests.interop.java_peer import EXAMPLES as PACKAGE
from tests.interop.sides import NEWER_VERSIONS, OPERATOR, OPERATOR_ACL, Side, serve

PAGE: Final = REPOSITORY / "docs" / "reference" / "mqadmin.md"
DIFFERENT: Final = "DIFFERENT"
_MAKES: Final[tuple[Make, Make]] = ("java", "our")
VERSIONS: Final = (DEFAULT_VERSION, *NEWER_VERSIONS)
"""Versions of mqadmin, the oldest first."""
TOPIC, GROUP, NAME = "AlikeTopic", "please_rename_unique_group_name_4", "alike-broker"
_BODIES: Final = [
    {"how": "queue", "topic": TOPIC, "queue": n % 2, "body": b"x".hex(), "keys": f"key{n}"} for n in range(8)
]
_SINCE: Final = re.compile(r"^(\d[\d.]+) ")
"""Prefix of a command that earlier versions of mqadmin do not have."""
_NOT_IN_5: Final = "queryMsgById -i {offset_id}"
"""A command that needs a topic from 5.x on."""

READ_ONLY: Final = [
    "topicList", "topicList -c", "topicRoute -t {topic}", "topicStatus -t {topic}",
    "topicClusterList -t {topic}", "topicRoute -t Nowhere", "topicStatus -t Nowhere",
    "4.9.7 topicRoute -l -t {topic}",
    "clusterList", "clusterList -m", "brokerStatus -b {broker}", "brokerStatus -c InteropCluster",
    "queryMsgByKey -t {topic} -k key3", "queryMsgByKey -t {topic} -k nothing",
    "queryMsgByOffset -t {topic} -b {name} -i 1 -o 1", "queryMsgByOffset -t {topic} -b {name} -i 1 -o 99",
    _NOT_IN_5, "5.3.3 queryMsgById -i {offset_id} -t {topic}",
    "queryMsgByUniqueKey -i {unique_id} -t {topic}",
    "4.9.7 queryMsgByUniqueKey -i {unique_id} -t {topic} -a",
    "4.9.7 queryMsgTraceById -i {unique_id}",
    "printMsg -t {topic} -d true", "printMsgByQueue -t {topic} -a {name} -i 0 -p true -d true",
    "queryCq -t {topic} -q 9 -i 0 -c 2 -b {broker}", "queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker}",
    "queryCq -t Unwritten -q 0 -i 0 -c 2 -b {broker}", "queryCq -t Nowhere -q 0 -i 0 -c 2 -b {broker}",
    "queryCq -t {topic} -q 0 -i 99 -c 2 -b {broker}",
    "queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker} -g nobody",
    "allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", "statsAll -t {topic}", "statsAll -a",
    "producerConnection -g nobody -t {topic}", "consumerConnection -g nobody", "consumerProgress -g nobody",
    "4.9.7 producer -b {broker}", "4.9.7 getConsumerConfig -g nobody",
    "brokerConsumeStats -b {broker}", "sendMsgStatus -b {name} -c 1", "checkMsgSendRT -t {topic} -a 2 -s 16",
    "getBrokerConfig -b {broker}", "getBrokerConfig -c InteropCluster", "getNamesrvConfig",
    "4.9.7 exportConfigs -c InteropCluster -f {directory}",
    "4.9.7 exportMetadata -c InteropCluster -f {directory}",
    "4.9.7 exportMetadata -b {broker} -t -f {directory}",
    "4.9.7 exportMetadata -b {broker} -g -f {directory}",
    "4.9.7 exportMetadata -b {broker} -s -f {directory}",
    "4.9.7 exportMetrics -c InteropCluster -f {directory}",
    "5.3.3 haStatus -b {broker}", "5.3.3 haStatus -c InteropCluster", "5.3.3 getBrokerEpoch -b {name}",
    "5.3.3 getColdDataFlowCtrInfo -b {broker}", "5.3.3 getColdDataFlowCtrInfo -c InteropCluster",
    "5.3.3 checkRocksdbCqWriteProgress -c InteropCluster -n {names}",
]  # fmt: skip
"""Commands that change nothing; `{…}` is filled in."""
WITH_CONSUMER: Final = [
    "consumerConnection -g {group}", "consumerProgress -g {group}", "consumerProgress -g {group} -s true",
    "4.9.7 consumerConnection -g {group} -b {broker}",
    "consumerProgress", "consumerStatus -g {group}", "consumer -g {group}", "brokerConsumeStats -b {broker}",
    "4.9.7 consumerStatus -g {group} -b {broker}",
    "topicStatus -t TopicTest", "getConsumerStatus -g {group} -t TopicTest",
    "4.9.7 producer -b {broker}", "4.9.7 getConsumerConfig -g {group}",
    "cloneGroupOffset -s {group} -d copied_group -t TopicTest -o true",
    "resetOffsetByTimeOld -g {group} -t TopicTest -s 0 -f true",
    "resetOffsetByTime -g {group} -t TopicTest -s 0",
    "4.9.7 skipAccumulatedMessage -g {group} -t TopicTest",
]  # fmt: skip
"""Commands about a group whose consumer runs."""
CHANGES: Final = [
    "updateTopic -b {broker} -t {topic} -r 4 -w 4 -p 6", "updateTopic -c InteropCluster -t Second -r 1 -w 1",
    "topicRoute -t {topic}", "updateTopicPerm -b {broker} -t {topic} -p 4", "topicRoute -t {topic}",
    "updateTopicPerm -c InteropCluster -t {topic} -p 6",
    "updateOrderConf -m put -t {topic} -v {name}:4", "updateOrderConf -m get -t {topic}",
    "updateNamesrvConfig -k orderMessageEnable -v true", "topicRoute -t {topic}",
    "updateNamesrvConfig -k orderMessageEnable -v false", "topicRoute -t {topic}",
    "updateNamesrvConfig -k clusterTest -v true", "updateNamesrvConfig -k productEnvName -v other",
    "updateNamesrvConfig -k noSuchKey -v 1",
    "updateOrderConf -m delete -t {topic}", "updateOrderConf -m get -t {topic}",
    "updateKvConfig -s SPACE -k key -v value", "deleteKvConfig -s SPACE -k key",
    "updateSubGroup -b {broker} -g fresh_group -r 3 -s false", "deleteSubGroup -b {broker} -g fresh_group",
    "updateSubGroup -c InteropCluster -g fresh_group", "deleteSubGroup -c InteropCluster -g fresh_group",
    "4.9.7 deleteSubGroup -c InteropCluster -g fresh_group -r true",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v 48",
    "updateBrokerConfig -c InteropCluster -k sendMessageThreadPoolNums -v 16",
    "getBrokerConfig -b {broker}", "updateBrokerConfig -b {broker} -k noSuchKey -v 1",
    "sendMessage -t {topic} -p hello -k made -c tagged -b {name} -i 0",
    "4.9.7 sendMessage -t {topic} -p hello -b {name} -i 0 -m true",
    "consumeMessage -t {topic} -b {name} -i 0 -o 0 -c 2",
    "cleanExpiredCQ -b {broker}", "cleanUnusedTopic -b {broker}", "cleanExpiredCQ -c InteropCluster",
    "4.9.7 deleteExpiredCommitLog -b {broker}", "4.9.7 deleteExpiredCommitLog -c InteropCluster",
    "deleteTopic -c InteropCluster -t Second", "topicList",
    "wipeWritePerm -b {name}", "topicRoute -t {topic}", "wipeWritePerm -b nobody",
    "4.9.7 addWritePerm -b {name}", "4.9.7 topicRoute -t {topic}", "4.9.7 addWritePerm -b nobody",
    "5.3.3 updateTopic -b {broker} -t Typed -r 1 -w 1 -a +message.type=FIFO",
    "5.3.3 updateTopicList -b {broker} -f {topics}", "5.3.3 updateTopicList -c InteropCluster -f {topics}",
    "5.3.3 updateSubGroupList -b {broker} -f {groups}",
    "5.3.3 updateSubGroupList -c InteropCluster -f {groups}",
    "5.3.3 setConsumeMode -b {broker} -t {topic} -g {group} -m POP -q 4",
    "5.3.3 setConsumeMode -c InteropCluster -t {topic} -g {group} -m PULL",
    "5.3.3 setCommitLogReadAheadMode -b {broker} -m 0",
    "5.3.3 updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1024",
    "5.3.3 removeColdDataFlowCtrGroupConfig -b {broker} -g {group}",
    "5.3.3 resetMasterFlushOffset -b {broker} -o 0", "5.3.3 exportPopRecord -b {broker} -d true",
    "5.3.3 updateStaticTopic -c InteropCluster -t Static -qn 2",
    "5.3.3 remappingStaticTopic -c InteropCluster -t Static",
    "5.3.3 rocksDBConfigToJson -b {broker}",
    "5.3.3 addBroker -c {broker} -b {topics}", "5.3.3 removeBroker -c {broker} -b InteropCluster:{name}:1",
    "5.3.3 getControllerMetaData -a {names}", "5.3.3 getSyncStateSet -a {names} -b {name}",
    "5.3.3 electMaster -a {names} -b 0 -bn {name} -c InteropCluster",
    "5.3.3 cleanBrokerMetadata -a {names} -bn {name} -c InteropCluster",
    "5.3.3 getControllerConfig -a {names}", "5.3.3 updateControllerConfig -a {names} -k key -v value",
    "5.5.0 switchTimerEngine -b {broker} -e F",
    "5.5.0 updateTopic -b {broker} -t Urgent -r 1 -w 1 -a +message.type=PRIORITY",
    "5.5.0 updateTopic -b {broker} -t Lite -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=60",
    "5.5.0 getBrokerLiteInfo -b {broker}", "5.5.0 getParentTopicInfo -p Lite",
    "5.5.0 getLiteTopicInfo -p Lite -l lite", "5.5.0 getLiteGroupInfo -p Lite -g nobody",
    "5.5.0 getLiteClientInfo -p Lite -g nobody -c client", "5.5.0 triggerLiteDispatch -p Lite -g nobody",
]  # fmt: skip
"""Commands that change something, in this order."""
ACCOUNTS: Final = [
    "clusterAclConfigVersion -b {broker}", "clusterAclConfigVersion -c InteropCluster",
    "getAccessConfigSubCommand -b {broker}", "4.9.7 getAclConfig -b {broker}",
    "updateAclConfig -b {broker} -a application -s its-secret -i DENY -t Orders=PUB|SUB",
    "updateAclConfig -b {broker} -a short -s its-secret",
    "updateAclConfig -c InteropCluster -a secondary -s its-secret -m false",
    "getAccessConfigSubCommand -c InteropCluster", "4.9.7 getAclConfig -c InteropCluster",
    "updateGlobalWhiteAddr -b {broker} -g 10.10.10.11",
    "deleteAccessConfig -b {broker} -a secondary", "deleteAccessConfig -b {broker} -a nobody",
    "4.9.7 deleteAclConfig -b {broker} -a secondary", "4.9.7 deleteAclConfig -b {broker} -a nobody",
    "getAccessConfigSubCommand -b {broker}", "4.9.7 getAclConfig -b {broker}",
]  # fmt: skip
"""Commands about accounts of ACL 1.0, on servers with access control; up to 4.9.7."""
USERS: Final = [
    "createUser -b {broker} -u application -p its-secret", "createUser -c InteropCluster -u other -p secret",
    "getUser -b {broker} -u application", "listUser -b {broker}",
    "updateUser -b {broker} -u application -s disable",
    "createAcl -b {broker} -s User:application -r Topic:Orders -a Pub,Sub -d Allow",
    "getAcl -b {broker} -s User:application", "listAcl -b {broker}",
    "updateAcl -b {broker} -s User:application -r Topic:Orders -a Sub -d Allow",
    "copyUser -f {broker} -t {broker} -u application", "copyAcl -f {broker} -t {broker} -s User:application",
    "deleteAcl -b {broker} -s User:application", "deleteUser -b {broker} -u application",
]  # fmt: skip
"""Commands about users and policies of ACL 2.0, on servers with access control; from 5.3.3 on."""
_WITH_USERS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"{OPERATOR.access_key}","password":"{OPERATOR.secret_key}"}}',
}
"""broker.conf of rocketpy's broker with ACL 2.0."""
LEFT_OUT: Final = frozenset({"clusterRT", "startMonitoring", "dumpCompactionLog", "exportMetadataInRocksDB"})
"""Commands that run until they are stopped, or read files of this machine."""


@dataclass(frozen=True)
class Step:
    """A command of the script, and what it printed."""

    version: str
    command: str
    printed: str

    @property
    def outcome(self) -> str:
        """Whether it succeeded, for the page."""
        return "error" if "Exception" in self.printed else "done"

    @property
    def lines(self) -> list[str]:
        """What it printed, without parts that differ between two runs."""
        return comparable(self.printed, self.version)


def commands(version: str) -> list[str]:
    """Return the commands of the script for mqadmin of a version, in their order."""
    accounts = USERS if has_acl_2(version) else ACCOUNTS
    return [
        command for part in (READ_ONLY, WITH_CONSUMER, CHANGES, accounts) for command in of(version, part)
    ]


def of(version: str, part: Sequence[str]) -> list[str]:
    """Return the commands of a part of the script that mqadmin of this version has."""
    later = VERSIONS[VERSIONS.index(version) + 1 :]
    lacking = [f"{one} " for one in later] + ([_NOT_IN_5] if has_acl_2(version) else [])
    return [_SINCE.sub("", c) for c in part if not c.startswith(tuple(lacking))]


def run_script(peer: JavaPeer, make: Make, run: Path, version: str = DEFAULT_VERSION) -> list[Step]:
    """Run the script with mqadmin of a version, on RocketMQ's servers of this version or on rocketpy's."""
    side = Side("mqadmin", make, make, version=version, client_version=version)
    changeable: dict[str, object] = {"remoteConfigUpdateEnable": "true"} if make == "our" else {}
    conf = {"brokerName": NAME, "longPollingEnable": "true", **changeable}
    kept = run / "namesrv-kv.json"
    names_conf = {**changeable, "kvConfigPath": kept}
    with serve(side, peer, run, conf=conf, names_conf=names_conf) as servers:
        servers.make_topic(TOPIC, 2)
        servers.make_topic("Unwritten", 1)
        sent = servers.produce(*_BODIES)
        assert {result.get("status") for result in sent} == {"SEND_OK"}, sent
        # RocketMQ's broker has no statistics before its first sample, and then rejects requests for them.
        broker = servers.broker.address
        probe.wait_until(lambda: probe.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)[0] == 0, "statistics")
        fill = {
            "topic": TOPIC, "group": GROUP, "name": NAME, "broker": servers.broker.address,
            "offset_id": sent[3]["offsetMsgId"], "unique_id": sent[3]["msgId"],
            "directory": str(run / "exported"), "names": servers.namesrv.address,
            "topics": str(_write(run / "topics.json", [{"topicName": "Listed", "perm": 6}])),
            "groups": str(_write(run / "groups.json", [{"groupName": "listed_group"}])),
        }  # fmt: skip
        steps = _admin(servers, of(version, READ_ONLY), fill)
        with _consumer(servers, peer):
            steps += _admin(servers, of(version, WITH_CONSUMER), fill)
        steps += _admin(servers, of(version, CHANGES), fill)
    secured = run / "accounts"
    home = secured / f"{make}-broker"
    accounts = make_home(home) / "conf" if make == "java" else home
    accounts.mkdir(parents=True, exist_ok=True)
    (accounts / "plain_acl.yml").write_text(OPERATOR_ACL)
    acl_2 = has_acl_2(version)
    rights: Mapping[str, object] = {"aclEnable": "true"}
    if acl_2:
        rights = MIGRATED if make == "java" else {**_WITH_USERS, "authConfigPath": secured / "auth"}
    with serve(side, peer, secured, conf={**conf, **rights}) as servers:
        tools = make_home(servers.run / "mqadmin-steps") / "conf" / "tools.yml"
        tools.write_text(f"accessKey: {OPERATOR.access_key}\nsecretKey: {OPERATOR.secret_key}\n")
        steps += _admin(
            servers, USERS if acl_2 else of(version, ACCOUNTS), {**fill, "broker": servers.broker.address}
        )
    return steps


def _write(file: Path, content: object) -> Path:
    file.write_text(json.dumps(content))
    return file


def _admin(servers: Cluster, script: Sequence[str], fill: Mapping[str, str]) -> list[Step]:
    """Run commands in one JVM."""
    steps: list[dict[str, Any]] = [{"args": command.format(**fill).split()} for command in script]
    home = servers.run / "mqadmin-steps"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    results = servers.peer.drive(
        "AdminSteps", home=home, steps=steps, properties=properties, timeout_s=120 + 10 * len(steps)
    )
    assert len(results) == len(script)
    return [
        Step(servers.version, command, result["printed"])
        for command, result in zip(script, results, strict=True)
    ]


@contextmanager
def _consumer(servers: Cluster, peer: JavaPeer) -> Iterator[None]:
    """RocketMQ's quickstart consumer, which has consumed and committed eight messages of TopicTest."""
    # The route of a topic created by a send soon changes, and the producer would begin with another queue.
    servers.make_topic("TopicTest", 4)
    servers.produce(*[{"how": "sync", "topic": "TopicTest", "body": b"x".hex()} for _ in range(8)])
    home = servers.run / "quickstart"
    properties = {"rocketmq.namesrv.addr": servers.namesrv.address}
    with peer.running(f"{PACKAGE}.quickstart.Consumer", home=home, properties=properties):
        console = home / "console.log"
        probe.wait_until(lambda: console.read_text().count("Receive New") >= 8, "8 messages", timeout_s=90)

        def is_done() -> bool:
            printed = servers.admin("consumerProgress", "-g", GROUP)
            return bool(re.search(r"Diff Total: 0\b", printed)) and {"TopicTest", "%RETRY%"} <= set(
                re.findall(r"TopicTest|%RETRY%", printed)
            )

        probe.wait_until(is_done, "offsets to be committed", timeout_s=90, step_s=1)
        yield


_UNLIKE: Final = [
    (r"(?m)^\S+ \|-(INFO|WARN) in .*$", ""),  # logback's own messages, in the first command of a JVM
    (r"\d{4}-\d\d-\d\d[ T#]\d\d:\d\d:\d\d([:,.]\d+)?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\b1[0-9]{12}\b", "MS"),
    (r"(127\.0\.0\.1|\d+\.\d+\.\d+\.\d+):\d+", "HOST"),
    (r"file:\S+|(?<=\s)/\w+/\S+", "FILE"),
    (r"PlainAccessConfig@\w+", "ACCOUNT"),
    (r"\b\S+@\d+(#\d+)*\b", "CLIENT"),
    (r"\b\d+\.\d+(E-?\d+)?\b", "RATE"),
    (r"\b\d+ms\b", "DURATION"),
    (r"\bjava version.*|OpenJDK.*", "JVM"),
    (r"\bV[45]_\d+_\d+\b", "VERSION"),
    (r"(?<=See )http\S+", "URL"),
]
_UNLIKE_LATER: Final = [
    (r", WAIT=true|WAIT=true, ", ""),  # 4.9's broker removes this property
    (r"MSG_REGION=DefaultRegion, |, TRACE_ON=true|TRACE_ON=true, ", ""),  # 5.x adds these properties
    (r"storeSize=\d+|commitLogOffset=\d+|physicSize=\d+|physicOffset=\d+|CommitLog Offset: *\d+", "SIZE"),
]
"""Parts that also differ with later versions, whose messages are a little smaller."""


def comparable(text: str, version: str = DEFAULT_VERSION) -> list[str]:
    """The lines in a fixed order, with variable parts replaced."""
    for pattern, word in _UNLIKE + (_UNLIKE_LATER if version != DEFAULT_VERSION else []):
        text = re.sub(pattern, word, text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return sorted(line for line in lines if line)


_SECRETS: Final = "rocketpy's broker shows no secrets"
_CHECKED: Final = "unknown settings are rejected; RocketMQ accepts any"
_LISTED: Final = "4.9.7 also has the topic SCHEDULE_TOPIC_XXXX"
_LISTED_IN_5: Final = "5.x also has system topics of its own"
REASONS: Final[Mapping[str, str]] = {
    "queryCq -t Unwritten": "RocketMQ's broker knows the queue only after somebody has asked for its offsets",
    "queryCq -t {topic} -q 0 -i 99": "RocketMQ's broker responds without a body, or with wrong offsets",
    "updateNamesrvConfig -k noSuchKey": _CHECKED,
    "updateBrokerConfig -b {broker} -k noSuchKey": _CHECKED,
    "getAccessConfigSubCommand": _SECRETS,
    "statsAll": "the counts of a day are sampled at certain times",
    "updateAclConfig -b {broker} -a short": "the error has other words",
}
"""Why the output differs, by the start of a command."""
_NO_LITE: Final = "rocketpy's broker has no lite topics"
_REASONS_IN_5: Final = {
    "topicList": _LISTED_IN_5,
    "wipeWritePerm -b {name}": _LISTED_IN_5,
    "addWritePerm -b {name}": _LISTED_IN_5,
    "cloneGroupOffset": "5.x requires that the other group exists",
    "statsAll": "5.x also counts the messages before its first sample; rocketpy does not, as 4.6.0",
    "remappingStaticTopic": "rocketpy's broker has no static topics",
}
REASONS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "4.6.0": {"queryCq -t {topic} -q 0": "RocketMQ's broker encodes its response before it adds the entries"},
    "4.9.7": {
        "topicList": _LISTED,
        "wipeWritePerm -b {name}": _LISTED,
        "addWritePerm -b {name}": _LISTED,
        "clusterAclConfigVersion": "rocketpy's broker names the file without its directory",
        "getAclConfig": _SECRETS,
    },
    "5.3.3": _REASONS_IN_5,
    "5.5.0": {
        **_REASONS_IN_5,
        "updateTopic -b {broker} -t Urgent": "rocketpy's broker has no priorities of messages",
        "updateTopic -b {broker} -t Lite": _NO_LITE,
        "getParentTopicInfo": _NO_LITE,
        "getLite": _NO_LITE,
        "triggerLiteDispatch": _NO_LITE,
    },
}
"""The same of single versions."""
NOT_SUPPORTED: Final[Mapping[int, str]] = {
    354: "consume queues in RocksDB", 355: "configuration in RocksDB",
    513: "static topics",
    902: "broker containers", 903: "broker containers",
    907: "replication, which brokerStatus shows", 908: "replica groups with a controller",
    **dict.fromkeys(range(1001, 1014), "replica groups with a controller"),
    2001: "limits on reads of old messages", 2002: "limits on reads of old messages",
    2003: "limits on reads of old messages",
    2004: "a choice of how the log is read ahead",
    5001: "timers in RocksDB",
    200056: "records of pops in RocksDB",
    200074: "lite topics",
}  # fmt: skip
"""Request codes of mqadmin that rocketpy's broker rejects as not supported, and what they are for."""
TIMED: Final[Mapping[str, str]] = {"checkMsgSendRT": "prints durations; the number of lines is compared"}
"""Commands whose output always differs."""
_SETTINGS: Final = ("brokerStatus", "getBrokerConfig", "getNamesrvConfig")
"""Commands that print names with values, most of which depend on the machine. The names are compared."""
NAMES_MISSING: Final[Mapping[str, Mapping[str, str]]] = {
    "brokerStatus": {
        "getMessageEntireTimeMax": "not measured", "putLatency99": "not measured",
        "putLatency999": "not measured", "putMessageFailedTimes": "not measured",
        "commitLogDiskRatio_": "a store has one directory",
        "timerDequeueTps": "not measured", "timerEnqueueTps": "not measured",
    },
    "getBrokerConfig": {"rocketmqHome": "the file of the accounts is below it"},
    "getNamesrvConfig": {
        "rocketmqHome": "the file of the accounts is below it",
        "configStorePath": "changes are written into the file that the server was started with",
    },
}  # fmt: skip
"""Names that rocketpy's servers lack, with the reason. Settings that are newer than 4.6.0 are not listed."""


_SETTINGS_OF_FIRST: Final = set(IGNORED_BROKER_DEFAULTS) | set(IGNORED_NAMESRV_DEFAULTS) | {
    *BROKER_KEYS, *STORE_KEYS, *NAMESRV_KEYS, *LISTEN_KEYS,
}  # fmt: skip
"""Keys of 4.6.0."""


@dataclass(frozen=True)
class Comparison:
    """One command on both sides."""

    java: Step
    ours: Step

    @property
    def result(self) -> str:
        """The words "the same", the reason of a difference, or "DIFFERENT" for one without a reason."""
        command, version = self.java.command, self.java.version
        name = command.partition(" ")[0]
        if name in _SETTINGS:
            return self._compare_names(name)
        if name in TIMED and len(self.java.lines) == len(self.ours.lines):
            return TIMED[name]
        if self.java.lines == self.ours.lines:
            return "the same"
        rejected = re.search(r"CODE: 3 +DESC: request type (\d+) not supported", self.ours.printed)
        if rejected and (code := int(rejected[1])) in NOT_SUPPORTED:
            return f"not supported: {NOT_SUPPORTED[code]}"
        reasons = {**REASONS, **REASONS_OF[version]}
        found = [reason for start, reason in reasons.items() if command.startswith(start)]
        return found[-1] if found else DIFFERENT

    def _compare_names(self, name: str) -> str:
        theirs, own = _names(self.java.printed), _names(self.ours.printed)
        if name != "brokerStatus" and self.java.version != DEFAULT_VERSION:
            theirs &= _SETTINGS_OF_FIRST  # the file format is that of 4.6.0
        lacking = sorted(theirs - own)
        reasons = {
            one: reason
            for one in lacking
            for start, reason in NAMES_MISSING[name].items()
            if one.startswith(start)
        }
        if unknown := [one for one in lacking if one not in reasons]:
            return f"{DIFFERENT}: without {', '.join(unknown)}"
        names: dict[str, list[str]] = {}
        for one, reason in reasons.items():
            names.setdefault(reason, []).append(one.partition("_/")[0])
        why = "; ".join(f"{', '.join(found)}: {reason}" for reason, found in names.items())
        return f"all names except {why}" if lacking else "all names"


def _names(printed: str) -> set[str]:
    """Return the names before ``=`` or ``:`` at the start of each line, without a broker's address."""
    return set(re.findall(r"^(?:\d\S*:\d+ +)?([A-Za-z][\w./-]*) *[=:]", printed, re.MULTILINE))


def compare(peer: JavaPeer, run: Path, version: str) -> list[Comparison]:
    """Run the script with mqadmin of a version on both sides."""
    java, ours = (run_script(peer, make, run / f"{version}-{make}", version) for make in _MAKES)
    return [Comparison(one, other) for one, other in zip(java, ours, strict=True)]


def command_names(peer: JavaPeer, run: Path, version: str) -> set[str]:
    """Return the names of all commands that mqadmin of a version lists."""
    printed = peer.of_version(version).run("Admin", home=run)
    return set(re.findall(r"^   (\w+) ", printed, re.MULTILINE))


def page(results: Mapping[str, Sequence[Comparison]]) -> str:
    """Return docs/reference/mqadmin.md. results: the comparisons by version."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for version, comparisons in results.items():
        for one in comparisons:
            row = (one.java.command, one.java.outcome, one.ours.outcome, one.result)
            versions = rows.setdefault(row, [])
            if version not in versions:
                versions.append(version)
    lines = [
        f"| `{shown(command)}` | {', '.join(versions)} | {java} | {ours} | {result} |"
        for (command, java, ours, result), versions in sorted(rows.items(), key=lambda row: row[0][0].lower())
    ]
    return _HEAD + "\n".join(lines) + "\n"


def shown(command: str) -> str:
    """Return a command as the page shows it."""
    return command.replace("{", "").replace("}", "").replace("|", "\\|")


_HEAD: Final = """# RocketMQ's mqadmin with rocketpy's servers

`make mqadmin` writes this page: it runs each command of mqadmin 4.6.0, 4.9.7, 5.3.3 and 5.5.0 on RocketMQ's
servers of the same version, and on rocketpy's. Times, ports, ids, rates and sizes are replaced by a word.
Properties that some versions add to messages are left out. Then the output is compared. "the same" means
each line. `make interop-all` compares again.

In the commands, `topic`, `group`, `name` (of a broker), `broker` (its address) and others stand for values.
Left out are commands that run until they are stopped (`clusterRT`, `startMonitoring`) and those that read
files of the machine (`dumpCompactionLog`, `exportMetadataInRocksDB`). What is not supported is rejected at
once, with the code REQUEST_CODE_NOT_SUPPORTED.
`getBrokerConfig` and `getNamesrvConfig` show the names of 4.6.0; rocketpy's servers have further ones.
[From mqadmin to AdminClient](../guides/mqadmin.md) has the same tasks in Python and in a shell.

| Command | mqadmin | On RocketMQ | On rocketpy | Output |
|---|---|---|---|---|
"""


def main() -> int:
    """Write the page. Returns 1 if a command differs without a reason, and 3 if Java tools are missing."""
    try:
        peer = JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        print(f"mqadmin: NOT RUN: {missing}")
        return 3
    try:
        # Commands of 5.x mostly wait for the end of their client's threads.
        with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda version: compare(peer, Path(directory), version), VERSIONS)
            results = dict(zip(VERSIONS, found, strict=True))
    finally:
        peer.close()
    PAGE.write_text(page(results), "utf-8")
    unlike = [one for found in results.values() for one in found if one.result.startswith(DIFFERENT)]
    for one in unlike:
        print(f"{one.java.version} {one.java.command}: {one.result}")
        print(*one.java.lines, "-- rocketpy:", *one.ours.lines, sep="\n    ")
    return int(bool(unlike))


if __name__ == "__main__":
    sys.exit(main())
