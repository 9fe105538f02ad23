"""PropertyFields: fields read from many records at once equal those read from each record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy_broker.store.queue.property_fields import PropertyFields, index_fields

SENT = b"UNIQ_KEY\x01%032X\x02rowId\x01run/0/3/%06d\x02"
PIECES = st.sampled_from(
    [b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"KEYS\x01k\x02", b"UNIQ_KEY\x01u\x02", b"UNIQ_KEY\x01v\x02",
     b"A\x01b\x02", b"TAGS\x01\x02", b"\x01\x02", b"\x02", b"\x01", b"b", b"TAGS\x01a",
     b"KEY\x01\x01\x02", b"BAGS\x01a\x02"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=4).map(b"".join)


@given(first=TEXTS, texts=st.lists(TEXTS, min_size=1, max_size=6), repeated=st.integers(0, 3))
def test_columns_equal_the_fields_of_each_record(first: bytes, texts: list[bytes], repeated: int) -> None:
    """A record would be indexed under the key of another one, or under a part of it."""
    fields = PropertyFields()
    fields(first)  # a layout that may fit some of the others
    records = [*[first] * repeated, *texts]
    assert list(zip(*fields.columns(records), strict=True)) == list(map(index_fields, records))


@pytest.mark.parametrize(
    "odd",
    [
        SENT[:9] + b"%031X\x02\x02rowId\x01run/0/3/%06d\x02",
        SENT.replace(b"rowId", b"rowIb"),
        SENT.replace(b"UNIQ_KEY\x01", b"UNIQ_KEY\x02"),
        SENT.replace(b"/3/", b"/\x01/"),
        SENT.replace(b"UNIQ_KEY\x01%032X", b"TAGS\x01abc\x02KEYS\x01%027X"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 99])
def test_one_record_of_the_same_length_differs(odd: bytes, place: int) -> None:
    """An odd message in a batch would be indexed under bytes at the places of the keys of others."""
    records = [SENT % (number, number) for number in range(100)]
    fields = PropertyFields()
    fields.columns(records)
    assert fields.columns(records)[2] == [b"%032X" % number for number in range(100)]
    records[place] = odd % (7, 7)
    assert len(records[place]) == len(SENT % (0, 0))
    assert list(zip(*fields.columns(records), strict=True)) == list(map(index_fields, records))
