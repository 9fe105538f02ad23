"""``rocketpy-broker promote``: makes a stopped slave the master after its master has failed.

Run it with the configuration file of the stopped slave. It queries the other brokers with the same brokerName
that the name servers know. It promotes the slave only if the master does not respond, and if every other
slave responds and has no more messages. So start all slaves, then stop only the one to promote.

The command changes brokerRole and brokerId in the file, and starts a new epoch. The other slaves follow the
new master, and reject the old one because of its epoch. The old master can return as a slave, with
brokerRole=SLAVE and a free brokerId in its own file. Then it truncates records that the new master does not
have, and saves them in ``cut/`` below its store. Exit status 0: promoted; 1: not promoted.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocketpy.errors import RocketError, StoreError
from rocketpy.protocol.bodies import MASTER_ID
from rocketpy.transport import ChannelOptions
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.model import BrokerConfig, BrokerRole
from rocketpy_broker.replication.ha.epochs import rank
from rocketpy_broker.replication.ha.log import EpochFile
from rocketpy_broker.replication.ha_status import BrokerReport, find_brokers
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.properties import change_file

_ROLES = (BrokerRole.SYNC_MASTER.name, BrokerRole.ASYNC_MASTER.name)


def add_promote_command(commands: Any) -> None:
    """Add ``promote`` to the subparsers of ``rocketpy-broker``."""
    promote = commands.add_parser("promote", help="make a stopped slave the master", description=__doc__)
    promote.add_argument(
        "-c", "--config", metavar="FILE", type=Path, required=True, help="configuration file of the slave"
    )
    promote.add_argument("--role", choices=_ROLES, required=True, help="new brokerRole")
    promote.add_argument(
        "--force",
        action="store_true",
        help="promote without asking the other brokers: acknowledged messages may be lost",
    )
    promote.set_defaults(action=_run)


def _run(options: argparse.Namespace) -> int:
    config = load_broker_config(options.config)
    if not config.is_slave:
        role = config.ha.role.name
        raise StoreError(f"{options.config} has brokerRole={role}; give the file of a stopped slave")
    end = _promote(config, force=options.force)
    change_file(options.config, {"brokerRole": options.role, "brokerId": "0"})
    print(
        f"{config.name} is promoted to {options.role} at offset {end}. Start it with -c {options.config}. "
        "Before you start the old master again, set brokerRole=SLAVE and a free brokerId in its file."
    )
    return 0


def _promote(config: BrokerConfig, *, force: bool) -> int:
    """Start a new epoch; return the end of the log. Raises RocketError if the slave must not be promoted."""
    if not config.store.commit_log_directory.is_dir():
        raise StoreError(f"there is no store in {config.store.root} (storePathRootDir of the file)")
    with MessageStore(config.store) as store:
        epochs = EpochFile(store.disk, config.store.root / "config" / "haEpochs.json")
        epochs.load()
        end = store.max_physical_offset
        if not force:
            reasons = [] if epochs.state.epochs else ["it has never followed a rocketpy master"]
            if epochs.is_older:
                reasons.append("its epochs are an older copy, so others may have more messages")
            reasons += _reasons(config, rank(epochs.state, end))
            if reasons:
                raise StoreError(f"not promoted (--force overrides): {'; '.join(reasons)}")
        epochs.promote(end, secrets.token_hex(8), store.clock())
        return end


def _reasons(config: BrokerConfig, own_rank: tuple[int, int]) -> Iterator[str]:
    """Yield the reasons why this slave must not become the master."""
    options = ChannelOptions(ssl=config.registration.ssl)
    try:
        replicas = asyncio.run(find_brokers(config.registration.namesrv, config.name, options))
    except RocketError as error:
        yield f"no name server responds, so the other brokers are unknown: {error}"
        return
    for replica in replicas:
        if replica.broker_id != config.broker_id:
            yield from _reason(replica, own_rank)


def _reason(replica: BrokerReport, own_rank: tuple[int, int]) -> Iterator[str]:
    who = f"slave {replica.broker_id} at {replica.address}"
    if replica.broker_id == MASTER_ID:
        if replica.responds:
            yield f"the master at {replica.address} still responds"
    elif not replica.responds:
        yield f"{who} does not respond: {replica.problem}"
    elif (replica.rank if replica.role else (own_rank[0], replica.max_offset)) > own_rank:
        # An empty role means a broker of RocketMQ, which has no epochs: only the offsets are compared.
        other = f"epoch {replica.epoch}, offset {replica.max_offset}"
        yield f"{who} has more messages ({other}) than this one (epoch {own_rank[0]}, offset {own_rank[1]})"
