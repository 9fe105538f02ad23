"""Vote and checkpoint files that are damaged."""

from pathlib import Path

import pytest

from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState
from rocketpy_broker.replication.dledger.storage.state_files import (
    StateFiles,
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
    has_checksum,
    with_checksum,
)
from rocketpy_broker.store.files.disk import OsDisk

VOTE = with_checksum(encode_term(TermState(12, "n1")))


def test_a_file_with_a_checksum_is_read_like_javas() -> None:
    """The files of one kind of broker could not be opened by the other."""
    assert decode_term(VOTE) == decode_term(encode_term(TermState(12, "n1"))) == (12, "n1")
    assert VOTE.splitlines()[-1].startswith(b"# "), "Java must skip it"
    point = LedgerCheckpoint(7, 9)
    assert decode_checkpoint(with_checksum(encode_checkpoint(point))) == point


def test_state_files_of_java_are_rewritten_when_loaded(tmp_path: Path) -> None:
    """Marks of the ledger would be ignored at every start as another broker's, and each entry be read."""
    term, point = TermState(12, "n1"), LedgerCheckpoint(7, 9)
    (tmp_path / "currterm").write_bytes(encode_term(term))
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(point))
    for _ in range(2):
        files = StateFiles(OsDisk(), tmp_path)
        assert files.load_term(has_entries=True) == term
        assert files.load_checkpoint() == point
        assert has_checksum((tmp_path / "currterm").read_bytes())
        assert has_checksum((tmp_path / "checkpoint").read_bytes())


@pytest.mark.parametrize("at", range(VOTE.index(b"#")))
def test_a_flipped_bit_in_a_vote_with_a_checksum_is_seen(at: int) -> None:
    """A peer could have another vote, or an older term, after a restart (#5905)."""
    damaged = bytearray(VOTE)
    damaged[at] ^= 1
    with pytest.raises(ValueError, match="currterm"):
        decode_term(bytes(damaged))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"currTerm=1",
        b"voteLeader=n1\n",
        b"voteLeader=n1\ncurrTerm=x\n",
        b"\xff\xfe\n",
        b"currTerm=\\u1\n",
    ],
)
def test_an_unreadable_vote_is_an_error(data: bytes) -> None:
    """A peer with a damaged file would vote twice in one term."""
    with pytest.raises(ValueError, match=r"currterm|invalid|decode"):
        decode_term(data)
