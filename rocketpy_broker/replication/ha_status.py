"""Queries the replication status of masters and slaves over their ports for clients.

The request is getBrokerRuntimeInfo. Only rocketpy's brokers return keys that begin with ``ha``; a broker of
RocketMQ reports only the end of its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from rocketpy.config import Credentials, tls_files
from rocketpy.environment import environment_sources, find_settings, no_name_server
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.protocol.bodies import ClusterInfo, KVTable
from rocketpy.protocol.codes import RequestCode
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.replication.ha.connected_slaves import SlaveState
from rocketpy_broker.services.cluster.remoting_client import RemotingClient

R = TypeVar("R", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """The status of one broker."""

    name: str
    broker_id: int
    address: str
    responds: bool = False
    role: str = ""
    """Empty for a broker of RocketMQ."""
    epoch: int = 0
    """Number of the newest epoch of which the broker has bytes; `rank` compares it first."""
    max_offset: int = -1
    state: str = ""
    """Name of the `HaClientState` of a slave."""
    problem: str = ""
    """Why it did not respond, why a slave does not copy, or why a SYNC_MASTER has no slave; or empty."""
    slaves: tuple[SlaveState, ...] = ()
    """Its slaves, with what they have received and flushed."""

    @property
    def rank(self) -> tuple[int, int]:
        """See `epochs.rank`."""
        return self.epoch, self.max_offset


def encode_slaves(slaves: Sequence[SlaveState]) -> str:
    """Return the JSON text of the slaves in a broker's runtime info."""
    return msgspec.json.encode(slaves).decode()


async def find_brokers(
    namesrv: Sequence[Address], name: str | None = None, options: ChannelOptions | None = None
) -> list[BrokerReport]:
    """Query the brokers that a name server knows, or those of one name.

    namesrv: the first that responds is used. Brokers without a response are in the result too. Raises
    RocketError if no name server responds.
    """
    brokers = await find_broker_addresses(namesrv, name, options)
    return await asyncio.gather(
        *(query_broker(address, name, id_, options) for name, id_, address in brokers)
    )


async def find_broker_addresses(
    namesrv: Sequence[Address], name: str | None = None, options: ChannelOptions | None = None
) -> list[tuple[str, int, str]]:
    """Return name, id and address of the brokers that a name server knows. Raises RocketError."""
    cluster, server = await _first_response(namesrv, options)
    tls = server.scheme == "tls"
    return [
        (broker, broker_id, f"tls://{address}" if tls and "://" not in address else address)
        for broker, data in sorted(cluster.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
        if name in (None, broker)
    ]


async def query_broker(
    address: str, name: str = "", broker_id: int = -1, options: ChannelOptions | None = None
) -> BrokerReport:
    """Query one broker. An error is its `problem`. name, broker_id: as name servers know them."""
    return await query_runtime_info(
        BrokerReport(name=name, broker_id=broker_id, address=address), _read, options
    )


async def query_runtime_info(
    report: R, read: Callable[[R, Mapping[str, str]], R], options: ChannelOptions | None
) -> R:
    """Query the runtime info of a broker, and return its report as `read` completes it.

    An error is the `problem` of the report.
    """
    try:
        body = await _request(Address.parse(report.address), RequestCode.GET_BROKER_RUNTIME_INFO, options)
        return read(report, KVTable.decode(body).table)
    except RocketError as error:
        problem = str(error)
    except (KeyError, ValueError) as error:  # msgspec's errors are ValueErrors
        problem = f"{report.address} sent invalid runtime info: {error!r}"
    return replace(report, problem=problem)


def _read(replica: BrokerReport, table: Mapping[str, str]) -> BrokerReport:
    return replace(
        replica,
        name=table.get("haBrokerName", replica.name),
        broker_id=int(table.get("haBrokerId", replica.broker_id)),
        responds=True,
        role=table.get("haRole", ""),
        epoch=int(table.get("haEpoch", 0)),
        max_offset=int(table["commitLogMaxOffset"]),
        state=table.get("haState", ""),
        problem=table.get("haProblem", ""),
        slaves=msgspec.json.decode(table.get("haSlaves", "[]"), type=tuple[SlaveState, ...]),
    )


def environment_options() -> ChannelOptions:
    """Return options with the TLS files in the environment, if there are any. Raises ConfigInvalid."""
    return ChannelOptions(ssl=tls_files(find_settings(environment_sources())))


async def _first_response(
    namesrv: Sequence[Address], options: ChannelOptions | None
) -> tuple[ClusterInfo, Address]:
    failure: RocketError | None = None
    for server in namesrv:
        try:
            body = await _request(server, RequestCode.GET_BROKER_CLUSTER_INFO, options)
            return ClusterInfo.decode(body), server
        except RocketError as error:
            failure = error
    raise failure if failure is not None else ConfigInvalid(no_name_server("namesrvAddr"))


async def _request(address: Address, code: int, options: ChannelOptions | None) -> bytes:
    """Send one request, signed with the keys in the environment, if there are any; return its body.

    options: None for those with the TLS files in the environment.
    """
    client = RemotingClient(address, Credentials.from_environment(), options or environment_options())
    try:
        return await client.request(code)
    finally:
        await client.disconnect()
