"""Epochs: which master wrote a log from which offset on.

A master starts an epoch when it is promoted, and when it starts after a crash: in both cases a slave may have
bytes that the master lacks. Two logs are equal up to the offset where their lists of epochs differ. A slave
truncates its log there, and never follows a master whose newest epoch is older than one it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec


class Epoch(msgspec.Struct, array_like=True, frozen=True):
    """An epoch. number: increases. start: offset of its first byte. id: distinguishes two masters that were
    promoted after the same epoch.
    """

    number: int
    start: int
    id: str


class EpochState(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state of a broker. seen: the newest epoch number of any master that it followed or was.
    own: id of the newest epoch if it started here and nothing was copied since.
    """

    epochs: tuple[Epoch, ...] = ()
    seen: int = 0
    own: str = ""


NO_EPOCHS: Final = EpochState()
_KEPT: Final = 1000


def begin_epoch(state: EpochState, end: int, identity: str, now_ms: int) -> EpochState:
    """Return the state of a master that starts a new epoch at `end`, the end of its log.

    The number of a promotion is the time, since counting is not enough: a master that was promoted and lost
    before any slave followed it would share its number with the next one, and its bytes could outrank
    acknowledged ones when it comes back. A master that restarts after a crash counts (`now_ms` 0), since it
    must not outrank a slave that was promoted in the meantime.
    """
    number = max(state.seen + 1, state.epochs[-1].number + 1 if state.epochs else 1, now_ms)
    epochs = (*epochs_until(state.epochs, end), Epoch(number, end, identity))
    return EpochState(epochs=epochs[-_KEPT:], seen=number, own=identity)


def epochs_until(epochs: Sequence[Epoch], end: int) -> tuple[Epoch, ...]:
    """Return the epochs that started at or before `end`."""
    return tuple(epoch for epoch in epochs if epoch.start <= end)


def common_end(own: Sequence[Epoch], own_end: int, others: Sequence[Epoch], other_end: int) -> int | None:
    """Return the offset up to which two logs are equal; None if their epochs do not determine it.

    Each list is in order, and each epoch ends at the start of the next one. A list may have epochs after the
    end of its log, of which no bytes have arrived.
    """
    known = {epoch: index for index, epoch in enumerate(others)}
    for index in range(len(own) - 1, -1, -1):
        at = known.get(own[index])
        if at is not None:
            own_stop = own[index + 1].start if index + 1 < len(own) else own_end
            other_stop = others[at + 1].start if at + 1 < len(others) else other_end
            return min(own_stop, own_end, other_stop, other_end)
    return None


def rank(state: EpochState, end: int) -> tuple[int, int]:
    """Return the rank of a slave for a promotion: the slave with the highest rank has all acknowledged bytes.

    The epoch goes before the length: a slave that missed the last promotion may have more bytes, which do not
    count.
    """
    known = epochs_until(state.epochs, end)
    return known[-1].number if known else 0, end
