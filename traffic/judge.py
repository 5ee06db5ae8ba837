"""Is a new revision worse than the one that serves? Wald's sequential test on requests that went badly.

A request went *badly* when it failed, was refused, expired, missed the SLA's latency, or is overdue: not yet ended
(event streams and tunnels: not yet begun) though the latency target has passed. The error budget is what the SLA lets
go badly, ``1 - percentile``; a revision's *burn* is its bad fraction over the budget. The new revision may have as much
as the budget or as the old one has in the same window, whichever is more (an overload is nobody's fault):

    allowed = max(budget, (bad_old + 20 budget) / (n_old + 20))
    worse   = 4 allowed / (1 + 3 allowed)                                (four times the odds)
    log L   = bad ln(worse / allowed) + good ln((1 - worse) / (1 - allowed))

``log L >= ln 1000`` is clear evidence, whenever it comes: a revision that does no worse than allowed ever gets there
with a chance of at most 1 in 1000 per window, however often one looks (A. Wald, Sequential Analysis, 1947). With the
default budget of 2 % that takes 6 bad requests without a good one; three are never enough. A window may pass when at
least 20 requests have ended and the evidence does not lean to *worse*. 20, 4 and 1000 are our choice.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ENOUGH: Final = 20
"""Requests of which a pass can be judged, and the weight of the budget beside the old revision's figures."""
ODDS: Final = 4.0
EVIDENCE: Final = math.log(1000.0)
LEAST_BUDGET: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How one revision's requests went in a window. Those that the client cancelled are left out."""

    answered: int = 0
    """Below 500."""
    failed: int = 0
    refused: int = 0
    expired: int = 0
    late: int = 0
    """Of the answered ones, those outside of the SLA's latency."""
    overdue: int = 0
    """Not ended though the SLA's latency has passed."""

    @property
    def requests(self) -> int:
        return self.answered + self.failed + self.refused + self.expired + self.overdue

    @property
    def bad(self) -> int:
        return self.failed + self.refused + self.expired + self.late + self.overdue

    @property
    def fraction(self) -> float:
        """Of the requests, those that went badly."""
        return self.bad / self.requests if self.requests else 0.0


class Verdict(StrEnum):
    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    """Enough requests, and the evidence leans to worse without being clear."""
    FEW = "few"
    """Too few requests to say that it is good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    verdict: Verdict
    evidence: float
    """``log L``; :data:`EVIDENCE` or more is clear."""
    allowed: float
    burn: float
    """The new revision's bad fraction over the budget."""
    old_burn: float

    def words(self, new: Tally, old: Tally) -> str:
        """The figures for people."""
        return (
            f"{new.bad} of {new.requests} requests went badly ({_kinds(new)}), burn {self.burn:.1f} against "
            f"{self.old_burn:.1f} of {old.requests} before; evidence {self.evidence:.1f} of {EVIDENCE:.1f}"
        )


def judge(new: Tally, old: Tally, budget: float) -> Judgement:
    """The new revision beside the old one. ``budget``: fraction that the SLA lets go badly."""
    budget = min(0.5, max(LEAST_BUDGET, budget))
    allowed = min(1.0 - LEAST_BUDGET, max(budget, (old.bad + ENOUGH * budget) / (old.requests + ENOUGH)))
    worse = ODDS * allowed / (1.0 + (ODDS - 1.0) * allowed)
    good = new.requests - new.bad
    evidence = new.bad * math.log(worse / allowed) + good * math.log((1.0 - worse) / (1.0 - allowed))
    if evidence >= EVIDENCE:
        verdict = Verdict.BAD
    elif new.requests < ENOUGH:
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
