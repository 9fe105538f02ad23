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

Saves and loads the small files of a ledger; see `state_files` for what is in them.
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
from rocketpy_broker.store.files.state_file import load_state, save_state

_SEAL: Final = re.compile(rb"# crc32 ([0-9a-f]{8})\n\Z")


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


class StateFiles:
    """Term, vote and checkpoint of one peer. directory: of its ledger, made when something is saved.

    Loading what a Java broker saved saves it again, sealed: that says whose the directory is from now on.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._term = directory / "currterm"
        self._checkpoint = directory / "checkpoint"

    def load_term(self, *, has_entries: bool) -> TermState:
        """Return term and vote; a first start has none. Raises StoreDamaged, StoreError.

        has_entries: whether there is a ledger already. Then this peer has voted before, and without the file
        it might vote again in a term in which it has.
        """
        if not self._disk.exists(self._term):
            if has_entries or self._disk.exists(self._term.with_name("currterm.bak")):
                raise StoreDamaged(
                    f"{self._term} is missing, so this peer could vote twice in one term; "
                    "start it with an empty directory: it copies the ledger from the others"
                )
            return TermState()
        try:
            handle = self._disk.open(self._term)
            try:
                data = self._disk.pread(handle, self._disk.size(self._term), 0)
            finally:
                self._disk.close(handle)
            state = decode_term(data)
            # The rename may not be durable yet; power loss must not take back a vote that is given again.
            self._disk.fsync_dir(self._term.parent)
        except OSError as error:
            raise store_error("read", self._term, error) from error
        except ValueError as error:
            raise StoreDamaged(f"{self._term}: {error}; start this peer with an empty directory") from error
        if not is_sealed(data):
            self.save_term(state)
        return state

    def save_term(self, state: TermState) -> None:
        """Make term and vote durable. Raises DiskFull, StoreError."""
        save_state(self._disk, self._term, seal(encode_term(state)))

    def load_checkpoint(self) -> LedgerCheckpoint:
        """Return how far the ledger was committed at the last save. Raises StoreDamaged, StoreError."""
        saved: list[bytes] = []

        def decode(data: bytes) -> LedgerCheckpoint:
            saved.append(data)
            return decode_checkpoint(data)

        checkpoint = load_state(self._disk, self._checkpoint, decode)
        if checkpoint is None:
            return LedgerCheckpoint()
        if not is_sealed(saved[-1]):
            self.save_checkpoint(checkpoint)
        return checkpoint

    def save_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        """Replace the checkpoint. Raises DiskFull, StoreError."""
        save_state(self._disk, self._checkpoint, seal(encode_checkpoint(checkpoint)))
