"""The control process's links to remote gateways: it finds them in Redis, pushes them the route table, pulls their
samples and follows their activations, as it does with its own workers.

A gateway that was found is known until it has left Redis and does not answer: neither a lost Redis nor a lost link
changes what is known. While Redis is away tables and activations take the links, while a link is away they take Redis.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

import httpx

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.remote.records import RemoteState
from tidegate.control.state.notices import Faults
from tidegate.control.views.deployment import GatewayView
from tidegate.control.workers.links import GatewayLink, LinkError
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.gateway_sample import Activation
from tidegate.records.route_table import RouteTable
from tidegate.store.records import StoreFaultError

if TYPE_CHECKING:
    from tidegate.store.redis_gateways import RedisGateways

BEAT_S: Final = 1.0
"""Time between two looks into Redis, and between two looks at each gateway."""
RETRY_S: Final = 0.2
UNREACHED_S: Final = 2.0
"""A gateway that no call has reached for this long is a fault."""
RIVAL_S: Final = 4.0
"""Two gateways with one name for this long are a fault. Longer than a link takes to be found broken."""
TABLE: Final = "route table in redis"


class KnownGateway:
    """One remote gateway, as its control process sees it."""

    def __init__(self, state: RemoteState, token: str) -> None:
        self.state = state
        self.link = GatewayLink(state.gateway, state.address, token)
        self.is_linked = False
        self.is_registered = True
        self.version = state.version
        """Version of the oldest route table that it has reported to work from."""
        self.pushed: tuple[int, int] = (-1, -1)
        self.faulty: tuple[str, ...] | None = None
        """What it has last reported to be away; None if that is not known."""
        self.rival: tuple[float, float] | None = None
        """When another gateway that has this one's name was first seen, and last."""
        self.unreached_s = 0.0
        """For so long no call has reached it."""

    def take(self, state: RemoteState) -> None:
        self.state = state
        self.version = max(self.version, state.version)

    def worker_name(self, worker: str) -> str:
        return f"{self.state.gateway}.{worker}"

    def views(self) -> tuple[GatewayView, ...]:
        state = "lost" if not self.is_linked and not self.is_registered else None
        unlinked = "unlinked" if not self.is_linked else None
        return tuple(
            GatewayView(
                worker=self.worker_name(each.worker),
                pid=each.pid,
                state=state or unlinked or each.state,
                restarts=each.restarts,
                table="{}.{}".format(*self.version),
                connections=each.connections,
            )
            for each in self.state.workers
        )

    def __repr__(self) -> str:
        return f"<KnownGateway {self.state.gateway} at {self.state.address}>"


class RemoteGateways:
    """All remote gateways of a deployment. :meth:`run` in a task of its own; :meth:`close` at the end."""

    def __init__(
        self,
        redis: "RedisGateways",
        *,
        token: str,
        activated: Callable[[Activation], None],
        lost: Callable[[str], None],
        counted: Callable[[int], None],
        faults: Faults,
    ) -> None:
        """``activated`` is called with each activation, ``lost`` with the name of a worker that has ended, ``counted``
        with the number of workers that are there."""
        self._redis = redis
        self._token = token
        self._activated = activated
        self._lost = lost
        self._counted = counted
        self._count = 0
        self._faults = faults
        self._tasks = TaskOwner("remote gateways", lambda name, error: faults.set(name, f"{error!r}"))
        self._gateways: dict[str, KnownGateway] = {}
        self._unreadable: set[str] = set()
        """Gateways whose registrations cannot be used."""
        self._follows: dict[str, asyncio.Task[None]] = {}
        self._table: RouteTable | None = None
        self._encoded = b""
        self._changed = asyncio.Event()
        """Set and replaced at each new table."""

    def publish(self, table: RouteTable) -> None:
        """Sends a table to Redis and to every gateway, in the background."""
        self._table, self._encoded = table, encode(table)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def views(self) -> tuple[GatewayView, ...]:
        return tuple(view for each in self._gateways.values() for view in each.views())

    def versions(self) -> tuple[tuple[int, int], ...]:
        """Returns the version of the route table that each gateway has reported."""
        return tuple(each.version for each in self._gateways.values())

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        """Returns a call for the sample of each worker, by name. It fails for one that cannot be reached now: what is
        missing is not taken for nothing."""
        return {
            each.worker_name(worker.worker): _sample_of(each, worker.worker)
            for each in self._gateways.values()
            for worker in each.state.workers
            if worker.state in ("serving", "retiring")
        }

    async def expositions(self) -> dict[str, bytes | None]:
        """Returns the Prometheus text of each worker by name and process; None: it did not answer."""
        found = {
            f"{each.worker_name(worker.worker)}/{worker.pid}": _exposition(each, worker.worker)
            for each in self._gateways.values()
            for worker in each.state.workers
            if worker.pid
        }
        texts = await asyncio.gather(*found.values())
        return dict(zip(found, texts, strict=True))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._meet())
            group.create_task(self._follow_demand())

    async def close(self) -> None:
        await self._tasks.close()
        for each in self._gateways.values():
            await each.link.close()
        await self._redis.close()

    # --- Redis ------------------------------------------------------------------------------------------------------

    async def _meet(self) -> None:
        """Writes the table into Redis where it has an older one, and finds gateways there."""
        while True:
            changed = self._changed
            try:
                meeting = await self._redis.meet()
                await self._put_table(meeting.version)
                self._found(meeting.gateways)
                self._count_workers()
            except StoreFaultError as error:
                text = f"remote gateways get tables over their links alone, new ones are not found: {error}"
                self._faults.set(TABLE, text)
                await asyncio.sleep(self._redis.rest_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()

    async def _put_table(self, there: tuple[int, int]) -> None:
        table = self._table
        if table is None:
            return
        if there < table.version:
            there = await self._redis.put_table(table.version, self._encoded)
        if there > table.version:
            newer = "{}.{}".format(*there)
            text = f"older ones are refused: {newer} of another control process is there, and gateways work from it"
            self._faults.set(TABLE, text)
        else:
            self._faults.clear(TABLE)

    def _found(self, registered: Mapping[str, bytes]) -> None:
        for name, value in registered.items():
            try:
                state = decode(value, RemoteState)
            except CodecError as error:
                self._unreadable.add(name)
                self._faults.set(f"gateway {name}", f"is of another version of Tidegate: {error}")
                continue
            known = self._gateways.get(name)
            if known is not None and known.state.address != state.address:
                if known.is_linked:  # It answers: the other one has taken its name.
                    self._note_rival(known, state)
                    continue
                self._forget(name)
                known = None
            if known is None:
                try:
                    known = KnownGateway(state, self._token)
                except (ValueError, httpx.InvalidURL) as error:
                    self._unreadable.add(name)
                    self._faults.set(f"gateway {name}", f"has no valid address, {state.address!r}: {error}")
                    continue
                self._gateways[name] = known
                self._follows[name] = self._tasks.spawn(self._follow(known), name=f"gateway {name}")
            if known.rival is not None and monotonic() - known.rival[1] >= RIVAL_S:
                known.rival = None
                self._faults.clear(f"gateways called {name}")
            self._unreadable.discard(name)
            known.is_registered = True
            if not known.is_linked:
                known.take(state)
        for name in self._unreadable - registered.keys():
            self._unreadable.discard(name)
            self._faults.clear(f"gateway {name}")
        for name, known in tuple(self._gateways.items()):
            if name not in registered:
                known.is_registered = False
                if not known.is_linked:
                    self._forget(name)

    def _note_rival(self, known: KnownGateway, other: RemoteState) -> None:
        """Reports two gateways of one name. One that starts again at once may look the same for a moment."""
        now = monotonic()
        since = now if known.rival is None else known.rival[0]
        known.rival = (since, now)
        if now - since >= RIVAL_S:
            places = f"{known.state.address} and {other.address}"
            text = f"two gateways have this name, at {places}; only the first is used: give each its own --name"
            self._faults.set(f"gateways called {known.state.gateway}", text)

    def _count_workers(self) -> None:
        count = sum(len(each.state.workers) or 1 for each in self._gateways.values())
        if count != self._count:
            self._count = count
            self._counted(count)

    @property
    def front(self) -> str | None:
        """HOST:PORT that clients of one of the gateways use; None if there is none."""
        return next((each.state.front for each in self._gateways.values()), None)

    def _forget(self, name: str) -> None:
        """Forgets a gateway that has ended."""
        known = self._gateways.pop(name)
        self._follows.pop(name).cancel()
        self._faults.clear(f"gateway {name}")
        self._faults.clear(f"gateways called {name}")
        self._tasks.spawn(known.link.close(), name=f"close {name}")
        for worker in known.state.workers:
            self._lost(known.worker_name(worker.worker))

    async def _follow_demand(self) -> None:
        """Takes the activations that gateways leave in Redis."""
        after = "$"
        while True:
            try:
                after, lines = await self._redis.asked(after, BEAT_S)
            except StoreFaultError:  # said by ``_meet``
                after = "$"
                await asyncio.sleep(self._redis.rest_s or BEAT_S)
                continue
            for line in lines:
                with contextlib.suppress(CodecError):  # of another version: the level is repeated over the link
                    self._activated(decode(line, Activation))

    # --- one gateway ------------------------------------------------------------------------------------------------

    async def _follow(self, gateway: KnownGateway) -> None:
        """Keeps a gateway's activations, state and table up to date while it is there."""
        while True:
            began = monotonic()
            try:
                await self._look(gateway)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._listen(gateway))
                    group.create_task(self._push(gateway))
            except* (LinkError, CodecError) as errors:
                gateway.unreached_s = 0.0 if gateway.is_linked else gateway.unreached_s + monotonic() - began + RETRY_S
                # One that ends in order breaks its link a moment before it is forgotten.
                if gateway.unreached_s >= UNREACHED_S:
                    text = f"its control process cannot reach it: {errors.exceptions[0]}"
                    self._faults.set(f"gateway {gateway.state.gateway}", text)
            gateway.is_linked, gateway.faulty = False, None
            await asyncio.sleep(RETRY_S)

    async def _look(self, gateway: KnownGateway) -> None:
        gateway.take(decode(await gateway.link.get("/state"), RemoteState))
        subjects = tuple(text.partition(":")[0] for text in gateway.state.faults)
        if subjects != gateway.faulty:  # Their words change with each try.
            gateway.faulty = subjects
            self._faults.note(f"gateway {gateway.state.gateway}", " | ".join(gateway.state.faults) or None)

    async def _listen(self, gateway: KnownGateway) -> None:
        async with gateway.link.activations() as activations:
            gateway.is_linked = True
            async for activation in activations:
                self._activated(activation)
        raise LinkError(f"{gateway.state.gateway} has closed the link")

    async def _push(self, gateway: KnownGateway) -> None:
        while True:
            changed, table = self._changed, self._table
            if table is not None and gateway.pushed < table.version:
                await gateway.link.put("/table", self._encoded)
                gateway.pushed = table.version
            await self._look(gateway)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()

    def __repr__(self) -> str:
        return f"<RemoteGateways {list(self._gateways.values())}>"


def _sample_of(gateway: KnownGateway, worker: str) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        if not gateway.is_linked:
            raise LinkError(f"{gateway.state.gateway} cannot be reached")
        return await gateway.link.get(f"/sample?{worker}")

    return fetch


async def _exposition(gateway: KnownGateway, worker: str) -> bytes | None:
    try:
        return await gateway.link.get(f"/metrics?{worker}") if gateway.is_linked else None
    except LinkError:
        return None
