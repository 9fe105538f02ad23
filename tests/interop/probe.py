"""Blocking remoting requests for the tests themselves.

The test setup must detect whether a server is ready without the code under test. So this module implements
the needed part of the protocol (JSON header, one request for each connection) with sockets only.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_ROUTE, _CLUSTER_INFO = 105, 106
_RAFT_METADATA = 50000
MAX_OFFSET, MIN_OFFSET = 30, 31
_BARE_KEY = re.compile(rb"([{,])(-?\d+):")  # fastjson writes integer keys of maps without quotes


def ask(
    address: str, code: int, timeout_s: float = 5, *, body: bytes = b"", **fields: str
) -> tuple[int, dict[str, Any], bytes]:
    """Send one request to "host:port"; returns (response code, extFields, body). Raises OSError."""
    host, port = address.rsplit(":", 1)
    request = {"code": code, "language": "JAVA", "version": 333, "opaque": 1, "flag": 0, "extFields": fields}
    header = json.dumps(request).encode()
    with socket.create_connection((host, int(port)), timeout=timeout_s) as sock:
        sock.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        length, header_length = struct.unpack(">II", _read(sock, 8))
        rest = _read(sock, length - 4)
    codec, size = header_length >> 24, header_length & 0xFFFFFF
    if codec == 1:
        return *_binary_header(rest[:size]), rest[size:]
    header = json.loads(rest[:size])
    return header["code"], header.get("extFields") or {}, rest[size:]


def route(namesrv: str, topic: str) -> dict[str, Any] | None:
    """TopicRouteData of `topic` from the name server; None when it has none."""
    code, _, body = ask(namesrv, _ROUTE, topic=topic)
    return loads(body) if code == 0 else None


def broker_addresses(namesrv: str) -> set[str]:
    """Addresses of every broker that is registered."""
    code, _, body = ask(namesrv, _CLUSTER_INFO)
    table = (loads(body).get("brokerAddrTable") or {}) if code == 0 and body else {}
    return {address for broker in table.values() for address in broker["brokerAddrs"].values()}


def master(namesrv: str, broker_name: str) -> str | None:
    """Address of the master of that name from the name server; None if there is none."""
    return members(namesrv, broker_name).get("0")


def members(namesrv: str, broker_name: str) -> dict[str, str]:
    """Addresses of the brokers of that name by their ids, from the name server."""
    code, _, body = ask(namesrv, _CLUSTER_INFO)
    brokers = (loads(body).get("brokerAddrTable") or {}) if code == 0 and body else {}
    found: dict[str, str] = brokers.get(broker_name, {}).get("brokerAddrs", {})
    return found


def raft_leader(address: str, group: str, peer: str) -> str | None:
    """The leader that the DLedger peer at that raft port knows; None without one."""
    request = json.dumps({"group": group, "remoteId": peer}).encode()
    leader: str | None = loads(ask(address, _RAFT_METADATA, body=request)[2]).get("leaderId")
    return leader


def message_count(namesrv: str, topic: str) -> int:
    """Messages in all queues of `topic` over all masters: the sum of max minus min offsets."""
    found = route(namesrv, topic)
    if found is None:
        return 0
    masters = {broker["brokerName"]: broker["brokerAddrs"]["0"] for broker in found["brokerDatas"]}
    total = 0
    for queue in found["queueDatas"]:
        for queue_id in range(queue["readQueueNums"]):
            address = masters[queue["brokerName"]]
            total += offset(address, MAX_OFFSET, topic, queue_id) - offset(
                address, MIN_OFFSET, topic, queue_id
            )
    return total


def offset(address: str, code: int, topic: str, queue_id: int) -> int:
    """The max or min offset of a queue, by `code`; 0 if the broker rejects the request."""
    status, fields, _ = ask(address, code, topic=topic, queueId=str(queue_id))
    return int(fields["offset"]) if status == 0 else 0


def table(body: bytes) -> dict[str, str]:
    """The texts of a body that is a KVTable, such as a broker's runtime information."""
    found: dict[str, str] = loads(body)["table"]
    return found


def wait_until(
    condition: Callable[[], object], what: str, timeout_s: float = 120, step_s: float = 0.05
) -> None:
    """Poll `condition` until it is true. Raises TimeoutError that names `what` and the last error."""
    deadline, last = time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError as error:  # the server does not listen yet, or closed the connection
            last = f" (last: {error})"
        time.sleep(step_s)
    raise TimeoutError(f"waited {timeout_s:g} s for {what}{last}")


def _binary_header(data: bytes) -> tuple[int, dict[str, Any]]:
    """Code and fields of a header in RocketMQ's binary codec, with which a server may respond."""
    (code,), at = struct.unpack_from(">h", data), 13
    (remark,) = struct.unpack_from(">i", data, at)
    at += 4 + remark
    end, fields = at + 4 + struct.unpack_from(">i", data, at)[0], {}
    at += 4
    while at < end:
        (key_size,) = struct.unpack_from(">h", data, at)
        key, at = data[at + 2 : at + 2 + key_size], at + 2 + key_size
        (value_size,) = struct.unpack_from(">i", data, at)
        fields[key.decode()] = data[at + 4 : at + 4 + value_size].decode()
        at += 4 + value_size
    return code, fields


def loads(body: bytes) -> dict[str, Any]:
    """Parse JSON as fastjson writes it."""
    value: dict[str, Any] = json.loads(_BARE_KEY.sub(rb'\1"\2":', body))
    return value


def _read(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        data += part
    return bytes(data)
