"""Orders: what the control process orders a replica to do: drain, revive, another limit, borrowed cores."""

import json
from _operator import _compare_digest as equal_secrets
from collections.abc import Callable
from time import monotonic

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.flow.slots import SlotLedger
from tidegate.headers import TOKEN
from tidegate.queue_proxy.lifecycle import NotNowError, ReplicaLifecycle, StaleEpochError


class Orders:
    """Carries orders out. Each brings the epoch of its control process; an older one is refused."""

    __slots__ = ("_is_closed", "_ledger", "_lifecycle", "_publish", "_pump", "_token", "boost")

    def __init__(
        self,
        lifecycle: ReplicaLifecycle,
        ledger: SlotLedger,
        *,
        pump: Callable[[], None],
        publish: Callable[[], None],
        token: bytes | None = None,
        is_closed: bool = False,
    ) -> None:
        """``pump`` carries out what the ledger decided; ``publish`` sends the state to those who follow it. ``token``:
        what an order must bring, where other machines reach the endpoint. ``is_closed``: no order is taken at all."""
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._pump = pump
        self._publish = publish
        self._token = token
        self._is_closed = is_closed
        self.boost = 1
        """Times its limit that the replica may work with: its model server has borrowed cores."""

    def answer(self, request: Request) -> Response | None:
        """Carries an order out and answers it with the new state. Returns None if it is no order."""
        match request.path:
            case "/drain":
                return self._order(request, self._drain)
            case "/revive":
                return self._order(request, self._revive)
            case "/limit":
                return self._order(request, self._limit)
            case "/boost":
                return self._order(request, self._set_boost)
        return None

    def _order(self, request: Request, carry_out: Callable[[int, dict[str, object]], None]) -> Response:
        """Carries out an order of the control process, which brings its epoch."""
        if self._is_closed:
            return error_response(403, "this queue_proxy belongs to no deployment: it takes no orders")
        given = request.headers.get(TOKEN.decode(), "").encode()
        if self._token is not None and not equal_secrets(given, self._token):
            return error_response(403, "an order needs the token of this deployment")
        try:
            order = json.loads(request.body)
            epoch = order["epoch"]
        except (ValueError, KeyError, TypeError):
            return error_response(400, 'the body must be JSON with an "epoch"')
        if type(epoch) is not int or epoch < 0:
            return error_response(400, "epoch must be a whole number of at least 0")
        try:
            carry_out(epoch, order)
        except (StaleEpochError, NotNowError) as error:
            return error_response(409, str(error))
        except ValueError as error:
            return error_response(400, str(error))
        return Response(body=json.dumps(self._lifecycle.event()).encode())

    def _drain(self, epoch: int, _: dict[str, object]) -> None:
        self._lifecycle.drain_ordered(epoch)
        self._ledger.drain(monotonic())
        self._pump()

    def _revive(self, epoch: int, _: dict[str, object]) -> None:
        self._lifecycle.revive_ordered(epoch)
        self._ledger.revive(monotonic())
        self._pump()

    def _limit(self, epoch: int, order: dict[str, object]) -> None:
        limit = order.get("limit")
        if type(limit) is not int or limit < 0:
            raise ValueError("limit must be a whole number of at least 0")
        self._lifecycle.limit_ordered(epoch, limit)
        self._ledger.resize(limit * self.boost, monotonic())
        self._pump()
        self._publish()

    def _set_boost(self, epoch: int, order: dict[str, object]) -> None:
        boost = order.get("boost")
        if type(boost) is not int or boost < 1:
            raise ValueError("boost must be a whole number of at least 1")
        self._lifecycle.boost_ordered(epoch)
        self.boost = boost
        if self._lifecycle.limit is not None:
            self._ledger.resize(self._lifecycle.limit * boost, monotonic())
            self._pump()

    def __repr__(self) -> str:
        return f"<Orders of {self._lifecycle!r}>"


def error_response(status: int, message: str) -> Response:
    """Returns an error as admin endpoints answer it."""
    return Response(status=status, body=json.dumps({"error": message}).encode())
