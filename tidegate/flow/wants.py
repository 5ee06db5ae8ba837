"""Wants: how many requests one gateway worker would like to run at one replica, as a level.

A want is sent on the slot channel and, with every request, in the ``tidegate-want`` header. The two travel on different
connections and may overtake each other, so each carries ``sequence``, which grows with every want that is sent on one
channel. The reader drops a want that is older than the last one it has seen.

The text of a want is the same in both places: ``SEQUENCE AMOUNT CLASS COST AGE_MS TAIL_MS UNITS RESERVES``, all
decimal; ``SEQUENCE 0`` is short for nothing wanted.
"""

from dataclasses import dataclass
from typing import Final

TEXT_LIMIT: Final = 120
"""Bytes; eight numbers of at most 14 digits. A longer text is refused unread."""
DEFAULT_PRIORITY: Final = 5
"""Class of requests without a known one, 0 (first) to 9."""
ORIENTED: Final = 10
"""Added to the class of a throughput-oriented request: it goes behind all latency-critical ones."""


def later_priority(one: int, other: int) -> int:
    """Returns the later of two task classes with the later of two classes 0 to 9."""
    return max(one // ORIENTED, other // ORIENTED) * ORIENTED + max(one % ORIENTED, other % ORIENTED)


class WantError(ValueError):
    """The text is not a want."""


@dataclass(slots=True)
class Want:
    """A level with the key of its head. Mutable for speed, never changed after it was made."""

    sequence: int
    amount: int
    """Waiting requests of the head's class; those of lower classes are reported when they are next."""
    priority: int = 0
    """Priority class of the head; lower goes first."""
    cost: int = 0
    """Cost of the head, in tokens or inferences over the weights of the tenants that wait there: its worker's account
    grows by it. 0 if slots are not shared between tenants."""
    age_ms: int = 0
    """Waiting time of the head."""
    tail_ms: int = 0
    """Waiting time of the youngest: the reader interpolates the keys between."""
    units: int = 1
    """Slots that the head needs, in the function's concurrency unit."""
    reserves: bool = False
    """True if the head fits nowhere at once and asks this replica, and no other, to hold back for it."""


def want_class(amount: int) -> int:
    """Returns 0 for 0, 1 for 1, 2 for 2-4, 3 for 5-16, 4 for 17-64, ...: a want is sent again when this changes."""
    if amount <= 1:
        return amount
    return ((amount - 1).bit_length() + 1) // 2 + 1


def want_range(amount: int) -> tuple[int, int]:
    """Returns the smallest and the largest amount in the class of this one."""
    if amount <= 1:
        return (amount, amount)
    high: int = 4 ** (want_class(amount) - 1)
    return (high // 4 + 1, high)


def encode_want(want: Want) -> bytes:
    """Returns the text of a want, without a line end."""
    if want.amount == 0:
        return b"%d 0" % want.sequence
    return b"%d %d %d %d %d %d %d %d" % (
        want.sequence,
        want.amount,
        want.priority,
        want.cost,
        want.age_ms,
        want.tail_ms,
        want.units,
        want.reserves,
    )


def decode_want(text: bytes) -> Want:
    """Returns the want of a text; raises WantError for anything but two or eight decimal numbers."""
    words = text.split(b" ")
    # bytes.isdigit accepts ASCII digits only, unlike int().
    if len(text) > TEXT_LIMIT or not text.replace(b" ", b"").isdigit() or b"" in words:
        raise WantError(f"not a want: {text[:TEXT_LIMIT]!r}")
    numbers = [int(word) for word in words]
    if len(numbers) == 2 and numbers[1] == 0:
        return Want(numbers[0], 0)
    if len(numbers) != 8 or numbers[6] < 1 or numbers[7] > 1:
        raise WantError(f"not a want: {text!r}")
    sequence, amount, priority, cost, age_ms, tail_ms, units, reserves = numbers
    return Want(sequence, amount, priority, cost, age_ms, tail_ms, units, reserves == 1)


def read_want(text: bytes) -> Want | None:
    """Returns the want in a request's header (b"" if absent). Returns None for an unreadable one too: the last one
    stands, and the channel sends the next."""
    if not text:
        return None
    try:
        return decode_want(text)
    except WantError:
        return None
