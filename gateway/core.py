"""One gateway worker without its sockets: the chain of its requests, and what happens beside requests.

Route tables, messages on slot channels, timers and the end of the worker arrive here. Requests go to ``chain.py``.
"""

import random
from collections.abc import Iterable

from tidegate.activator.room import WaitingRoom
from tidegate.flow.messages import ProxyMessage, State
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.chain import Chain
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import Matcher
from tidegate.gateway.routing.variants import link_variants
from tidegate.gateway.tracing.trace import Tracer
from tidegate.gateway.wiring import build_parts
from tidegate.records.route_table import RouteTable


class GatewayCore:
    """One gateway worker. All methods are synchronous; its host carries out the effects."""

    def __init__(
        self,
        *,
        room: WaitingRoom,
        report: Report,
        token: str,
        rng: random.Random,
        effects: ChainEffects,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """``token``: shows queue_proxies that a request comes from this deployment's gateways."""
        parts = build_parts(room=room, report=report, rng=rng, effects=effects, access_log=access_log, tracer=tracer)
        self.room = room
        self.report = report
        self.access_log = access_log
        self.health = parts.health
        self.grpc = parts.grpc
        self.access_control = parts.access_control
        self.resilience = parts.resilience
        self.shadows = parts.shadows
        self.payloads = parts.payloads
        self.cold_answers = parts.cold_answers
        self.jobs = parts.jobs
        self.direct = parts.direct
        self.pipelines = parts.pipelines
        self.variants = parts.variants
        self.chain = Chain(parts)
        """The application behind the listener (``ProxyApp``)."""
        self._cold_starts = parts.cold_starts
        self._job_reader = parts.job_reader
        self._rng = rng
        self._clock = effects.time.clock
        self._token_line = b"tidegate-token: %b\r\n" % token.encode()
        self._functions: dict[str, FunctionMemory] = {}
        self.table = RouteTable(epoch=0, number=0, workers=1)

    # --- route table ------------------------------------------------------------------------------------------------

    def apply(self, table: RouteTable) -> bool:
        """Works from this table on. Returns False if it is older than the present one. No request is dropped."""
        now = self._clock()
        if table.version < self.table.version or not self.room.apply(table, now):
            return False
        self.table = table
        self._functions = {
            route.name: self._functions.get(route.name) or FunctionMemory(now, self._rng.random())
            for route in table.functions
        }
        routers = {
            route.name: FunctionRouter(route, self._functions[route.name], self._token_line)
            for route in table.functions
        }
        for router in routers.values():
            found = (router.pipelines or {}).values()
            names = dict.fromkeys(stage.function for pipeline in found for stage in pipeline.stages)
            router.stages = tuple(routers[name] for name in names if name in routers)
        link_variants(routers)
        matcher = Matcher(table, routers)
        self.chain.apply(matcher)
        self.direct.apply(table, matcher)
        self.cold_answers.domain = table.domain
        self.grpc.apply(matcher, routers)
        self.access_control.apply(table)
        self._job_reader.apply(routers)
        self.pipelines.apply(routers)
        self.resilience.apply(table, routers.values())
        self._cold_starts.apply(
            {
                replica.id: (route.name, revision.id)
                for route in table.functions
                for revision in route.revisions
                for group in revision.groups
                for replica in group.replicas
            }
        )
        revisions = frozenset(revision.id for route in table.functions for revision in route.revisions)
        self.report.forget_except(revisions)
        self.health.copies.forget_except(revisions)
        self.variants.forget_except(revisions)
        self.chain.flush()
        return True

    # --- slot channels (a ``tidegate.aio.channel.ChannelHandler``) --------------------------------------------------

    def linked(self, replica: str) -> None:
        """The channel to a replica is open."""
        self.room.linked(replica, self._clock())
        self.chain.flush()

    def heard(self, replica: str, message: ProxyMessage) -> None:
        """A message of its queue_proxy arrived."""
        now = self._clock()
        if type(message) is State:
            self._cold_starts.reported(replica, message.state, message.phases, now)
            self.resilience.state_changed(replica, self._cold_starts.revision_of(replica), now)
        self.room.heard(replica, message, now)
        if type(message) is State:
            self.health.states.heard(replica, message.state, now)
        self.chain.flush()

    def unlinked(self, replica: str) -> None:
        """The channel broke."""
        now = self._clock()
        self._cold_starts.unlinked(replica)
        self.room.unlinked(replica, now)
        self.resilience.state_changed(replica, self._cold_starts.revision_of(replica), now)
        self.chain.flush()

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The end of a loop turn."""
        now = self._clock()
        self.shadows.launch(now, self.chain.flush)
        self.room.settle(now)
        self.chain.flush()

    def on_room_due(self) -> None:
        """The time that ``WaitingRoom.next_wakeup`` stated has come."""
        self.room.on_wakeup(self._clock())
        self.chain.flush()

    def on_hedges_due(self) -> None:
        """The time of the alarm has come (``effects.Time.alarm``)."""
        self.resilience.send_hedges(self._clock(), self.chain.forward)
        self.chain.flush()

    def cut_back(self, functions: Iterable[str]) -> None:
        """More requests of these functions wait here than this worker has a part of the bound for."""
        now = self._clock()
        for name in functions:
            self.room.cut_back(name, now)
        self.chain.flush()

    def probed(self, replica: str, ok: bool) -> None:
        """A probe of a replica has ended."""
        self.resilience.probed(replica, ok, self._clock())
        self.chain.flush()

    def sweep(self, now: float) -> None:
        """Periodic work, some times a second."""
        self.resilience.sweep(now)
        self.shadows.sweep(now)
        self.cold_answers.sweep(now)
        self.jobs.sweep(now)
        self.health.states.sweep(now)
        self.chain.body_gate.sweep()
        if self.room.has_work:
            self.chain.flush()

    # --- the end ----------------------------------------------------------------------------------------------------

    def leave(self, *, is_draining: bool) -> None:
        """The worker accepts no new clients; ``is_draining``: the deployment ends, and health calls say so."""
        if is_draining:
            self.direct.is_draining = True
        self.grpc.leave(is_draining=is_draining)

    def __repr__(self) -> str:
        return f"<GatewayCore table {self.table.version}, {self.room!r}>"
