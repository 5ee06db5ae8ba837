"""What a function's clients are told while it wakes from zero: records, and the rows of the annotations.

Without these annotations they wait and hear nothing before their answers.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.schema.rows import Choice, Duration, Row, WordOr

TOPIC: Final = "Cold starts"


class ColdCalls(StrEnum):
    """What becomes of a call that is no event stream and finds its function asleep."""

    WAIT = "wait"
    """It waits for its answer, as ever."""
    ACCEPT = "accept"
    """The function is woken, the call is answered 202 and forgotten: the client sends it again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRules:
    """How a function's clients are told of cold starts."""

    heartbeat_s: float | None = None
    """Between two comments on an event stream that waits; None: none are written."""
    calls: ColdCalls = ColdCalls.WAIT

    @property
    def is_silent(self) -> bool:
        """Nobody is told anything."""
        return self.heartbeat_s is None and self.calls is ColdCalls.WAIT


COLD: Final[tuple[Row, ...]] = (
    Row(
        key="heartbeat",
        topic=TOPIC,
        kind=WordOr("off", Duration(0.5, 600)),
        default="off",
        lands="cold.heartbeat_s",
        sentence="How often an event stream that waits for a cold start gets a comment; the first one opens it.",
    ),
    Row(
        key="cold-calls",
        topic=TOPIC,
        kind=Choice(ColdCalls),
        default="wait",
        lands="cold.calls",
        sentence="Whether other calls wait for a cold start, or are answered 202 and sent again by the client.",
    ),
)
