"""Quotas that gateway workers share: the counters that access control reserves from, and the client of their pool.

The control process holds the pool for the gateway workers of its machine (ADR 0040). Each exchange is one call to its
unix socket. If the control process is away, the pool counts as lost and the worker goes on with its even part.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidegate.aio.admin.client import FetchError, fetch
from tidegate.flow.quota import QuotaAnswer, QuotaReport, Reservation
from tidegate.flow.quota_message import decode_answer, encode_exchange
from tidegate.records.codec import CodecError
from tidegate.store.counters import Asking, ShortBudget, Wanted
from tidegate.store.records import StoreFaultError

CALL_S: Final = 0.4
"""A slower call counts as lost. Longer than the wait for a pool in Redis, shorter than a request waits."""
PATH: Final = "/exchange"
ROOMS_PATH: Final = "/rooms"
"""The pool of the bounds of waiting rooms."""

Decided = Callable[[tuple[Reservation, ...] | ShortBudget], None]
AskPool = Callable[[Wanted, Asking, Decided], None]
"""Asks the pool in the background, then calls the last argument once with the decision."""


class QuotaCounters(Protocol):
    """The counters that quotas are reserved from: :class:`tidegate.store.counters.Counters`."""

    @property
    def is_lost(self) -> bool: ...

    def try_all(self, wanted: Wanted) -> tuple[Reservation, ...] | ShortBudget | Asking: ...

    def settle(self, reservation: Reservation, real: int) -> None: ...


class SocketPool:
    """A pool behind a unix socket; ``address`` is ``unix:/path``."""

    def __init__(self, address: str, path: str = PATH) -> None:
        self._address = address
        self._path = path

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Sends this worker's reports and returns the pool's answer. Raises StoreFaultError if the call fails."""
        body = encode_exchange(member, tuple(reports))
        try:
            reply = await fetch(self._address, "POST", self._path, body, timeout_s=CALL_S)
            if reply.status != 200:
                raise StoreFaultError(f"{self._address}: {reply.body[:200].decode(errors='replace')}")
            return decode_answer(reply.body, len(reports))
        except (FetchError, CodecError) as error:
            raise StoreFaultError(f"{self._address}: {error}") from error

    async def close(self) -> None:
        """Does nothing: no connection stays open between calls."""

    def __repr__(self) -> str:
        return f"<SocketPool {self._address}>"
