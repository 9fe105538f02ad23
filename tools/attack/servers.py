"""The servers under attack: a name server, a broker, one with access control and one peer of a DLedger group.

Their ports also accept TLS.
`python -m tools.attack.servers FOLDER` uses standard input and output as `tests.fuzz.servers` does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Final

import trustme

from rocketpy.runtime.tasks import close_all, subtask
from rocketpy.transport.base import Address
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from rocketpy_broker.cli.process import trim_memory, tune_memory
from tests.fuzz.servers import STALLS, UnexpectedErrors, print_json, watch_for_stalls
from tools.attack.turns import TURNS, LongestTurn

TABLES: Final = "tables.txt"
"""The memory that the tables may take, in bytes."""

_SMALL = {
    "listen": "127.0.0.1:0",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # Sends wait, and their times show it, instead of being refused while the broker is busy.
    "brokerFastFailureEnable": "false",
}
_TOPIC_BYTES: Final = 4 << 10
_GROUP_BYTES: Final = 2 << 10
"""Of a group with the offset of one queue; see docs/operations/sizing.md."""
_ACCOUNTS = """
accounts:
- accessKey: attacked
  secretKey: 12345678
  admin: true
"""


async def _serve(folder: Path) -> None:
    errors = UnexpectedErrors()
    logging.basicConfig(level=logging.ERROR, handlers=[errors])
    with (folder / STALLS).open("w") as stalls:
        watch_for_stalls(asyncio.get_running_loop(), stalls)
        tls = _tls(folder)
        settings = {"listen": "127.0.0.1:0", "kvConfigPath": str(folder / "kv.json")}
        namesrv = NameServer(load_namesrv_config(overrides=settings | tls))
        await namesrv.start()
        brokers = _brokers(folder, _plain(namesrv.address), tls)
        for broker in brokers.values():
            await broker.start()
        addresses = {
            name: _plain(server.address) for name, server in (brokers | {"namesrv": namesrv}).items()
        }
        ha, peers = brokers["broker"].replication.server.address, brokers["peer"].config.dledger.peers
        tune_memory()  # as the command does
        trimming = subtask(trim_memory(), "return of unused memory")
        longest = LongestTurn()
        print_json(addresses | {"ha": _plain(ha), "dledger": _plain(peers["n0"])})
        while await asyncio.to_thread(sys.stdin.readline):
            longest.write(folder / TURNS)
            (folder / TABLES).write_text(str(sum(map(_table_bytes, brokers.values()))), encoding="utf-8")
            print_json(errors.found)
        trimming.cancel()
        await close_all(*brokers.values(), namesrv)


def _table_bytes(broker: Broker) -> int:
    groups = sum(1 for _ in broker.consumers.offsets.pairs)
    return len(broker.topics.names) * _TOPIC_BYTES + groups * _GROUP_BYTES


def _tls(folder: Path) -> dict[str, str]:
    """Settings of a port that accepts TLS, and clients without it."""
    file = folder / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    return {
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(file),
        "tls.server.keyPath": str(file),
    }


def _plain(address: Address | None) -> str:
    """Return an address for clients without TLS."""
    return str(address).removeprefix("tls://")


def _brokers(folder: Path, namesrv: str, tls: dict[str, str]) -> dict[str, Broker]:
    accounts = folder / "plain_acl.yml"
    accounts.write_text(_ACCOUNTS, encoding="utf-8")
    settings = {
        "broker": {"namesrvAddr": namesrv, "enablePropertyFilter": "true"},
        "guarded": {"aclEnable": "true", "rocketmq.acl.plain.file": str(accounts), "haSecret": "attacked"},
        "peer": {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "attacked",
            "dLegerPeers": f"n0-127.0.0.1:{_free_port()}",
            "dLegerSelfId": "n0",
        },
    }
    return {
        name: Broker(
            load_broker_config(
                overrides=_SMALL | tls | more | {"brokerName": name, "storePathRootDir": str(folder / name)}
            )
        )
        for name, more in settings.items()
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
