"""Saves and loads the small files of a ledger; see `state_files` for what is in them."""

from __future__ import annotations

from pathlib import Path

from rocketpy.errors import StoreDamaged
from rocketpy_broker.replication.dledger.core.state_files import (
    LedgerCheckpoint,
    TermState,
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
    is_sealed,
    seal,
)
from rocketpy_broker.store.files.disk import Disk, store_error
from rocketpy_broker.store.files.state_file import load_state, save_state


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
