"""The cost report: device time and its price by function, tenant or accelerator.

Busy time of a function is divided among its tenants by their slot seconds, bucket by bucket; in a bucket without slot
seconds (a long answer that has not ended) by those of the whole window; without any it belongs to requests without a
tenant. Idle time and starts are rows of their own among tenants, or are *spread* by the same rule. Time of functions
that no request used stays idle or starting. The rows add up to the total. No IO.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.control.costs.ledger import NO_TENANT, Batch, Caller, DeviceTime
from tidegate.records.costs import GroupBy

UNNAMED: Final = "(none)"
"""Row of the requests without a tenant."""
IDLE: Final = "(idle)"
STARTING: Final = "(starting)"


@dataclass(slots=True)
class CostAmounts:
    """Amounts of one row."""

    time: DeviceTime = field(default_factory=DeviceTime)
    tokens: int = 0

    @property
    def per_1k_requests(self) -> float | None:
        """Price of 1,000 requests; None without requests."""
        return 1e3 * self.time.total_cost / self.time.requests if self.time.requests else None

    @property
    def per_million_tokens(self) -> float | None:
        """Price of a million tokens; None without tokens."""
        return 1e6 * self.time.total_cost / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class CostReport:
    """Rows by name, dearest first, and their sum."""

    rows: Mapping[str, CostAmounts]
    total: CostAmounts


def report(
    buckets: Mapping[int, Batch],
    by: GroupBy,
    *,
    function: str | None = None,
    tenant: str | None = None,
    is_spread: bool = False,
) -> CostReport:
    """Returns the report of ``buckets``. ``function``, ``tenant``: only theirs; a tenant's name as in the rows."""
    window = _slots(*buckets.values())
    rows: dict[str, CostAmounts] = {}
    for batch in buckets.values():
        slots = _slots(batch)
        for place, time in batch.devices.items():
            if function not in (None, place.function):
                continue
            for name, part in _parts(time, slots.get(place.function) or window.get(place.function), is_spread):
                if tenant not in (None, name):
                    continue
                key = {GroupBy.FUNCTION: place.function, GroupBy.TENANT: name, GroupBy.ACCELERATOR: place.accelerator}
                rows.setdefault(key[by], CostAmounts()).time.add(part)
            if by is GroupBy.ACCELERATOR and tenant is None:
                served = DeviceTime(requests=time.requests, inferences=time.inferences)
                rows.setdefault(place.accelerator, CostAmounts()).time.add(served)
        if by is not GroupBy.ACCELERATOR:
            _add_use(rows, batch, by, function, tenant)
    total = CostAmounts()
    for row in rows.values():
        total.time.add(row.time)
        total.tokens += row.tokens
    if by is GroupBy.ACCELERATOR and tenant is None:
        total.tokens = sum(
            use.tokens
            for batch in buckets.values()
            for caller, use in batch.tenants.items()
            if function in (None, caller.function)
        )
    ranked = sorted(rows.items(), key=lambda row: (-row[1].time.total_cost, -row[1].time.total_s, row[0]))
    return CostReport(dict(ranked), total)


def _add_use(rows: dict[str, CostAmounts], batch: Batch, by: GroupBy, function: str | None, tenant: str | None) -> None:
    for caller, use in batch.tenants.items():
        name = _shown(caller)
        if function not in (None, caller.function) or tenant not in (None, name):
            continue
        row = rows.setdefault(caller.function if by is GroupBy.FUNCTION else name, CostAmounts())
        row.time.requests += use.requests
        row.time.inferences += use.inferences
        row.tokens += use.tokens


def _shown(caller: Caller) -> str:
    return UNNAMED if caller.tenant == NO_TENANT else caller.tenant


def _slots(*batches: Batch) -> dict[str, dict[str, float]]:
    """Returns the slot seconds of each function by tenant."""
    found: dict[str, dict[str, float]] = {}
    for batch in batches:
        for caller, use in batch.tenants.items():
            if use.slot_s > 0.0:
                there = found.setdefault(caller.function, {})
                there[_shown(caller)] = there.get(_shown(caller), 0.0) + use.slot_s
    return found


def _parts(time: DeviceTime, slots: Mapping[str, float] | None, is_spread: bool) -> list[tuple[str, DeviceTime]]:
    """Returns the device time of one function and accelerator by tenant, without requests."""
    found = []
    shared = slots or ({UNNAMED: 1.0} if time.busy_s > 0.0 else {})
    whole = sum(shared.values())
    for name, slot_s in shared.items():
        share = slot_s / whole
        part = DeviceTime(busy_s=time.busy_s * share, busy_cost=time.busy_cost * share)
        if is_spread:
            part.idle_s, part.idle_cost = time.idle_s * share, time.idle_cost * share
            part.starting_s, part.starting_cost = time.starting_s * share, time.starting_cost * share
        found.append((name, part))
    if not (is_spread and shared):
        if time.idle_s:
            found.append((IDLE, DeviceTime(idle_s=time.idle_s, idle_cost=time.idle_cost)))
        if time.starting_s:
            found.append((STARTING, DeviceTime(starting_s=time.starting_s, starting_cost=time.starting_cost)))
    return found
