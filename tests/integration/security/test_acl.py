"""Access keys: every request that leaves a client is signed, in each codec, and secrets stay secret."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import pytest

from rocketpy import ClientConfig, Message, Producer, PullConsumer
from rocketpy.client.instance import ClientInstance
from rocketpy.config import Credentials
from rocketpy.errors import BrokerError, ConfigInvalid, Outcome
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.acl import SIGNATURE, signature, signed_content
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer, stored

KEYS = Credentials(access_key="RocketMQ", secret_key="12345678", security_token="a token")


def is_signed(request: Command) -> bool:
    """Whether the request has the signature that a broker expects."""
    fields = request.ext_fields()
    wanted = signature(b"12345678", signed_content(fields, request.body))
    return fields.get("AccessKey") == "RocketMQ" and fields.get(SIGNATURE) == wanted


class Guarded(Peer):
    """A broker that rejects unsigned requests, with RocketMQ's remarks."""

    def __init__(self) -> None:
        super().__init__(self.guard)

    def guard(self, _channel: Channel, request: Command) -> Command:
        """Check the signature, then respond as a broker does."""
        if not is_signed(request):
            remark = "org.apache.rocketmq.acl.common.AclException: No acl config for null"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return stored(request)


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_every_request_is_signed(codec: Literal["json", "rocketmq"]) -> None:
    """Brokers would reject a kind of request that is not signed, such as heartbeats, without notice."""
    client = ClientConfig(credentials=KEYS, codec=codec, heartbeat_ms=20)
    async with Guarded() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, client=client) as producer:
            message = Message("T", b"body", keys=["k"], properties={"ü": '"%s"\\'})
            await producer.send(message)
            await asyncio.gather(*[producer.send(message) for _ in range(4)])
            await producer.send_batch([message, message])
            await producer.send(Message("T", b"compressed" * 1000))
            producer.send_oneway(message)
            await broker.until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) >= 2)
            async with PullConsumer("c", names.address, client=client) as consumer:
                queue, _ = await consumer.fetch_queues("T")
                broker.script = lambda _channel, request: request.reply(9)
                with pytest.raises(BrokerError, match="code 9"):
                    await consumer.pull(queue, 0)
    asked = {command.code for command in [*broker.seen, *names.seen]}
    assert asked >= {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.PULL_MESSAGE,
        RequestCode.GET_ROUTEINTO_BY_TOPIC,
    }
    assert [command.code for command in [*broker.seen, *names.seen] if not is_signed(command)] == []


async def test_a_rejection_names_its_reason() -> None:
    """The user would not see the broker's reason, or not know that nothing was stored."""
    async with Guarded() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            with pytest.raises(BrokerError, match="AclException: No acl config") as refused:
                await producer.send(Message("T", b"x"), timeout_ms=300)
    assert refused.value.outcome is Outcome.NOT_SENT


async def test_credentials_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users would have to write the secret into the program."""
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "RocketMQ")
    with pytest.raises(ConfigInvalid, match="ROCKETMQ_SECRET_KEY is not set"):
        Credentials.from_environment()
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "12345678")
    async with Guarded() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            assert (await producer.send(Message("T", b"x"))).queue_offset == 7


async def test_clients_with_other_credentials_have_connections_of_their_own() -> None:
    """One account would send with another's key."""
    async with Names() as names:
        plain = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        signed = await ClientInstance.acquire(ClientConfig(namesrv=names.address, credentials=KEYS))
        assert plain is not signed
        await plain.release()
        await signed.release()


async def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Logs and tracebacks would disclose the secret."""
    caplog.set_level(logging.DEBUG)
    secret = Credentials(access_key="k", secret_key="very-secret", security_token="very-secret-too")
    config = ClientConfig(credentials=secret)
    assert "very-secret" not in repr(secret)
    assert "very-secret" not in repr(config)
    with pytest.raises(ConfigInvalid) as caught:
        Credentials(access_key="", secret_key="very-secret")
    assert "very-secret" not in str(caught.value)
    async with Guarded() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, client=config) as producer:
            with pytest.raises(BrokerError) as refused:
                await producer.send(Message("T", b"x"), timeout_ms=200)
            assert "very-secret" not in repr(refused.value)
    assert "very-secret" not in caplog.text
