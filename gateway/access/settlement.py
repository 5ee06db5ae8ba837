"""Settlement: the end of a request whose tokens are counted or whose caller has quotas."""

from typing import TYPE_CHECKING

from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.gateway.access.control import AccessControl
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.token_steps import TokenAccounting

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class Settlement:
    """Puts what requests really took in the place of what was expected of them."""

    __slots__ = ("_access_control", "_room", "_tokens")

    def __init__(self, room: WaitingRoom, tokens: TokenAccounting, access_control: AccessControl) -> None:
        self._room = room
        self._tokens = tokens
        self._access_control = access_control

    def settle(self, ex: "Exchange", state: RequestState, bind: Bind | None, *, is_complete: bool) -> bool:
        """Counts the tokens and settles the reservations of a request that has ended; ``bind``: the slot that it had
        until then. Returns whether its answer was complete: the tokens of a stream may show that."""
        tokens = state.tokens
        was_bound = bind is not None
        if tokens is not None:
            is_complete = self._tokens.ended(ex, state, tokens, was_bound=was_bound, is_complete=is_complete)
            if bind is not None:
                self._room.cost(bind, tokens.total or tokens.prompt_estimate)  # It took a slot, whatever it reported.
        if state.held is not None:
            is_good = is_complete and ex.status < 500
            was_bound = was_bound or (state.pipeline is not None and state.pipeline.was_bound)
            self._access_control.settle(ex, state, state.held, was_bound=was_bound, is_answered=is_good)
        return is_complete

    def __repr__(self) -> str:
        return "<Settlement>"
