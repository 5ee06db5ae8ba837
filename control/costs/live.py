"""Keeps the ledger of device time: feeds it, stores it every ten seconds, and answers for it.

What is stored survives the end of the control process, however it ends. A file that cannot be written is a fault; the
amounts then stay in memory and are written once it can be.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from tidegate import metrics
from tidegate.clock import monotonic, wall
from tidegate.control.costs.ledger import Batch, Checkpoint, HeldPart, Ledger, shifted
from tidegate.control.costs.report import UNNAMED, CostReport, report
from tidegate.control.costs.store import CostStore
from tidegate.control.state.directory import StateError, own_file
from tidegate.control.state.notices import Faults
from tidegate.control.state.registry import Registry
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import Accelerator, part_of
from tidegate.metrics import Exposition
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.costs import GroupBy
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

PERIOD_S: Final = 10.0
"""Between two writes. What replicas that end while no control process runs did since the last one is lost."""
SUBJECT: Final = "costs"
ROWS_A_STEP: Final = 5

_GONE: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)

T = TypeVar("T")


class Costs:
    """The ledger of one control process. Without ``path`` nothing is stored. ``now`` is that of the process's clock."""

    def __init__(
        self,
        path: Path | None = None,
        faults: Faults | None = None,
        *,
        now: float = 0.0,
        wall: Callable[[], float] = wall,
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        self._path = path
        self._faults = faults or Faults()
        self._wall = wall
        self._monotonic = monotonic
        self._ledger = Ledger(now)
        self._store: CostStore | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._flushing = asyncio.Lock()
        self._parts: dict[tuple[str, str], float] = {}
        """By revision and accelerator."""
        self._seen: dict[str, tuple[ReplicaStatus, HeldPart]] = {}
        """By replica: its status, and what was made of it."""
        self._devices: tuple[Accelerator, ...] = ()
        self._held: dict[str, float] = {}
        """Devices held of each accelerator, as last observed."""

    # --- life ---

    async def open(self, now: float) -> None:
        """Opens the file and goes on from its checkpoint. A file that cannot be opened is a fault."""
        if self._path is None:
            return
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="costs")
        try:
            store, kept = await self._run(lambda: _open(self._path))
            self._store = store
            self._ledger = Ledger(now, None if kept is None else self._restored(kept, now))
            if kept is None:  # So that a successor knows when counting began.
                await self._store_batch(store, Batch(), now)
        except (StateError, sqlite3.Error, CodecError) as error:
            self._faults.set(SUBJECT, f"{self._path}: {error}")

    def _restored(self, kept: bytes, now: float) -> Checkpoint:
        at, checkpoint = decode(kept, tuple[float, Checkpoint])
        gone_s = self._monotonic() - at
        if gone_s < 0.0:  # The machine has started meanwhile: no process is left.
            return Checkpoint(now, {}, checkpoint.workers)
        return shifted(checkpoint, now - gone_s - checkpoint.at)

    async def run(self, now: Callable[[], float]) -> None:
        """Stores the amounts until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.flush(now())

    async def flush(self, now: float) -> None:
        """Stores the amounts of now. A failure is a fault, and the amounts stay."""
        store = self._store
        if store is None:
            return
        async with self._flushing:
            batch = self._ledger.take()
            if not batch:
                return
            try:
                await self._store_batch(store, batch, now)
            except sqlite3.Error as error:
                self._ledger.restore(batch)
                self._faults.set(SUBJECT, f"{self._path}: {error}")
            else:
                self._faults.clear(SUBJECT)

    async def _store_batch(self, store: CostStore, batch: Batch, now: float) -> None:
        checkpoint, at = encode((self._monotonic(), self._ledger.checkpoint(now))), self._wall()
        await self._run(lambda: store.add(batch, checkpoint, at))

    async def close(self, now: float, *, has_ended: bool) -> None:
        """Stores what is left and closes the file. ``has_ended``: no replica runs any more."""
        if has_ended:
            self._ledger.observe((), (), now)
        await self.flush(now)
        store, self._store = self._store, None
        if store is not None:
            await self._run(store.close)
        if self._thread is not None:
            self._thread.shutdown()

    async def _run(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)

    # --- what is observed ---

    def observe(
        self, replicas: Iterable[ReplicaStatus], devices: tuple[Accelerator, ...], registry: Registry, now: float
    ) -> None:
        """Takes all replicas, once a second."""
        if devices != self._devices:
            self._devices, self._parts, self._seen = devices, {}, {}
        kinds = {each.name: each for each in devices}
        before, self._seen = self._seen, {}
        held = []
        for status in replicas:
            if status.state in _GONE:
                continue
            known = before.get(status.id)
            if known is None or known[0] is not status:  # A status is replaced when it changes.
                known = (status, self._held_part(status, kinds, registry))
            self._seen[status.id] = known
            held.append(known[1])
        self._held = dict.fromkeys(kinds, 0.0)
        for part in held:
            self._held[part.accelerator] = self._held.get(part.accelerator, 0.0) + part.part
        deployed = registry.all()
        self._ledger.observe(held, {each.name for each in deployed if each.current.function.access is None}, now)
        self._ledger.keep({each.name for each in deployed})

    def _held_part(self, status: ReplicaStatus, kinds: Mapping[str, Accelerator], registry: Registry) -> HeldPart:
        kind = kinds.get(status.accelerator)
        part = self._parts.get((status.revision, status.accelerator))
        if part is None:
            record = registry.revision(status.revision)
            part = status.share / 100.0
            if record is not None and kind is not None:
                part = self._parts[status.revision, status.accelerator] = part_of(record.function, kind)
        if status.state is ReplicaState.ASLEEP and kind is not None:  # Its unit is free, its memory is not.
            part *= min(1.0, status.held_bytes / kind.memory_bytes) if kind.memory_bytes else 0.0
        return HeldPart(
            id=status.id,
            function=status.function,
            accelerator=status.accelerator,
            part=part,
            price_per_hour=0.0 if kind is None else kind.price_per_hour,
            created_at=status.created_at,
            ready_at=_ready_at(status),
            adopted=status.adopted,
        )

    def changed(self, status: ReplicaStatus, now: float) -> None:
        """Takes a change of a replica, as the backend reports it."""
        if status.state in _GONE:
            self._ledger.ended(status.id, now)

    def replica_seen(self, sample: ReplicaSample, status: ReplicaStatus, now: float) -> None:
        """Takes a sample of a queue_proxy."""
        self._ledger.replica_seen(sample, _ready_at(status), now)

    def gateway_seen(self, sample: GatewaySample) -> None:
        """Takes a sample of a gateway worker."""
        self._ledger.gateway_seen(sample)

    # --- what is shown ---

    async def report(
        self,
        since_s: float,
        by: GroupBy,
        *,
        function: str | None = None,
        tenant: str | None = None,
        is_spread: bool = False,
    ) -> tuple[float, float, CostReport]:
        """Returns the report of the last ``since_s`` seconds, with its start (that of a bucket) and end in Unix
        seconds. Raises TidegateError if the file cannot be read."""
        now = self._wall()
        store = self._store
        async with self._flushing:  # No batch is between memory and file.
            buckets: dict[int, Batch] = {}
            if store is not None:
                try:
                    buckets = await self._run(lambda: store.read(now - since_s, now))
                except sqlite3.Error as error:
                    self._faults.set(SUBJECT, f"{self._path}: {error}")
            latest = self._ledger.unstored
        start = min((*buckets, int(now - since_s)))
        if latest:
            buckets.setdefault(max(buckets, default=start), Batch()).add(latest)
        found = await asyncio.to_thread(
            lambda: report(buckets, by, function=function, tenant=tenant, is_spread=is_spread)
        )
        return float(start), now, found

    def expose(self, exposition: Exposition) -> Iterator[None]:
        """Adds the amounts since the start to a scrape, some lines a step."""
        for each in self._devices:
            exposition.add(metrics.ACCELERATOR_UNITS, (each.name,), each.count)
            exposition.add(metrics.ACCELERATOR_HELD, (each.name,), self._held.get(each.name, 0.0))
            exposition.add(metrics.ACCELERATOR_PRICE, (each.name,), each.price_per_hour)
        for count, (place, time) in enumerate(self._ledger.device_totals()):
            if count % ROWS_A_STEP == 0:
                yield
            for state, seconds, cost in (
                ("busy", time.busy_s, time.busy_cost),
                ("idle", time.idle_s, time.idle_cost),
                ("starting", time.starting_s, time.starting_cost),
            ):
                exposition.add(metrics.COST_DEVICE_SECONDS, (*place, state), seconds)
                exposition.add(metrics.COST_PRICE, (*place, state), cost)
            exposition.add(metrics.COST_REQUESTS, place, time.requests)
        for count, (caller, use) in enumerate(self._ledger.tenant_totals()):
            if count % ROWS_A_STEP == 0:
                yield
            labels = (caller.function, caller.tenant or UNNAMED)
            exposition.add(metrics.COST_TENANT_SLOT_SECONDS, labels, use.slot_s)
            exposition.add(metrics.COST_TENANT_REQUESTS, labels, use.requests)
            exposition.add(metrics.COST_TENANT_TOKENS, labels, use.tokens)

    def __repr__(self) -> str:
        return f"<Costs {self._ledger!r}>"


def _ready_at(status: ReplicaStatus) -> float | None:
    """Returns when a replica became ready. This process knows of an adopted one only how long its start took."""
    if status.ready_at is None or not status.adopted:
        return status.ready_at
    phases = status.phases
    took_s = sum(each or 0.0 for each in (phases.schedule_s, phases.pull_s, phases.load_s, phases.warm_s))
    return min(status.ready_at, status.created_at + took_s)


def _open(path: Path | None) -> tuple[CostStore, bytes | None]:
    assert path is not None
    own_file(path)
    store = CostStore(path)
    try:
        return store, store.checkpoint()
    except BaseException:
        store.close()
        raise
