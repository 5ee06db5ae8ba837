"""Wants: how many requests one gateway worker would like to run at one replica, as a level.

A want is told on the slot channel and, with every request, in the ``tidegate-want`` header. The two travel on
different connections and may overtake each other, so each carries ``sequence``, which grows with every want that is
told on one channel; the reader drops a want that is older than the last one it has seen.

The text of a want is the same in both places: ``SEQUENCE AMOUNT CLASS COST AGE_MS TAIL_MS UNITS RESERVES``, all
decimal; ``SEQUENCE 0`` is short for nothing wanted.
"""

from dataclasses import dataclass
from typing import Final

TEXT_LIMIT: Final = 120
"""Bytes; eight numbers of at most 14 digits. A longer text is refused unread."""
DEFAULT_PRIORITY: Final = 5
"""Class of requests of which no other is known, 0 (first) to 9."""


class WantError(ValueError):
    """The text is not a want."""


@dataclass(slots=True)
class Want:
    """A level with the key of its head. Mutable for speed, never changed after it was made."""

    sequence: int
    amount: int
    """Requests of the head's class that wait; those of lower classes are told when it is their turn."""
    priority: int = 0
    """Priority class of the head; lower goes first."""
    cost: int = 0
    """What the head costs, in tokens or inferences over the weights of the tenants that wait there: what its worker's
    next turn goes back by. 0: nothing is shared out between tenants."""
    age_ms: int = 0
    """How long the head has waited."""
    tail_ms: int = 0
    """How long the youngest has waited: the reader interpolates the keys between."""
    units: int = 1
    """Slots that the head needs, in the function's concurrency unit."""
    reserves: bool = False
    """The head fits nowhere at once and asks this replica, and no other, to hold back for it."""


def want_class(amount: int) -> int:
    """0 for 0, 1 for 1, 2 for 2-4, 3 for 5-16, 4 for 17-64, ...: a want is told anew when this changes."""
    if amount <= 1:
        return amount
    return ((amount - 1).bit_length() + 1) // 2 + 1


def want_range(amount: int) -> tuple[int, int]:
    """The smallest and the largest amount in the class of this one."""
    if amount <= 1:
        return (amount, amount)
    high: int = 4 ** (want_class(amount) - 1)
    return (high // 4 + 1, high)


def encode_want(want: Want) -> bytes:
    """The text of a want, without a line end."""
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
    """The want of a text; raises WantError for anything but two or eight decimal numbers."""
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
    """The want in a request's header (b"": there is none). None where it cannot be read, too: the last one stands, and
    the channel tells the next."""
    if not text:
        return None
    try:
        return decode_want(text)
    except WantError:
        return None
