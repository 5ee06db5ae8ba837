"""Retries between attempts at something that does not work."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

FIRST_S: Final = 0.1
MOST_S: Final = 10.0
JITTER: Final = 0.3

Note = Callable[[str, str | None], None]
"""Takes a subject and what is wrong with it; None: it works."""
Sleep = Callable[[float], Awaitable[None]]


class Retries:
    """Each pause in a row is twice as long as the one before, up to ten seconds. It varies by a third, so that many
    that failed together do not return together."""

    def __init__(self, rng: random.Random, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self.row = 0
        """Retries since the last success."""

    def next_s(self) -> float:
        """Returns the length of the next pause in seconds."""
        base = min(self._most_s, self._first_s * 2.0 ** min(self.row, 30))
        self.row += 1
        return base * self._rng.uniform(1.0 - JITTER, 1.0 + JITTER)

    def reset(self) -> None:
        """Takes a success."""
        self.row = 0

    def __repr__(self) -> str:
        return f"<Retries {self.row} in a row>"
