"""The small text files of a ledger, as java.util.Properties: `currterm` and `checkpoint` (QUIRKS 58).

| file | lines, in this order |
|---|---|
| ``currterm`` | ``voteLeader=`` id or nothing, ``currTerm=`` |
| ``checkpoint`` | ``committedIndex=``, ``endIndex=`` |

rocketpy adds a third line, a comment that Java skips: ``# crc32 0a1b2c3d``, the checksum of all bytes before
it. A file without that line was written by Java, and is accepted. Each file has a `.bak` with its previous
content. **The `.bak` of `currterm` has an older vote.** With it a peer could vote twice in one term, so it is
never used. A peer with a damaged `currterm` does not start.

Source: MemberState, DLedgerMmapFileStore.persistCheckPoint, IOUtils of DLedger 0.1.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final

from rocketpy.errors import ConfigInvalid, StoreDamaged
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState
from rocketpy_broker.store.files.disk import Disk, store_error
from rocketpy_broker.store.files.properties import read_settings
from rocketpy_broker.store.files.state_file import load_state, read_file, save_state

_CHECKSUM_LINE: Final = re.compile(rb"# crc32 ([0-9a-f]{8})\n\Z")


def encode_term(state: TermState) -> bytes:
    """Return the text of `currterm`."""
    return f"voteLeader={state.voted_for or ''}\ncurrTerm={state.term}\n".encode()


def decode_term(data: bytes) -> TermState:
    """Decode `currterm`. Raises ValueError if it is damaged."""
    fields = _fields(data, "currterm")
    return TermState(_read_number(fields, "currTerm", "currterm"), fields.get("voteLeader") or None)


def encode_checkpoint(checkpoint: LedgerCheckpoint) -> bytes:
    """Return the text of `checkpoint`."""
    return f"committedIndex={checkpoint.committed_index}\nendIndex={checkpoint.end_index}\n".encode()


def decode_checkpoint(data: bytes) -> LedgerCheckpoint:
    """Decode `checkpoint`. Raises ValueError if it is damaged."""
    fields = _fields(data, "checkpoint")
    return LedgerCheckpoint(
        _read_number(fields, "committedIndex", "checkpoint"), _read_number(fields, "endIndex", "checkpoint")
    )


def with_checksum(data: bytes) -> bytes:
    """Append the checksum of a text, in a line that Java skips."""
    return data + b"# crc32 %08x\n" % zlib.crc32(data)


def has_checksum(data: bytes) -> bool:
    """Whether rocketpy wrote the text. Java drops the checksum when it writes the file."""
    return _CHECKSUM_LINE.search(data) is not None


def _fields(data: bytes, name: str) -> dict[str, str]:
    found = _CHECKSUM_LINE.search(data)
    if found is not None and zlib.crc32(data[: found.start()]) != int(found.group(1), 16):
        raise ValueError(f"{name}: its CRC-32 is not {found.group(1).decode()}, as its last line says")
    try:
        # Every line ends with a line feed, so a file that ends inside its last number is detected.
        if not data.endswith(b"\n"):
            raise ValueError(f"{name}: cut off after {len(data)} bytes")
        return {setting.key: setting.value for setting in read_settings(data.decode(), name)}
    except ConfigInvalid as error:
        raise ValueError(str(error)) from error


def _read_number(fields: dict[str, str], key: str, name: str) -> int:
    try:
        return int(fields[key])
    except KeyError:
        raise ValueError(f"{name}: {key} is missing") from None


class StateFiles:
    """Saves and loads term, vote and checkpoint of one peer. directory: of its ledger.

    Files that a Java broker saved are saved again with a checksum, which marks the directory as rocketpy's.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._term = directory / "currterm"
        self._checkpoint = directory / "checkpoint"

    def load_term(self, *, has_entries: bool) -> TermState:
        """Return term and vote; the initial state at the first start. Raises StoreDamaged, StoreError.

        has_entries: the ledger has entries, so this peer has voted before. Without the file it might vote
        again in a term in which it has voted.
        """
        if not self._disk.exists(self._term):
            if has_entries or self._disk.exists(self._term.with_name("currterm.bak")):
                raise StoreDamaged(
                    f"{self._term} is missing, so this peer could vote twice in one term; "
                    "start it with an empty directory: it copies the ledger from the others"
                )
            return TermState()
        try:
            data = read_file(self._disk, self._term)
            state = decode_term(data)
            # The rename may not be durable yet, and power loss must not undo a vote that others know.
            self._disk.fsync_dir(self._term.parent)
        except OSError as error:
            raise store_error("read", self._term, error) from error
        except ValueError as error:
            raise StoreDamaged(f"{self._term}: {error}; start this peer with an empty directory") from error
        if not has_checksum(data):
            self.save_term(state)
        return state

    def save_term(self, state: TermState) -> None:
        """Make term and vote durable. Raises DiskFull, StoreError."""
        save_state(self._disk, self._term, with_checksum(encode_term(state)))

    def load_checkpoint(self) -> LedgerCheckpoint:
        """Return the last saved checkpoint. Raises StoreDamaged, StoreError."""
        saved: list[bytes] = []

        def decode(data: bytes) -> LedgerCheckpoint:
            saved.append(data)
            return decode_checkpoint(data)

        checkpoint = load_state(self._disk, self._checkpoint, decode).value
        if checkpoint is None:
            return LedgerCheckpoint()
        if not has_checksum(saved[-1]):
            self.save_checkpoint(checkpoint)
        return checkpoint

    def save_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        """Replace the checkpoint. Raises DiskFull, StoreError."""
        save_state(self._disk, self._checkpoint, with_checksum(encode_checkpoint(checkpoint)))
