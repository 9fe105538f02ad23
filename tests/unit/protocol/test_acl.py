"""Signatures: those that the real client wrote, and what they cover (QUIRKS 31)."""

from __future__ import annotations

import pytest

from rocketpy.protocol.acl import SIGNATURE, Signer, signature, signed_content
from rocketpy.protocol.command import decode_command
from rocketpy.protocol.frame import FrameDecoder
from tests import golden_data

SECRETS = (b"12345678", b"wrongsecret")


@pytest.mark.parametrize("vector", golden_data.vectors("aclSignature")[:3])
def test_signatures_are_those_of_the_java_signer(vector: dict[str, str]) -> None:
    """Every request to a broker with access keys would be refused."""
    assert signature(vector["secretKey"].encode(), vector["content"].encode()) == vector["signature"]


def test_a_request_is_signed_as_the_java_hook_does() -> None:
    """Fields in another order, or a body left out, would give another signature."""
    vector = golden_data.vectors("aclSignature")[3]
    signed = Signer("RocketMQ", "12345678").sign(
        {"topic": "T", "queueId": "3", "consumerGroup": "G"}, bytes.fromhex("010203")
    )
    assert signed[SIGNATURE] == vector["extFields"][SIGNATURE]
    assert signed["AccessKey"] == "RocketMQ"


@pytest.mark.parametrize("scenario", ["acl", "acl-bin"])
def test_recorded_requests_are_signed_alike(scenario: str) -> None:
    """A kind of request that we sign otherwise than the real client would be refused."""
    signed = dict.fromkeys(SECRETS, 0)
    for frame in golden_data.frames(scenario):
        (cut,) = FrameDecoder().feed(frame.data)
        command = decode_command(cut)
        fields = command.ext_fields()
        if not command.is_response and SIGNATURE in fields:
            content = signed_content(fields, command.body)
            (by,) = [secret for secret in SECRETS if signature(secret, content) == fields[SIGNATURE]]
            signed[by] += 1
    assert signed[b"12345678"] > 10
    assert signed[b"wrongsecret"] == 5  # one client of the recording had a wrong one


def test_a_security_token_travels_and_is_signed() -> None:
    """Temporary accounts could not send."""
    signed = Signer("key", "secret", "token").sign({"a": "1"}, b"body")
    assert signed["SecurityToken"] == "token"
    assert signed[SIGNATURE] == signature(b"secret", b"keytoken1body")


def test_secrets_do_not_show() -> None:
    """A log line or a traceback with locals would hand out the account."""
    assert "secret" not in repr(Signer("key", "secret-text", "secret-token"))
