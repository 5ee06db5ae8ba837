"""Named workloads of the papers that this project is compared with; arrival times are drawn elsewhere.

HetSev's two patterns are shapes (:mod:`tidegate.loadgen.arrivals.shapes`). Here: OLTunes, table 7; the thesis on
in-flight and utilisation autoscaling, sections 4.2 and A9; Themis, section 6 (a stream of counts divided among the
pipelines).
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.loadgen.arrivals import shapes
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, joined, sliced
from tidegate.loadgen.arrivals.pace import LoadPhase


class Rates(NamedTuple):
    """Requests per second of one model."""

    uniform: float
    poisson: float

    def of(self, placement: Placement) -> float:
        """Returns the rate for an arrival placement; everything but Poisson counts as uniform."""
        return self.poisson if placement is Placement.POISSON else self.uniform


OLTUNES: Final[Mapping[str, Rates]] = MappingProxyType(
    {
        "resnet18": Rates(70.0, 60.0),
        "yolov5": Rates(50.0, 40.0),
        "resnet50": Rates(40.0, 25.0),
        "bert-base": Rates(10.0, 5.0),
        "gpt2": Rates(3.0, 2.0),
    }
)
"""OLTunes, table 7; ``resnet50`` stands for ResNet-50 and ResNet-152 together."""
LANGUAGE: Final = ("bert-base", "gpt2")
"""Models that replay a real trace of language requests."""


def oltunes(
    duration_s: float, placement: Placement, rng: random.Random, language: Iterable[Arrival] | None = None
) -> Iterator[Arrival]:
    """Yields the requests of all models of table 7 together, each with its model as ``function``. ``language`` is a
    real trace whose requests go to the language models in turn, in place of their rates in the table."""
    drawn = OLTUNES if language is None else {name: OLTUNES[name] for name in OLTUNES if name not in LANGUAGE}
    parts: list[Iterator[Arrival]] = []
    for name, rates in drawn.items():
        seed = random.Random(rng.getrandbits(64))
        times = shapes.times(shapes.constant(duration_s, rates.of(placement)), placement, seed)
        parts.append(_named(times, name))
    if language is not None:
        parts.append(_in_turn(sliced(language, 0.0, duration_s)))
    return joined(*parts)


def _named(times: Iterable[float], name: str) -> Iterator[Arrival]:
    for at_s in times:
        yield Arrival(at_s, function=name)


def _in_turn(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    for number, arrival in enumerate(arrivals):
        yield arrival._replace(function=LANGUAGE[number % len(LANGUAGE)])


THESIS: Final[Mapping[str, tuple[LoadPhase, ...]]] = MappingProxyType(
    {
        "thesis-constant": (LoadPhase(0.0, 15_000, 6, 15.0),),
        "thesis-phases": (
            LoadPhase(0.0, 16_200, 6, 15.0),
            LoadPhase(180.0, 9_600, 2, 10.0),
            LoadPhase(660.0, 16_200, 6, 15.0),
            LoadPhase(840.0, 6_000, 1, 10.0),
        ),
    }
)
"""Experiment 1, and the four phases of experiment 2, which overlap where the system is slow."""


class Share(NamedTuple):
    """A share of a stream of counts: divided by ``divisor``, and at least ``least`` requests per second."""

    divisor: float
    least: float = 1.0


THEMIS: Final[Mapping[str, Share]] = MappingProxyType(
    {"themis-video": Share(4.384), "themis-audio": Share(8.5625), "themis-nlp": Share(21.0)}
)
"""The share of the stream for each of Themis' pipelines."""
