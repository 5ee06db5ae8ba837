"""The state that the gateway keeps of one request, from its head to its end.

A request is in exactly one phase. :data:`LEGAL` is the table of the phases: each row says which of six fields are set
in it. ``RequestState.phase`` names the row that holds now and raises if none does.

::

    phase           bind  hedge  hedge_of  primary_failed  exchange  is_ended
    WAITING         -     -      -         -               any       -         no replica has it, yet or again
    BOUND           set   -      -         -               -         -         one replica has it
    FOLLOWED        set   -      -         -               set       -         as BOUND; a hedge or a shadow may follow
    HEDGED          set   set    -         -               set       -         its hedge runs on another replica
    HEDGE_RUNS      -     set    -         -               set       -         its replica gave it back; its hedge runs
    PRIMARY_FAILED  -     set    -         set             set       -         its replica failed; its hedge decides
    HEDGE_WAITING   -     -      set       -               -         -         it is a hedge that has no replica yet
    HEDGE_BOUND     set   -      set       -               -         -         it is a hedge that a replica has
    ENDED           -     -      any       any             -         set       counted; nothing changes any more

A *hedge* is the second copy of a late request; *primary* is the request that it belongs to. When the answer of the
hedge comes first, its state takes over what the primary's held (:meth:`RequestState.win`) and is BOUND from then on.
The steps between two phases are the methods of :class:`RequestState`.

The other fields are facts that no phase depends on. Each is written by the step that finds it out::

    field                      written by
    target                     match: by the head, the body, the first message or a tag; once more if a body was awaited
    trace                      match; pipelines/ for the request of a stage
    asked                      match; token_steps.py for a body that match did not read
    tenant                     access (access/control.py)
    counters                   size; taken back while a quota is not granted (answers/caller_check.py)
    tokens                     quota (token_steps.py)
    held                       quota (access/control.py); access/later_charge.py for the rest of a body
    pipeline                   pipelines/, for the client's request and for that of each stage
    replica, group             forward
    is_answered, keeps_credit  answer
    is_stream                  answer (outcome_step.py)
    late_at                    resilience/, once a replica has it
    ending                     whatever ends it early: answers/ and pipelines/; token_steps.py takes it back from a
                               stream that had ended by its protocol when its client left
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tidegate.activator.commands import Refuse
    from tidegate.activator.state.bind import Bind
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.counting.counters import RevisionCounters
    from tidegate.gateway.counting.outcomes import Ending
    from tidegate.gateway.counting.tenant_accounts import Account, Held
    from tidegate.gateway.counting.tokens import Tokens
    from tidegate.gateway.routing.match import Target
    from tidegate.gateway.tracing.trace import Trace
    from tidegate.wire.bodies.openai import CallRequest


class Phase(Enum):
    """The phases of a request; the module head describes them."""

    WAITING = auto()
    BOUND = auto()
    FOLLOWED = auto()
    HEDGED = auto()
    HEDGE_RUNS = auto()
    PRIMARY_FAILED = auto()
    HEDGE_WAITING = auto()
    HEDGE_BOUND = auto()
    ENDED = auto()


Fields = tuple[bool | None, bool | None, bool | None, bool | None, bool | None, bool | None]
"""True for each of ``bind``, ``hedge``, ``hedge_of``, ``primary_failed``, ``exchange``, ``is_ended`` that is set.

None if both are legal.
"""

LEGAL: Final[Mapping[Phase, Fields]] = MappingProxyType(
    {
        Phase.WAITING: (False, False, False, False, None, False),
        Phase.BOUND: (True, False, False, False, False, False),
        Phase.FOLLOWED: (True, False, False, False, True, False),
        Phase.HEDGED: (True, True, False, False, True, False),
        Phase.HEDGE_RUNS: (False, True, False, False, True, False),
        Phase.PRIMARY_FAILED: (False, True, False, True, True, False),
        Phase.HEDGE_WAITING: (False, False, True, False, False, False),
        Phase.HEDGE_BOUND: (True, False, True, False, False, False),
        Phase.ENDED: (False, False, None, None, False, True),
    }
)
"""The legal combinations of fields, by phase."""


class PipelineRequest(Protocol):
    """A request on its way through the stages of a pipeline (``gateway/pipelines/pipelines.py``)."""

    @property
    def exchange(self) -> "Exchange":
        """That of the client."""

    @property
    def has_run(self) -> bool:
        """An earlier stage has answered."""

    @property
    def was_bound(self) -> bool:
        """A replica of some stage has had it."""

    @property
    def stage_name(self) -> str:
        """The function of its present stage."""

    def refused(self, refusal: "Refuse") -> "Refuse":
        """Returns the room's refusal as its client reads it."""

    def leaves(self) -> None:
        """The client went away or the deadline passed: the present stage ends."""


class RequestState:
    """The chain's state of one exchange. It is ``exchange.context``."""

    __slots__ = (
        "asked",
        "bind",
        "bound_at",
        "counters",
        "ending",
        "exchange",
        "group",
        "hedge",
        "hedge_of",
        "held",
        "id_line",
        "is_answered",
        "is_ended",
        "is_excused",
        "is_stream",
        "is_uncounted",
        "keeps_credit",
        "late_at",
        "may_have_run",
        "pipeline",
        "primary_failed",
        "replica",
        "request_id",
        "target",
        "tenant",
        "tokens",
        "trace",
    )

    def __init__(self, target: "Target", request_id: bytes, id_line: bytes) -> None:
        self.target = target
        self.request_id = request_id
        self.id_line = id_line
        """Header line that adds the id on the way to the replica; empty if the client sent an id."""
        self.asked: CallRequest | None = None
        """Fields of an OpenAI body that were read before admission; None if nothing was read."""
        self.tenant: Account | None = None
        """The caller; None if the function does not require authentication."""
        self.held: Held | None = None
        """Its reservations of the tenant's quotas."""
        self.tokens: Tokens | None = None
        """Expected tokens, at the end the real ones; None if its tokens are not counted."""
        self.trace: Trace | None = None
        """Set if the request is sampled; the second copy has that of the first."""
        self.pipeline: PipelineRequest | None = None
        """Set on a pipeline's request, and on the request of each of its stages."""
        self.counters: RevisionCounters | None = None
        """Counters of its revision; None while it is not counted."""
        self.bind: Bind | None = None
        """Set while a replica has the request."""
        self.bound_at = 0.0
        self.group = ""
        """Group of the last replica; empty if the request reached none."""
        self.replica = ""
        """Id of the last replica; empty if the request reached none."""
        self.may_have_run = False
        """A replica may have run it before it failed."""
        self.exchange: Exchange | None = None
        """Its own exchange, set while a hedge or a shadow of it is possible."""
        self.late_at: float | None = None
        """When its hedge is due."""
        self.hedge: Exchange | None = None
        """Its second copy, while that runs."""
        self.hedge_of: Exchange | None = None
        """Set on a second copy: the primary exchange, which still has the client."""
        self.primary_failed = False
        """Its replica failed while its hedge ran: the hedge decides."""
        self.is_uncounted = False
        """It is the one of two copies that does not count: no counter and no access log line."""
        self.is_answered = False
        """The head of its answer was accepted."""
        self.is_stream = False
        """Its answer is an event stream, a tunnel or a stream of messages."""
        self.keeps_credit = False
        """The head of its answer said ``tidegate-credit: keep``."""
        self.ending: Ending | None = None
        """Set if the status alone does not show how it ended."""
        self.is_ended = False
        self.is_excused = False
        """It counts as in time: its client does not wait, or no further replica would have helped it."""

    # --- with a replica ---------------------------------------------------------------------------------------------

    def bound(self, bind: "Bind", now: float) -> None:
        """A replica has it from now on."""
        self.bind = bind
        self.bound_at = now

    def unbind(self) -> None:
        """Takes the request back from its replica: it waits again, or its hedge goes on alone."""
        self.bind = None

    def replica_failed(self, *, may_have_run: bool) -> bool:
        """Notes a failure of its replica. Returns whether an earlier replica may have run it already."""
        ran_before, self.may_have_run = self.may_have_run, self.may_have_run or may_have_run
        return ran_before

    # --- two copies -------------------------------------------------------------------------------------------------

    def follow(self, ex: "Exchange") -> None:
        """A hedge or a shadow of it is possible from now on."""
        self.exchange = ex

    def hedged(self, hedge: "Exchange") -> "RequestState":
        """A second copy is on its way. Returns the state of that copy."""
        if self.exchange is None:
            raise ValueError("only a request that is followed gets a second copy")
        self.hedge = hedge
        state = RequestState(self.target, self.request_id, self.id_line)
        state.hedge_of = self.exchange
        state.is_uncounted = True
        state.trace = self.trace
        state.pipeline = self.pipeline
        return state

    def strand(self) -> None:
        """Its replica failed while its hedge runs: that one decides from now on."""
        self.bind = None
        self.primary_failed = True

    def end_hedge(self) -> "Exchange | None":
        """Its hedge is not needed any more. Returns that hedge, if one still runs."""
        hedge, self.hedge = self.hedge, None
        return hedge

    def hedge_lost(self) -> bool:
        """Its hedge ended without an answer. Returns whether it has failed itself and waited for that hedge alone."""
        self.hedge = None
        return self.primary_failed

    def win(self, primary: "RequestState") -> None:
        """It is a hedge and its answer came first: takes over what the primary held, and is counted in its place."""
        self.hedge_of = primary.hedge = None
        primary.primary_failed = False
        self.is_uncounted, primary.is_uncounted = primary.is_uncounted, True
        self.is_excused = primary.is_excused
        self.counters, primary.counters = primary.counters, None
        self.tokens, primary.tokens = primary.tokens, None
        self.held, primary.held = primary.held, None

    # --- the end ----------------------------------------------------------------------------------------------------

    def ended(self) -> "Bind | None":
        """The exchange is over. Returns the slot that it still had."""
        bind, self.bind = self.bind, None
        self.is_ended = True
        return bind

    def unfollow(self) -> "Exchange | None":
        """No hedge and no shadow is possible any more. Returns its hedge, if one still runs."""
        self.exchange = None
        return self.end_hedge()

    # --- phases -----------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The present phase. Raises ValueError if the fields contradict each other."""
        fields = (
            self.bind is not None,
            self.hedge is not None,
            self.hedge_of is not None,
            self.primary_failed,
            self.exchange is not None,
            self.is_ended,
        )
        for phase, row in LEGAL.items():
            if all(wanted is None or wanted is found for wanted, found in zip(row, fields, strict=True)):
                return phase
        raise ValueError(f"no phase of a request has (bind, hedge, hedge_of, primary_failed, exchange, end) = {fields}")

    def __repr__(self) -> str:
        return f"<RequestState {self.request_id.decode('latin-1')} {self.phase.name}>"
