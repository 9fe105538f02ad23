"""The servers under attack: a name server, a broker, one with access control and one peer of a DLedger group.

`python -m tools.attack.servers FOLDER` uses standard input and output as `tests.fuzz.servers` does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path

from rocketpy.runtime.tasks import close_all
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from rocketpy_broker.cli.process import tune_memory
from tests.fuzz.servers import STALLS, UnexpectedErrors, print_json, watch_for_stalls
from tools.attack.turns import TURNS, LongestTurn

_SMALL = {
    "listen": "127.0.0.1:0",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # Sends wait, and their times show it, instead of being refused while the broker is busy.
    "brokerFastFailureEnable": "false",
}
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
        namesrv = NameServer(
            load_namesrv_config(overrides={"listen": "127.0.0.1:0", "kvConfigPath": str(folder / "kv.json")})
        )
        await namesrv.start()
        brokers = _brokers(folder, str(namesrv.address))
        for broker in brokers.values():
            await broker.start()
        addresses = {name: str(broker.address) for name, broker in brokers.items()}
        ha, peers = brokers["broker"].replication.server.address, brokers["peer"].config.dledger.peers
        tune_memory()  # as the command does
        longest = LongestTurn()
        print_json(addresses | {"namesrv": str(namesrv.address), "ha": str(ha), "dledger": str(peers["n0"])})
        while await asyncio.to_thread(sys.stdin.readline):
            longest.write(folder / TURNS)
            print_json(errors.found)
        await close_all(*brokers.values(), namesrv)


def _brokers(folder: Path, namesrv: str) -> dict[str, Broker]:
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
                overrides=_SMALL | more | {"brokerName": name, "storePathRootDir": str(folder / name)}
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
