"""The ledger of device time: each second of each replica, from its start order to its end, is busy, idle or starting.

A second counts as much as the replica's part of a device (``part_of``), and costs that part of the device's price. It
is *busy* while at least one request runs in the model (``busy_s`` of the replica's samples), *starting* before the
replica is ready, else *idle*; a drain without a request is idle. Busy time is divided among tenants later
(``tidegate.control.costs.report``), by the slot seconds that are counted here.

The ledger reads cumulative counters and takes differences. What it has read of each process is part of its
:class:`Checkpoint`; a control process that goes on from a checkpoint counts nothing twice, and counts what happened
while no control process ran. A replica that ended meanwhile counts until the checkpoint.

Amounts gather in a :class:`Batch`, which the shell takes and stores from time to time. No IO; ``now`` is in seconds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidegate.records.costs import OTHER_TENANTS
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample

NO_TENANT: Final = ""
"""The tenant of requests without one: to a function without an access rule, or with a token that names none."""
MAX_PAIRS: Final = 4096
"""Pairs of function and tenant with counters of their own since the start. Our choice."""
MAX_WORKERS: Final = 64
"""Gateway workers whose counters are remembered, ended ones included: a last sample may follow a worker's end."""
SILENT_S: Final = 15.0
"""Time without a sample after which a ready replica's time counts as idle. Longer than the interval of samples in a
fleet whose replicas are sampled in turn."""
NEW_S: Final = 5.0
"""A worker that is older when it is first seen, and that no checkpoint knows, has counted before the ledger began."""


class Place(NamedTuple):
    """Where device time was spent."""

    function: str
    accelerator: str


class Caller(NamedTuple):
    """Who used a function."""

    function: str
    tenant: str


@dataclass(slots=True)
class DeviceTime:
    """Device seconds and their price, and the requests that were served in them."""

    busy_s: float = 0.0
    idle_s: float = 0.0
    starting_s: float = 0.0
    busy_cost: float = 0.0
    idle_cost: float = 0.0
    starting_cost: float = 0.0
    requests: int = 0
    """Requests answered below 500."""
    inferences: int = 0
    """Inferences of requests that a replica answered, failures included."""

    def add(self, other: "DeviceTime") -> None:
        self.busy_s += other.busy_s
        self.idle_s += other.idle_s
        self.starting_s += other.starting_s
        self.busy_cost += other.busy_cost
        self.idle_cost += other.idle_cost
        self.starting_cost += other.starting_cost
        self.requests += other.requests
        self.inferences += other.inferences

    @property
    def total_s(self) -> float:
        return self.busy_s + self.idle_s + self.starting_s

    @property
    def total_cost(self) -> float:
        return self.busy_cost + self.idle_cost + self.starting_cost


@dataclass(slots=True)
class TenantTime:
    """Use of one function by one tenant."""

    slot_s: float = 0.0
    requests: int = 0
    inferences: int = 0
    tokens: int = 0

    def add(self, other: "TenantTime") -> None:
        self.slot_s += other.slot_s
        self.requests += other.requests
        self.inferences += other.inferences
        self.tokens += other.tokens


@dataclass(slots=True)
class Batch:
    """Amounts of some time."""

    devices: dict[Place, DeviceTime] = field(default_factory=dict)
    tenants: dict[Caller, TenantTime] = field(default_factory=dict)

    def device(self, place: Place) -> DeviceTime:
        """Returns the amounts of a place, which may be added to."""
        found = self.devices.get(place)
        if found is None:
            found = self.devices[place] = DeviceTime()
        return found

    def tenant(self, caller: Caller) -> TenantTime:
        found = self.tenants.get(caller)
        if found is None:
            found = self.tenants[caller] = TenantTime()
        return found

    def add(self, other: "Batch") -> None:
        for place, time in other.devices.items():
            self.device(place).add(time)
        for caller, use in other.tenants.items():
            self.tenant(caller).add(use)

    def __bool__(self) -> bool:
        return bool(self.devices or self.tenants)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """A replica that holds a part of a device. Times are those of the ledger's clock."""

    id: str
    function: str
    accelerator: str
    part: float
    """Above 0 and up to 1."""
    price_per_hour: float
    """Of the whole device."""
    created_at: float
    ready_at: float | None
    """None if it has never been ready."""
    adopted: bool = False
    """An earlier control process started it: it may be ready although that is not reported yet."""


@dataclass(slots=True)
class _Replica:
    """The ledger's state of one replica, which is part of a checkpoint."""

    place: Place
    part: float
    price_per_hour: float
    until: float
    """Its time is counted up to here."""
    is_ready: bool = False
    incarnation: str = ""
    busy_s: float = 0.0
    in_flight_s: float = 0.0
    excess_s: float = 0.0
    """Busy time that samples have reported beyond the time counted so far."""


class _Counted(NamedTuple):
    """Cumulative counters of a group or a tenant at one worker."""

    requests: int
    inferences: int
    tokens: int
    slot_s: float = 0.0


_NOTHING: Final = _Counted(0, 0, 0)


@dataclass(slots=True)
class _Worker:
    sequence: int
    counted: dict[str, _Counted]
    """By ``g/REVISION/GROUP`` and ``t/FUNCTION/TENANT``; ``r/REVISION`` for the tokens of a revision."""


@dataclass(slots=True)
class Checkpoint:
    """What the ledger knows of the processes that it reads."""

    at: float
    replicas: dict[str, _Replica]
    workers: dict[str, _Worker]


class Ledger:
    """Counts device time and use. ``since``: the checkpoint to go on from, with times of this clock; None: the ledger
    begins at ``now``."""

    def __init__(self, now: float, since: Checkpoint | None = None) -> None:
        self._began = now if since is None else since.at
        self._goes_on = since is not None
        self._patient_until = now + SILENT_S
        """Until then a replica that an earlier control process knew has time to send its first sample."""
        self._replicas: dict[str, _Replica] = {} if since is None else dict(since.replicas)
        self._workers: dict[str, _Worker] = {} if since is None else dict(since.workers)
        self._open: Collection[str] = ()
        self._callers: set[Caller] = set()
        """Those that count by themselves."""
        self._batch = Batch()
        """Amounts since the last :meth:`take`."""
        self._restored = Batch()
        """Amounts that were taken and could not be stored."""
        self._taken = Batch()
        """Amounts since the start that were taken."""

    # --- replicas ---

    def observe(self, held: Iterable[HeldPart], open_functions: Collection[str], now: float) -> None:
        """Takes all replicas that hold a part of a device. ``open_functions``: those without an access rule."""
        self._open = open_functions
        present = set()
        for each in held:
            present.add(each.id)
            known = self._replicas.get(each.id)
            if known is None:
                begin = min(max(each.created_at, self._began), now)
                place = Place(each.function, each.accelerator)
                known = self._replicas[each.id] = _Replica(place, each.part, each.price_per_hour, begin)
            if each.ready_at is not None or not each.adopted or now > self._patient_until:
                self._advance_start(known, each.ready_at, now)
            known.part, known.price_per_hour = each.part, each.price_per_hour
            if known.is_ready and now - known.until > SILENT_S and now > self._patient_until:
                self._count_ready(known, 0.0, now)
        for gone in self._replicas.keys() - present:
            self.ended(gone, now)

    def replica_seen(self, sample: ReplicaSample, ready_at: float | None, now: float) -> None:
        """Takes a sample of a replica that was observed before."""
        known = self._replicas.get(sample.replica)
        if known is None:
            return
        if known.incarnation != sample.incarnation:
            known.incarnation, known.busy_s, known.in_flight_s = sample.incarnation, 0.0, 0.0
        busy_s = max(0.0, sample.busy_s - known.busy_s)
        slot_s = max(0.0, sample.in_flight_request_s - known.in_flight_s)
        known.busy_s, known.in_flight_s = sample.busy_s, sample.in_flight_request_s
        self._advance_start(known, ready_at, now)
        if known.is_ready:
            self._count_ready(known, busy_s, now)
        else:
            known.excess_s += busy_s
        if slot_s and known.place.function in self._open:
            self._use(known.place.function, NO_TENANT, _Counted(0, 0, 0, slot_s))

    def ended(self, replica: str, now: float) -> None:
        """Takes the end of a replica."""
        known = self._replicas.pop(replica, None)
        if known is None:
            return
        if known.is_ready:
            self._count_ready(known, 0.0, now)
        else:
            self._count(known, now - known.until, "starting")

    def _advance_start(self, known: _Replica, ready_at: float | None, now: float) -> None:
        if known.is_ready:
            return
        until = now if ready_at is None else min(ready_at, now)
        self._count(known, until - known.until, "starting")
        known.until = max(known.until, until)
        known.is_ready = ready_at is not None

    def _count_ready(self, known: _Replica, busy_s: float, now: float) -> None:
        passed_s = max(0.0, now - known.until)
        reported_s = known.excess_s + busy_s
        busy_s = min(passed_s, reported_s)
        known.excess_s = reported_s - busy_s
        self._count(known, busy_s, "busy")
        self._count(known, passed_s - busy_s, "idle")
        known.until = max(known.until, now)

    def _count(self, known: _Replica, seconds: float, state: str) -> None:
        if seconds <= 0.0:
            return
        device_s = seconds * known.part
        cost = device_s * known.price_per_hour / 3600.0
        time = self._batch.device(known.place)
        if state == "busy":
            time.busy_s += device_s
            time.busy_cost += cost
        elif state == "idle":
            time.idle_s += device_s
            time.idle_cost += cost
        else:
            time.starting_s += device_s
            time.starting_cost += cost

    # --- gateway workers ---

    def gateway_seen(self, sample: GatewaySample) -> None:
        """Takes a sample of a gateway worker."""
        key = f"{sample.worker}/{sample.incarnation}"
        known = self._workers.pop(key, None)
        if known is not None and sample.sequence <= known.sequence:
            self._workers[key] = known
            return
        before: Mapping[str, _Counted] = {} if known is None else known.counted
        worker = self._workers[key] = _Worker(sample.sequence, {})
        is_old = known is None and not self._goes_on and sample.uptime_s > NEW_S
        for demand in sample.demands:
            self._demand_seen(demand, worker.counted, before, is_old)
        for use in sample.uses:
            counted = _Counted(use.requests, use.inferences, use.tokens, use.slot_s)
            more = _more(f"t/{use.function}/{use.tenant}", counted, worker.counted, before)
            if more is not None and not is_old:
                self._use(use.function, use.tenant, more)
        while len(self._workers) > MAX_WORKERS:
            del self._workers[next(iter(self._workers))]

    def _demand_seen(
        self, demand: RevisionDemand, counted: dict[str, _Counted], before: Mapping[str, _Counted], is_old: bool
    ) -> None:
        is_open = demand.function in self._open
        for group in demand.groups:
            seen = _Counted(group.requests - group.failures, group.inferences, 0)
            more = _more(f"g/{demand.revision}/{group.group}", seen, counted, before)
            if more is None or is_old:
                continue
            time = self._batch.device(Place(demand.function, group.group))
            time.requests += more.requests
            time.inferences += more.inferences
            if is_open:
                self._use(demand.function, NO_TENANT, more)
        if demand.tokens is not None:
            seen = _Counted(0, 0, demand.tokens.prompt + demand.tokens.completion)
            more = _more(f"r/{demand.revision}", seen, counted, before)
            if more is not None and is_open and not is_old:
                self._use(demand.function, NO_TENANT, more)

    def _use(self, function: str, tenant: str, more: _Counted) -> None:
        caller = Caller(function, tenant)
        if caller not in self._callers:
            if len(self._callers) < MAX_PAIRS:
                self._callers.add(caller)
            else:
                caller = Caller(function, OTHER_TENANTS)
        use = self._batch.tenant(caller)
        use.slot_s += more.slot_s
        use.requests += more.requests
        use.inferences += more.inferences
        use.tokens += more.tokens

    # --- what is stored ---

    def take(self) -> Batch:
        """Returns the amounts since the last call; give them back with :meth:`restore` if they cannot be stored."""
        self._taken.add(self._batch)
        taken, self._batch = self._batch, Batch()
        if self._restored:
            taken.add(self._restored)
            self._restored = Batch()
        return taken

    def restore(self, batch: Batch) -> None:
        """Takes back amounts that were not stored."""
        self._restored.add(batch)

    @property
    def unstored(self) -> Batch:
        """A copy of the amounts that :meth:`take` would return."""
        found = Batch()
        found.add(self._restored)
        found.add(self._batch)
        return found

    def device_totals(self) -> Iterator[tuple[Place, DeviceTime]]:
        """Yields the amounts of each place since the start; the caller may pause in between."""
        for place in (*self._taken.devices, *(self._batch.devices.keys() - self._taken.devices.keys())):
            whole = DeviceTime()
            for batch in (self._taken, self._batch):
                if (time := batch.devices.get(place)) is not None:
                    whole.add(time)
            yield place, whole

    def tenant_totals(self) -> Iterator[tuple[Caller, TenantTime]]:
        """Yields the use of each function by each tenant since the start; the caller may pause in between."""
        for caller in (*self._taken.tenants, *(self._batch.tenants.keys() - self._taken.tenants.keys())):
            whole = TenantTime()
            for batch in (self._taken, self._batch):
                if (use := batch.tenants.get(caller)) is not None:
                    whole.add(use)
            yield caller, whole

    def checkpoint(self, now: float) -> Checkpoint:
        """Returns what a successor goes on from, together with the amounts taken so far. It shares state: encode it
        before the next call."""
        return Checkpoint(now, self._replicas, self._workers)

    def keep(self, functions: Collection[str]) -> None:
        """Drops the totals of other functions; their amounts that were not taken yet stay."""
        for gone in {place for place in self._taken.devices if place.function not in functions}:
            del self._taken.devices[gone]
        for caller in {caller for caller in self._taken.tenants if caller.function not in functions}:
            del self._taken.tenants[caller]
            self._callers.discard(caller)

    def __repr__(self) -> str:
        return f"<Ledger {len(self._replicas)} replicas, {len(self._workers)} workers>"


def _more(key: str, seen: _Counted, counted: dict[str, _Counted], before: Mapping[str, _Counted]) -> _Counted | None:
    """Notes a counter and returns its growth; None without any. A counter that fell began again at 0."""
    counted[key] = seen
    last = before.get(key, _NOTHING)
    if seen == last:
        return None
    if seen.requests < last.requests or seen.tokens < last.tokens or seen.slot_s < last.slot_s:
        return seen
    return _Counted(
        seen.requests - last.requests,
        max(0, seen.inferences - last.inferences),
        seen.tokens - last.tokens,
        seen.slot_s - last.slot_s,
    )


def shifted(checkpoint: Checkpoint, by_s: float) -> Checkpoint:
    """Returns the checkpoint with its times on a clock that is ahead by ``by_s``."""
    for replica in checkpoint.replicas.values():
        replica.until += by_s
    checkpoint.at += by_s
    return checkpoint
