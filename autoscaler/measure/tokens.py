"""Rates in tokens: what arrives, what each group does, and what one of its replicas can do (lambda, throughput, mu).

Tokens are counted at the gateways (``tidegate.records.tokens``), where an answer's are known at its end. Arrivals count
with the tokens that they are expected to take. A replica's rate in tokens is its rate in inferences, as learnt at the
limit (``tidegate.autoscaler.measure.rates``), times the tokens that an inference had then. So both describe the same
work: the rate in tokens holds while the sizes of requests change and the rate in inferences has to be learnt again.

Without reports of tokens by its gateways a revision has none of this.
"""

from collections.abc import Callable, Iterable
from typing import Final

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
    __slots__ = ("done", "first_s", "lately", "when_full")

    def __init__(self) -> None:
        self.done = RecentSums(1, SLOTS)
        self.first_s: float | None = None
        self.lately, self.when_full = _Size(), _Size()

    @property
    def at_the_limit(self) -> float | None:
        """Tokens of an inference when the service rate was learnt. A group that was never full has its rate from lower
        occupancy."""
        known = self.when_full.known
        return self.lately.known if known is None else known


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
        for name, inferences, tokens, first_s in groups:
            self._note_group(name, inferences, tokens, first_s, now, full_at(name))
        return True

    def _note_group(
        self, name: str, inferences: int, tokens: int, first_s: float | None, now: float, full_at: float | None
    ) -> None:
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                return
            group = self._groups[name] = _GroupTokens()
        group.done.add(now, (tokens,))
        self._lately.note(inferences, tokens)
        group.lately.note(inferences, tokens)
        if first_s is not None:
            known = group.first_s
            group.first_s = first_s if known is None or first_s < known else known + (first_s - known) * FORGET
        if full_at is not None and now - full_at <= FULL_S:
            group.when_full.note(inferences, tokens)

    def rates(self, groups: Iterable[GroupObservation], now: float) -> TokenRates:
        """Returns the rates at ``now``; ``groups``: the observation's."""
        span_s = self._done.span_s(now)
        prompt, completion = self._done.sums(now)
        found = {}
        for seen in groups:
            kept = self._groups.get(seen.accelerator)
            if kept is None:
                continue
            size = kept.at_the_limit
            found[seen.accelerator] = GroupTokenRate(
                tps=kept.done.sums(now)[0] / kept.done.span_s(now),
                mu_tps=None if size is None or seen.mu_ips is None else seen.mu_ips * size,
                first_s=kept.first_s,
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


_Gain = tuple[str, int, int, float | None]
"""Group, inferences, tokens, mean time to the first output."""


def _gains(report: tuple[GroupTokens, ...], before: tuple[GroupTokens, ...]) -> list[_Gain] | None:
    """Returns the growth of groups that have any; None if one is impossible."""
    known = {each.group: each for each in before}
    gains: list[_Gain] = []
    for each in report:
        last = known.get(each.group) or GroupTokens(group=each.group, inferences=0, prompt=0, completion=0)
        inferences, streams = each.inferences - last.inferences, each.streams - last.streams
        tokens, first_s = each.prompt + each.completion - last.prompt - last.completion, each.first_s - last.first_s
        if not all(0 <= gain <= PLAUSIBLE for gain in (inferences, tokens, streams, first_s)):
            return None
        if inferences:
            gains.append((each.group, inferences, tokens, first_s / streams if streams else None))
    return gains
