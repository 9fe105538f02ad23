"""Every command of mqadmin prints the same with RocketMQ's servers and with rocketpy's.

Where it does not, tests/interop/mqadmin.py has the reason, and docs/reference/mqadmin.md shows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.mqadmin import (
    DIFFERENT,
    LEFT_OUT,
    VERSIONS,
    command_names,
    commands,
    compare,
)

pytestmark = pytest.mark.interop

DIRECTION = "mqadmin on java and on our servers"
_MARKED = [
    pytest.param(version, marks=() if version == DEFAULT_VERSION else pytest.mark.versions)
    for version in VERSIONS
]


@pytest.mark.parametrize("version", _MARKED)
def test_commands_print_the_same(peer: JavaPeer, tmp_path: Path, version: str) -> None:
    """An operator's script would get another output than from RocketMQ's servers."""
    found = compare(peer, tmp_path, version)
    unlike = {
        one.java.command: (one.result, one.java.lines, one.ours.lines)
        for one in found
        if one.result.startswith(DIFFERENT)
    }
    assert unlike == {}


@pytest.mark.parametrize("version", _MARKED)
def test_no_command_is_left_out(peer: JavaPeer, tmp_path: Path, version: str) -> None:
    """A command could fail with rocketpy's servers, and the page would not say so."""
    script = {command.partition(" ")[0] for command in commands(version)}
    assert command_names(peer, tmp_path, version) - script - LEFT_OUT == set()
