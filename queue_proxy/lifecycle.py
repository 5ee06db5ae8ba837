"""The lifecycle of one replica as its queue_proxy reports it: state, orders with epochs, phases, reason of a failure.

The slot ledger decides when a drain has ended (``tidegate.flow.slots``). This module keeps the state that ``/events``
reports and decides which orders are obeyed. Every order carries the epoch of its control process. An epoch lower than
the highest seen is refused, so that a replaced control process cannot drain replicas of its successor. A drain can be
revoked until the process gets SIGTERM; a stop cannot.
"""

from dataclasses import asdict, replace

from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState


class StaleEpochError(Exception):
    """The order comes from an older control process than an earlier order."""


class NotNowError(Exception):
    """The order does not fit the state of the replica."""


class ReplicaLifecycle:
    """The state of the replica. ``changes`` counts every change that ``/events`` reports."""

    __slots__ = (
        "_epoch",
        "_state",
        "cause",
        "changes",
        "is_deleted",
        "is_model_ready",
        "is_stopping",
        "limit",
        "message",
        "phases",
    )

    def __init__(self, *, limit: int | None, phases: ColdStartPhases, epoch: int) -> None:
        self._state = ReplicaState.STARTING
        self._epoch = epoch
        self.limit = limit
        """Slots. 0 is no limit; None until the model server has declared them."""
        self.phases = phases
        self.message = ""
        """Reason of the failure. Empty if the replica has not failed."""
        self.cause: FailureCause | None = None
        self.changes = 0
        self.is_model_ready = False
        self.is_stopping = False
        self.is_deleted = False
        """Its Pod is being deleted: its drain cannot be revoked."""

    @property
    def state(self) -> ReplicaState:
        return ReplicaState.FAILED if self.message else self._state

    @property
    def is_failed(self) -> bool:
        return bool(self.message)

    def entered(self, state: ReplicaState) -> None:
        """Records a new state of the slot ledger."""
        self._state = state
        self.changes += 1

    def model_ready(self, *, limit: int, load_s: float, warm_s: float | None) -> None:
        """Records that readiness probe and warm-up have passed."""
        self.is_model_ready = True
        self.limit = limit
        self.phases = replace(self.phases, pull_s=self.phases.pull_s or 0.0, load_s=load_s, warm_s=warm_s)
        self.changes += 1

    def model_failed(self, message: str, cause: FailureCause = FailureCause.GONE) -> bool:
        """Records that the model server is gone, hangs or never started. Returns False if a failure is already
        recorded."""
        if self.message:
            return False
        self.message = message or "the model server failed"
        self.cause = cause
        self.changes += 1
        return True

    def drain_ordered(self, epoch: int) -> None:
        """Accepts an order to drain. Raises StaleEpochError."""
        self._check_epoch(epoch)

    def revive_ordered(self, epoch: int) -> None:
        """Accepts an order to revive. Raises StaleEpochError, and NotNowError if nothing can be revived."""
        self._check_epoch(epoch)
        if self.is_stopping or self.is_deleted:
            raise NotNowError("the Pod is being deleted" if self.is_deleted else "the process is stopping")
        if self.message or not self.is_model_ready:
            raise NotNowError(f"a {self.state.value} replica cannot be revived")

    def limit_ordered(self, epoch: int, limit: int) -> None:
        """Accepts a new number of slots; 0 is no limit. Raises StaleEpochError."""
        self._check_epoch(epoch)
        self.limit = limit
        self.changes += 1

    def boost_ordered(self, epoch: int) -> None:
        """Accepts another multiple of the slots. Raises StaleEpochError."""
        self._check_epoch(epoch)

    def event(self) -> dict[str, object]:
        """Returns the present state as a line of ``/events``."""
        return {
            "state": self.state.value,
            "phases": asdict(self.phases),
            "limit": self.limit,
            "message": self.message,
            "cause": self.cause,
        }

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StaleEpochError(f"epoch {epoch} is older than {self._epoch}")
        self._epoch = epoch

    def __repr__(self) -> str:
        return f"<ReplicaLifecycle {self.state.value}, limit {self.limit}, epoch {self._epoch}>"
