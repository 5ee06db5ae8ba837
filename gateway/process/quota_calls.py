"""QuotaCalls: the counters through which one gateway worker shares its tenants' quotas with the others."""

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import LiveClock
from tidegate.gateway.access.quota_pool import Decided, SocketPool
from tidegate.store.counters import Asking, EmbeddedPool, SharedCounters, SharedPool, Wanted


class QuotaCalls:
    """Opens the counters with the first quota and asks their pool in the background."""

    __slots__ = ("_address", "_counters", "_member", "_members", "_tasks")

    def __init__(self, tasks: TaskOwner, *, address: str | None, member: str, members: int) -> None:
        """``address``: unix socket of the machine's pool; None if this worker shares quotas with none."""
        self._tasks = tasks
        self._address = address
        self._member = member
        self._members = members
        self._counters: SharedCounters | None = None

    def open_counters(self) -> SharedCounters:
        """Opens the counters that share quotas through the pool of this machine."""
        clock = LiveClock()
        pool: SharedPool = EmbeddedPool(clock) if self._address is None else SocketPool(self._address)
        self._counters = counters = SharedCounters(pool, clock, member=self._member, members=self._members)
        self._tasks.spawn(counters.run(), name="quotas")
        return counters

    def ask(self, wanted: Wanted, asking: Asking, decided: Decided) -> None:
        """Asks the pool; ``decided`` gets its decision."""
        self._tasks.spawn(self._ask(wanted, asking, decided), name="quota")

    async def _ask(self, wanted: Wanted, asking: Asking, decided: Decided) -> None:
        if self._counters is not None:
            decided(await self._counters.go_on(wanted, asking))

    async def close(self) -> None:
        """Gives back what is reserved, if there are counters."""
        if self._counters is not None:
            await self._counters.close()

    def __repr__(self) -> str:
        return f"<QuotaCalls of {self._member}>"
