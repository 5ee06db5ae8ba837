"""Fields of a request that are for the gateway itself: request id, tag, deadline, priority, task class.

A field that makes no sense is answered with an error here; then the functions return None.
"""

import random
import re
from binascii import hexlify
from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.errors import BAD_REQUEST
from tidegate.flow.wants import ORIENTED
from tidegate.gateway.answers.caller_check import CallerCheck
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.headers import TimeoutFieldError, request_timeout_s
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_TASK_CLASSES: Final = {b"latency-critical": 0, b"throughput-oriented": ORIENTED}
"""What a task class adds to the priority."""

is_request_id: Final = re.compile(rb"[!-~]{1,128}").fullmatch
"""Matches the ids of clients that are used: up to 128 visible ASCII characters."""


def state_with_new_id(head: AnyRequestHead, target: Target, given: bytes | None, rng: random.Random) -> RequestState:
    """Returns the state of a request that came without an id, or with an unusable one."""
    if given is not None:
        head.drop(headers.REQUEST_ID)
    made = hexlify(rng.getrandbits(128).to_bytes(16, "big"))
    return RequestState(target, made, b"x-request-id: %b\r\n" % made)


class HeadFields:
    """Reads the fields of one worker's requests."""

    __slots__ = ("_callers", "_errors", "_grpc")

    def __init__(self, errors: ErrorResponses, grpc: GrpcFrontend, callers: CallerCheck) -> None:
        self._callers = callers
        self._errors = errors
        self._grpc = grpc

    def read(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> FunctionRouter | None:
        """Reads tag and deadline. Returns the router that the tag names; None if the request was answered.

        Which tags a function with an access rule has is for its callers alone.
        """
        is_closed = router.access is not None and ex.head.control(headers.TAG) is not None
        if is_closed and not self._callers.allows(ex, state, router):
            return None
        found = self.tagged(ex, state, router)
        return found if found is not None and self._set_deadline(ex, found) else None

    def tagged(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> FunctionRouter | None:
        """Returns the router of the tag in the request's field, ``router`` without such a field.

        Returns None if the function does not have the tag; the request is answered then.
        """
        tag = ex.head.control(headers.TAG)
        if tag is None:
            return router
        found = router.tagged.get(tag)
        if found is None:
            self._errors.no_tag(ex, router, tag)
        else:
            state.target = state.target.of(found)
        return found

    def _set_deadline(self, ex: "Exchange", router: FunctionRouter) -> bool:
        """Sets the request's own deadline, at most the function's timeout. Returns False if the field was unusable."""
        ex.deadline = ex.received + router.timeout_s
        if not ex.head.mentions(b"-timeout"):
            return True
        try:
            own_s = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._errors.fail(ex, BAD_REQUEST, str(error))
            return False
        if own_s is not None and own_s < router.timeout_s:
            ex.set_deadline(ex.received + own_s)
        return True

    def priority(self, ex: "Exchange", default: int) -> int | None:
        """Returns the priority class that the request states, else ``default``; None if it was unusable and answered.

        Removes the client's own fields: the replica gets the deadline that remains and the size that was found.
        """
        head = ex.head
        if (ex.is_rpc and self._grpc.is_usual(ex)) or not head.mentions(b"\ntidegate-"):
            return default
        priority = default
        given = head.get(headers.PRIORITY)
        if given is not None:
            if len(given) != 1 or not given.isdigit():
                message = "tidegate-priority must be a digit: 0 (goes first) to 9 (goes last)"
                self._errors.fail(ex, BAD_REQUEST, message)
                return None
            priority = int(given) + (ORIENTED if default >= ORIENTED else 0)
        task_class = head.get(headers.TASK_CLASS)
        if task_class is not None:
            if task_class not in _TASK_CLASSES:
                message = "tidegate-task-class must be latency-critical or throughput-oriented"
                self._errors.fail(ex, BAD_REQUEST, message)
                return None
            priority = priority % ORIENTED + _TASK_CLASSES[task_class]
        head.drop(headers.TIMEOUT_MS, headers.BATCH_SIZE, headers.PRIORITY, headers.TASK_CLASS, headers.TAG)
        return priority

    def __repr__(self) -> str:
        return "<HeadFields>"
