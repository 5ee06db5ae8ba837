"""Rates in tokens: what arrives, what each group does, and what one of its replicas can do (lambda, throughput, mu).

Tokens are counted at the gateways (``tidegate.records.tokens``), where an answer's are known at its end. Arrivals count
with the tokens that they are expected to take. A replica's rate in tokens is its rate in inferences, as learnt at the
limit (``tidegate.autoscaler.measure.rates``), times the tokens that an inference had then. So both describe the same
work: the rate in tokens holds while the sizes of requests change and the rate in inferences has to be learnt again.

The time per output token of streams is kept by occupancy: streams of a replica share it, so that a token takes the
longer the more there are.

Without reports of tokens by its gateways a revision has none of this.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec import UNSET

from tidegate.autoscaler.measure.observation import GroupObservation, GroupTokenRate, TokenRates
from tidegate.autoscaler.measure.plausible import PLAUSIBLE
from tidegate.autoscaler.measure.series import RecentSums
from tidegate.records.gateway_sample import GroupTokens, TokensSeen

SLOTS: Final = 10
"""Seconds over which rates are taken, as those in inferences are."""
MEMORY: Final = 200.0
"""Number of inferences with a remembered size, as many as requests in a service rate
(``tidegate.autoscaler.measure.rates``)."""
OUTLIER_AFTER: Final = 20.0
MAX_TIMES: Final = 100.0
"""Once ``OUTLIER_AFTER`` inferences are known, the next ones count as this many times their mean at most. A model
server that reports nonsense once does not change what ``target-tps`` asks for over the next thousand. Our choice:
honest sizes differ less."""
FULL_S: Final = 2.5
"""Answers reported now began when replicas were full, if a replica was full within this time."""
FORGET: Final = 1.0 / 300.0
"""Share of a larger time to the first output that enters with each report: an old smaller one is forgotten in
minutes."""
LEVEL: Final = math.log(1.25)
"""Logarithmic step of the occupancies at which the time per output token is kept apart."""
PACE_TOKENS: Final = 2000.0
"""Output tokens that a time per output token is a mean of."""
PACE_S: Final = 3600.0
"""Time after which a time per output token is forgotten: an occupancy that is avoided would never be seen again."""
OCCUPANCY_SHARE: Final = 0.2
"""Weight of the newest second in the occupancy that a stream's pace is kept by."""
MAX_GROUPS: Final = 64
_NOTHING: Final = TokensSeen()


class _Size:
    """Tokens of an inference: a mean over about the last ``MEMORY``."""

    __slots__ = ("_inferences", "mean")

    def __init__(self) -> None:
        self._inferences = 0.0
        self.mean = 0.0

    def note(self, inferences: float, tokens: float) -> None:
        known, size = min(self._inferences, MEMORY), tokens / inferences
        if known >= OUTLIER_AFTER and size > MAX_TIMES * self.mean > 0.0:
            size = MAX_TIMES * self.mean
        self._inferences = known + inferences
        self.mean += (size - self.mean) * inferences / self._inferences

    @property
    def known(self) -> float | None:
        return self.mean if self._inferences else None


class _GroupTokens:
    __slots__ = ("between", "done", "first_s", "lately", "occupancy", "pace", "when_full")

    def __init__(self) -> None:
        self.done = RecentSums(1, SLOTS)
        self.first_s: float | None = None
        self.lately, self.when_full = _Size(), _Size()
        self.between = _Size()
        """Output tokens of a stream behind its first."""
        self.occupancy = 0.0
        """Requests in a replica at a time, a mean over some seconds."""
        self.pace = _Pace()

    @property
    def at_the_limit(self) -> float | None:
        """Tokens of an inference when the service rate was learnt. A group that was never full has its rate from lower
        occupancy."""
        known = self.when_full.known
        return self.lately.known if known is None else known


class _Pace:
    """Seconds per output token by the requests that a replica runs at a time: what a stream has to share."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, tuple[float, float, float, float]] = {}
        """By occupancy, in steps of ``LEVEL``: (tokens, mean occupancy, mean seconds per token, newest time)."""

    def note(self, occupancy: float, tokens: int, seconds: float, now: float) -> None:
        level = round(math.log(max(1.0, occupancy)) / LEVEL)
        known, mean, pace_s, _ = self._levels.get(level, (0.0, 0.0, 0.0, now))
        known = min(known, PACE_TOKENS) + tokens
        part = tokens / known
        pace_s += (seconds / tokens - pace_s) * part
        self._levels[level] = known, mean + (max(1.0, occupancy) - mean) * part, pace_s, now

    def known(self, now: float) -> tuple[tuple[float, float], ...]:
        """Returns (occupancy, seconds per token), in rising order; forgets what was not seen for long."""
        old = [level for level, each in self._levels.items() if each[3] < now - PACE_S]
        for level in old:
            del self._levels[level]
        return tuple((mean, pace_s) for _, (_, mean, pace_s, _) in sorted(self._levels.items()))


class TokenMeter:
    """Token counts and rates of one revision."""

    __slots__ = ("_arrived", "_done", "_groups", "_lately")

    def __init__(self) -> None:
        self._arrived = RecentSums(1, SLOTS)
        self._done = RecentSums(2, SLOTS)
        self._lately = _Size()
        self._groups: dict[str, _GroupTokens] = {}

    def note(
        self, report: TokensSeen, before: TokensSeen | None, now: float, full_at: Callable[[str], float | None]
    ) -> bool:
        """Adds the growth since ``before`` (None for the start of the worker); returns False if it is impossible and
        left out. ``full_at``: when a replica of a group was last full."""
        known = before or _NOTHING
        gains = [getattr(report, name) - getattr(known, name) for name in _COUNTERS]
        groups = _gains(report.groups, known.groups)
        if groups is None or not all(0 <= gain <= PLAUSIBLE for gain in gains):
            return False
        arrived, prompt, completion = gains
        self._arrived.add(now, (arrived,))
        if prompt or completion:
            self._done.add(now, (prompt, completion))
        for gain in groups:
            self._note_group(gain, now, full_at(gain.group))
        return True

    def _note_group(self, gain: "_Gain", now: float, full_at: float | None) -> None:
        group = self._groups.get(gain.group)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                return
            group = self._groups[gain.group] = _GroupTokens()
        inferences, tokens, first_s = gain.inferences, gain.tokens, gain.first_s
        group.done.add(now, (tokens,))
        self._lately.note(inferences, tokens)
        group.lately.note(inferences, tokens)
        if first_s is not None:
            known = group.first_s
            group.first_s = first_s if known is None or first_s < known else known + (first_s - known) * FORGET
        if full_at is not None and now - full_at <= FULL_S:
            group.when_full.note(inferences, tokens)
        if gain.between and gain.between_s > 0.0 and group.occupancy > 0.0:
            group.between.note(gain.streams, gain.between)
            group.pace.note(group.occupancy, gain.between, gain.between_s, now)

    def rates(self, groups: Iterable[GroupObservation], now: float, *, is_paced: bool = False) -> TokenRates:
        """Returns the rates at ``now``; ``groups``: the observation's; ``is_paced``: the SLA has a time per output
        token."""
        span_s = self._done.span_s(now)
        prompt, completion = self._done.sums(now)
        found = {}
        for seen in groups:
            kept = self._groups.get(seen.accelerator)
            if kept is None:
                continue
            size = kept.at_the_limit
            occupancy = seen.occupancy
            if occupancy > 0.0:
                # Streams that end now have run for a while.
                share = OCCUPANCY_SHARE if kept.occupancy > 0.0 else 1.0
                kept.occupancy += (occupancy - kept.occupancy) * share
            pace = kept.pace.known(now) if is_paced else ()
            found[seen.accelerator] = GroupTokenRate(
                tps=kept.done.sums(now)[0] / kept.done.span_s(now),
                mu_tps=None if size is None or seen.mu_ips is None else seen.mu_ips * size,
                first_s=kept.first_s,
                pace=pace or UNSET,
                between=kept.between.mean if pace else UNSET,
            )
        return TokenRates(
            lambda_tps=self._arrived.sums(now)[0] / self._arrived.span_s(now),
            prompt_tps=prompt / span_s,
            completion_tps=completion / span_s,
            per_inference=self._lately.known,
            groups=found,
        )

    def __repr__(self) -> str:
        return f"<TokenMeter {len(self._groups)} groups, {self._lately.known} tokens per inference>"


_COUNTERS: Final = ("arrived", "prompt", "completion")


class _Gain(NamedTuple):
    """Growth of one group's counters."""

    group: str
    inferences: int
    tokens: int
    first_s: float | None
    """Mean time to the first output."""
    streams: int
    between: int
    between_s: float


def _gains(report: tuple[GroupTokens, ...], before: tuple[GroupTokens, ...]) -> list[_Gain] | None:
    """Returns the growth of groups that have any; None if one is impossible."""
    known = {each.group: each for each in before}
    gains: list[_Gain] = []
    for each in report:
        last = known.get(each.group) or GroupTokens(group=each.group, inferences=0, prompt=0, completion=0)
        inferences, streams = each.inferences - last.inferences, each.streams - last.streams
        tokens, first_s = each.prompt + each.completion - last.prompt - last.completion, each.first_s - last.first_s
        between, between_s = each.between - last.between, each.between_s - last.between_s
        if not all(0 <= gain <= PLAUSIBLE for gain in (inferences, tokens, streams, first_s, between, between_s)):
            return None
        if inferences:
            mean_first_s = first_s / streams if streams else None
            gains.append(_Gain(each.group, inferences, tokens, mean_first_s, max(1, streams), between, between_s))
    return gains
