"""Judges whether a new revision is worse than the serving one: Wald's sequential test on requests that went badly.

A request went *badly* if it failed, was refused, expired, missed the SLA's latency, or is overdue: not yet ended (event
streams and tunnels: not yet begun) though the latency target has passed. The error budget is the fraction that the SLA
allows to go badly, ``1 - percentile``; a revision's *burn* is its bad fraction over the budget. The new revision is
allowed the budget or the bad fraction of the old one in the same window, whichever is more (an overload is not the new
revision's fault):

    allowed = max(budget, (bad_old + 20 budget) / (n_old + 20))
    worse   = 4 allowed / (1 + 3 allowed)                                (four times the odds)
    log L   = bad ln(worse / allowed) + good ln((1 - worse) / (1 - allowed))

``log L >= ln 1000`` is clear evidence, at any time: a revision that does no worse than allowed reaches it with a chance
of at most 1 in 1000 per window, however often it is judged (A. Wald, Sequential Analysis, 1947). With the default
budget of 2 % that takes 6 bad requests without a good one; three are never enough. A window may pass when at least 20
requests have ended and the evidence does not lean to *worse*. 20, 4 and 1000 are our choice.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIN_REQUESTS: Final = 20
"""Requests from which a pass can be judged, and the weight of the budget beside the old revision's figures."""
ODDS: Final = 4.0
EVIDENCE: Final = math.log(1000.0)
MIN_BUDGET: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Outcomes of one revision's requests in a window. Requests that the client cancelled are left out."""

    answered: int = 0
    """Requests answered with a status below 500."""
    failed: int = 0
    refused: int = 0
    expired: int = 0
    late: int = 0
    """Answered requests outside of the SLA's latency."""
    overdue: int = 0
    """Requests that have not ended though the SLA's latency has passed."""

    @property
    def requests(self) -> int:
        return self.answered + self.failed + self.refused + self.expired + self.overdue

    @property
    def bad(self) -> int:
        return self.failed + self.refused + self.expired + self.late + self.overdue

    @property
    def fraction(self) -> float:
        """Fraction of the requests that went badly."""
        return self.bad / self.requests if self.requests else 0.0


class Verdict(StrEnum):
    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    """Enough requests, and the evidence leans to worse without being clear."""
    FEW = "few"
    """Too few requests for a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    verdict: Verdict
    evidence: float
    """``log L``. :data:`EVIDENCE` or more is clear."""
    allowed: float
    burn: float
    """The new revision's bad fraction over the budget."""
    old_burn: float

    def words(self, new: Tally, old: Tally) -> str:
        """Returns the figures for people."""
        return (
            f"{new.bad} of {new.requests} requests went badly ({_kinds(new)}), burn {self.burn:.1f} against "
            f"{self.old_burn:.1f} of {old.requests} before; evidence {self.evidence:.1f} of {EVIDENCE:.1f}"
        )


def judge(new: Tally, old: Tally, budget: float) -> Judgement:
    """Compares the new revision with the old one. ``budget`` is the fraction that the SLA allows to go badly."""
    budget = min(0.5, max(MIN_BUDGET, budget))
    allowed = min(1.0 - MIN_BUDGET, max(budget, (old.bad + MIN_REQUESTS * budget) / (old.requests + MIN_REQUESTS)))
    worse = ODDS * allowed / (1.0 + (ODDS - 1.0) * allowed)
    good = new.requests - new.bad
    evidence = new.bad * math.log(worse / allowed) + good * math.log((1.0 - worse) / (1.0 - allowed))
    if evidence >= EVIDENCE:
        verdict = Verdict.BAD
    elif new.requests < MIN_REQUESTS:
        verdict = Verdict.FEW
    else:
        verdict = Verdict.GOOD if evidence <= 0.0 else Verdict.OPEN
    return Judgement(
        verdict=verdict,
        evidence=evidence,
        allowed=allowed,
        burn=new.fraction / budget,
        old_burn=old.fraction / budget,
    )


def _kinds(tally: Tally) -> str:
    kinds = ("failed", "refused", "expired", "late", "overdue")
    return ", ".join(f"{getattr(tally, kind)} {kind}" for kind in kinds if getattr(tally, kind)) or "none"
