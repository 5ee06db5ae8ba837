"""``concurrency: auto``: limits learnt by the product's tuners from the samples of each second.

The server's declared number, where a group starts and its maximum, is the width of its profile. A profile without a
width gives ``AUTO_LIMIT``, since its times do not cover more requests at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from tidegate.autoscaler.profiles.tuning import Move, Tuners
from tidegate.function import Function
from tidegate.loadgen.simulator.scenario import Deployed
from tidegate.records.replica_sample import ReplicaSample


class SimulatedLimits:
    """The learnt limits of all functions without a limit of their own."""

    __slots__ = ("_functions", "_last", "_scaled", "_tuners")

    def __init__(self, functions: Iterable[Deployed], scaled: Callable[[Function], Function]) -> None:
        """``scaled``: returns a function as it is scaled; a stage of a pipeline has its budget for a target."""
        self._scaled = scaled
        given = {each.revision.id: each.revision.function for each in functions}
        self._functions = {name: function for name, function in given.items() if function.concurrency is None}
        self._tuners = Tuners()
        self._last: dict[str, ReplicaSample] = {}

    def __bool__(self) -> bool:
        """Whether there are such functions."""
        return bool(self._functions)

    def measured(self, samples: Iterable[ReplicaSample], there: Collection[str]) -> None:
        """Takes the samples of this second; ``there``: the replicas that exist, sampled or not."""
        for gone in [name for name in self._last if name not in there]:
            del self._last[gone]
        for after in samples:
            function = self._functions.get(after.revision)
            if function is None:
                continue
            self._tuners.found(self._scaled(function), after, after.group, is_declared=True)
            before = self._last.get(after.replica)
            if before is not None:
                self._tuners.measured(before, after, after.group)
            self._last[after.replica] = after

    def turn(self, now: float, waiting: Mapping[str, int]) -> list[Move]:
        """Returns the limits that change after the samples of a second. ``waiting``: requests in the gateway, by
        revision."""
        return self._tuners.turn(now, waiting)

    def of(self, revision: str, accelerator: str) -> int | None:
        """Returns the limit for the group's replicas; None if none is learnt there."""
        known = self._tuners.limit(revision, accelerator)
        return None if known is None else known.limit

    def __repr__(self) -> str:
        return f"<SimulatedLimits {self._tuners!r}>"
