"""CallerCheck: the steps *access* and *quota* of a request."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.gateway.access.control import AccessControl, Denial
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.tenant_accounts import Account
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class CallerCheck:
    """Lets requests pass or answers them with an error."""

    __slots__ = ("_access_control", "_errors")

    def __init__(self, access_control: AccessControl, errors: ErrorResponses) -> None:
        self._access_control = access_control
        self._errors = errors

    def allows(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> bool:
        """Authenticates the caller and checks the protocol. Returns False if the request was answered with an error."""
        if router.access is not None and state.tenant is None:
            denial = self._access_control.check_caller(ex.head, state, router)
            if denial is not None:
                self._errors.denied(ex, state, denial)
                return False
        if router.is_grpc and not ex.is_rpc:
            self._errors.not_grpc(ex, router)
            return False
        return True

    def has_quota(
        self, ex: "Exchange", state: RequestState, tenant: Account, decided: "Callable[[Exchange, Denial | None], None]"
    ) -> bool:
        """Reserves the tenant's quotas. Returns False if they are spent, or if the pool decides later (``decided``).

        A request over quota does not count as an arrival: no replica is needed for it.
        """
        verdict = self._access_control.reserve(ex, state, tenant, decided)
        if verdict is True:
            return True
        state.counters = None
        if isinstance(verdict, Denial):
            self._errors.denied(ex, state, verdict)
        return False

    def __repr__(self) -> str:
        return "<CallerCheck>"
