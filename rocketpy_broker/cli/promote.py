"""``rocketpy-broker promote``: makes a slave that is stopped the master, when its master is gone.

Run it with the slave's own configuration file. It takes only the slave that has all that the others have, and
whose master no longer answers: it asks whoever the name servers know under this brokerName. A slave that is
stopped cannot be asked, so start all of them first, then stop only the one to promote. A new epoch begins,
which slaves follow and by which they refuse the old master; brokerRole and brokerId in the file are changed.
The old master comes back as a slave (brokerRole=SLAVE and a free brokerId in its own file): it then cuts what
the new one does not have, and keeps that below its store in ``cut/``. Exit status 0 means promoted, 1 not.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
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
    promote.add_argument("-c", "--config", metavar="FILE", type=Path, required=True, help="of the slave")
    promote.add_argument("--role", choices=_ROLES, required=True, help="brokerRole from now on")
    promote.add_argument(
        "--force",
        action="store_true",
        help="although others may have more: acknowledged messages may be lost",
    )
    promote.set_defaults(action=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        config = load_broker_config(options.config)
        if not config.is_slave:
            raise StoreError(f"{options.config} is the file of a master (brokerRole)")
        end = _promote(config, force=options.force)
        change_file(options.config, {"brokerRole": options.role, "brokerId": "0"})
    except (RocketError, OSError) as error:
        sys.stderr.write(f"rocketpy-broker promote: {error}" + "\n")
        return 1
    sys.stdout.write(
        f"{config.name} is {options.role} from offset {end} on: start it with -c {options.config}. "
        "Before the old master comes back, make its file a slave's.\n"
    )
    return 0


def _promote(config: BrokerConfig, *, force: bool) -> int:
    """Begin an epoch; return where the log ends. Raises RocketError when that is refused."""
    if not config.store.commit_log_directory.is_dir():
        raise StoreError(f"{config.store.root} is no store")
    with MessageStore(config.store) as store:
        epochs = EpochFile(store.disk, config.store.root / "config" / "haEpochs.json")
        epochs.load()
        end = store.max_physical_offset
        if not force:
            objections = [] if epochs.state.epochs else ["it has never followed a master of this make"]
            objections += _objections(config, rank(epochs.state, end))
            if objections:
                raise StoreError(f"not promoted (--force does it all the same): {'; '.join(objections)}")
        epochs.promote(end, secrets.token_hex(8), store.clock())
        return end


def _objections(config: BrokerConfig, ours: tuple[int, int]) -> Iterator[str]:
    """Yield why it is not for this slave to be the master."""
    options = ChannelOptions(ssl=config.registration.ssl)
    try:
        replicas = asyncio.run(find_brokers(config.registration.namesrv, config.name, options))
    except RocketError as error:
        yield f"no name server tells who else there is: {error}"
        return
    for replica in replicas:
        if replica.broker_id != config.broker_id:
            yield from _objection(replica, ours)


def _objection(replica: BrokerReport, ours: tuple[int, int]) -> Iterator[str]:
    who = f"slave {replica.broker_id} at {replica.address}"
    if replica.broker_id == MASTER_ID:
        if replica.answers:
            yield f"the master at {replica.address} still serves"
    elif not replica.answers:
        yield f"{who} does not answer: {replica.problem}"
    elif (replica.rank if replica.role else (ours[0], replica.max_offset)) > ours:
        theirs = f"epoch {replica.epoch} up to {replica.max_offset}"
        yield f"{who} has more: {theirs}; here epoch {ours[0]} up to {ours[1]}"
