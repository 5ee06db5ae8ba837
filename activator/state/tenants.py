"""TenantShares: the part of a function's waiting room that each tenant fills, and which request leaves a full room.

A tenant's load is the part of the room that it fills, by requests or by bytes, whichever is more, over its weight
(dominant resource fairness: Ghodsi and others, NSDI 2011). While there is room any tenant may wait. In a full room a
request of a tenant with a lower load displaces the youngest request of the tenant with the highest load, in the lowest
class that this one has there. So tenants that want more than there is end up with equal loads, one that wants less is
not refused because of others, and no part of the room stays empty.
"""

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.activator.state.bind import Bind


class TenantUsage:
    """The waiting requests of one tenant."""

    __slots__ = ("classes", "requests", "size", "tenant", "weight")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.weight = 1.0
        """The weight that its last request stated."""
        self.requests = 0
        self.size = 0
        """Bytes."""
        self.classes: dict[int, dict[int, Bind]] = {}
        """Waiting requests by priority class and arrival number, the youngest last; no class is empty."""

    def __repr__(self) -> str:
        return f"<Holding of {self.tenant!r}: {self.requests} requests, {self.size} bytes>"


class TenantShares:
    """Waiting-room usage per tenant of one function; requests without a tenant are not counted."""

    __slots__ = ("_heap", "_serial", "bound_bytes", "bound_requests", "usages")

    def __init__(self) -> None:
        self.bound_requests = 1
        self.bound_bytes = 1
        self.usages: dict[str, TenantUsage] = {}
        """Of the tenants whose requests wait."""
        self._heap: list[tuple[float, int, TenantUsage]] = []
        """(-load, serial number, usage); each usage is in there at least once with no less than its load."""
        self._serial = 0

    def __repr__(self) -> str:
        return f"<Holdings {list(self.usages.values())}>"

    def resize(self, requests: int, size: int) -> None:
        """Changes the bounds of the room, above 0."""
        if (requests, size) == (self.bound_requests, self.bound_bytes):
            return
        self.bound_requests, self.bound_bytes = requests, size
        self._rebuild()

    def add(self, bind: "Bind") -> None:
        """Counts a request that waits from now on."""
        claim = bind.claim
        assert claim is not None  # only requests with a claim are counted
        usage = self.usages.get(claim.tenant)
        if usage is None:
            usage = self.usages[claim.tenant] = TenantUsage(claim.tenant)
        usage.weight = claim.weight
        usage.requests += 1
        usage.size += bind.size
        usage.classes.setdefault(bind.priority, {})[bind.number] = bind
        self._enter(usage)

    def discard(self, bind: "Bind") -> None:
        """Removes a request that waits no more; does nothing if it was never added."""
        claim = bind.claim
        usage = None if claim is None else self.usages.get(claim.tenant)
        of_class = None if usage is None else usage.classes.get(bind.priority)
        if usage is None or of_class is None or of_class.pop(bind.number, None) is None:
            return
        usage.requests -= 1
        usage.size -= bind.size
        if not of_class:
            del usage.classes[bind.priority]
        if not usage.requests:
            del self.usages[usage.tenant]

    def victim_for(self, bind: "Bind") -> "Bind | None":
        """Returns the request that leaves the full room for this one; None if its own tenant fills as much as any
        other."""
        claim = bind.claim
        most = self._most()
        if claim is None or most is None or most.tenant == claim.tenant:
            return None
        return self.youngest() if self.load_with(bind) < self._load(most) else None

    def top_load(self) -> float:
        """Returns the highest load of a tenant; 0 if none waits."""
        most = self._most() if self.usages else None
        return 0.0 if most is None else self._load(most)

    def load_with(self, bind: "Bind") -> float:
        """Returns the load of a request's tenant with this request."""
        claim = bind.claim
        assert claim is not None  # only requests with a claim have a load
        own = self.usages.get(claim.tenant)
        requests, size = (1, bind.size) if own is None else (own.requests + 1, own.size + bind.size)
        return self._part(requests, size) / claim.weight

    def youngest(self) -> "Bind | None":
        """Returns the youngest request of the tenant with the highest load, in its lowest class."""
        most = self._most()
        return None if most is None else next(reversed(most.classes[max(most.classes)].values()))

    def _part(self, requests: int, size: int) -> float:
        return max(requests / self.bound_requests, size / self.bound_bytes)

    def _load(self, usage: TenantUsage) -> float:
        return self._part(usage.requests, usage.size) / usage.weight

    def _most(self) -> TenantUsage | None:
        """Returns the tenant with the highest load."""
        heap = self._heap
        while heap:
            entered, _, usage = heap[0]
            if not usage.requests:
                heapq.heappop(heap)
                continue
            load = self._load(usage)
            if load >= -entered:
                return usage
            self._serial += 1
            heapq.heapreplace(heap, (-load, self._serial, usage))
        return None

    def _enter(self, usage: TenantUsage) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (-self._load(usage), self._serial, usage))
        if len(self._heap) > 4 * len(self.usages) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(-self._load(usage), at, usage) for at, usage in enumerate(self.usages.values())]
        self._serial = len(self._heap)
        heapq.heapify(self._heap)
