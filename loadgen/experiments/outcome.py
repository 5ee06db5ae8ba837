"""The outcome of one run of an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.errors import TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOutcome:
    """Figures of one seed. Names carry their units (``a_total_s``, ``b_cost_dollars``); figures are finite numbers."""

    figures: Mapping[str, float]
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Curves for plots by name, points (x, y) rising in x. Curves of one plot share the part before a colon:
    ``"ready replicas: kpa"`` and ``"ready replicas: hpa"``. The part may end with units in brackets, ``[y]`` or
    ``[y by x]``: ``"throughput [inferences/s by callers]: 65:35"``; without x it is seconds."""


class ExperimentError(TidegateError):
    """A setup gives nothing that could be judged: it cannot run with these parameters, or gave no finite figures."""
