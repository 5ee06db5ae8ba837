"""The policies that OLTunes is compared with, over accelerator kinds: ``orion`` and ``reserve-and-pack``.

Both size as ``oltunes`` does (:mod:`tidegate.autoscaler.policies.oltunes.sizing`) and choose kinds without any
knowledge of times. Their rules for single tasks, which look at what runs on a device at the moment, are those of the
simulated schedulers (:mod:`tidegate.autoscaler.oltunes.scheduling.rivals`).

- ``orion``: the first kind with room, in the order in which the kinds are listed (by price). Latency-critical functions
  come first where places are short, as under each policy. A throughput-oriented function is to have whole devices: what
  runs beside it on a shared one is unknown here.
- ``reserve-and-pack``: reserved kinds for large models alone, the others for all other models. Of these the kind with
  the fewest places left is filled first; on its devices the placement ``best-fit`` packs by memory.
"""

from collections.abc import Collection, Sequence
from math import inf
from typing import Any, Final

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.oltunes.sizing import KindsPolicy
from tidegate.function import Function, TaskClass
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import ORION_PARAMETERS, RESERVE_AND_PACK_PARAMETERS
from tidegate.records.decision import GroupDecision, Reason


class OrionPolicy(KindsPolicy):
    """The first kinds with room."""

    __slots__ = ()

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(ORION_PARAMETERS, self._function.scaling.parameters)

    def _chosen(
        self, observation: Observation, known: Sequence[GroupObservation], needed_ips: float
    ) -> tuple[Sequence[str], Reason]:
        names = tuple(each.accelerator for each in known)
        return names, reason("first_with_room", f"{figure(needed_ips)} inferences/s: {', '.join(names)}")


class ReserveAndPackPolicy(KindsPolicy):
    """Reserved kinds for large models, the fullest of the others for the rest."""

    __slots__ = ()

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(RESERVE_AND_PACK_PARAMETERS, self._function.scaling.parameters)

    def _allowed(self, observation: Observation) -> tuple[Sequence[GroupObservation], Reason | None]:
        given = self._given
        is_large, stated = given["large"], given["reserved"]
        reserved = _dearest(observation.groups) if stated is None else frozenset(stated.split(","))
        if not reserved:
            return sorted(observation.groups, key=_places), None
        own = [each for each in observation.groups if (each.accelerator in reserved) == is_large]
        if not own:
            names = ", ".join(sorted(reserved))
            what = (
                f"large, and may use none of the reserved ones: {names}" if is_large else f"all are reserved: {names}"
            )
            return own, reason("no_accelerator", what)
        return sorted(own, key=_places), None

    def _chosen(
        self, observation: Observation, known: Sequence[GroupObservation], needed_ips: float
    ) -> tuple[Sequence[str], Reason]:
        names = tuple(each.accelerator for each in known)
        which = "reserved" if self._given["large"] else "packed"
        return names, reason("packed", f"{figure(needed_ips)} inferences/s, {which}: {', '.join(names)}")


def _places(group: GroupObservation) -> tuple[float, str]:
    """Sorts the kind with the fewest places left first."""
    return (inf if group.room is None else group.room, group.accelerator)


def _dearest(groups: Sequence[GroupObservation]) -> Collection[str]:
    """Returns the kinds of the highest price; none if all have the same."""
    prices = [each.price_per_hour or 0.0 for each in groups]
    if not prices or min(prices) == max(prices):
        return ()
    return frozenset(each.accelerator for each in groups if (each.price_per_hour or 0.0) == max(prices))


def warnings(function: Function) -> tuple[str, ...]:
    """Returns a warning for a throughput-oriented function that shares devices."""
    if function.gpu.mps and function.task_class is TaskClass.THROUGHPUT_ORIENTED:
        return (
            "mps-on: policy orion puts a throughput-oriented function on a shared device whatever runs there; without"
            " mps-on each replica has a device of its own",
        )
    return ()


ORION: Final = PolicyRow(
    name="orion",
    sentence="Orion, OLTunes' first rival: the first accelerator kind with room, whatever it takes there.",
    build=OrionPolicy,
    keeps=(OrionPolicy, Recommendation, GroupDecision, Reason),
    warnings=warnings,
)
RESERVE_AND_PACK: Final = PolicyRow(
    name="reserve-and-pack",
    sentence="OLTunes' second rival: the dearest kinds for large models alone, the fullest of the others for the rest.",
    build=ReserveAndPackPolicy,
    keeps=(ReserveAndPackPolicy, Recommendation, GroupDecision, Reason),
)
