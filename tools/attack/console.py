"""The web console under attack, in a process of its own.

`python -m tools.attack.console FOLDER NAMESRV` uses standard input and output as `tests.fuzz.servers` does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

from rocketpy import ClientConfig
from rocketpy_cli.console.server import serve
from rocketpy_cli.console.settings import ConsoleSettings
from tests.fuzz.servers import STALLS, UnexpectedErrors, print_json, watch_for_stalls

TOKEN: Final = "token-of-the-attacked-console"  # noqa: S105 - of a server that lives for the run


async def _serve(folder: Path, namesrv: str) -> None:
    errors = UnexpectedErrors()
    logging.basicConfig(level=logging.ERROR, handlers=[errors])
    settings = ConsoleSettings(client=ClientConfig(namesrv=namesrv), cluster=namesrv, port=0, token=TOKEN)
    with (folder / STALLS).open("w") as stalls:
        watch_for_stalls(asyncio.get_running_loop(), stalls)
        async with asyncio.TaskGroup() as tasks:
            console = tasks.create_task(serve(settings, _announce))
            while await asyncio.to_thread(sys.stdin.readline):
                print_json(errors.found)
            console.cancel()


def _announce(link: str) -> None:
    print_json({"console": link.removeprefix("http://").partition("/")[0]})


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
