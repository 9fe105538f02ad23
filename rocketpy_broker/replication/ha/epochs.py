"""Epochs: which master wrote a log from which offset on.

A master starts an epoch when it is promoted, and when it starts after a crash. In both cases a slave may have
bytes that the master lacks. Two logs are equal up to the offset where their lists of epochs differ. A slave
truncates its log there, and never follows a master whose newest epoch is older than one it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec


class Epoch(msgspec.Struct, array_like=True, frozen=True):
    """An epoch."""

    number: int
    """Higher than that of all earlier epochs."""
    start: int
    """Offset of its first byte."""
    id: str
    """Distinguishes two masters that were promoted after the same epoch."""


class EpochState(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs of a broker, which it saves durably."""

    epochs: tuple[Epoch, ...] = ()
    seen: int = 0
    """Highest epoch number of this broker and of all masters that it followed."""
    own: str = ""
    """Id of the newest epoch if this broker started it and has not copied any bytes since; otherwise
    empty."""


NO_EPOCHS: Final = EpochState()
_EPOCHS_MAX: Final = 1000


def begin_epoch(state: EpochState, end: int, identity: str, now_ms: int) -> EpochState:
    """Return the state of a master that starts a new epoch at `end`, the end of its log.

    now_ms: the time of a promotion, which becomes the number of the epoch unless that is too low. 0 for a
    restart after a crash: the number is one higher than the last one.

    A promotion needs the time. Suppose that a promoted master is lost before a slave has followed it. With
    consecutive numbers, the next master would get the same number. After its return, the lost master could
    outrank acknowledged bytes. A restarted master must not outrank a slave that was promoted in the meantime.
    """
    number = max(state.seen + 1, state.epochs[-1].number + 1 if state.epochs else 1, now_ms)
    epochs = (*epochs_until(state.epochs, end), Epoch(number, end, identity))
    return EpochState(epochs=epochs[-_EPOCHS_MAX:], seen=number, own=identity)


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

    The epoch is compared first. A slave that missed the last promotion may have a longer log, but it lacks
    the bytes of the newest epoch.
    """
    known = epochs_until(state.epochs, end)
    return known[-1].number if known else 0, end
