"""deploy/kubernetes.yaml: commands, settings, probes and times that fit together, run as processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocketpy import ClientConfig, Credentials, Message, Producer
from rocketpy._version import __version__
from rocketpy_broker.cli import app
from rocketpy_broker.cli.process import STOP_TIMEOUT_S
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from tests.integration.processes import COMMAND
from tests.integration.server.test_deploy import DEPLOY, instruction
from tests.integration.server.test_service_stop import probe
from tests.interop.processes import free_broker_port, free_port
from tests.waiting import LIMIT_S

TEXT = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
SECRET: dict[str, str] = next(each["stringData"] for each in OBJECTS if each["kind"] == "Secret")
SETS = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "StatefulSet"}
ANY = "0.0.0.0"  # noqa: S104 - a pod's address is unknown before its start
NAMESRV = "rocketpy-namesrv-0.rocketpy-namesrv:9876;rocketpy-namesrv-1.rocketpy-namesrv:9876"


def container(name: str) -> dict[str, Any]:
    [found] = SETS[name]["template"]["spec"]["containers"]
    return dict(found)


def write_settings(folder: Path, changes: dict[str, str]) -> None:
    """Write the files of the Secret, with some texts replaced."""
    for name, given in SECRET.items():
        text = given
        for old, new in changes.items():
            text = text.replace(old, new)
        (folder / name).write_text(text, "utf-8")


@pytest.mark.parametrize("name", SETS)
def test_a_pod_has_no_privileges_and_time_to_stop(name: str) -> None:
    """A broker would be killed in the middle of its drain, or a takeover reach the node."""
    pod, one = SETS[name]["template"]["spec"], container(name)
    options = app._parser().parse_args(one["args"])
    bound = options.stop_timeout
    if hook := one.get("lifecycle"):
        command = hook["preStop"]["exec"]["command"]
        assert command[0] == json.loads(instruction("ENTRYPOINT"))[0]
        stop = app._parser().parse_args(command[1:])
        assert str(stop.store) == options.store
        bound += stop.timeout
    assert pod["terminationGracePeriodSeconds"] > bound >= STOP_TIMEOUT_S
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"{pod['securityContext']['runAsUser']}:" in instruction("USER")
    assert one["image"] == f"rocketpy-mq:{__version__}"
    inside = one["securityContext"]
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert SETS[name]["selector"]["matchLabels"] == SETS[name]["template"]["metadata"]["labels"]
    mounted = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    assert mounted["store"] == instruction("VOLUME")
    assert str(options.config).startswith(f"{mounted['conf']}/")
    assert Path(options.config).name in SECRET


@pytest.mark.parametrize("name", SETS)
def test_ports_and_probes_are_those_of_the_settings(name: str, tmp_path: Path) -> None:
    """Kubernetes would restart a healthy broker, or send clients to a port where nothing listens."""
    write_settings(tmp_path, {})
    one = container(name)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    options = app._parser().parse_args([re.sub(r"\$\(\w+\)", "10.0.0.7", word) for word in one["args"]])
    load = load_broker_config if "broker" in name else load_namesrv_config
    config = load(tmp_path / Path(options.config).name, app._overrides(options))
    assert config.listen.address.port == ports["remoting"]
    assert config.metrics.port == ports["metrics"]
    assert config.metrics.host == ANY
    assert config.listen.acl_file is not None
    assert one["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert one["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    for port in ports.values():
        assert f" {port}" in f" {instruction('EXPOSE')}"


async def test_the_commands_of_the_manifest_serve_an_account(tmp_path: Path) -> None:
    """A user would apply the manifest, and no broker would register."""
    namesrv, broker = free_port(), free_broker_port()
    metrics = [free_port(), free_port()]
    changes = {
        NAMESRV: f"127.0.0.1:{namesrv}", f"{ANY}:9876": f"127.0.0.1:{namesrv}", ANY: "127.0.0.1",
        "10911": str(broker), instruction("VOLUME"): str(tmp_path),
    }  # fmt: skip
    variables = {
        "ROCKETMQ_ACCESS_KEY": SECRET["accessKey"], "ROCKETMQ_SECRET_KEY": SECRET["secretKey"],
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        for name, port in zip(SETS, metrics, strict=True):
            write_settings(tmp_path, {**changes, "9464": str(port)})
            words = " ".join(container(name)["args"]).replace("/etc/rocketpy", str(tmp_path))
            words = words.replace("$(POD_NAME)", f"{name}-0").replace("$(POD_IP)", "127.0.0.1")
            words = words.replace(instruction("VOLUME"), str(tmp_path))
            process = await asyncio.create_subprocess_exec(
                *COMMAND, *words.split(), env=os.environ | variables, stdout=PIPE
            )
            stack.push_async_callback(stopped, process)
            assert process.stdout is not None
            async with asyncio.timeout(LIMIT_S):
                assert b" ready at " in await process.stdout.readline()
                while (await probe(port, "/readyz"))[0] != 200:  # noqa: ASYNC110 - until it has registered
                    await asyncio.sleep(0.05)
        given = yaml.safe_load(SECRET["plain_acl.yml"])["accounts"][1]
        account = Credentials(access_key=given["accessKey"], secret_key=given["secretKey"])
        async with Producer(
            "shop", f"127.0.0.1:{namesrv}", client=ClientConfig(credentials=account)
        ) as producer:
            result = await producer.send(Message("Orders", b"one"))
        assert result.queue.broker_name == "rocketpy-broker-0"


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Stop a server, which must end cleanly."""
    process.terminate()
    async with asyncio.timeout(LIMIT_S):
        assert await process.wait() == 0
