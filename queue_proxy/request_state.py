"""The state that a queue_proxy keeps of one request, from its head to its end."""

from tidegate.flow.slots import Credit, Visit


class RequestState:
    """One request of this replica, from its head to its end.

    =========  =============  ===============  ========  ============
    state      visit          units or credit  sent_at   may_have_run
    =========  =============  ===============  ========  ============
    new        None           no               0         False
    queued     in `_queued`   no               0         False
    paused     any            yes              set       `was_sent`
    running    any            yes              set       True
    ended      None           given back       any       any
    =========  =============  ===============  ========  ============

    - new -> running if a slot is free, -> queued if none is, -> ended if it is refused.
    - queued -> running when its visit gets a credit, -> ended if it is refused, left by its client or too late.
    - paused instead of running while the model server is being checked; -> running or ended with the outcome.
    - running -> running or paused if a failed attempt is repeated, -> ended.

    A paused request lies in `_paused`. A request holds ``units`` if a slot was free and it brought no credit, else
    ``credit``. ``was_sent`` says that an earlier attempt had reached the model server.
    """

    __slots__ = ("credit", "is_trusted", "is_unanswered", "may_have_run", "sent_at", "units", "visit", "was_sent")

    def __init__(self, is_trusted: bool, units: int = 0, sent_at: float = 0.0) -> None:
        self.is_trusted = is_trusted
        """The request comes from a gateway of this deployment."""
        self.units = units
        """Units of the ledger that it holds; 0 if it holds a credit or nothing."""
        self.credit: Credit | None = None
        self.visit: Visit | None = None
        """Its place in the replica's own queue."""
        self.sent_at = sent_at
        """When it got its slot; 0 before."""
        self.may_have_run = False
        """The model server may have seen it."""
        self.was_sent = False
        """An earlier attempt had reached the model server."""
        self.is_unanswered = False
        """Its client left or its deadline passed before an answer began."""
