"""What a gateway worker has seen of a revision's tokens, as it crosses the process border (``tidegate.records``)."""

from dataclasses import dataclass

from tidegate.records.replica_sample import SparseHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTokens:
    """Tokens of the requests that one group answered. Cumulative."""

    group: str
    inferences: int
    """Of the requests whose tokens these are."""
    prompt: int
    completion: int
    streams: int = 0
    """Those with output."""
    first_s: float = 0.0
    """Sum over them: sent to the replica -> first event with output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """Tokens of one revision. Cumulative."""

    arrived: int = 0
    """Expected of the requests that arrived, refused and expired ones included: this is lambda in tokens."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Of the prompts, those that the model server had in a cache."""
    answers: int = 0
    """Answers whose tokens are counted."""
    estimated: int = 0
    """Those of them that reported no usage: their figures are ours."""
    first: SparseHistogram = ()
    """Streams: head received -> first event with output, cold start included."""
    between: SparseHistogram = ()
    """Streams: from one event with output to the next."""
    groups: tuple[GroupTokens, ...] = ()


def difference(told: TokensSeen, before: TokensSeen) -> TokensSeen:
    """What came between two reports of one worker, but for the groups; what ran backwards is nothing."""
    figures = {name: max(0, getattr(told, name) - getattr(before, name)) for name in _COUNTERS}
    return TokensSeen(**figures, first=_more(told.first, before.first), between=_more(told.between, before.between))


_COUNTERS = ("arrived", "prompt", "completion", "cached", "answers", "estimated")


def _more(told: SparseHistogram, before: SparseHistogram) -> SparseHistogram:
    known = dict(before)
    return tuple((index, count - known.get(index, 0)) for index, count in told if count > known.get(index, 0))
