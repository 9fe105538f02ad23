"""The short way by which most timed messages are accepted: it finds what the parsed properties say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.headers import SendMessageRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy_broker.handlers.send.sent_properties import check_sent, timed_alone
from rocketpy_broker.services.timers.messages import is_timed

NAMES = (
    "UNIQ_KEY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY",
    "MY_TIMER_DELAY_MS", "TRAN_MSG", "RETRY_TOPIC", "POP_CK", "order_id", "WAIT", "A", "",
    "__STARTDELIVERTIME", "NOT_UNIQ_KEY",
)  # fmt: skip
PIECES = st.one_of(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from(["5", "true", "a_b", "", "5\x01", "1\x012", "TIMER_"])
    ).map("\x01".join),
    st.sampled_from(["", "TIMER_DELAY_MS", "x\x01y\x01UNIQ_KEY\x01z"]),
)
TEXTS = st.lists(PIECES, max_size=3).flatmap(
    lambda pieces: st.permutations([*pieces, "TIMER_DELAY_MS\x015"]).map(
        lambda shuffled: "".join(f"{piece}\x02" for piece in shuffled)
    )
)


def test_a_usual_message() -> None:
    """Its properties are not parsed."""
    text = "UNIQ_KEY\x01id\x02WAIT\x01true\x02TIMER_DELIVER_MS\x015\x02order_id\x017\x02"
    assert timed_alone(text) == {"UNIQ_KEY": "id", "TIMER_DELIVER_MS": "5"}
    assert timed_alone("TIMER_DELAY_SEC\x015\x02KEYS\x01k\x02") == {"TIMER_DELAY_SEC": "5"}


@given(TEXTS)
def test_both_ways_find_the_same(text: str) -> None:
    """Otherwise a message would be due at another time, or could not be recalled."""
    found = timed_alone(text)
    if found is None:
        return
    header = SendMessageRequestHeader(
        producer_group="g", topic="T", default_topic="", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
        born_timestamp=0, flag=0, properties=text,
    )  # fmt: skip
    try:
        parsed = check_sent(header, is_single=True)
    except MessageInvalid as error:
        raise AssertionError("the short way accepts what the checks reject") from error
    assert parsed is not None
    assert header.properties == text
    assert is_timed(parsed)
    assert props.TIMER_DEL_UNIQKEY not in parsed
    assert found.items() <= parsed.items()
    assert len(props.TIMER_PROPERTIES & parsed.keys()) == 1
    assert (props.PROPERTY_UNIQ_KEY in parsed) == (props.PROPERTY_UNIQ_KEY in found)
