"""A gateway's chain with a real waiting room, without sockets: replicas speak, requests arrive, time is set."""

import random
from typing import Any

from tests.support.worlds.fake_exchange import FakeExchange, Pool, request
from tests.support.worlds.quota_counters import FakeQuotaCounters
from tidegate.activator.commands import Activate, Command
from tidegate.activator.room import WaitingRoom
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.access.control import Answered
from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.chain import Chain
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects
from tidegate.records.gateway_sample import RevisionDemand
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable
from tidegate.store.counters import Asking, Wanted

ONE = ReplicaRoute(id="f-00001-aaaaa", address="10.0.0.1:1")
TWO = ReplicaRoute(id="f-00001-bbbbb", address="10.0.0.2:1")


def table(
    number: int = 1, *replicas: ReplicaRoute, epoch: int = 1, revision: Any = None, **settings: Any
) -> RouteTable:
    route: dict[str, Any] = {
        "name": "f",
        "models": ("m",),
        "protocol": "v2",
        "timeout_s": 10.0,
        "latency_s": 0.2,
        "queue_requests": 2,
        "queue_bytes": 1 << 20,
        "max_wait_s": 60.0,
        "batch_header": "tidegate-batch-size",
        "bytes_per_item": None,
        "overhead_bytes": 0.0,
        "max_batch": 64,
    } | settings
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=replicas)
    revisions = (RevisionRoute(id="f-00001", percent=100.0, groups=(group,), **(revision or {})),)
    return RouteTable(epoch=epoch, number=number, workers=1, functions=(FunctionRoute(revisions=revisions, **route),))


class Door:
    """A chain, its room and its clock."""

    def __init__(
        self, first: RouteTable, *, access: AccessLog | None = None, till: FakeQuotaCounters | None = None
    ) -> None:
        self.now = 100.0
        self.shell: list[Command] = []
        self.learnt: list[tuple[str, str, str]] = []
        self.alarms: list[float] = []
        self.probes: list[tuple[str, str | None]] = []
        self.till = till or FakeQuotaCounters()
        self.asked: list[tuple[Wanted, Asking, Answered]] = []
        """Questions about quotas that nobody has answered."""
        self.report = Report("g0", "i", self.now)
        self.chain = Chain(
            room=WaitingRoom(rng=random.Random(1)),
            report=self.report,
            token="secret",
            rng=random.Random(2),
            host=ChainEffects(
                clock=lambda: self.now,
                pool_of=lambda address: Pool(address),  # type: ignore[arg-type,return-value]  # a stand-in
                shell=self.shell.append,
                after=lambda: None,
                learn=lambda *known: self.learnt.append(known),
                copy=lambda first: first.second_copy(),  # type: ignore[attr-defined]  # a stand-in
                hand_over=lambda first, copy: first.hand_over(copy),  # type: ignore[attr-defined]  # as above
                shadow_copy=lambda first, app, now, ear: first.shadow_copy(app, now, ear),  # type: ignore[attr-defined]  # as above
                overhear=lambda first, ear: first.overhear(ear),  # type: ignore[attr-defined]  # as above
                begin_stream=lambda ex, extra, name, failure: ex.begin_stream(extra, name, failure),  # type: ignore[attr-defined]  # as above
                alarm=self.alarms.append,
                probe=lambda replica, address, path: self.probes.append((replica, path)),
                wall=lambda: self.now,
                till=lambda: self.till,
                ask=lambda wanted, asking, answered: self.asked.append((wanted, asking, answered)),
            ),
            access=access,
        )
        assert self.chain.apply(first)

    def arrive(
        self, line: str = "POST /v2/models/m/infer", *fields: str, body: bytes = b"{}", complete: bool = True
    ) -> FakeExchange:
        lines = "".join(f"{field}\r\n" for field in fields)
        head = request(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n{lines}content-length: {len(body) or 67}\r\n\r\n")
        return FakeExchange(self.chain, head, body, complete=complete, now=self.now).start()

    def ready(self, replica: ReplicaRoute, *credits: int, phases: ColdStartPhases | None = None) -> None:  # noqa: A002
        """The replica says that it is ready and grants credits."""
        self.starting(replica)
        self.chain.heard(replica.id, State(ReplicaState.READY, phases))
        self.grant(replica, *credits)

    def starting(self, replica: ReplicaRoute) -> None:
        self.chain.linked(replica.id)
        self.chain.heard(replica.id, Welcome("inc", 4, ConcurrencyUnit.REQUESTS))
        self.chain.heard(replica.id, State(ReplicaState.STARTING))

    def grant(self, replica: ReplicaRoute, *credits: int) -> None:  # noqa: A002
        if credits:
            self.chain.heard(replica.id, Grant(tuple((credit, 1) for credit in credits)))

    def demand(self) -> RevisionDemand:
        sample = self.report.sample(
            self.now,
            table=self.chain.table.version,
            connections=0,
            demands=self.report.demands(lambda revision: self.chain.room.counts(revision, self.now)),
        )
        (demand,) = sample.demands
        return demand

    def activations(self) -> list[int]:
        return [command.activation.waiting for command in self.shell if isinstance(command, Activate)]
