"""Values of fields that a peer leaves out: as in Java the default of the class, mostly zero."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rocketpy.protocol.bodies import Body
from rocketpy.protocol.headers import Header

JAVA_GIVES = {
    "ConsumeMessageDirectlyResult.autoCommit": True,
    "MessageQueueAssignment.mode": "PULL",
    "SetMessageRequestModeRequestBody.mode": "PULL",
    "SubscriptionData.expressionType": "TAG",
    "SubscriptionGroupConfig.consumeBroadcastEnable": True,
    "SubscriptionGroupConfig.consumeEnable": True,
    "SubscriptionGroupConfig.consumeFromMinEnable": True,
    "SubscriptionGroupConfig.notifyConsumerIdsChangedEnable": True,
    "SubscriptionGroupConfig.retryMaxTimes": 16,
    "SubscriptionGroupConfig.retryQueueNums": 1,
    "SubscriptionGroupConfig.whichBrokerWhenConsumeSlowly": 1,
    "TopicConfig.perm": 6,
    "TopicConfig.readQueueNums": 16,
    "TopicConfig.topicFilterType": "SINGLE_TAG",
    "TopicConfig.writeQueueNums": 16,
}
"""Field initializers of RocketMQ 4.6.0's classes. All others have Java's own: 0, false, null or empty."""


def defaults(base: type[msgspec.Struct]) -> Iterator[tuple[str, object]]:
    """Each field of the classes below `base` that has a default, and the default."""
    for one in base.__subclasses__():
        for field in msgspec.structs.fields(one):
            if one.__module__.startswith("rocketpy.protocol.") and not field.required:
                made = field.default is msgspec.NODEFAULT
                yield (
                    f"{one.__name__}.{field.encode_name}",
                    field.default_factory() if made else field.default,
                )
        yield from defaults(one)


def test_an_absent_field_has_the_default_of_java() -> None:
    """A peer that leaves out a field, as fastjson does with null, would seem to have set it."""
    found = dict([*defaults(Header), *defaults(Body)])
    assert len(found) > 100
    given = {name: value for name, value in found.items() if value and not isinstance(value, msgspec.Struct)}
    assert given == JAVA_GIVES
    for name, value in found.items():
        if isinstance(value, msgspec.Struct):
            assert value == type(value)(), name
