"""The time per output token: how many streams a replica may run at a time, and what each of them then takes.

Streams of a replica share it, so that a token takes the longer the more of them there are. The measured points (streams
at a time, seconds per token) are joined by lines. Beyond them a token takes as many times longer as there are more
streams, as on a processor that is shared: more than the model server will need, so what is not known is not promised.

Worked example: 20 ms a token with 4 streams, 35 ms with 8. For 50 ms a replica may run 11 streams, for 25 ms five.
"""

from typing import Final

from tidegate.autoscaler.measure.observation import TokenRates

Pace = tuple[tuple[float, float], ...]
"""(streams at a time, seconds per token), in rising order, at least one."""
ROOM: Final = 0.9
"""Part of the target that a mean may take: single streams are slower (our choice)."""


def most_streams(pace: Pace, target_s: float) -> float:
    """Returns the streams that a replica may run at a time so that a token takes ``target_s`` at most."""
    before: tuple[float, float] | None = None
    for streams, seconds in pace:
        if seconds > target_s:
            if before is None:
                return streams * target_s / seconds
            return before[0] + (streams - before[0]) * (target_s - before[1]) / (seconds - before[1])
        before = streams, seconds
    streams, seconds = pace[-1]
    return streams * target_s / seconds


def per_token_s(pace: Pace, streams: float) -> float:
    """Returns the seconds per token with so many streams at a time."""
    before: tuple[float, float] | None = None
    for known, seconds in pace:
        if known >= streams:
            if before is None:
                return seconds  # Fewer streams are hardly slower.
            return before[1] + (seconds - before[1]) * (streams - before[0]) / (known - before[0])
        before = known, seconds
    known, seconds = pace[-1]
    return seconds * streams / known


class Paced:
    """What a time per output token leaves of the replicas of each group. ``target_s``: None if the SLA has none."""

    __slots__ = ("_known", "_target_s")

    def __init__(self, tokens: TokenRates | None, target_s: float | None) -> None:
        groups = {} if tokens is None or target_s is None else tokens.groups
        self._target_s = ROOM * (target_s or 0.0)
        self._known = {
            name: (each.pace, each.between, each.first_s or 0.0)
            for name, each in groups.items()
            if isinstance(each.pace, tuple) and isinstance(each.between, float)
        }

    @property
    def is_known(self) -> bool:
        """False without a target, or before any stream has ended."""
        return bool(self._known)

    def most(self, group: str) -> float | None:
        """Returns the streams at a time of a replica; None without a target, or before any stream has ended."""
        known = self._known.get(group)
        return None if known is None else most_streams(known[0], self._target_s)

    def seconds(self, group: str, streams: float) -> float:
        """Returns the seconds of a replica for one stream, with so many at a time."""
        pace, between, first_s = self._known[group]
        return (first_s + between * per_token_s(pace, streams)) / streams


UNPACED: Final = Paced(None, None)
"""Without a time per output token."""
