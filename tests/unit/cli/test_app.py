"""The command line of rocketpy-broker, without starting a server."""

import runpy
import signal
import subprocess
import sys

import pytest

import rocketpy
from rocketpy_broker.cli import main


def test_a_missing_event_loop_names_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--loop uvloop without the package would print a traceback."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["dev", "--listen", "127.0.0.1:0", "--loop", "uvloop"]) == 1
    assert capsys.readouterr().err == (
        'rocketpy-broker: --loop uvloop needs the package uvloop: pip install "rocketpy-mq[speed]"\n'
    )


def test_the_command_prints_the_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug report could not name the version."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("rocketpy_broker", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"rocketpy-broker {rocketpy.__version__} (")
    assert signal.getsignal(signal.SIGINT) is before, "another program in this process would lose Ctrl-C"


@pytest.mark.parametrize(
    ("line", "command", "says"),
    [
        ("dledger transfer n1", "dledger transfer", "unrecognized arguments: n1"),
        ("dev --bogus", "dev", "unrecognized arguments: --bogus"),
        ("store check", "store check", "required: DIR"),
        ("--bogus dev", "[-h]", "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_usage_shows_the_commands_own(
    line: str, command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped option would show the usage of all commands instead of its own."""
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"usage: rocketpy-broker {command}")
    assert says in errors


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("broker --set brokerId=1 --set listenPort=none", "command line: listenPort=none: a whole number"),
        ("namesrv --set orderMessageEnable=maybe", "command line: orderMessageEnable=maybe: true or false"),
        ("broker --set brokerName=a;b --name c;d", "command line: brokerName is 'c;d'"),
    ],
)
def test_any_setting_may_be_on_the_command_line(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single setting would need a file, and the error for a wrong value would name a file."""
    assert main(line.split()) == 1
    assert capsys.readouterr().err.startswith(f"rocketpy-broker: {says}")


def test_dev_refuses_settings_that_it_chooses_itself() -> None:
    """A storePathRootDir that the user sets would be ignored silently."""
    # In a process of its own: the command blocks signals before it makes its servers.
    line = "dev --listen 127.0.0.1:0 --set storePathRootDir=x"
    ended = subprocess.run(
        [sys.executable, "-m", "rocketpy_broker", *line.split()], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    # A warning may come first: another process uses RocketMQ's default port.
    assert ended.stderr.splitlines()[-1].startswith(
        "rocketpy-broker: settings: storePathRootDir cannot be set: "
    )


def test_a_setting_on_the_command_line_has_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    """A key without a value would be taken for an unknown key, and the broker would start without it."""
    with pytest.raises(SystemExit):
        main(["dev", "--set", "enablePropertyFilter"])
    assert "KEY=VALUE is expected, not 'enablePropertyFilter'" in capsys.readouterr().err
