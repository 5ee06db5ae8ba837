"""Supervision of the gateway workers: their listening sockets, their processes, the links to them.

The control process opens one listening socket per worker (SO_REUSEPORT: the kernel spreads connections over them),
hands it down and keeps it open. A worker that dies is started again on the same socket, so connections that wait in it
are served, not lost. A worker that an earlier control process started is adopted as it is and hands over its socket
(``tidegate.aio.loop.handover``). If it does not, and it dies later, a new socket on the same address takes over.

A hot restart (``restart``) goes from seat to seat: a fresh process on the seat's socket, and when it is linked the old
one retires. It stops accepting, finishes its requests, gives a last sample and ends. Both are pulled from, get every
route table and send their activations meanwhile (ADR 0014).

A worker that hangs (``SILENT_S``) is replaced in the same way, and killed. Its accepted connections are lost; those
that wait in its socket are served (ADR 0043).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.notices import Faults
from tidegate.control.views.deployment import GatewayView, ReplacedView
from tidegate.control.workers.launching import GatewaySettings, Launcher
from tidegate.control.workers.links import CALL_S, LinkError, NoAnswerError
from tidegate.control.workers.seats import (
    ADDRESS,
    BACKOFF_FIRST_S,
    RETIRING,
    SETTINGS,
    SILENT_S,
    RestartError,
    Seat,
    Worker,
    name_of,
    place_of,
)
from tidegate.control.workers.table_file import RouteTableFile
from tidegate.deploy.local.processes import Child, Exit, ProcessTable
from tidegate.deploy.local.records import ProcessKind, ProcessRecord
from tidegate.errors import TidegateError
from tidegate.records.gateway_sample import Activation, GatewaySample
from tidegate.records.route_table import RouteTable

STEADY_S: Final = 30.0
"""Time after which a running worker's back-off starts again from its first value."""
PULL_S: Final = 1.0
"""Time between two pulls of samples."""
LINK_RETRY_S: Final = 0.02
"""Time between attempts to reach a worker that was started and does not listen yet."""


class Supervisor:
    """All workers. ``activated`` is called with each activation as it arrives, ``lost`` with a worker that has
    ended."""

    def __init__(
        self,
        *,
        state: StateDirectory,
        processes: ProcessTable,
        settings: GatewaySettings,
        clock: Clock,
        environment: Mapping[str, str],
        activated: Callable[[Activation], None],
        lost: Callable[[str], None],
        faults: Faults,
    ) -> None:
        self._state = state
        self._processes = processes
        self._launcher = Launcher(
            state=state, processes=processes, settings=settings, environment=environment, faults=faults
        )
        self._clock = clock
        self._activated = activated
        self._lost = lost
        self._faults = faults
        self._owner = TaskOwner("supervisor")
        self._file = RouteTableFile(state.routes, faults, self._owner)
        self._seats: list[Seat] = []
        self._retiring: list[Worker] = []
        self._table: RouteTable | None = None
        self._leaving = False
        self._restarting = asyncio.Lock()

    @property
    def address(self) -> str:
        """HOST:PORT of the gateway."""
        return self._launcher.address

    @property
    def url(self) -> str:
        """Base URL of the gateway."""
        return f"{self._launcher.settings.scheme}://{self.address}"

    @property
    def certificate(self) -> str | None:
        """File with the gateway's certificate; None without TLS."""
        return self._launcher.settings.tls_cert

    def views(self) -> tuple[GatewayView, ...]:
        """Returns the workers that accept, by seat, then those that start or retire."""
        accepting = [seat.worker for seat in self._seats]
        return tuple(worker.view() for worker in (*accepting, *self._successors(), *self._retiring))

    async def start(self, living: tuple[ProcessRecord, ...], table: RouteTable) -> None:
        """Adopts the gateway workers among ``living`` and starts the missing ones.

        Raises PortTakenError if the address belongs to another program.
        """
        self._table = table
        self._file.write(table)
        adopted = await self._adopt(living)
        if adopted:
            self._launcher.address = adopted
        else:
            self._launcher.claim()
        await asyncio.gather(
            *(self._launcher.take_socket(seat) for seat in self._seats if seat.worker.child is not None)
        )
        for seat in self._seats:
            if seat.worker.child is None:
                self._watch(seat.worker, self._launcher.launch(seat, seat.worker))
        for worker in self._retiring:
            await worker.retire()

    async def publish(self, table: RouteTable) -> None:
        """Writes the table for workers to come and sends it to the present ones."""
        self._table = table
        self._file.write(table)
        await asyncio.gather(*(self._apply(worker, table) for worker in self._all() if worker.is_linked))

    async def linked(self, limit_s: float) -> bool:
        """Waits at most ``limit_s`` seconds until every running worker works from the newest table and sends its
        activations; returns False if some do not. (One that is yet to be started again reads the table's file, and
        connections wait for it.)"""
        try:
            async with asyncio.timeout(limit_s):
                for seat in tuple(self._seats):
                    if seat.worker.child is not None:
                        await seat.worker.linked.wait()
        except TimeoutError:
            return False
        return True

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        """Returns a ``GET /sample`` call for each worker that can be reached and has reported no last sample, by
        name."""
        linked = [worker for worker in self._all() if worker.is_linked]
        for worker in linked:
            self._mind(worker)
        return {
            worker.name: _sample_of(worker) for worker in linked if worker.sample is None or not worker.sample.is_last
        }

    def seen(self, sample: GatewaySample) -> None:
        """Takes a sample of a worker."""
        for worker in self._all():
            if worker.name == sample.worker:
                worker.sample = sample
                self._faults.note(f"{worker.subject}: certificate", sample.certificate_fault)
                self._faults.note(f"{worker.subject}: jobs", sample.jobs_fault)
                self._faults.note(f"{worker.subject}: access log", sample.access_log_fault)
                self._faults.note(f"{worker.subject}: payloads", sample.payloads_fault)

    def versions(self) -> tuple[tuple[int, int], ...]:
        """Returns the version of the route table that each worker last reported."""
        known = (worker.sample for worker in self._all() if worker.is_linked)
        return tuple((0, 0) if each is None else (each.table_epoch, each.table_number) for each in known)

    async def expositions(self) -> dict[str, bytes | None]:
        """Returns the Prometheus text of each living worker by name and process; None: it did not answer."""
        running = {f"{worker.name}/{worker.child.pid}": worker for worker in self._all() if worker.child is not None}
        texts = await asyncio.gather(*(_exposition_of(worker) for worker in running.values()))
        return dict(zip(running, texts, strict=True))

    async def reload(self) -> Mapping[str, str | None]:
        """Makes every worker read its certificate now. Returns by name None, or why it keeps the old one; empty without
        TLS."""
        answers: dict[str, str | None] = {}
        for worker in self._all() if self.certificate is not None else ():
            if not worker.is_linked:
                continue
            try:
                fault = (await worker.link.post("/reload")).decode()
                answers[worker.name] = fault or None
            except LinkError as error:
                answers[worker.name] = str(error)
            self._faults.note(f"{worker.subject}: certificate", answers[worker.name])
        return answers

    async def drain(self, grace_s: float) -> None:
        """Makes the workers stop accepting, finish their requests (at most ``grace_s`` seconds), and end."""
        self._leaving = True
        for seat in self._seats:
            seat.close()
        running = [worker.child for worker in self._all() if worker.child is not None]
        for child in running:
            child.mark_stopping()
        await asyncio.gather(*(child.stop(grace_s) for child in running))
        await self.release()

    async def release(self) -> None:
        """Closes the links; living workers go on."""
        self._leaving = True
        await self._owner.close()
        for worker in self._all():
            await worker.link.close()
        for seat in self._seats:
            seat.close()

    # --- start ---

    async def _adopt(self, living: tuple[ProcessRecord, ...]) -> str | None:
        """Adopts living workers; returns the address that they serve, None if there are none."""
        self._seats = [Seat(number, self._worker(number, 1)) for number in range(self._launcher.settings.workers)]
        records = [record for record in living if record.kind is ProcessKind.GATEWAY]
        address: str | None = None
        # The newest of a seat goes on; an older one beside it was being replaced when its control process died.
        for record in sorted(records, key=lambda each: place_of(each) or (0, 0), reverse=True):
            fits = self._launcher.fits(record) and address in (None, record.details.get(ADDRESS))
            place = place_of(record)
            if place is None or record.stopping or not fits or (child := self._processes.adopt(record)) is None:
                await self._processes.end(record)
                continue
            address = record.details[ADDRESS]
            self._seat(record, child, *place)
        return address

    def _seat(self, record: ProcessRecord, child: Child, number: int, generation: int) -> None:
        """Seats an adopted worker; it goes on, or goes on retiring."""
        worker = self._worker(number, generation)
        seat = self._seats[number] if number < len(self._seats) else None
        if seat is not None:
            seat.generation = max(seat.generation, generation)
        if seat is None or seat.worker.child is not None or RETIRING in record.details:
            worker.is_retiring = True
            self._retiring.append(worker)
        else:
            seat.worker = worker
            if record.details.get(SETTINGS) != self._launcher.fingerprint():
                text = "was started with other settings or by another version; `tidegate restart` replaces it"
                self._faults.set(f"{worker.subject}: settings", text)
        self._watch(worker, child)

    # --- processes ---

    def _worker(self, seat: int, generation: int) -> Worker:
        name = name_of(seat, generation)
        return Worker(name, seat, str(self._state.run / f"{name}.sock"))

    def _successors(self) -> list[Worker]:
        return [seat.successor for seat in self._seats if seat.successor is not None]

    def _all(self) -> tuple[Worker, ...]:
        return (*(seat.worker for seat in self._seats), *self._successors(), *self._retiring)

    def _watch(self, worker: Worker, child: Child) -> None:
        worker.child = child
        worker.started_at = self._clock.now()
        child.on_exit(lambda how: self._ended(worker, child, how))
        self._owner.spawn(self._follow(worker, child), name=f"link-{worker.name}")

    def _ended(self, worker: Worker, child: Child, how: Exit) -> None:
        if self._leaving:
            return
        worker.ended()
        self._lost(worker.name)
        if worker.is_retiring:
            self._retiring.remove(worker)
            self._forget(worker)
            return
        lines = child.last_output(3)
        self._faults.set(worker.subject, f"{how}" + (f": {' | '.join(lines)}" if lines else ""))
        if self._clock.now() - worker.started_at >= STEADY_S:
            worker.backoff_s = BACKOFF_FIRST_S
        seat = self._seats[worker.seat]
        if seat.worker is worker and seat.successor is None:
            self._restart_later(seat)

    def _forget(self, worker: Worker) -> None:
        """Drops a worker of which nothing is left."""
        for subject in ("", ": settings", ": socket", ": certificate", ": jobs"):
            self._faults.clear(worker.subject + subject)
        self._owner.spawn(worker.link.close(), name=f"close-{worker.name}")

    def _restart_later(self, seat: Seat) -> None:
        asyncio.get_running_loop().call_later(seat.worker.next_backoff_s(), self._restart, seat)

    def _restart(self, seat: Seat) -> None:
        worker = seat.worker
        if self._leaving or worker.child is not None or seat.successor is not None:
            return
        worker.restarts += 1
        try:
            self._watch(worker, self._launcher.launch(seat, worker))
        except TidegateError as error:
            self._faults.set(worker.subject, f"cannot be started: {error}")
            self._restart_later(seat)

    async def _follow(self, worker: Worker, child: Child) -> None:
        """Keeps the activation stream open while the worker lives; a new link gets the newest table."""
        while child.exit is None:
            with contextlib.suppress(LinkError):
                await self._greet(worker)
                worker.is_linked = True
                self._faults.clear(worker.subject)
                worker.unanswered_s = 0.0
                if self._table is not None:
                    await self._apply(worker, self._table)
                async with worker.link.activations() as activations:
                    worker.linked.set()
                    async for activation in activations:
                        self._activated(activation)
            if worker.child is child:
                worker.unlink()
            await asyncio.sleep(LINK_RETRY_S)

    async def _greet(self, worker: Worker) -> None:
        try:
            await worker.link.get("/healthz")
        except NoAnswerError:
            worker.unanswered_s += CALL_S
            self._mind(worker)
            raise

    async def _apply(self, worker: Worker, table: RouteTable) -> None:
        # A worker without a link gets the newest table when its link is back.
        with contextlib.suppress(LinkError):
            await worker.link.apply(table)

    # --- a worker that hangs ---

    def _mind(self, worker: Worker) -> None:
        if worker.is_silent and not worker.is_given_up and not self._leaving:
            worker.is_given_up = True
            self._owner.spawn(self._give_up(worker), name=f"give up {worker.name}")

    async def _give_up(self, worker: Worker) -> None:
        """Kills a worker that no longer answers (SIGKILL ends stopped processes too), once another accepts from its
        socket. It is called once more before, with more time; if it answers then, it retires instead."""
        try:
            async with self._restarting:
                with contextlib.suppress(LinkError):
                    await worker.link.get("/healthz")
                    worker.unanswered_s = 0.0
                seat = next((each for each in self._seats if each.worker is worker), None)
                if seat is not None and worker.is_silent:
                    self._faults.set(worker.subject, f"has not answered for {SILENT_S:g} s: another takes its place")
                    await self._replace(seat)
        except TidegateError as error:
            self._faults.set(worker.subject, f"hangs, and cannot be replaced: {error}")
            worker.unanswered_s = 0.0
        finally:
            worker.is_given_up = False
        if worker.is_silent and worker.is_retiring and worker.child is not None:
            worker.child.mark_stopping()
            worker.child.kill()

    # --- hot restart ---

    async def restart(self, settings: GatewaySettings | None = None) -> tuple[ReplacedView, ...]:
        """Replaces every worker by a fresh process, one seat after the other, and returns when the last successor
        serves; the old ones may still be finishing. ``settings``: for the fresh ones and all later ones; their address,
        number of workers and scheme have no effect.

        Raises RestartError at the first that cannot be replaced; those before it are replaced.
        """
        async with self._restarting:
            if settings is not None:
                self._launcher.settings = settings
            replaced: list[ReplacedView] = []
            for seat in self._seats:
                try:
                    replaced.append(await self._replace(seat))
                except TidegateError as error:
                    done = ", ".join(each.worker for each in replaced) or "none"
                    raise RestartError(
                        f"{seat.worker.name} was not replaced: {error} (replaced before: {done})"
                    ) from error
            return tuple(replaced)

    async def _replace(self, seat: Seat) -> ReplacedView:
        old = seat.worker
        if seat.socket is None and old.child is not None:
            await self._launcher.take_socket(seat)
        if self._leaving:
            raise RestartError("everything ends")
        seat.generation += 1
        seat.successor = new = self._worker(seat.number, seat.generation)
        before = ReplacedView(old=old.name, old_pid=old.view().pid, worker=new.name, pid=0)
        try:
            self._watch(new, self._launcher.launch(seat, new))
            await new.comes_up(self._owner)
        except BaseException:
            await self._stay(seat, new)
            raise
        seat.worker, seat.successor = new, None
        if old.child is None:
            self._forget(old)
        else:
            self._faults.clear(f"{old.subject}: settings")
            old.is_retiring = True
            self._retiring.append(old)
            old.child.rewrite(replace(old.child.record, details={**old.child.record.details, RETIRING: "yes"}))
            await old.retire()
        return replace(before, pid=new.view().pid)

    async def _stay(self, seat: Seat, failed: Worker) -> None:
        """Gives the successor up; the present worker goes on."""
        seat.successor = None
        if failed.child is not None and not self._leaving:
            failed.is_retiring = True  # its end is no fault
            self._retiring.append(failed)
            failed.child.mark_stopping()
            failed.child.kill()
        else:
            self._forget(failed)
        if seat.worker.child is None:
            self._restart_later(seat)

    def __repr__(self) -> str:
        return f"<Supervisor {len(self._seats)} workers on {self.address}>"


def _sample_of(worker: Worker) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        worker.unanswered_s += PULL_S
        sample = await worker.link.get("/sample")
        worker.unanswered_s = 0.0
        return sample

    return fetch


async def _exposition_of(worker: Worker) -> bytes | None:
    try:
        return await worker.link.get("/metrics?exemplars") if worker.is_linked else None
    except LinkError:
        return None
