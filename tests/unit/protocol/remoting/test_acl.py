"""Signatures: as the Java client computes them, and which fields they cover (QUIRKS 31)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import LocalProtocolError
from rocketpy.protocol.remoting.acl import (
    NONCE,
    SIGNATURE,
    SIGNATURE_V2,
    SIGNED_AT,
    Signer,
    SignerV2,
    signature,
    signature_v2,
    signed_content,
    signed_content_v2,
)
from rocketpy.protocol.remoting.command import decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from tests import golden_data

SECRETS = (b"12345678", b"wrongsecret")


@pytest.mark.parametrize("vector", golden_data.vectors("aclSignature")[:3])
def test_signatures_equal_those_of_the_java_signer(vector: dict[str, str]) -> None:
    """Every request to a broker with access keys would be refused."""
    assert signature(vector["secretKey"].encode(), vector["content"].encode()) == vector["signature"]


def test_a_request_is_signed_like_by_the_java_hook() -> None:
    """Fields in another order, or a body left out, would give another signature."""
    vector = golden_data.vectors("aclSignature")[3]
    signed = Signer("RocketMQ", "12345678").sign(
        {"topic": "T", "queueId": "3", "consumerGroup": "G"}, bytes.fromhex("010203")
    )
    assert signed[SIGNATURE] == vector["extFields"][SIGNATURE]
    assert signed["AccessKey"] == "RocketMQ"


@pytest.mark.parametrize("scenario", ["acl", "acl-bin"])
def test_recorded_requests_are_signed_alike(scenario: str) -> None:
    """A kind of request that is signed otherwise than by the real client would be rejected."""
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
    """A log line or a traceback with locals would show the secret."""
    assert "secret" not in repr(Signer("key", "secret-text", "secret-token"))


@pytest.mark.parametrize("signer", [Signer, SignerV2])
def test_text_that_is_not_unicode_is_our_own_error(signer: type[Signer]) -> None:
    """An error of another class, in the task that fetches a route, would close the client."""
    with pytest.raises(LocalProtocolError, match="not valid Unicode"):
        signer("key", "secret").sign({"topic": "\ud800"}, b"")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS, TEXTS), st.binary(max_size=20), st.integers(0, 400))
def test_version_2_covers_everything(fields: dict[str, str], body: bytes, code: int) -> None:
    """A request could be changed on its way, or become another one by moving text between fields."""
    signed = SignerV2("key", "secret").sign(fields, body, code=code)
    content = signed_content_v2(code, "PYTHON", 333, signed, body)
    assert signed[SIGNATURE_V2] == signature_v2(b"secret", content)
    assert SIGNATURE not in signed or SIGNATURE in fields
    more = {**signed, "more": "x"} if "more" not in signed else {**signed, "more": signed["more"] + "x"}
    for other in (
        signed_content_v2(code + 1, "PYTHON", 333, signed, body),
        signed_content_v2(code, "JAVA", 333, signed, body),
        signed_content_v2(code, "PYTHON", 334, signed, body),
        signed_content_v2(code, "PYTHON", 333, more, body),
        signed_content_v2(code, "PYTHON", 333, {**signed, NONCE: "other-1"}, body),
        signed_content_v2(code, "PYTHON", 333, {**signed, SIGNED_AT: "1"}, body),
        signed_content_v2(code, "PYTHON", 333, signed, body + b"x"),
    ):
        assert other != content


def test_version_2_distinguishes_fields() -> None:
    """RocketMQ's signature is the same when text moves from one field to the next."""
    first, second = {"a": "12", "b": "3"}, {"a": "1", "b": "23"}
    assert signed_content(first, b"") == signed_content(second, b"")
    assert signed_content_v2(1, "PYTHON", 1, first, b"") != signed_content_v2(1, "PYTHON", 1, second, b"")
    in_body = signed_content_v2(1, "PYTHON", 1, {}, b"{}")
    assert in_body != signed_content_v2(1, "PYTHON", 1, {"": ""}, b"")


def test_version_2_never_repeats_itself() -> None:
    """The second of two equal requests would be refused as a replay."""
    signer = SignerV2("key", "secret", now=lambda: 12.5)
    signed = [signer.sign({}, b"") for _ in range(20)]
    assert len({fields[NONCE] for fields in signed}) == 20
    assert {fields[SIGNED_AT] for fields in signed} == {"12500"}
    assert SignerV2("key", "secret").sign({}, b"")[NONCE] != SignerV2("key", "secret").sign({}, b"")[NONCE]
