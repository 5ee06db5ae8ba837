"""A request on its way through the stages of a pipeline, and the stages that it is in."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidegate.activator.commands import Refuse
from tidegate.errors import DEADLINE, DROPPED
from tidegate.flow.dropping import TIE
from tidegate.flow.fair_queue import TenantCharge
from tidegate.gateway.pipelines.bodies import StageBody
from tidegate.gateway.pipelines.graph import Graph
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.pipeline import Stage
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class StageEvents(Protocol):
    """Receives how the answers of stages end (``pipelines.py``)."""

    def stage_ended(self, stage: "LiveStage") -> None: ...
    def stage_broke(self, stage: "LiveStage") -> None: ...


class StageAnswer(NamedTuple):
    """The whole answer of a stage."""

    status: int
    block: bytes
    body: StageBody


class LiveRequest:
    """One request of a pipeline. It ends with its client's exchange; its stages are exchanges of their own."""

    __slots__ = (
        "_leave", "answers", "asked", "body", "charge", "drops_at", "exchange", "failed", "first", "graph", "head",
        "is_over", "kept", "making", "noted_until", "priority", "running", "skipped", "slot_s", "timing", "was_bound",
    )  # fmt: skip

    def __init__(
        self,
        leave: "Callable[[LiveRequest], None]",
        exchange: "Exchange",
        graph: Graph,
        priority: int,
        charge: TenantCharge | None,
        drops_at: float,
    ) -> None:
        """``leave`` ends its stages, wherever they wait or run."""
        self._leave = leave
        self.exchange = exchange
        """The client's exchange."""
        self.head: RequestHead
        """The head of its request, once its body is ready for the stages; of a gRPC call that of the same request over
        HTTP."""
        self.graph = graph
        self.priority = priority
        self.charge = charge
        self.drops_at = drops_at
        """When it is dropped if it waits then (``drop-after`` of the pipeline)."""
        self.asked: Mapping[str, Any] = {}
        """Keys of its V2 request that are for the last stages."""
        self.body: StageBody | None = None
        """The client's body, while a stage may read it."""
        self.first: StageBody | None = None
        """The same without ``asked``, for stages that others follow."""
        self.running: dict[int, LiveStage] = {}
        """By index of the stage."""
        self.making = set[int]()
        """Stages whose request is made in another process."""
        self.answers: dict[int, StageAnswer | None] = {}
        """By index of a stage that has answered; None once no other stage needs it."""
        self.skipped: set[int] = set()
        """Stages that do not run: their condition did not hold, or none before them has run."""
        self.kept = 0
        """Bytes of the answers that are kept for other stages."""
        self.failed = ""
        """The stage that ended the request."""
        self.timing: list[bytes] = []
        """Entries of ``Server-Timing``."""
        self.noted_until = exchange.received
        """Until when its time is in ``timing``: a stage that begins has its time from here on, so that none is lost
        between two stages, however long the process stood still there."""
        self.was_bound = False
        """A replica of some stage has had it."""
        self.slot_s = 0.0
        """Time for which replicas have had it, all stages together."""
        self.is_over = False

    @property
    def entered(self) -> float:
        """When the whole request arrived."""
        return self.exchange.received

    @property
    def waits_until(self) -> float:
        """Until when it may wait in the room."""
        return min(self.exchange.deadline, self.drops_at)

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        name: str = self.exchange.context.target.router.name
        return name

    @property
    def has_run(self) -> bool:
        """A stage has answered."""
        return bool(self.answers)

    @property
    def stage_name(self) -> str:
        """The functions of its present stages."""
        present = [each.stage_name for each in self.running.values()]
        present += [self.graph.stages[at].function for at in sorted(self.making)]
        return self.failed or ", ".join(present) or "none"

    def has_begun(self, at: int) -> bool:
        return at in self.running or at in self.making

    def is_settled(self, at: int) -> bool:
        return at in self.answers or at in self.skipped

    # --- what it keeps for further stages -----------------------------------------------------------------------------

    def keep(self, at: int, answer: StageAnswer) -> None:
        """A stage has answered well."""
        self.answers[at] = answer
        self.kept += len(answer.body.data)
        self.exchange.budget.used += len(answer.body.data)

    def drop_used(self) -> None:
        """Drops the answers that no further stage needs. The last stages' are for the client."""
        graph = self.graph
        if not graph.keeps_request and all(
            waits or at in self.running or self.is_settled(at) for at, waits in enumerate(graph.waits)
        ):
            self.body = self.first = None
        for at, answer in self.answers.items():
            if answer is None or graph.is_last(at):
                continue
            begun = (user in self.running or self.is_settled(user) for user in graph.users[at])
            ran = (user in self.running or user in self.answers for user in graph.follows[at])
            if all(begun) and any(ran):
                self.answers[at] = None
                size = len(answer.body.data)
                self.kept -= size
                self.exchange.budget.used -= size

    def drop_all(self) -> None:
        """No further stage begins: nothing is kept any more."""
        self.exchange.budget.used -= self.kept
        self.kept = 0
        self.body = self.first = None

    def ends(self) -> dict[int, StageAnswer]:
        """Returns the answers after which nothing ran, by index of the stage: they are for the client."""
        return {
            at: answer
            for at, answer in self.answers.items()
            if answer is not None and not any(each in self.answers for each in self.graph.follows[at])
        }

    # --- its times ----------------------------------------------------------------------------------------------------

    def note(self, entry: bytes, until: float) -> None:
        """Adds an entry to the answer's ``Server-Timing``."""
        self.timing.append(entry)
        self.noted_until = until

    # --- its end ------------------------------------------------------------------------------------------------------

    def leaves(self) -> None:
        """The client went away or the deadline passed: its stages end, wherever they wait or run."""
        self._leave(self)

    def ran(self, state: RequestState, now: float) -> None:
        """A stage has ended: notes for how long a replica had it, as that of the whole request."""
        if state.replica:
            self.was_bound = True
            self.slot_s += max(0.0, now - state.bound_at)
            whole: RequestState = self.exchange.context
            whole.bound_at = now - self.slot_s

    def refused(self, refusal: Refuse) -> Refuse:
        """Returns the room's refusal as the client reads it: what the room takes for a deadline may be drop-after."""
        if refusal.kind is not DEADLINE or self.drops_at >= self.exchange.deadline - TIE:
            return refusal
        limit_s = self.drops_at - self.entered
        message = f"waited until {limit_s:.3g} s after its arrival; the pipeline drops requests then (drop-after)"
        return Refuse(refusal.request, DROPPED, message, 1)

    def __repr__(self) -> str:
        return f"<LiveRequest in {self.stage_name}, {len(self.answers)} of {len(self.graph.stages)} stages done>"


class LiveStage:
    """One stage of a request: its exchange, and its answer so far (an ``AnswerSink``)."""

    __slots__ = (
        "_events", "at", "began", "block", "crowded", "inner", "live", "pieces", "size", "state", "status", "too_large",
    )  # fmt: skip

    def __init__(self, events: StageEvents, live: LiveRequest, at: int) -> None:
        self._events = events
        self.live = live
        self.at = at
        """Index of the stage."""
        self.began = live.noted_until
        """When it could begin: its request is made of the answers before within its time."""
        self.inner: Exchange | None = None
        """Its exchange."""
        self.state: RequestState | None = None
        self.status = 0
        self.block = b""
        self.pieces: list[bytes] = []
        self.size = 0
        self.too_large = self.crowded = False

    @property
    def stage(self) -> Stage:
        return self.live.graph.stages[self.at]

    # --- as the request path asks about its exchange (``PipelineRequest``) --------------------------------------------

    @property
    def exchange(self) -> "Exchange":
        return self.live.exchange

    @property
    def has_run(self) -> bool:
        return self.live.has_run

    @property
    def was_bound(self) -> bool:
        return self.live.was_bound

    @property
    def stage_name(self) -> str:
        return self.stage.function

    def refused(self, refusal: Refuse) -> Refuse:
        return self.live.refused(refusal)

    def leaves(self) -> None:
        self.live.leaves()

    # --- its answer ---------------------------------------------------------------------------------------------------

    def carried(self, exchange: "Exchange") -> None:
        self.inner, self.state = exchange, exchange.context

    def begins(self, status: int, block: bytes) -> None:
        self.status, self.block = status, block

    def body(self, data: Piece) -> None:
        """A piece of it, which counts towards the budget of waiting bodies."""
        live = self.live
        if not data or live.is_over or self.too_large or self.crowded:
            return
        budget = live.exchange.budget
        self.size += len(data)
        budget.used += len(data)
        self.pieces.append(bytes(data))
        self.too_large = self.size > live.graph.route.body_bytes
        self.crowded = budget.used > budget.limit
        if self.too_large or self.crowded:
            self.collected()

    def collected(self) -> bytes:
        """Takes what is there of it out of the budget, and returns it."""
        self.live.exchange.budget.used -= self.size
        body = b"".join(self.pieces)
        self.size = 0
        self.pieces = []
        return body

    def ended(self) -> None:
        self._events.stage_ended(self)

    def broke_off(self) -> None:
        self._events.stage_broke(self)

    def __repr__(self) -> str:
        return f"<LiveStage {self.stage_name}>"
