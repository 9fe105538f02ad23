"""Makes inputs that are almost right: recorded bytes, changed in a few places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

_INTEGERS = (
    *(number.to_bytes(size, "big") for size in (1, 2, 4, 8) for number in (0, 1, 1 << (size * 8 - 1))),
    *((1 << (size * 8 - sign)).__sub__(1).to_bytes(size, "big") for size in (1, 2, 4, 8) for sign in (0, 1)),
    (16 << 20).to_bytes(4, "big"),
    (-2).to_bytes(4, "big", signed=True),
)
"""Numbers that lengths and offsets go wrong at."""

_PURE_NOISE = 0.03
_MAX_NOISE_BYTES = 200


def draw_for(seed: int, target: str, index: int) -> Random:
    """The random numbers of one input, the same in every run and on every machine."""
    return Random(f"{seed}:{target}:{index}")


class Mutator:
    """Draws one of `seeds` and changes it in one to four places; now and then pure noise instead.

    tokens: pieces that mean something to the reader, such as braces to one of JSON.
    """

    def __init__(self, seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> None:
        self.seeds = seeds
        self.tokens = (*tokens, *_INTEGERS)

    def make(self, draw: Random) -> bytes:
        """One input."""
        if draw.random() < _PURE_NOISE:
            return draw.randbytes(draw.randrange(_MAX_NOISE_BYTES))
        return self.mutate(draw, draw.choice(self.seeds))

    def mutate(self, draw: Random, data: bytes) -> bytes:
        """`data` with one to four changes."""
        for _ in range(draw.choice((1, 1, 1, 1, 2, 2, 3, 4))):
            data = draw.choice(_CHANGES)(self, draw, data)
        return data

    # -- changes ------------------------------------------------------------------------------

    def _flip_bit(self, draw: Random, data: bytes) -> bytes:
        at = _place(draw, data)
        return data[:at] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]

    def _set_byte(self, draw: Random, data: bytes) -> bytes:
        at = _place(draw, data)
        return data[:at] + draw.randbytes(1) + data[at + 1 :]

    def _overwrite(self, draw: Random, data: bytes) -> bytes:
        at, token = _place(draw, data), draw.choice(self.tokens)
        return data[:at] + token + data[at + len(token) :]

    def _insert(self, draw: Random, data: bytes) -> bytes:
        at = _place(draw, data)
        return data[:at] + draw.choice(self.tokens) + data[at:]

    def _repeat(self, draw: Random, data: bytes) -> bytes:
        """Many times one token, or one piece of the data: depth, and length."""
        at = _place(draw, data)
        piece = draw.choice((draw.choice(self.tokens), data[at : at + draw.randrange(1, 40)]))
        return data[:at] + piece * draw.choice((2, 3, 40, 300)) + data[at:]

    def _cut(self, draw: Random, data: bytes) -> bytes:
        return data[: _place(draw, data)]

    def _remove(self, draw: Random, data: bytes) -> bytes:
        at = _place(draw, data)
        return data[:at] + data[at + draw.randrange(1, 20) :]

    def _add_noise(self, draw: Random, data: bytes) -> bytes:
        at = _place(draw, data)
        return data[:at] + draw.randbytes(draw.randrange(1, 20)) + data[at:]

    def _splice(self, draw: Random, data: bytes) -> bytes:
        """The beginning of one and the end of another."""
        other = draw.choice(self.seeds)
        return data[: _place(draw, data)] + other[_place(draw, other) :]


_CHANGES: tuple[Callable[[Mutator, Random, bytes], bytes], ...] = (
    Mutator._flip_bit,
    Mutator._flip_bit,
    Mutator._set_byte,
    Mutator._overwrite,
    Mutator._overwrite,
    Mutator._insert,
    Mutator._repeat,
    Mutator._cut,
    Mutator._remove,
    Mutator._add_noise,
    Mutator._splice,
)


def _place(draw: Random, data: bytes) -> int:
    """Anywhere in `data`, its end included; in half of all cases within its first 32 bytes."""
    reach = min(len(data), 32) if draw.random() < 0.5 else len(data)
    return int(draw.random() * (reach + 1))
