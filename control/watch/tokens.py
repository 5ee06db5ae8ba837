"""Tokens of the last minute, from the gateways' cumulative counters: the part of ``tidegate.control.watch.traffic``
that most functions do not need."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from tidegate.control.views.functions import TokensView
from tidegate.histogram import interpolated
from tidegate.records.gateway_sample import TokensSeen, difference

RECENT_S: Final = 5.0
"""Window of the rates."""
_NOTHING: Final = TokensSeen()


@dataclass(frozen=True, slots=True)
class _TokenSlice:
    """The growth of a revision's counters between two pulls of one worker."""

    at: float
    gain: TokensSeen


class TokenMeter:
    """Takes cumulative counters, and returns the view of a function."""

    __slots__ = ("_slices", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._slices: dict[str, deque[_TokenSlice]] = {}

    def record(self, function: str, after: TokensSeen, before: TokensSeen | None, now: float) -> None:
        """Takes one pull. ``before``: the worker's last one; None: since its start."""
        slices = self._slices.setdefault(function, deque())
        self._forget(slices, now)
        if after != before:
            slices.append(_TokenSlice(now, difference(after, before or _NOTHING)))

    def view(self, function: str, percentile: float, now: float) -> TokensView | None:
        """Returns the window of ``function`` with tails at ``percentile`` (0..100); None if it has no tokens."""
        slices = self._slices.get(function)
        if slices is None:
            return None
        self._forget(slices, now)
        first, between = dict[int, int](), dict[int, int]()
        for each in slices:
            for counts, gained in ((first, each.gain.first), (between, each.gain.between)):
                for index, count in gained:
                    counts[index] = counts.get(index, 0) + count
        gains = [each.gain for each in slices]
        recent = [each.gain for each in slices if each.at > now - RECENT_S]
        q = percentile / 100.0
        return TokensView(
            prompt=sum(each.prompt for each in gains),
            completion=sum(each.completion for each in gains),
            cached=sum(each.cached for each in gains),
            answers=sum(each.answers for each in gains),
            estimated=sum(each.estimated for each in gains),
            arrived_per_s=sum(each.arrived for each in recent) / RECENT_S,
            prompt_per_s=sum(each.prompt for each in recent) / RECENT_S,
            completion_per_s=sum(each.completion for each in recent) / RECENT_S,
            first_p50_s=interpolated(first.items(), 0.5),
            first_tail_s=interpolated(first.items(), q),
            between_p50_s=interpolated(between.items(), 0.5),
            between_tail_s=interpolated(between.items(), q),
        )

    def _forget(self, slices: deque[_TokenSlice], now: float) -> None:
        while slices and slices[0].at <= now - self._window_s:
            slices.popleft()

    def __repr__(self) -> str:
        return f"<TokenMeter {len(self._slices)} functions>"
