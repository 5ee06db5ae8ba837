"""The life of one replica as its queue_proxy knows it: state, orders with epochs, what listeners are told.

The transitions are those of ``tidegate.replica``. Every order carries the epoch of the control process that gives
it; one lower than the highest seen is refused, so a control process that was replaced cannot drain what its
successor counts on. A drain can be taken back until the process stops (SIGTERM), which nothing takes back.
"""

from dataclasses import asdict, replace

from tidegate.records import ColdStartPhases
from tidegate.replica import ReplicaEvent, ReplicaState, advance


class StaleEpochError(Exception):
    """The order comes from an older control process than one already heard."""


class NotNowError(Exception):
    """The order does not fit the state of the replica."""


class Life:
    """State of the replica; ``changes`` counts up with every change, so that a listener knows when to look."""

    __slots__ = ("changes", "epoch", "is_stopping", "limit", "message", "phases", "state")

    def __init__(self, *, limit: int | None, phases: ColdStartPhases, epoch: int) -> None:
        self.state = ReplicaState.STARTING
        self.limit = limit
        """Slots; None until the model server has declared them."""
        self.phases = phases
        self.epoch = epoch
        self.message = ""
        self.changes = 0
        self.is_stopping = False

    @property
    def is_accepting(self) -> bool:
        """Whether requests may run: a draining replica still finishes what its credits allow."""
        return self.state in (ReplicaState.READY, ReplicaState.DRAINING)

    def model_ready(self, *, limit: int, load_s: float, warm_s: float | None) -> None:
        """Readiness probe and warm-up passed. A replica told to drain before that stays drained."""
        self.limit = limit
        self.phases = replace(self.phases, load_s=load_s, warm_s=warm_s)
        if self.state is ReplicaState.STARTING:
            self._enter(ReplicaEvent.MODEL_READY)

    def model_failed(self, message: str) -> bool:
        """The model server is gone, or never came; True if that is news."""
        if self.state in (ReplicaState.FAILED, ReplicaState.STOPPED):
            return False
        self.message = message
        self._enter(ReplicaEvent.PROCESS_DIED)
        return True

    def order_drain(self, epoch: int, *, is_idle: bool) -> None:
        """Drains; with nothing running and nothing queued it is drained at once. Ordered again: no effect."""
        self.check(epoch)
        self._drain(is_idle=is_idle)

    def order_revive(self, epoch: int) -> None:
        """Takes a drain back. Raises NotNowError once the process stops or the replica never was ready."""
        self.check(epoch)
        if self.is_stopping:
            raise NotNowError("the process is stopping")
        if self.state is ReplicaState.READY:
            return
        if self.state not in (ReplicaState.DRAINING, ReplicaState.DRAINED) or self.phases.load_s is None:
            raise NotNowError(f"a {self.state.value} replica cannot be revived")
        self._enter(ReplicaEvent.REVIVE_ORDERED)

    def order_limit(self, epoch: int, limit: int) -> None:
        """A new number of slots; 0: no limit."""
        self.check(epoch)
        self.limit = limit
        self.changes += 1

    def stop(self, *, is_idle: bool) -> None:
        """SIGTERM: drains, and cannot be taken back."""
        self.is_stopping = True
        self._drain(is_idle=is_idle)

    def work_ended(self) -> None:
        """The last request ended and all credits are home: a draining replica is drained."""
        if self.state is ReplicaState.DRAINING:
            self._enter(ReplicaEvent.LAST_WORK_ENDED)

    def check(self, epoch: int) -> None:
        """Remembers the highest epoch; raises StaleEpochError for a lower one."""
        if epoch < self.epoch:
            raise StaleEpochError(f"epoch {epoch} is older than {self.epoch}")
        self.epoch = epoch

    def event(self) -> dict[str, object]:
        """The present state as a line of ``/events``."""
        return {
            "state": self.state.value,
            "phases": asdict(self.phases),
            "limit": self.limit,
            "message": self.message,
        }

    def __repr__(self) -> str:
        return f"<Life {self.state.value}, limit {self.limit}, epoch {self.epoch}>"

    def _drain(self, *, is_idle: bool) -> None:
        if self.state in (ReplicaState.STARTING, ReplicaState.READY):
            self._enter(ReplicaEvent.DRAIN_ORDERED)
        if is_idle:
            self.work_ended()

    def _enter(self, event: ReplicaEvent) -> None:
        self.state = advance(self.state, event)
        self.changes += 1
