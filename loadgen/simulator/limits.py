"""``concurrency: auto``: limits learnt by the product's tuners, from the samples of each second.

A server's declared number, where a group starts and the most it gets, is the width of its profile; ``AUTO_LIMIT`` where
the profile has none, since its times say nothing of more requests at once.
"""

from collections.abc import Collection, Iterable, Mapping

from tidegate.autoscaler.profiles.tuning import Move, Tuners
from tidegate.loadgen.simulator.scenario import Deployed
from tidegate.records.replica_sample import ReplicaSample


class SimulatedLimits:
    """The limits of all functions that give none themselves."""

    __slots__ = ("_functions", "_last", "_tuners")

    def __init__(self, functions: Iterable[Deployed]) -> None:
        given = {each.revision.id: each.revision.function for each in functions}
        self._functions = {name: function for name, function in given.items() if function.concurrency is None}
        self._tuners = Tuners()
        self._last: dict[str, ReplicaSample] = {}

    def __bool__(self) -> bool:
        """There are such functions."""
        return bool(self._functions)

    def measured(self, samples: Iterable[ReplicaSample], there: Collection[str]) -> None:
        """The samples of this second; ``there``: the replicas that exist, sampled or not."""
        for gone in [name for name in self._last if name not in there]:
            del self._last[gone]
        for after in samples:
            function = self._functions.get(after.revision)
            if function is None:
                continue
            self._tuners.found(function, after, after.group, is_declared=True)
            before = self._last.get(after.replica)
            if before is not None:
                self._tuners.measured(before, after, after.group)
            self._last[after.replica] = after

    def turn(self, now: float, waiting: Mapping[str, int]) -> list[Move]:
        """After the samples of a second: the limits that change. ``waiting``: requests in the gateway, by revision."""
        return self._tuners.turn(now, waiting)

    def of(self, revision: str, accelerator: str) -> int | None:
        """What replicas of the group should work with; None: nothing is learnt there."""
        known = self._tuners.limit(revision, accelerator)
        return None if known is None else known.limit

    def __repr__(self) -> str:
        return f"<SimulatedLimits {self._tuners!r}>"
