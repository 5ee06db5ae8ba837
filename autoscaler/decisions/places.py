"""Gives the place of an idle replica to a function that has none and finds no free place.

A *claim* is a revision that asks for a replica while its function has none: a request waits for it, or it was just
deployed and has not started yet. Claims come in this order: those with waiting requests first, the longest waiting one
first; then first starts. Latency-critical functions come before throughput-oriented ones (``task-class``). For each
claim, in this order:

1. a free place is reserved for it: other revisions do not see it;
2. else a place that is being freed (a replica drains) is reserved for it;
3. else an idle replica of another function is given up: of functions that were never used first, then of
   throughput-oriented ones, then of the least recently used one;
4. else, for requests of a latency-critical function, a busy replica of a throughput-oriented function that has another
   one is given up. Its running requests end first, its waiting ones go to the others.

A replica is given up only if its revision is ready, has had no work for ``IDLE_S`` and has more replicas than its
minimum; rule 4 alone does not ask for idleness. Missing measurements mean that nothing is given up.

A function with a replica grows into free places only, so that two busy functions never take places from each other in
turns. A latency-critical one that its policy wants to be larger also claims a place of a throughput-oriented one, by
rules 1, 2 and 4, after all other claims and one at a time. The place goes back when it scales in: the other function
grows into it as into any free place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.decisions.totals import IDLE_S
from tidegate.autoscaler.measure.observation import FleetGroup, GivenUp, Observation
from tidegate.records.decision import GroupDecision, Reason

ENDING_S: Final = 10.0
"""Longest time between the decision to give a replica up and its free place: its processes end. Our choice."""

Fleets = Mapping[str, Sequence[FleetGroup]]
"""Groups by revision."""


class Standing(NamedTuple):
    """One revision at its last decision."""

    function: str
    observation: Observation
    idle_s: float
    """Time without work since it is ready."""
    keeps: int
    """Replicas that it does not give up: its minimum; all, if they must not be taken away."""
    waiting: int
    """Requests that wait, the activation's included."""
    is_first_start: bool
    """True if it was just deployed and has not started yet."""
    is_used: bool = False
    """True if a request has ended, other than for metadata."""
    is_leaving: bool = False
    """True for a retired revision: it claims nothing, and its replicas end anyway."""
    is_oriented: bool = False
    """True for a throughput-oriented function."""
    is_short: bool = False
    """True if its policy wants more replicas than the accelerators take."""

    tries_unknown: bool = False
    """True if it also wants a replica of a kind whose rate is not known."""

    @property
    def is_growing(self) -> bool:
        """True if it may claim a further replica."""
        seen = self.observation
        return self.is_short and not (self.is_oriented or self.is_leaving) and seen.complete and seen.existing > 0

    @property
    def is_asking(self) -> bool:
        return not self.is_leaving and (self.waiting > 0 or self.is_first_start)

    @property
    def gives_way(self) -> bool:
        """True if it may give up a replica now."""
        seen = self.observation
        return (
            not (self.is_leaving or self.is_asking)
            and seen.existing > self.keeps
            and seen.ready > 0
            and self.idle_s >= IDLE_S
            and seen.is_quiet
        )

    @property
    def gives_way_busy(self) -> bool:
        """True if it may give up a replica at work: it is throughput-oriented, and another one serves on."""
        seen = self.observation
        return (
            self.is_oriented
            and not (self.is_leaving or self.is_first_start)
            and seen.complete
            and seen.ready > 1
            and seen.existing > self.keeps
        )

    @property
    def gives_way_soon(self) -> bool:
        """True if it is going to give up a replica unless work comes: it has not been idle for long enough, or is in
        its first start, which no request waits for."""
        seen = self.observation
        if self.is_leaving or not seen.complete or seen.existing <= self.keeps:
            return False
        return self.waiting == 0 if seen.ready == 0 else seen.is_quiet

    def why_held(self) -> str:
        """Returns why its replicas are not given up now, and until when, for people."""
        seen = self.observation
        if self.is_leaving:
            return "ending"
        if seen.existing and seen.ready == 0:
            return f"starting, kept until it is ready and idle for {figure(IDLE_S)} s"
        if not seen.complete:
            return "kept until its measurements are complete"
        if seen.existing <= self.keeps:
            return f"kept as long as its minimum scale is {self.keeps}"
        if not seen.is_quiet:
            return f"busy, kept until {figure(IDLE_S)} s after its last request"
        left_s = max(0.0, IDLE_S - self.idle_s)
        return f"idle, kept for {figure(left_s)} s more" if left_s else "idle, may be given up"


class Holder(NamedTuple):
    """A function that holds places."""

    function: str
    replicas: int
    why: str


class _Freed(NamedTuple):
    """A replica that was given up."""

    revision: str
    existing: int
    """Replicas that its revision had."""
    accelerator: str
    at: float
    how: str
    """How its place becomes free, for people."""


class Places:
    """The claims, and what is reserved and given up for them. To be matched once a tick, from the last decisions."""

    __slots__ = (
        "_asking",
        "_coming",
        "_freed",
        "_given",
        "_growing",
        "_is_exhausted",
        "_reserved",
        "_reserved_by",
        "_reserved_free",
        "_standings",
        "_used",
    )

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._asking: dict[str, None] = {}
        """Revisions that ask, in the order in which they were noted."""
        self._growing: dict[str, None] = {}
        """Revisions that claim a further replica, in the order in which they were noted."""
        self._used: set[str] = set()
        """Functions that have had work since this process began."""
        self._given: dict[str, GivenUp] = {}
        self._reserved: Counter[str] = Counter()
        """Places by accelerator."""
        self._reserved_by: dict[str, str] = {}
        """Accelerator by claim."""
        self._reserved_free: Counter[str] = Counter()
        """Those of them that were free at the match: all but the places that become free for the claims in
        ``_coming``."""
        self._coming: dict[str, str] = {}
        """By claim that has to wait for its place: how the place becomes free, for people."""
        self._freed: dict[str, _Freed] = {}
        """By claim that a replica was given up for."""
        self._is_exhausted = False
        """True if some claim found no idle replica."""

    def note(self, revision: str, standing: Standing) -> None:
        """Notes the state of a revision at a decision."""
        self._standings[revision] = standing
        if standing.waiting > 0 or standing.is_used:
            self._used.add(standing.function)
        if standing.is_asking:
            self._asking[revision] = None
        else:
            self._asking.pop(revision, None)
        if standing.is_growing:
            self._growing[revision] = None
        else:
            self._growing.pop(revision, None)

    def assume_used(self, function: str) -> None:
        """Counts a function as used: it was known before this process began."""
        self._used.add(function)

    def is_used(self, function: str) -> bool:
        """Returns whether the function has had work."""
        return function in self._used

    def forget(self, revision: str) -> None:
        """Drops a revision."""
        gone = self._standings.pop(revision, None)
        self._asking.pop(revision, None)
        self._growing.pop(revision, None)
        self._given.pop(revision, None)
        if gone is not None and all(each.function != gone.function for each in self._standings.values()):
            self._used.discard(gone.function)

    def match(self, fleets: Fleets, now: float) -> None:
        """Finds a place for each claim. ``fleets``: what runs now."""
        self._given, self._is_exhausted = {}, False
        self._reserved, self._reserved_free, self._reserved_by, self._coming = Counter(), Counter(), {}, {}
        claims = list(self._claims(fleets)) if self._asking else []
        claims += [name for name in self._growing if name not in claims and self._has_kinds(fleets.get(name, ()))]
        self._freed = {
            name: each for name, each in self._freed.items() if name in claims and self._is_ending(each, fleets, now)
        }
        if not claims:
            return
        claims.sort(key=lambda name: name not in self._freed)  # a place goes to the claim that it was freed for
        draining = Counter[str]()
        for groups in fleets.values():
            for group in groups:
                draining[group.accelerator] += group.draining
        # Only claims that find no free place look for a victim: the lists are made when the first one does.
        victims: list[str] | None = None
        soon: list[str] = []
        for claim in claims:
            groups = [each for each in fleets[claim] if each.room is not None]
            if claim in self._growing:
                groups = self._known(claim, groups)
            free = next((each for each in groups if (each.room or 0) > self._reserved[each.accelerator]), None)
            if free is not None:
                self._reserve(claim, free.accelerator)
                self._reserved_free[free.accelerator] += 1
                continue
            ending = next((each.accelerator for each in groups if draining[each.accelerator] > 0), None)
            if ending is not None:
                draining[ending] -= 1
                self._reserve(claim, ending)
                self._coming[claim] = f"a replica on {ending} is ending"
                continue
            if claim in self._freed:  # its processes have left the list of replicas, and not yet their place
                self._reserve(claim, self._freed[claim].accelerator)
                self._coming[claim] = self._freed[claim].how
                continue
            kinds = [each.accelerator for each in groups]
            if claim in self._growing:
                self._take(claim, kinds, self._busy_victims(), fleets, now)
                continue
            if victims is None:
                victims = self._victims()
                soon = [name for name, each in self._standings.items() if each.gives_way_soon and name not in victims]
            if not (
                self._take(claim, kinds, victims, fleets, now)
                or (self._may_take_busy(claim) and self._take(claim, kinds, self._busy_victims(), fleets, now))
            ):
                self._is_exhausted = True
                self._wait_for(claim, kinds, soon, fleets)

    def claim(self, fleets: Fleets, revision: str, now: float) -> bool:
        """Matches again after an activation; returns whether a replica is newly given up for the revision."""
        if revision in self._reserved_by or self._is_exhausted or revision not in self._asking:
            return False
        self.match(fleets, now)
        return revision in self._coming and any(each.revision == revision for each in self._given.values())

    def given_up(self, revision: str) -> GivenUp | None:
        """Returns the replica that an idle revision is to give up; None if it keeps all."""
        return self._given.get(revision)

    def coming(self, revision: str) -> str | None:
        """Returns how a place for the revision becomes free, for people; None if none does."""
        return self._coming.get(revision)

    @property
    def is_claimed(self) -> bool:
        """True if some revision waits for a place that becomes free."""
        return bool(self._coming)

    def reserved(self, revision: str, rooms: tuple[FleetGroup, ...]) -> tuple[FleetGroup, ...]:
        """Returns the groups of a revision without the free places that are reserved for others."""
        if not self._reserved:
            return rooms
        mine = self._reserved_by.get(revision)
        # A claim with a free place takes it, whatever else is to become free for others.
        there = self._reserved if mine is None or revision in self._coming else self._reserved_free
        return tuple(
            self._less(each, there[mine] - 1 if each.accelerator == mine else self._reserved[each.accelerator])
            for each in rooms
        )

    @staticmethod
    def _less(group: FleetGroup, held: int) -> FleetGroup:
        if group.room is None or group.room <= 0 or held <= 0:
            return group
        return structs.replace(group, room=max(0, group.room - held))

    def holders(self, revision: str, fleets: Fleets) -> list[Holder]:
        """Returns the functions that hold places on the accelerators that the revision may use, by name."""
        kinds = {each.accelerator for each in fleets.get(revision, ())}
        found: dict[str, Holder] = {}
        for name, groups in fleets.items():
            count = sum(len(each.ready) + each.starting + each.draining for each in groups if each.accelerator in kinds)
            standing = self._standings.get(name)
            if not count or standing is None or name == revision:
                continue
            before = found.get(standing.function)
            wanted = any(len(each.ready) + each.starting for each in groups if each.accelerator in kinds)
            why = standing.why_held() if wanted else "ending"
            found[standing.function] = Holder(
                standing.function, count + (before.replicas if before else 0), before.why if before else why
            )
        return [found[name] for name in sorted(found)]

    # --- matching

    def _claims(self, fleets: Fleets) -> Iterator[str]:
        """Yields the revisions that ask and whose functions have no replica, in their order."""
        present: set[str] = set()
        for name, groups in fleets.items():
            if any(each.ready or each.starting or each.draining for each in groups) and name in self._standings:
                present.add(self._standings[name].function)
        asking = [(self._standings[name], name) for name in self._asking if fleets.get(name)]

        def order(each: tuple[Standing, str]) -> tuple[bool, bool, float, str]:
            of = each[0]
            return (of.waiting == 0, of.is_oriented, -of.observation.oldest_waiting_s, each[1])

        for standing, name in sorted(asking, key=order):
            is_open = any(each.room is None for each in fleets[name])
            if standing.function not in present and not is_open and standing.observation.most != 0:
                present.add(standing.function)  # one place for a function
                yield name

    def _known(self, claim: str, groups: list[FleetGroup]) -> list[FleetGroup]:
        """Returns the groups that its policy can plan with, those of a known rate; all, if there is none. The others
        come last if it tries one."""
        seen = self._standings[claim].observation.groups
        known = {each.accelerator for each in seen if each.mu_ips or each.mu_bound_ips}
        if self._standings[claim].tries_unknown:
            return sorted(groups, key=lambda each: each.accelerator not in known)
        return [each for each in groups if each.accelerator in known] or groups

    @staticmethod
    def _has_kinds(groups: Sequence[FleetGroup]) -> bool:
        """Returns whether the revision has accelerators, all of a known number of places."""
        return bool(groups) and all(each.room is not None for each in groups)

    def _victims(self) -> list[str]:
        """Returns the revisions that may give up a replica, the first to do so first."""
        idle = [(name, each) for name, each in self._standings.items() if each.gives_way]

        def order(each: tuple[str, Standing]) -> tuple[bool, bool, float, str]:
            name, of = each
            return (of.function in self._used, not of.is_oriented, -of.idle_s, name)

        return [name for name, _ in sorted(idle, key=order)]

    def _busy_victims(self) -> list[str]:
        """Returns the throughput-oriented revisions that may give up a replica at work, the largest first."""
        busy = [
            (name, each) for name, each in self._standings.items() if each.gives_way_busy and name not in self._given
        ]
        return [name for name, each in sorted(busy, key=lambda it: (-it[1].observation.ready, it[0]))]

    def _may_take_busy(self, claim: str) -> bool:
        """Returns whether requests of a latency-critical function wait."""
        asks = self._standings[claim]
        return asks.waiting > 0 and not asks.is_oriented

    def _take(self, claim: str, kinds: Sequence[str], victims: list[str], fleets: Fleets, now: float) -> bool:
        """Gives up a replica of the victims for the claim, one of a revision at a time; returns whether there was
        one."""
        claimed = self._standings[claim]
        for name in victims:
            standing = self._standings[name]
            ready = {each.accelerator for each in fleets.get(name, ()) if each.ready}
            kind = next((each for each in kinds if each in ready), None)
            if kind is None:
                continue
            which, last = "an idle replica", "never used"
            if not standing.gives_way:
                which, last = "a replica", "throughput-oriented"
            elif standing.function in self._used:
                last = f"last used {figure(standing.idle_s)} s ago"
            asks = f"{claimed.waiting} waiting" if claimed.waiting else "its first start"
            if claimed.is_growing:
                asks = "it needs a further replica"
            self._given[name] = GivenUp(
                accelerator=kind, function=claimed.function, revision=claim, why=f"{asks}; {last}"
            )
            self._reserve(claim, kind)
            how = self._coming[claim] = f"{standing.function} gives up {which} on {kind}"
            victims.remove(name)
            self._freed[claim] = _Freed(name, standing.observation.existing, kind, now, how)
            return True
        return False

    def _wait_for(self, claim: str, kinds: Sequence[str], soon: list[str], fleets: Fleets) -> None:
        """Lets the claim wait for a replica that may be given up soon, one of those left for each claim."""
        for name in soon:
            standing = self._standings[name]
            if any(each.accelerator in kinds and (each.ready or each.starting) for each in fleets.get(name, ())):
                self._coming[claim] = (
                    f"{standing.function} gives up a replica when it has been idle for {figure(IDLE_S)} s"
                )
                soon.remove(name)
                return

    @staticmethod
    def _is_ending(freed: "_Freed", fleets: Fleets, now: float) -> bool:
        """Returns whether the replica has left its revision, and its place may still become free."""
        existing = sum(len(each.ready) + each.starting for each in fleets.get(freed.revision, ()))
        return existing < freed.existing and now < freed.at + ENDING_S

    def _reserve(self, claim: str, accelerator: str) -> None:
        self._reserved[accelerator] += 1
        self._reserved_by[claim] = accelerator

    def __repr__(self) -> str:
        return f"<Places {len(self._asking)} asking, {len(self._given)} given up>"


def without_given_up(
    groups: tuple[GroupDecision, ...], observation: Observation, given: GivenUp
) -> tuple[tuple[GroupDecision, ...], tuple[Reason, ...]]:
    """Returns a decision's groups with one replica less than exist on the accelerator that is given up."""
    existing = next((each.existing for each in observation.groups if each.accelerator == given.accelerator), 0)
    kept = tuple(
        row(each.accelerator, min(each.replicas, existing - 1), each.share)
        if each.accelerator == given.accelerator
        else each
        for each in groups
    )
    return kept, (given_reason(given),)


def given_reason(given: GivenUp) -> Reason:
    """Returns the reason of a revision that gives up, or has given up, a replica."""
    return reason("place_given_up", f"to {given.function}: {given.why}")
