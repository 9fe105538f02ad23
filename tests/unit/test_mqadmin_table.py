"""docs/guides/mqadmin.md: every command of mqadmin 4.6.0, with methods that exist."""

from __future__ import annotations

import re
from functools import cache

import pytest
import typer.main
from typer.core import TyperGroup

import rocketpy.sync
from rocketpy import AdminClient
from rocketpy_cli.app import app
from tools.import_map import ROOT

PAGE = (ROOT / "docs/guides/mqadmin.md").read_text("utf-8")

# The commands that MQAdminStartup of 4.6.0 registers.
COMMANDS = [
    "allocateMQ",
    "brokerConsumeStats",
    "brokerStatus",
    "checkMsgSendRT",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "cloneGroupOffset",
    "clusterAclConfigVersion",
    "clusterList",
    "clusterRT",
    "consumeMessage",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "deleteAccessConfig",
    "deleteKvConfig",
    "deleteSubGroup",
    "deleteTopic",
    "getAccessConfigSubCommand",
    "getBrokerConfig",
    "getNamesrvConfig",
    "printMsg",
    "printMsgByQueue",
    "producerConnection",
    "queryCq",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByOffset",
    "queryMsgByUniqueKey",
    "resetOffsetByTime",
    "sendMessage",
    "sendMsgStatus",
    "startMonitoring",
    "statsAll",
    "topicClusterList",
    "topicList",
    "topicRoute",
    "topicStatus",
    "updateAclConfig",
    "updateBrokerConfig",
    "updateGlobalWhiteAddr",
    "updateKvConfig",
    "updateNamesrvConfig",
    "updateOrderConf",
    "updateSubGroup",
    "updateTopic",
    "updateTopicPerm",
    "wipeWritePerm",
]


def test_every_command_has_a_row() -> None:
    """An operator would not find a command."""
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == sorted(COMMANDS)


def test_methods_exist_and_are_all_named() -> None:
    """The table would name a method that does not exist, or leave one out."""
    named = set(
        re.findall(r"`((?:topics|groups|brokers|messages|dead_letters|name_servers|accounts)\.\w+)", PAGE)
    )
    for admin in (AdminClient("127.0.0.1:1"), rocketpy.sync.AdminClient("127.0.0.1:1")):
        parts = {name: part for name, part in vars(admin).items() if not name.startswith("_")}
        methods = {
            f"{name}.{method}"
            for name, part in parts.items()
            if type(part).__module__.startswith(("rocketpy.admin", "rocketpy.sync.methods"))
            for method in dir(part)
            if not method.startswith("_")
        }
        assert named <= methods
        assert methods - named <= {"dead_letters.fetch"}, "for AdminClient.fetch_dead_letters"


command_of_shell = cache(typer.main.get_command)


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`rocketpy ([a-z -]+)`", PAGE))))
def test_commands_of_the_shell_exist(line: str) -> None:
    """The table would name a command that does not exist."""
    command = command_of_shell(app)
    for word in line.split():
        assert isinstance(command, TyperGroup)
        assert word in command.commands
        command = command.commands[word]
