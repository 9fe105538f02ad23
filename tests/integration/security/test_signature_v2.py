"""The second version of the signature: no request can be replayed, changed, or turned into another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LocalTransactionState,
    Message,
    Producer,
    PushConfig,
    PushConsumer,
    create_reply_message,
)
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError, ConfigInvalid
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.acl import (
    NONCE,
    SIGNATURE,
    SIGNATURE_V2,
    SIGNED_AT,
    Signer,
    SignerV2,
    signature_v2,
    signed_content_v2,
)
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_ROCKETMQ
from rocketpy_broker import Broker, load_broker_config
from tests.integration.access_place import Servers, is_refused, keys, send_fields
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import FIRST, Seen
from tests.integration.small import SMALL
from tests.mqproducer.place import eventually

MINE = ("my-account", "my-secret")


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    """Servers that accept version 2 only."""
    async with Servers(tmp_path, monkeypatch, conf="aclSignatureV2Required=true\n") as running:
        yield running


def request_of(
    fields: dict[str, str], body: bytes = b"x", code: int = RequestCode.SEND_MESSAGE_V2
) -> Command:
    request = Command.request(code, None, body)
    request.ext = fields
    return request


async def send(servers: Servers, request: Command, codec: int = 0) -> str:
    """Send a request; return the reason of its rejection, empty if it is accepted."""
    async with await RawClient.open(servers.address) as client:
        response = await client.call_frame(encode_command(request, codec))
    return (response.remark or "").partition("AclException: ")[2] if is_refused(response) else ""


@pytest.mark.parametrize("codec", [0, CODEC_ROCKETMQ])
async def test_a_request_is_accepted_once_and_unchanged(servers: Servers, codec: int) -> None:
    """An attacker who reads the traffic could send messages a second time, or other messages."""
    code = RequestCode.SEND_MESSAGE_V2
    signer = SignerV2(*MINE)
    signed = signer.sign(send_fields("Mine"), b"x", code=code)
    assert await send(servers, request_of(signed), codec) == ""
    assert "used before" in await send(servers, request_of(signed), codec)
    fresh = signer.sign(send_fields("Mine"), b"x", code=code)
    wrong = "Check signature failed for accessKey=my-account (version 2)"
    changed = [
        request_of(fresh, code=RequestCode.SEND_BATCH_MESSAGE),
        request_of({**fresh, "b": "Shared"}),
        request_of({**fresh, "m": "false", "extra": "1"}),
        request_of({name: value for name, value in fresh.items() if name != "h"}),
        request_of(fresh, b"y"),
        request_of({**fresh, NONCE: f"{fresh[NONCE]}0"}),
        request_of({**fresh, SIGNED_AT: str(int(fresh[SIGNED_AT]) + 1)}),
        request_of({**fresh, SIGNATURE_V2: ""}),
        request_of({**fresh, SIGNATURE_V2: "\u00e4"}),
    ]
    version = request_of(fresh)
    version.version += 1
    for request in (*changed, version):
        assert await send(servers, request, codec) == wrong
    assert await send(servers, request_of(fresh), codec) == "", "none of these used its number up"


async def test_old_and_early_requests_are_rejected(servers: Servers) -> None:
    """A request captured long ago could be replayed once its number is forgotten."""
    code = RequestCode.SEND_MESSAGE_V2
    for late_s, says in ((-310, "before this server's time"), (310, "after this server's time")):
        signer = SignerV2(*MINE, now=lambda late_s=late_s: time.time() + late_s)  # type: ignore[misc] # a default
        reason = await send(servers, request_of(signer.sign(send_fields("Mine"), b"x", code=code)))
        assert says in reason
        assert "synchronize the clocks" in reason
    signer = SignerV2(*MINE, now=lambda: time.time() - 100)
    reason = await send(servers, request_of(signer.sign(send_fields("Mine"), b"x", code=code)))
    assert "before this server started" in reason


@pytest.mark.parametrize("signed_at", ["", "-1", "1e3", "now", "\u0661", "9" * 16, "9" * 5000])
async def test_a_time_of_signing_that_is_no_number_is_rejected(servers: Servers, signed_at: str) -> None:
    """The request would end with a traceback, though its signature covers this time."""
    code = RequestCode.SEND_MESSAGE_V2
    fields = dict(SignerV2(*MINE).sign(send_fields("Mine"), b"x", code=code))
    request = request_of({**fields, SIGNED_AT: signed_at})
    content = signed_content_v2(code, request.language, request.version, request.ext_fields(), b"x")
    request.ext = {**request.ext_fields(), SIGNATURE_V2: signature_v2(MINE[1].encode(), content)}
    assert "is not a time in ms since 1970" in await send(servers, request)


async def test_version_1_is_rejected_where_version_2_is_required(servers: Servers) -> None:
    """A client could continue to use the weak signature, without a report."""
    fields = Signer(*MINE).sign(send_fields("Mine"), b"x")
    for request in (request_of(fields), request_of({**fields, SIGNED_AT: "1", NONCE: "s-1"})):
        assert "Signature version 2 is required here" in await send(servers, request)
    strong = SignerV2(*MINE).sign(send_fields("Mine"), b"x", code=RequestCode.SEND_MESSAGE_V2)
    weakened = {name: value for name, value in strong.items() if name != SIGNATURE_V2}
    assert "version 2 is required" in await send(servers, request_of(weakened))
    client = ClientConfig(namesrv=str(servers.names), credentials=keys("my-account"))
    async with Producer("mygroup", client=client) as producer:
        with pytest.raises(BrokerError, match="Signature version 2 is required here"):
            await producer.send(Message("Mine", b"x"), timeout_ms=1000)


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("codec", ["json", "rocketmq", "msgpack"])
async def test_rocketpys_clients_sign_every_request(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codec: Literal["json", "rocketmq", "msgpack"],
    required: bool,
) -> None:
    """One kind of request that is signed wrongly would be refused: a batch, a pull, a heartbeat, a commit."""
    conf = f"aclSignatureV2Required={str(required).lower()}\n"
    async with Servers(tmp_path, monkeypatch, conf=conf) as servers:
        client = ClientConfig(
            namesrv=str(servers.names),
            credentials=keys("my-account", version=2),
            codec=codec,
            heartbeat_ms=100,
        )
        seen = Seen()
        async with Producer("mygroup", client=client) as producer:
            text = '\u00fc %s \\ " \n'
            await producer.send(Message("Mine", b"one", keys=["k"], properties={"t": text}))
            await producer.send_batch([Message("Mine", b"two"), Message("Mine", b"three")])
            await asyncio.gather(*[producer.send(Message("Mine", b"gathered %d" % n)) for n in range(5)])
            producer.send_oneway(Message("Mine", b"oneway"))
            consumer = PushConsumer(
                "mygroup", None, seen, config=PushConfig(consume_from=FIRST), client=client
            )
            consumer.subscribe("Mine")
            async with consumer:
                await seen.until(9)
        assert set(seen.bodies.values()) == {1}


async def test_a_slave_copies_tables_with_version_2(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave would have none of its master's topics and offsets."""
    sent = SignerV2(*MINE).sign(send_fields("Mine"), b"x", code=RequestCode.SEND_MESSAGE_V2)
    assert await send(servers, request_of(sent)) == ""
    (tmp_path / "slave").mkdir()
    conf = tmp_path / "slave" / "broker.conf"
    conf.write_text("listenPort=0\nbrokerRole=SLAVE\nbrokerId=1\n")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "operator")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "operator-secret")
    monkeypatch.setenv("ROCKETMQ_SIGNATURE_VERSION", "2")
    store = {
        **SMALL,
        "storePathRootDir": str(tmp_path / "slave" / "store"),
        "namesrvAddr": str(servers.names),
    }
    config = load_broker_config(conf, store)
    slave = Broker(replace(config, ha=replace(config.ha, sync_interval_ms=100)))
    await slave.start()
    try:

        async def knows_it() -> bool | None:
            return slave.topics.get("Mine") is not None or None

        await eventually(knows_it)
        assert slave.health().registered_at
    finally:
        await slave.close()


def test_the_environment_chooses_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers and their tools could not be configured to use version 2."""
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "my-account")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "my-secret")
    for text, version in (("", 1), ("1", 1), ("2", 2)):
        monkeypatch.setenv("ROCKETMQ_SIGNATURE_VERSION", text)
        found = Credentials.from_environment()
        assert found is not None
        assert found.signature_version == version
        assert (SIGNATURE_V2 in found.signer().sign({}, b"")) == (version == 2)
        assert (SIGNATURE in found.signer().sign({}, b"")) == (version == 1)
    monkeypatch.setenv("ROCKETMQ_SIGNATURE_VERSION", "3")
    with pytest.raises(ConfigInvalid, match="ROCKETMQ_SIGNATURE_VERSION is '3'; choose 1 or 2"):
        Credentials.from_environment()
    with pytest.raises(ConfigInvalid, match="signature_version is 3; choose 1 or 2"):
        Credentials(access_key="a", secret_key="b", signature_version=3)  # type: ignore[arg-type]


def test_the_setting_needs_access_control(tmp_path: Path) -> None:
    """An operator would believe that signatures are required."""
    (tmp_path / "broker.conf").write_text("aclSignatureV2Required=true\n")
    with pytest.raises(ConfigInvalid, match="aclSignatureV2Required=true needs aclEnable=true"):
        load_broker_config(tmp_path / "broker.conf")
    (tmp_path / "broker.conf").write_text("aclsignaturev2required=true\n")
    with pytest.raises(ConfigInvalid, match="aclSignatureV2Required"):
        load_broker_config(tmp_path / "broker.conf")


@pytest.mark.parametrize("version", [1, 2])
async def test_rocketpys_clients_need_only_the_documented_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Transactions, look-ups or replies of an account with all needed rights would be rejected."""
    checks = {"transactionTimeOut": "1", "transactionCheckInterval": "100"}
    async with Servers(tmp_path, monkeypatch, settings=checks) as servers:

        def client(account: str) -> ClientConfig:
            credentials = keys(account, version=version)
            name = f"of-{account}"
            return ClientConfig(namesrv=str(servers.names), credentials=credentials, instance_name=name)

        async with AdminClient(client=client("operator")) as admin:
            await admin.create_topic("Shared", 1)
        seen = Seen()
        async with (
            Producer("mygroup", client=client("my-account")) as mine,
            Producer("theirs", client=client("other-account")) as theirs,
        ):
            consumer = PushConsumer("theirs", None, seen, client=client("other-account"))
            consumer.subscribe("Shared")
            async with consumer:
                for state in (LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN):
                    await mine.send_in_transaction(
                        Message("Shared", state.name.encode()),
                        local_transaction=lambda _, state=state: state,  # type: ignore[misc] # a default
                        check=lambda _: LocalTransactionState.COMMIT,
                    )
                await seen.until(2)
                assert set(seen.bodies) == {b"COMMIT", b"UNKNOWN"}
                asked = asyncio.ensure_future(mine.request(Message("Shared", b"question"), timeout_ms=10_000))
                await seen.until(3)
                await theirs.send(create_reply_message(seen.messages[-1], b"reply"))
                assert (await asked).body == b"reply"
            sent = await mine.send(Message("Shared", b"found", keys="my-key"))
            assert (await theirs.view_message(sent.offset_message_id)).body == b"found"
            found = await theirs.query_message("Shared", "my-key")
            assert [message.body for message in found.messages] == [b"found"]
            own = await mine.send(Message("Mine", b"hidden"))
            with pytest.raises(BrokerError, match="No default permission for topic:Mine"):
                await theirs.view_message(own.offset_message_id)
