"""Variants of a model: functions that answer the same requests, with different accuracy (OLTunes, section 4.1).

A request is for one variant, and is served by it. If that function allows a loss of accuracy (``accuracy-loss``) and
has no free slot, a variant with a free slot serves the request, the most accurate one first. Only requests that arrive
are moved: what waits, waits for its own variant. A variant without a ready replica is activated as if the request
waited for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidegate.activator.commands import Activate
from tidegate.activator.room import WaitingRoom
from tidegate.records.gateway_sample import Activation
from tidegate.records.route_table import ModelVariant

WAKE_EVERY_S: Final = 0.2
"""Interval at which the start of a variant whose requests others serve is requested again, as for waiting requests."""


class FamilyMember(NamedTuple):
    """A function that is a variant."""

    name: str
    variant: ModelVariant
    interface: object
    """What its clients depend on: protocol and access rule. Variants that differ in it never stand in for each
    other."""


def stand_ins(members: Iterable[FamilyMember]) -> Mapping[str, tuple[str, ...]]:
    """Returns by function the variants that may serve its requests, the most accurate first; functions without any are
    left out. Equal accuracies are in the order of names."""
    families: dict[object, list[tuple[float, FamilyMember]]] = {}
    for member in members:
        accuracy, family = member.variant.accuracy, member.variant.family
        if accuracy is not None and family is not None:
            families.setdefault((family, member.interface), []).append((accuracy, member))
    found = {}
    for known in families.values():
        order = sorted(known, key=lambda each: (-each[0], each[1].name))
        for own, wanted in order:
            least = own - wanted.variant.loss
            names = [other.name for accuracy, other in order if other is not wanted and accuracy >= least]
            if names and wanted.variant.loss:
                found[wanted.name] = tuple(names)
    return found


class VariantChoice:
    """Chooses the variants that serve the requests of one waiting room."""

    __slots__ = ("_room", "_woken")

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self._woken: dict[str, float] = {}
        """When the start of a revision was last requested here."""

    def is_needed(self, revision: str, inferences: int) -> bool:
        """Returns whether a request of this many inferences would wait for a slot of its own variant."""
        return self._room.is_short_of(revision, inferences)

    def choose(self, function: str, own: str, others: Sequence[str], inferences: int, now: float) -> str | None:
        """Returns the revision, of ``others``, that serves a request for the revision ``own``; None if none has a free
        slot. ``others``: revisions of the function's stand-ins, in their order."""
        room = self._room
        for other in others:
            if room.has_slot(other, inferences):
                self._wake(function, own, inferences, now)
                return other
            room.open_channels(other, now)  # Its slots are known here from the next request on.
        return None

    def _wake(self, function: str, revision: str, inferences: int, now: float) -> None:
        if self._room.ready_replicas(revision) or now < self._woken.get(revision, -WAKE_EVERY_S) + WAKE_EVERY_S:
            return
        self._woken[revision] = now
        activation = Activation(
            function=function, revision=revision, waiting=1, waiting_inferences=inferences, oldest_waiting_s=0.0
        )
        self._room.out.append(Activate(activation))

    def forget_except(self, revisions: frozenset[str]) -> None:
        """Drops what is kept of revisions that have left the route table."""
        self._woken = {revision: when for revision, when in self._woken.items() if revision in revisions}

    def __repr__(self) -> str:
        return f"<VariantChoice {len(self._woken)} woken>"
