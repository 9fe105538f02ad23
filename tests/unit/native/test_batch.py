"""Batches in both forms."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import RocketError
from rocketpy.native import FORMS
from rocketpy.protocol.message.batch import encode_batch, has_property
from rocketpy.protocol.message.record import encode_record
from rocketpy_broker.store.log.batch_records import batch_records
from tests.native_forms import both, needs_native

pytestmark = needs_native
HOSTS = st.sampled_from([bytes(8), bytes(20), b"", b"1234"])
NAMES = st.sampled_from([b"DELAY", b"A_B", b"B", b"KEYS"])
ENDS = st.sampled_from([b"\x01", b"\x01v\x02", b"\x02", b"\0"])
PIECES = st.tuples(st.sampled_from([b"", b"X", b"A_"]), NAMES, ENDS).map(b"".join)
TEXTS = st.lists(PIECES, max_size=3).map(b"".join)
ELEMENTS = st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=20), TEXTS)
BODIES = st.lists(ELEMENTS, max_size=6).map(encode_batch)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A batch body, usually with some bytes changed, cut or added."""
    data = bytearray(draw(BODIES))
    for _ in range(draw(st.integers(0, 2))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 22, 0x7F, 0x80, 0xFF]))
    return bytes(data)[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else bytes(data)


@given(damaged(), st.lists(NAMES, max_size=3).map(tuple))
def test_both_forms_find_the_same_names(data: bytes, names: tuple[bytes, ...]) -> None:
    """A broker would accept a property that it ignores."""
    with suppress(RocketError):
        both(has_property)(data, names)


@given(
    damaged(),
    st.sampled_from([b"", b"T", b"t" * 127, b"t" * 128]),
    st.integers(-(1 << 33), 1 << 33),
    st.integers(-(1 << 64), 1 << 64),
    st.sampled_from([0, 1, 0x10, 0x20, 0x30, 1 << 31]),
    HOSTS,
    HOSTS,
    st.integers(0, 400),
)
def test_both_forms_make_the_same_records(
    data: bytes,
    topic: bytes,
    number: int,
    time: int,
    sys_flag: int,
    born: bytes,
    stored: bytes,
    size_max: int,
) -> None:
    """A log would depend on whether a package is installed."""
    with suppress(RocketError):
        both(batch_records)(
            data, topic, number, abs(number), 7, sys_flag, time, born, 5, stored, number, size_max
        )


def test_usual_batches_are_handled_by_the_native_form() -> None:
    """It might leave everything to Python."""
    data = encode_batch([(0, b"x" * 200_000, b"TAGS\x01t\x02"), (1, b"", b"KEYS\x01k\x02")])
    arguments = (data, b"T", 0, 0, 0, 0, 1, bytes(8), 2, bytes(8), 0, 1 << 20)
    records = FORMS["batch_records"].native
    found = FORMS["has_property"].native
    assert records is not None
    assert found is not None
    assert records(*arguments) == FORMS["batch_records"].python(*arguments)
    assert found(data, (b"EYS",)) is True
    assert found(data, (b"DELAY",)) is False


@pytest.mark.parametrize("data", ["text", None, 1])
def test_other_types_are_an_error_and_no_panic(data: object) -> None:
    """A panic would be reported as a defect of the package."""
    for name, arguments in (("has_property", ((),)), ("batch_records", (b"", *[0] * 10))):
        native = FORMS[name].native
        assert native is not None
        with pytest.raises(TypeError):
            native(data, *arguments)


@given(
    st.sampled_from([b"", b"T", b"t" * 127, b"t" * 128]),
    st.integers(-(1 << 32), 1 << 32),
    st.integers(-(1 << 64), 1 << 64),
    st.sampled_from([0, 1, 0x10, 0x20, 0x30, 1 << 31]),
    HOSTS,
    HOSTS,
    st.binary(max_size=20),
    st.sampled_from([b"", b"KEYS\x01k\x02", b"a\0b", b"p" * 32767, b"p" * 32768]),
)
def test_both_forms_encode_the_same_record(
    topic: bytes, small: int, large: int, sys_flag: int, born: bytes, stored: bytes, body: bytes, text: bytes
) -> None:
    """A log would depend on whether a package is installed."""
    with suppress(RocketError):
        both(encode_record)(
            topic, small, 5, large, large, sys_flag, large, born, 7, stored, small, large, body, text
        )
        both(encode_record)(topic, 1, small, 2, 3, sys_flag, 4, born, large, stored, 0, 0, body, text)
