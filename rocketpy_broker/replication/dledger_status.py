"""Queries the status of the peers of DLedger groups.

rocketpy's peers report their whole status over the broker's port for clients (getBrokerRuntimeInfo, keys that
begin with ``dledger``). RocketMQ's peers report only their leader, over the peer's own port (METADATA).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from rocketpy.errors import ConnectionLost, RocketError
from rocketpy.transport import Address, ChannelOptions, ClientOnlyEndpoint, connect
from rocketpy_broker.replication.dledger.authentication import authenticate
from rocketpy_broker.replication.dledger.core.messages import (
    MetadataRequest,
    MetadataResponse,
    RaftRequestCode,
    RaftResponseCode,
    read_response,
    to_request,
)
from rocketpy_broker.replication.ha_status import (
    environment_options,
    find_broker_addresses,
    query_runtime_info,
)

_TIMEOUT_MS: Final = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """The status of one peer. Values that it did not report are empty, or -1."""

    group: str = ""
    """Its dLegerGroup."""
    peer: str = ""
    """Its dLegerSelfId."""
    address: str = ""
    """Of its broker (`find_peers`), or of its own port (`query_peers`)."""
    broker_name: str = ""
    broker_id: int = -1
    """As name servers know it."""
    responds: bool = False
    role: str = ""
    term: int = -1
    leader: str = ""
    """The leader that this peer knows."""
    end_index: int = -1
    committed_index: int = -1
    leader_changes: int = -1
    lags: dict[str, int] = field(default_factory=dict)
    """On the leader, the number of missing entries of each follower."""
    lags_ms: dict[str, int] = field(default_factory=dict)
    """For how long each has lacked entries."""
    problem: str = ""
    """Why the peer did not respond or report its status, why it is not active, or which peers do not respond
    to a leader or are behind it."""


async def find_peers(
    namesrv: Sequence[Address], name: str | None = None, options: ChannelOptions | None = None
) -> list[PeerReport]:
    """Query the brokers that a name server knows, or those of one name.

    Raises RocketError if no name server responds.
    """
    brokers = await find_broker_addresses(namesrv, name, options)
    reports = (PeerReport(broker_name=name, broker_id=id_, address=address) for name, id_, address in brokers)
    return await asyncio.gather(*(query_runtime_info(report, _read, options) for report in reports))


def _read(report: PeerReport, table: Mapping[str, str]) -> PeerReport:
    return replace(
        report,
        responds=True,
        group=table.get("dledgerGroup", ""),
        peer=table.get("dledgerSelfId", ""),
        role=table.get("dledgerRole", ""),
        term=int(table.get("dledgerTerm", -1)),
        leader=table.get("dledgerLeader", ""),
        end_index=int(table.get("dledgerEndIndex", -1)),
        committed_index=int(table.get("dledgerCommittedIndex", -1)),
        leader_changes=int(table.get("dledgerLeaderChanges", -1)),
        lags=msgspec.json.decode(table.get("dledgerLags", "{}"), type=dict[str, int]),
        lags_ms=msgspec.json.decode(table.get("dledgerLagsMillis", "{}"), type=dict[str, int]),
        problem=table.get("dledgerProblem", ""),
    )


async def query_peers(
    group: str,
    peers: Mapping[str, Address],
    options: ChannelOptions | None = None,
    *,
    secret: str = "",
    self_id: str = "",
) -> list[PeerReport]:
    """Query the leader at each peer's own port. An error is the `problem` of the peer.

    options: None for the TLS files in the environment. secret: dLegerSecret. self_id: dLegerSelfId of the
    configuration that has the secret.
    """
    key = (secret, self_id)
    options = options or environment_options()
    return await asyncio.gather(
        *(_query_peer(group, peer, peers[peer], options, key) for peer in sorted(peers))
    )


async def _query_peer(
    group: str, peer: str, address: Address, options: ChannelOptions, key: tuple[str, str]
) -> PeerReport:
    report = PeerReport(group=group, peer=peer, address=str(address))
    try:
        channel = await connect(address, ClientOnlyEndpoint(), options)
        secret, self_id = key
        try:
            if secret:
                await authenticate(channel, secret, group, self_id, peer)
            request = to_request(MetadataRequest(group=group, remote_id=peer))
            response = read_response(await channel.request(request, _TIMEOUT_MS), RaftRequestCode.METADATA)
        finally:
            await channel.close_within()
    except ConnectionLost as error:
        hint = (
            "" if key[0] else ", as a group with dLegerSecret does; give the broker's configuration with -c"
        )
        return replace(report, problem=f"{error}{hint}")
    except RocketError as error:
        return replace(report, problem=str(error))
    if response.code != RaftResponseCode.SUCCESS or not isinstance(response, MetadataResponse):
        return replace(
            report,
            responds=True,
            problem=f"responded with code {response.code}: check the group, and the id of the peer at this "
            "address",
        )
    leader = response.leader_id or ""
    role = "" if not leader else "leader" if leader == peer else "follower"
    return replace(report, responds=True, leader=leader, role=role)
