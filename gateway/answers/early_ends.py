"""EarlyEnds: requests that end before their answer: late, abandoned by their client, or with a faulty body."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.activator.room import WaitingRoom
from tidegate.errors import QUEUE_FULL, ErrorKind, Executed
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class EarlyEnds:
    """Takes such requests of one worker out of the waiting room and answers them."""

    __slots__ = ("_clock", "_errors", "_flush", "_room")

    def __init__(
        self, room: WaitingRoom, errors: ErrorResponses, *, clock: Callable[[], float], flush: Callable[[], None]
    ) -> None:
        """``flush``: carries out what the waiting room has decided."""
        self._room = room
        self._errors = errors
        self._clock = clock
        self._flush = flush

    def expired(self, ex: "Exchange") -> None:
        """The deadline passed before an answer."""
        state: RequestState = ex.context
        state.ending = Ending.EXPIRED
        live = state.pipeline
        if live is not None and live.exchange is ex:
            live.leaves()
            self._errors.expired(ex, state, f"its deadline passed in stage {live.stage_name}", Executed.UNKNOWN)
        elif state.bind is None:
            message = "its deadline passed before a replica was free for it"
            if self._room.withdraw(ex, self._clock(), expired=True):
                self._flush()
            elif not ex.body_complete and state.counters is None:
                message = "its deadline passed before its body was there"
            self._errors.expired(ex, state, message)
        else:
            self._errors.expired(ex, state, "its deadline passed while a replica ran it", Executed.UNKNOWN)

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away."""
        state: RequestState = ex.context
        state.ending = Ending.CANCELLED
        live = state.pipeline
        if live is not None and live.exchange is ex:
            live.leaves()
        elif state.bind is None and self._room.withdraw(ex, self._clock()):
            self._flush()

    def body_refused(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """A body that names the model cannot be read, or its rest is faulty: no replica gets the end of it."""
        state: RequestState = ex.context
        if state.target.router is not None:
            state.ending = Ending.CANCELLED
            if state.bind is None and self._room.withdraw(ex, self._clock()):
                self._flush()
        if ex.first_byte:
            ex.truncate()
        else:
            self._errors.fail(ex, kind, message, extra=b"retry-after: 1\r\n" if kind.retry_helps else b"")

    def crowded(self, ex: "Exchange") -> None:
        """A body that is waited for is given up, because the bodies of all requests take too much memory."""
        state: RequestState = ex.context
        state.ending = Ending.REFUSED
        message = "the bodies of waiting requests take all their memory (limits.waiting-body-bytes)"
        self._errors.fail(ex, QUEUE_FULL, message, extra=b"retry-after: 1\r\n")

    def __repr__(self) -> str:
        return "<EarlyEnds>"
