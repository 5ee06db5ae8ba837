"""A gateway's chain with a real waiting room, without sockets: replicas report, requests arrive, time is set."""

import pickle
import random
from typing import Any

from tests.support.worlds.fake_exchange import FakeExchange, Pool, request
from tests.support.worlds.quota_counters import FakeQuotaCounters
from tidegate.activator.commands import Activate
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.aio.proxy.detached import StageClient
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.access.quota_pool import Decided
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects, ExchangeTools, JobHost, Quotas, RoomHost, Time, Upstreams
from tidegate.gateway.payloads.sampler import PutPayloads
from tidegate.gateway.pipelines.conversions import converted
from tidegate.gateway.tracing.trace import Tracer
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
    """A gateway core with its chain, its room and its clock."""

    def __init__(
        self,
        first: RouteTable,
        *,
        access: AccessLog | None = None,
        quota_counters: FakeQuotaCounters | None = None,
        jobs: JobHost | None = None,
        tracer: Tracer | None = None,
        put_payloads: PutPayloads | None = None,
    ) -> None:
        self.now = 100.0
        self.shell: list[Command] = []
        self.learnt: list[tuple[str, str, str]] = []
        self.alarms: list[float] = []
        self.probes: list[tuple[str, str | None]] = []
        self.quota_counters = quota_counters or FakeQuotaCounters()
        self.asked: list[tuple[Wanted, Asking, Decided]] = []
        """Questions to the quota pool that are not answered yet."""
        self.stages: list[FakeExchange] = []
        self.wanted: list[Any] = []
        """Of each conversion so far, what says whether its result is still wanted."""
        self.conversions: list[tuple[bytes, Any]] = []
        """Conversions for the other process: (what is to be called, what gets the result)."""
        self.report = Report("g0", "i", self.now, scheme="http")
        self.core = GatewayCore(
            room=WaitingRoom(rng=random.Random(1)),
            report=self.report,
            token="secret",
            rng=random.Random(2),
            effects=ChainEffects(
                time=Time(clock=lambda: self.now, wall=lambda: self.now, alarm=self.alarms.append),
                room=RoomHost(run=self.shell.append, reschedule=lambda: None),
                upstreams=Upstreams(
                    pool_of=lambda address: Pool(address),  # type: ignore[arg-type,return-value]  # a stand-in
                    fetch_metadata=lambda *known: self.learnt.append(known),
                    probe=lambda replica, address, path: self.probes.append((replica, path)),
                ),
                exchanges=ExchangeTools(
                    second_copy=lambda first: first.second_copy(),  # type: ignore[attr-defined]  # a stand-in
                    swap_clients=lambda first, copy: first.swap_clients(copy),  # type: ignore[attr-defined]  # as above
                    shadow_copy=lambda first, app, now, tap: first.shadow_copy(app, now, tap),  # type: ignore[attr-defined]  # as above
                    tap_response=lambda first, tap: first.tap_response(tap),  # type: ignore[attr-defined]  # as above
                    next_exchange=self._next_exchange,
                    begin_stream=lambda ex, extra, name, failure: ex.begin_stream(extra, name, failure),  # type: ignore[attr-defined]  # as above
                ),
                quotas=Quotas(
                    open_counters=lambda: self.quota_counters,
                    ask_pool=lambda wanted, asking, decided: self.asked.append((wanted, asking, decided)),
                ),
                convert_elsewhere=self._convert_elsewhere,
                jobs=jobs,
                put_payloads=put_payloads,
            ),
            access_log=access,
            tracer=tracer,
        )
        self.chain = self.core.chain
        assert self.core.apply(first)

    def _convert_elsewhere(self, function: Any, arguments: Any, done: Any, is_wanted: Any) -> None:
        self.wanted.append(is_wanted)
        self.conversions.append((pickle.dumps((function, arguments)), done))

    def convert(self) -> None:
        """The other process has finished the oldest of ``conversions``."""
        work, done = self.conversions.pop(0)
        done(pickle.loads(pickle.dumps(converted(*pickle.loads(work)))))

    def _next_exchange(self, first: Any, app: Any, sink: Any, head: Any, body: bytes, now: float) -> Any:
        """The exchange of a stage; they are in ``stages``."""
        stage = FakeExchange(app, head, body, complete=True, now=now)
        stage._client = StageClient(first._client, sink)
        self.stages.append(stage)
        return stage

    def arrive(
        self, line: str = "POST /v2/models/m/infer", *fields: str, body: bytes = b"{}", complete: bool = True
    ) -> FakeExchange:
        lines = "".join(f"{field}\r\n" for field in fields)
        head = request(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n{lines}content-length: {len(body) or 67}\r\n\r\n")
        return FakeExchange(self.chain, head, body, complete=complete, now=self.now).start()

    def ready(self, replica: ReplicaRoute, *credits: int, phases: ColdStartPhases | None = None) -> None:  # noqa: A002
        """The replica says that it is ready and grants credits."""
        self.starting(replica)
        self.core.heard(replica.id, State(ReplicaState.READY, phases))
        self.grant(replica, *credits)

    def starting(self, replica: ReplicaRoute) -> None:
        self.core.linked(replica.id)
        self.core.heard(replica.id, Welcome("inc", 4, ConcurrencyUnit.REQUESTS))
        self.core.heard(replica.id, State(ReplicaState.STARTING))

    def grant(self, replica: ReplicaRoute, *credits: int) -> None:  # noqa: A002
        if credits:
            self.core.heard(replica.id, Grant(tuple((credit, 1) for credit in credits)))

    def demand(self) -> RevisionDemand:
        sample = self.report.sample(
            self.now,
            table=self.core.table.version,
            connections=0,
            demands=self.report.demands(lambda revision: self.core.room.counts(revision, self.now)),
        )
        (demand,) = sample.demands
        return demand

    def activations(self) -> list[int]:
        return [command.activation.waiting for command in self.shell if isinstance(command, Activate)]
