"""Resilience of one worker: retries and hedges within the budget, outlier ejection, circuit breakers.

It decides with the pure engines of ``tidegate/flow`` and gives the result to the waiting room. It costs a request
nothing while no replica fails and no function hedges.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidegate.activator.commands import Refuse
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.flow.outliers import PROBE_AGAIN_S, Outliers, Stalls
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.route_table import OutlierRules, ReplicaRoute, RouteTable

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

PROBE_TIMEOUT_S = 2.0
STALLS_EVERY_S = 0.5
"""Interval at which replicas without a limit are checked for stalls."""
_RETURN_S = PROBE_TIMEOUT_S + 2 * PROBE_AGAIN_S
"""A probe that never returns keeps a replica ejected for this long; then the room readmits it by itself."""

Probe = Callable[[str, str, str | None], None]
"""(replica, address, path): probes a replica in the background; ``Resilience.probed`` follows."""
Forward = Callable[["Exchange", Bind, float], None]
"""Sends a bound exchange to its replica."""


class Resilience:
    """Outliers, budgets and hedges of one worker."""

    __slots__ = (
        "_alarm",
        "_asked",
        "_hedging",
        "_looked_at",
        "_probe",
        "_replicas",
        "_room",
        "_routers",
        "_second_copy",
        "_stalls",
        "_unlimited",
        "outliers",
    )

    def __init__(
        self,
        room: WaitingRoom,
        *,
        second_copy: "Callable[[Exchange], Exchange | None]",
        alarm: Callable[[float], None],
        probe: Probe,
    ) -> None:
        """``second_copy`` returns a second exchange of a request, None if it cannot be copied.

        ``alarm(when)`` schedules a call of ``send_hedges`` then, or before.
        """
        self._room = room
        self._second_copy = second_copy
        self._alarm = alarm
        self._probe = probe
        self._routers: list[FunctionRouter] = []
        self._hedging: list[FunctionRouter] = []
        self._replicas: dict[str, tuple[ReplicaRoute, str | None]] = {}
        """Route and probe path of each replica."""
        self._unlimited: dict[str, tuple[str, OutlierRules]] = {}
        """Replicas without a limit that can be probed, with their revisions and the rules for those that hang."""
        self._stalls = Stalls()
        self._looked_at = 0.0
        self._asked: set[str] = set()
        """Replicas that are probed because they have work and finish none."""
        self.outliers = Outliers()

    def apply(self, table: RouteTable, routers: Iterable[FunctionRouter]) -> None:
        """Works from this route table on."""
        self._routers = list(routers)
        self._hedging = [router for router in self._routers if router.lateness is not None]
        self._replicas = {
            replica.id: (replica, route.probe_path)
            for route in table.functions
            for revision in route.revisions
            for group in revision.groups
            for replica in group.replicas
        }
        self._unlimited = {
            replica.id: (revision.id, route.outlier)
            for route in table.functions
            if route.probe_path is not None
            for revision in route.revisions
            if not revision.limited
            for group in revision.groups
            for replica in group.replicas
        }
        revisions = frozenset(revision.id for route in table.functions for revision in route.revisions)
        self.outliers.keep(frozenset(self._replicas), revisions)

    def sweep(self, now: float) -> None:
        """Updates the budgets and sends probes that are due. Called some times a second."""
        for router in self._routers:
            router.budget.roll(now)
        if self._unlimited and now - self._looked_at >= STALLS_EVERY_S:
            self._looked_at = now
            self._look_for_stalls(now)
        if not self.outliers.suspects:
            return
        for revision in self.outliers.reduced():
            if not self._room.ready_replicas(revision):
                self.outliers.hasten(revision, now)
        for replica in self.outliers.due(now):
            route, path = self._replicas[replica]
            self._room.eject(replica, now, now + _RETURN_S)
            self._probe(replica, route.address, path)

    def _look_for_stalls(self, now: float) -> None:
        """Probes replicas that have work and finish none."""
        ended = ((replica, self._room.last_answer(replica)) for replica in self._unlimited)
        working = [(replica, ended_at) for replica, ended_at in ended if ended_at is not None]
        for replica in self._stalls.look(now, working):
            if replica not in self._asked and not self.outliers.is_out(replica):
                self._asked.add(replica)
                route, path = self._replicas[replica]
                self._probe(replica, route.address, path)

    # --- replicas ---------------------------------------------------------------------------------------------------

    def failed(self, bind: Bind, begun: float, rules: OutlierRules, now: float) -> None:
        """A request that was sent to a replica at ``begun`` failed there, through no fault of its own: may eject the
        replica."""
        replica, revision = bind.replica.id, bind.revision.id
        if replica not in self._replicas:
            return  # It has left the table meanwhile.
        ready = self._room.ready_replicas(revision)
        until = self.outliers.failed(replica, revision, rules, begun, now, ready)
        if until is not None:
            self._room.eject(replica, now, until + PROBE_AGAIN_S)  # Probed before: the sweep is a little late.

    def probed(self, replica: str, ok: bool, now: float) -> None:
        """A probe has ended."""
        if replica in self._asked:
            self._asked.discard(replica)
            if not ok and self._room.last_answer(replica) is not None and replica in self._unlimited:
                self._hangs(replica, now)
            return
        until = self.outliers.probed(replica, ok, now)
        if until is not None:
            self._room.eject(replica, now, until + PROBE_AGAIN_S)
        elif replica in self._replicas:
            self._room.readmit(replica, now)

    def _hangs(self, replica: str, now: float) -> None:
        revision, rules = self._unlimited[replica]
        until = self.outliers.hangs(replica, revision, rules, now, self._room.ready_replicas(revision))
        if until is not None:
            self._room.eject(replica, now, until + PROBE_AGAIN_S)

    def state_changed(self, replica: str, revision: str | None, now: float) -> None:
        """A replica reported its state (it changed, or its channel is new), or its channel broke."""
        if revision is not None and self.outliers.suspects:
            self.outliers.changed(replica, revision)
            self._room.readmit(replica, now)

    # --- second copies ----------------------------------------------------------------------------------------------

    def may_send_again(self, router: FunctionRouter, counters: RevisionCounters | None, now: float) -> bool:
        """Returns whether a request that a replica may have run is sent once more; takes it from the budget."""
        if counters is None:
            return False
        if not router.budget.allows(router.route.retry_percent, now):
            counters.retries_denied += 1
            return False
        router.budget.spend()
        counters.retries += 1
        return True

    def sent(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """A request went to a replica: schedules its hedge if its function hedges."""
        if router.lateness is None or state.hedge_of is not None:
            return
        state.follow(ex)
        state.late_at = due = router.lateness.sent(state, now)
        if due is not None:
            self._alarm(due)

    def send_hedges(self, now: float, forward: Forward) -> None:
        """Hedges the requests that are late now."""
        for router in self._hedging:
            lateness = router.lateness
            if lateness is None:
                continue
            for due, state in lateness.late(now):
                if type(state) is RequestState and state.late_at == due:
                    self._hedge(state, router, now, forward)
            upcoming = lateness.next_due()
            if upcoming is not None:
                self._alarm(upcoming)

    def _hedge(self, state: RequestState, router: FunctionRouter, now: float, forward: Forward) -> None:
        """Sends a second copy if the request still runs, the budget allows it and another replica has a free slot."""
        ex, bind, counters = state.exchange, state.bind, state.counters
        if ex is None or bind is None or counters is None:
            return
        if state.is_answered or state.hedge is not None or now >= ex.deadline:
            return
        room = self._room
        if room.ready_replicas(counters.revision) < 2 or not router.budget.allows(router.route.retry_percent, now):
            return
        hedge = self._second_copy(ex)
        if hedge is None:
            return
        found = room.arrive(
            hedge, counters.revision, ex.inferences, ex.deadline, now, 0, router.priority, None, False, bind.replica.id
        )
        if type(found) is Refuse or (found is None and room.withdraw(hedge, now)):
            return
        router.budget.spend()
        counters.hedges += 1
        hedge.context = state.hedged(hedge)
        if type(found) is Bind:
            forward(hedge, found, now)
        # Otherwise the slot went to it past requests that may not use it: its ``Bind`` is among the room's commands.

    def answered(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> "Exchange | None":
        """The head of an answer to a followed request is there.

        Returns the primary exchange if this is its hedge and has won: the answer goes to the primary's client.
        """
        lateness = router.lateness
        primary = state.hedge_of
        if primary is None:
            if lateness is not None:
                lateness.observed(now - state.bound_at)
            cancel(state.end_hedge())
            return None
        before: RequestState = primary.context
        if lateness is not None and before.bind is not None:
            lateness.observed(now - before.bound_at)
        state.win(before)
        if state.counters is not None:
            state.counters.hedges_won += 1
        return primary

    def __repr__(self) -> str:
        return f"<Resilience {self.outliers!r}, {len(self._hedging)} functions hedge>"


def cancel(hedge: "Exchange | None") -> None:
    """Aborts a second copy that is not needed any more."""
    if hedge is not None:
        hedge.client_gone()
