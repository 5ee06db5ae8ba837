"""LaterCharge: the size of a request whose body is not whole when its caller is charged."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.errors import BATCH_TOO_LARGE, ErrorKind
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class LaterCharge:
    """Watches the rest of bodies."""

    __slots__ = ("_refuse",)

    def __init__(self, refuse: "Callable[[Exchange, ErrorKind, str], None]") -> None:
        """``refuse``: ends a request whose body turned out to be faulty, with the kind of its error and a message."""
        self._refuse = refuse

    def watch(self, ex: "Exchange", router: FunctionRouter) -> None:
        """Counts the shapes in the rest of a body whose caller is charged, before its pieces go to a replica: a larger
        one is charged, one above ``max-batch`` ends the request."""
        if ex.is_rpc or ex.check is not None:
            return
        later = router.later_shapes(ex.head, ex.body)
        if later is None:
            return

        def check(ex: "Exchange", data: bytes, is_last: bool) -> None:
            found = later.feed(data)
            if found > router.max_batch:
                message = f"a shape in its body is larger than {router.max_batch}, {router.name}'s max-batch"
                self._refuse(ex, BATCH_TOO_LARGE, message)
            elif found > ex.inferences:
                state: RequestState = ex.context
                if state.held is not None:
                    state.held = state.held.charging(found)

        ex.check = check

    def __repr__(self) -> str:
        return "<LaterCharge>"
