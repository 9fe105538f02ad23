"""The small text files of a ledger, as java.util.Properties: `currterm` and `checkpoint` (QUIRKS 58).

| file | lines, in this order |
|---|---|
| ``currterm`` | ``voteLeader=`` id or nothing, ``currTerm=`` |
| ``checkpoint`` | ``committedIndex=``, ``endIndex=`` |

Ours end with a third line, a comment that Java skips: ``# crc32 0a1b2c3d``, of all bytes before it. A file
without that line is Java's, and is taken as it is. Each file has a `.bak`, the content before the last save.
**The `.bak` of `currterm` is an older vote**: with it a peer could vote twice in one term, so it is never
used (RELIABILITY: a damaged vote file refuses the start).

Source: MemberState, DLedgerMmapFileStore.persistCheckPoint, IOUtils of DLedger 0.1.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.store.files.properties import read_settings

NO_TERM: Final = -1
"""Terms start here: a first vote round of Java's is held in it."""
_SEAL: Final = re.compile(rb"# crc32 ([0-9a-f]{8})\n\Z")


class TermState(NamedTuple):
    """What a peer must not forget. voted_for: whom it voted for in that term; None: nobody yet."""

    term: int = NO_TERM
    voted_for: str | None = None


class LedgerCheckpoint(NamedTuple):
    """Where a ledger was when this was saved, every 3 s. -1: nowhere yet."""

    committed_index: int = -1
    end_index: int = -1


def encode_term(state: TermState) -> bytes:
    """Return the text of `currterm`."""
    return f"voteLeader={state.voted_for or ''}\ncurrTerm={state.term}\n".encode()


def decode_term(data: bytes) -> TermState:
    """Return what `currterm` says. Raises ValueError for one that is damaged."""
    fields = _fields(data, "currterm")
    return TermState(_number(fields, "currTerm", "currterm"), fields.get("voteLeader") or None)


def encode_checkpoint(checkpoint: LedgerCheckpoint) -> bytes:
    """Return the text of `checkpoint`."""
    return f"committedIndex={checkpoint.committed_index}\nendIndex={checkpoint.end_index}\n".encode()


def decode_checkpoint(data: bytes) -> LedgerCheckpoint:
    """Return what `checkpoint` says. Raises ValueError for one that is damaged."""
    fields = _fields(data, "checkpoint")
    return LedgerCheckpoint(
        _number(fields, "committedIndex", "checkpoint"), _number(fields, "endIndex", "checkpoint")
    )


def seal(data: bytes) -> bytes:
    """Return a text of ours: with the checksum in a line that Java skips."""
    return data + b"# crc32 %08x\n" % zlib.crc32(data)


def is_sealed(data: bytes) -> bool:
    """Is a text ours? Java drops our last line when it writes the file."""
    return _SEAL.search(data) is not None


def _fields(data: bytes, name: str) -> dict[str, str]:
    sealed = _SEAL.search(data)
    if sealed is not None and zlib.crc32(data[: sealed.start()]) != int(sealed.group(1), 16):
        raise ValueError(f"{name}: its crc is not {sealed.group(1).decode()}")
    try:
        # Every line ends with a line feed, so a file that was cut within its last number is seen.
        if not data.endswith(b"\n"):
            raise ValueError(f"{name}: cut off after {len(data)} bytes")
        return {setting.key: setting.value for setting in read_settings(data.decode(), name)}
    except ConfigInvalid as error:
        raise ValueError(str(error)) from error


def _number(fields: dict[str, str], key: str, name: str) -> int:
    try:
        return int(fields[key])
    except KeyError:
        raise ValueError(f"{name}: {key} is missing") from None
