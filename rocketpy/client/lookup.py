"""One message by a broker's id, which says on which host it is and where in that broker's log.

Source: RocketMQ 4.6 MQAdminImpl viewMessage. Differs: when that host does not answer, its replicas are asked:
their logs are equal, and every record says which host wrote it, so that a stranger's is told apart.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from rocketpy.client.broker_api import require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap
from rocketpy.errors import MessageInvalid, RemoteProtocolError, RocketError, RouteNotFound, TransportError
from rocketpy.message.decode import decode_message, undecodable
from rocketpy.message.message import MessageExt
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import ViewMessageRequestHeader
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import host_text
from rocketpy.protocol.remoting.command import Command

log = logging.getLogger("rocketpy.client")


async def view_by_offset(
    client: ClientInstance,
    message_id: str,
    *,
    timeout_ms: float,
    max_body_bytes: int,
    verify: bool,
    only_known: bool = False,
) -> MessageExt:
    """The message with this id: from the broker that the id names, or when that is gone from a replica.

    only_known: connect to nobody whom no name server names; a text may look like an id and be none.
    max_body_bytes, verify: see `decode_messages`. A message that cannot be decoded has a `decode_error`.
    Raises MessageInvalid when the text is no id, BrokerError when there is no such message, TransportError
    when nobody who may have it answers, RecordCorrupt when the answer is not a record.
    """
    try:
        store_host, offset = decode_message_id(message_id)
    except RemoteProtocolError as error:  # it is the caller's, not a peer's
        raise MessageInvalid(str(error)) from None
    address = client.address_of(*host_text(store_host))
    name = client.broker_name(address)

    async def view(at: str, broker_name: str) -> MessageExt:
        command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
        answer = await client.request(at, command, timeout_ms)
        body = require_success(answer, broker_name).body
        found = decode_message(body, broker_name, max_body_bytes, verify=verify)
        undecodable([found], log)
        return found.with_topic(unwrap(client.config.namespace, found.topic))

    failure: RocketError = RouteNotFound(f"no route names a broker at {address}")
    if name is not None or not only_known:
        try:
            return await view(address, name or address)
        except TransportError as error:
            failure = error
    async for replica, broker_name in _others(client, address, name):
        try:
            found = await view(replica, broker_name)
        except RocketError as error:
            log.debug("%s does not have %s: %s", replica, message_id, error)
            continue
        if decode_message_id(found.offset_message_id) == (store_host, offset):
            return found
    raise failure


async def _others(client: ClientInstance, address: str, name: str | None) -> AsyncIterator[tuple[str, str]]:
    """Every broker but that at `address`, with its name; those of that broker's own name first."""
    try:
        brokers = await client.brokers()
    except RocketError as error:
        log.debug("no name server tells who else there is: %s", error)
        return
    for data in sorted(
        brokers, key=lambda data: data.broker_name != name and address not in data.broker_addrs.values()
    ):
        for _, other in sorted(data.broker_addrs.items(), reverse=True):  # slaves first
            if other != address:
                yield other, data.broker_name
