"""What all commands of rocketpy share: clusters, errors, exit statuses; creating topics; servers."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rocketpy
import rocketpy_cli
from rocketpy import AdminClient
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import COMMAND, run, run_process, start
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

NOWHERE = "127.0.0.1:1"


async def test_version() -> None:
    """A bug report could not name the version."""
    assert await run_process("--version") == (0, f"rocketpy {rocketpy.__version__}\n", "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("topic create", "Missing argument"),
        ("topic create T --queues 0", "--queues"),
        ("bogus", "No such command 'bogus'"),
        ("topic create T --bogus", "No such option: --bogus"),
        ("topic create T", f"create topic T with 4 queues on each broker at {NOWHERE}"),
    ],
)
async def test_wrong_usage_is_status_2(line: str, says: str) -> None:
    """A script could not tell a mistake of its own from a failure of the cluster."""
    done = await run(*line.split(), NAMESRV_ADDR=NOWHERE)
    assert (done.status, done.out) == (2, "")
    assert says in done.err


async def test_help_texts_are_wrapped_to_the_terminal() -> None:
    """Line breaks of the source would leave lines of one word in most terminals."""
    done = await run("broker", "drain", "--help")
    assert "routes, the broker stores no more messages, and its slaves have all messages." in done.out


async def test_a_failure_is_one_line_and_status_1() -> None:
    """A user would search a traceback for the reason."""
    done = await run_process("topic", "create", "T", "--yes", "--namesrv", NOWHERE)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"rocketpy: name server {NOWHERE} cannot be reached")
    assert done.err.count("\n") == 1


async def test_without_an_address_the_error_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who forgot to name a cluster would search a broker that never was to run on this machine."""
    monkeypatch.setattr("rocketpy_cli.profiles.DEFAULT_NAMESRV", NOWHERE)
    says = "pass --namesrv, or set ROCKETPY_NAMESRV, a profile or NAMESRV_ADDR"
    assert says in (await run("topic", "list")).err
    assert says not in (await run("topic", "list", NAMESRV_ADDR=NOWHERE)).err


async def test_verbose_shows_the_traceback() -> None:
    """A maintainer could not see where an error comes from."""
    done = await run("topic", "create", "T", "--yes", "--namesrv", NOWHERE, "--verbose")
    assert done.status == 1
    assert "Traceback (most recent call last)" in done.err


async def test_create_a_topic(cluster: EmbeddedCluster) -> None:
    """The command would print success without a topic."""
    address = cluster.namesrv_address
    done = await run("topic", "create", "New", "--queues", "3", "--yes", NAMESRV_ADDR=address)
    text = f"created topic New with 3 queues on each broker at {address} (no profile)\n"
    assert done == (0, text, "")
    async with AdminClient(address) as admin:
        assert len(await admin.fetch_publish_message_queues("New")) == 3


async def test_results_as_json(cluster: EmbeddedCluster) -> None:
    """A program would have to parse sentences."""
    done = await run("--json", "topic", "create", "New", "--yes", "-n", cluster.namesrv_address)
    cluster_field = f'"cluster": "{cluster.namesrv_address}"'
    assert done.out == f'{{"topic": "New", "queues": 4, "unchanged": [], {cluster_field}}}\n'


@pytest.mark.parametrize(("typed", "status"), [(b"y\n", 0), (b"n\n", 1)])
async def test_a_change_is_confirmed_on_a_terminal(
    cluster: EmbeddedCluster, typed: bytes, status: int
) -> None:
    """A change meant for a test cluster could reach production."""
    terminal, side = pty.openpty()
    environment = {**os.environ, "ROCKETPY_NAMESRV": cluster.namesrv_address}
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "topic", "create", "New", stdin=side, stdout=side, stderr=side, env=environment
        )
        os.write(terminal, typed)
        async with asyncio.timeout(LIMIT_S):
            assert await process.wait() == status
        shown = os.read(terminal, 4096).decode()
    finally:
        os.close(terminal)
        os.close(side)
    question = (
        f"create topic New with 4 queues on each broker at {cluster.namesrv_address} (no profile)? [y/N]"
    )
    assert question in " ".join(shown.split())
    async with AdminClient(cluster.namesrv_address) as admin:
        assert ("New" in await _topics(admin)) == (status == 0)


async def _topics(admin: AdminClient) -> list[str]:
    found = []
    for topic in ("New", "T"):
        try:
            await admin.fetch_publish_message_queues(topic)
        except rocketpy.RocketError:
            continue
        found.append(topic)
    return found


async def test_a_profile_names_the_cluster(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A user would have to repeat the address with every command."""
    file = tmp_path / "rocketpy.toml"
    file.write_text(f'[test]\nnamesrv = "{cluster.namesrv_address}"\n', "utf-8")
    done = await run("topic", "create", "New", "--yes", "--profile", "test", ROCKETPY_CONFIG=str(file))
    assert done.status == 0
    assert f"at {cluster.namesrv_address} (profile test)" in done.out


async def test_development_servers() -> None:
    """The first command of the guide would not start a cluster."""
    process = await start("dev", "--listen", "127.0.0.1:0", "--set", "listenPort=0")
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        address = (await process.stdout.readline()).decode().split()[-1]
        await process.stdout.readline()
    done = await run("topic", "create", "New", "--yes", "--namesrv", address)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        _, err = await process.communicate()
    assert (done.status, process.returncode, err) == (0, 0, b"")


def test_without_its_extra_the_command_names_it() -> None:
    """A user who installed rocketpy without the extra would see a traceback about typer."""
    program = "import sys; sys.modules['typer'] = None; from rocketpy_cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ('rocketpy: the command needs the package typer: pip install "rocketpy-mq[cli]"\n')


@pytest.mark.parametrize(
    ("entry_point", "text"),
    [
        (None, "the command is not installed"),
        ("rocketpy_command:main", "the command cannot be loaded: No module named 'rocketpy_command'"),
    ],
    ids=["none", "of a missing module"],
)
def test_the_module_names_the_extra_when_the_command_is_missing(
    tmp_path: Path, entry_point: str | None, text: str
) -> None:
    """A user of the client alone would see a traceback about a package that they do not know."""
    if entry_point:
        info = tmp_path / "rocketpy_mq-1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[console_scripts]\nrocketpy = {entry_point}\n")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rocketpy-mq\nVersion: 1\n")
    done = subprocess.run(  # -S: without the packages of this environment
        [sys.executable, "-S", "-m", "rocketpy", "--version"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'rocketpy: {text}: pip install "rocketpy-mq[cli]"\n'


def test_importing_rocketpy_does_not_load_the_command() -> None:
    """Applications would need typer, and start more slowly."""
    program = (
        "import sys, rocketpy, rocketpy.sync; print({'typer', 'rich', 'rocketpy_cli'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("line", ["topic list", "--json topic list", "doctor", "group list", "consume T"])
async def test_a_closed_standard_output_is_an_error(line: str) -> None:
    """A command would end with a traceback, or consume messages and lose them."""
    command = [*COMMAND, "--namesrv", NOWHERE, *line.split()]
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", '"$@" >&-', "sh", *command],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    text = "rocketpy: standard output is closed; redirect it to /dev/null\n"
    assert (done.returncode, done.stderr) == (1, text)


@pytest.mark.parametrize("line", ["--version", "--help", "topic --help"])
async def test_a_full_device_is_one_line(line: str) -> None:
    """A full disk would end a command with a traceback."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", '"$@" >/dev/full', "sh", *COMMAND, *line.split()],
        stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


async def test_terminals_without_unicode_are_supported() -> None:
    """The arrow before a remedy would end the doctor with a traceback."""
    done = await run_process("doctor", "--namesrv", NOWHERE, PYTHONIOENCODING="ascii")
    assert done.status == 1
    assert "\\u2192" in done.out
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_shells_complete_commands_and_options(shell: str) -> None:
    """A user would have to look up each command in the help."""
    # Without this variable, the option takes no value: it finds the shell among the parents of the process.
    script = await run_process("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_ROCKETPY_COMPLETE" in script.out
    for line, wanted in (
        ("rocketpy top", "topic"),
        ("rocketpy topic cr", "create"),
        ("rocketpy topic create --qu", "--queues"),
    ):
        done = await run_process(
            _ROCKETPY_COMPLETE=f"complete_{shell}",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split()) - 1),
            _TYPER_COMPLETE_ARGS=line,
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        )
        assert wanted in done.out, line


def test_ctrl_c_before_a_command_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupt while the command line is built would end with a traceback."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rocketpy_cli.app._command", interrupt)
    assert rocketpy_cli.main(["topic", "list"]) == 130
    assert capsys.readouterr() == ("", "rocketpy: interrupted\n")
