"""Pull requests whose header is encoded once for many of them."""

from __future__ import annotations

import msgspec
import pytest

from rocketpy.consumer.fetch.consumer_api import _pull_template
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import PullMessageRequestHeader
from rocketpy.protocol.remoting import header_json
from rocketpy.protocol.remoting.command import LANGUAGE, VERSION


@pytest.mark.parametrize(
    ("topic", "group", "subscription"),
    [("T", "g", "*"), ("%RETRY%g", "space%g%d", "a % 2 = 0 AND b = '\"%d\"' OR c = 'ü\x01'")],
)
def test_a_filled_header_is_that_of_the_encoder(topic: str, group: str, subscription: str) -> None:
    """A broker would read another offset, topic or condition than the caller gave."""
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=3,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=subscription,
        expression_type="SQL92",
    )
    frame = _pull_template(header.ext_fields()).frame((32, 2**62, 7))
    fields = msgspec.structs.replace(header, queue_offset=2**62, max_msg_nums=32).ext_fields()
    names = (RequestCode.PULL_MESSAGE, 7, 0, LANGUAGE, VERSION, None, dict(sorted(fields.items())))
    assert frame[8:] == header_json.encode(names)
