"""The container file and the systemd units: least privileges, and commands that work under them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from rocketpy_broker.cli import app
from rocketpy_broker.cli.process import STOP_TIMEOUT_S
from tests.integration.server.test_service_stop import probe
from tests.interop.processes import free_broker_port, free_port
from tests.waiting import LIMIT_S
from tools.import_map import ROOT

DEPLOY = ROOT / "deploy"
CONTAINER = (DEPLOY / "Containerfile").read_text("utf-8")
UNITS = sorted(DEPLOY.glob("*.service"))
PROGRAM = "/opt/rocketpy/bin/rocketpy-broker"
EXPOSURE_MAX = 15
"""Tenths of systemd's scale, on which 100 is a service without any protection."""


def settings(unit: Path) -> dict[str, str]:
    """The last value of each setting of a unit."""
    return dict(re.findall(r"^([A-Za-z]+)=(.*)$", unit.read_text("utf-8"), re.MULTILINE))


def instruction(name: str) -> str:
    """The last instruction of that name in the container file, joined to one line."""
    found: list[str] = re.findall(rf"^{name} (.*)$", CONTAINER.replace("\\\n", " "), re.MULTILINE)
    return found[-1]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: the unit is not checked by systemd")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_understood_by_systemd(unit: Path, tmp_path: Path) -> None:
    """A misspelt protection would be ignored by systemd, which only logs it."""
    here = tmp_path / unit.name
    here.write_text(unit.read_text("utf-8").replace(PROGRAM, "/bin/true"))
    done = analyze("verify", "--man=no", str(here))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_leaves_little_to_attack(unit: Path) -> None:
    """An attacker who takes over a server would reach the rest of the machine."""
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit))
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists_and_lets_it_stop(unit: Path) -> None:
    """The service would fail at its start, or be killed in the middle of its last flush."""
    given = settings(unit)
    program, *arguments = shlex.split(given["ExecStart"])
    assert program == PROGRAM
    options = app._parser().parse_args(arguments)
    assert f"rocketpy-{arguments[0]}" == unit.stem
    assert float(given["TimeoutStopSec"]) > options.stop_timeout == STOP_TIMEOUT_S
    if "ExecStop" in given:
        program, *words = shlex.split(given["ExecStop"])
        assert program == PROGRAM
        stop = app._parser().parse_args(words)
        assert str(stop.store) == options.store, "it would stop another broker"
        assert float(given["TimeoutStopSec"]) > stop.timeout + STOP_TIMEOUT_S
    assert given["Type"] == "notify"
    assert given["Restart"] == "on-failure"
    assert int(given["LimitNOFILE"]) >= 16_384
    state = f"/var/lib/{given['StateDirectory']}"
    written = [word for word in arguments if "/var/" in word]
    assert written
    assert all(state in word for word in written), "it writes where the unit does not let it"


def test_the_container_runs_without_root() -> None:
    """An attacker who takes over the process would be root in the container."""
    user = instruction("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert f"--uid {user.partition(':')[0]} " in CONTAINER
    assert re.fullmatch(r"BASE=\S+:\d+\.\d+\.\d+-slim-\w+", instruction("ARG")), "the base is not pinned"
    assert instruction("STOPSIGNAL") == "SIGTERM"
    assert instruction("VOLUME") == "/var/lib/rocketpy"
    assert "--require-hashes" in instruction("RUN apt-get update")
    assert "pip uninstall" in CONTAINER


def test_the_container_starts_a_command_that_exists() -> None:
    """The image would build, and fail at its first start."""
    assert json.loads(instruction("ENTRYPOINT")) == ["rocketpy-broker"]
    options = app._parser().parse_args(json.loads(instruction("CMD")))
    assert options.store.startswith(f"{instruction('VOLUME')}/")
    port = dict(options.set)["metricsPort"]
    assert f"'http://127.0.0.1:{port}/livez'" in instruction("HEALTHCHECK")


async def test_the_containers_command_works_without_capabilities_on_a_read_only_root(tmp_path: Path) -> None:
    """The image would only work with root privileges."""
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if os.geteuid() != 0 or unshare is None or setpriv is None:
        pytest.skip("needs root, unshare and setpriv to make the container's restrictions")
    volume, run = tmp_path / "volume", tmp_path / "run"
    volume.mkdir()
    run.mkdir()
    (run / "broker.conf").write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n")
    port, metrics = free_broker_port(), free_port()
    command = shlex.join(
        word.replace(instruction("VOLUME"), str(volume))
        .replace("/etc/rocketpy", str(run))
        .replace("9464", str(metrics))
        for word in json.loads(instruction("CMD"))
    )
    script = f"""
        set -e
        mount --make-rprivate /
        mount --bind {volume} {volume}
        mount -o remount,bind,ro /
        for each in /tmp /root /home /var /dev/shm; do
            mountpoint -q $each && mount -o remount,bind,ro $each
        done
        if touch {run}/x 2>/dev/null; then echo "the root is not read-only" >&2; exit 9; fi
        exec {setpriv} --bounding-set=-all --inh-caps=-all --no-new-privs \\
            {sys.executable} -m rocketpy_broker {command} --listen 127.0.0.1:{port}
    """
    process = await asyncio.create_subprocess_exec(
        unshare, "--mount", "sh", "-c", script, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        line = await process.stdout.readline()
        assert b" ready at " in line, (line, await process.communicate())
        assert (await probe(metrics, "/livez"))[0] == 200
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert (volume / "store" / "commitlog").is_dir()


@pytest.mark.slow
def test_the_image_builds_and_its_server_responds() -> None:
    """A newcomer's first command would fail."""
    engine = next((found for name in ("docker", "podman") if (found := shutil.which(name))), None)
    if engine is None:
        pytest.skip("no container engine is installed: the image is not built")
    ready = subprocess.run([engine, "info"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if ready.returncode:
        pytest.skip(f"{engine} cannot be used: the image is not built: {ready.stderr.strip()[:200]}")
    build = [engine, "build", "-q", "-f", str(DEPLOY / "Containerfile"), "-t", "rocketpy-mq:test", str(ROOT)]
    subprocess.run(build, check=True, timeout=1200)
    run = [
        engine, "run", "--rm", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "rocketpy-mq:test", "--version",
    ]  # fmt: skip
    assert (
        "rocketpy-broker"
        in subprocess.run(run, check=True, capture_output=True, text=True, timeout=120).stdout
    )
