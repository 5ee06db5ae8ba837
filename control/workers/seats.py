"""One gateway worker as its supervisor sees it, and its seat.

A *seat* is a listening socket and its number. One worker accepts from it. At a hot restart its successor accepts beside
it for a moment, and then the old one *retires*: it accepts nothing more and finishes its requests.

A worker's name is its seat and its generation: ``g0`` is the first on seat 0, ``g0.2`` its first successor. A worker
that dies is started again under its own name.
"""

import asyncio
import re
import signal
import socket
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.views.deployment import GatewayView
from tidegate.control.workers.links import GatewayLink, LinkError
from tidegate.deploy.local.processes import Child
from tidegate.deploy.local.records import ProcessRecord
from tidegate.errors import TidegateError
from tidegate.records.gateway_sample import GatewaySample

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 5.0

SILENT_S: Final = 10.0
"""Time without an answer, however often it was called, after which a worker counts as hanging: another replaces it."""

WORKER: Final = "worker"
ADDRESS: Final = "address"
ADMIN: Final = "admin"
RETIRING: Final = "retiring"
SETTINGS: Final = "settings"
SCHEME: Final = "scheme"
"""Keys of a worker's process record."""

SUCCESSOR_S: Final = 20.0
"""Longest time until a successor is linked; after it the old worker stays."""

_NAME: Final = re.compile(r"g(\d{1,4})(?:\.(\d{1,9}))?")


def name_of(seat: int, generation: int) -> str:
    """``g0``, then ``g0.2``, ``g0.3``, ..."""
    return f"g{seat}" if generation == 1 else f"g{seat}.{generation}"


def place_of(record: ProcessRecord) -> tuple[int, int] | None:
    """Returns seat and generation of a recorded worker; None if the record is not a worker's."""
    found = _NAME.fullmatch(record.details.get(WORKER, ""))
    return None if found is None else (int(found[1]), int(found[2] or 1))


class RestartError(TidegateError):
    """A worker could not be replaced and stays; the message says why, and which ones were replaced before it."""


class Worker:
    """One gateway worker: at most one process at a time."""

    def __init__(self, name: str, seat: int, admin: str) -> None:
        """``admin``: path of its admin socket."""
        self.name = name
        self.seat = seat
        self.admin = admin
        self.link = GatewayLink(name, f"unix:{admin}")
        self.child: Child | None = None
        self.started_at = 0.0
        self.backoff_s = BACKOFF_FIRST_S
        self.restarts = 0
        self.is_retiring = False
        self.is_linked = False
        """Whether it answers: tables and pulls go to it."""
        self.linked = asyncio.Event()
        """Set while it works from the newest table and its activations arrive."""
        self.sample: GatewaySample | None = None
        self.unanswered_s = 0.0
        """Seconds of calls in a row that it has not answered. Only calls count: while the control process itself is
        stopped it makes none."""
        self.is_given_up = False
        """Whether it hangs and is being replaced."""

    @property
    def is_silent(self) -> bool:
        return self.unanswered_s >= SILENT_S

    @property
    def state(self) -> str:
        if self.child is None:
            return "down"
        if self.is_retiring:
            return "retiring"
        return "serving" if self.linked.is_set() else "starting"

    @property
    def subject(self) -> str:
        """Subject of its faults."""
        return f"gateway worker {self.name}"

    def unlink(self) -> None:
        self.is_linked = False
        self.linked.clear()

    def ended(self) -> None:
        """Takes the end of its process."""
        self.child = self.sample = None
        self.unanswered_s = 0.0
        self.unlink()

    def next_backoff_s(self) -> float:
        """Returns the time before it is started again; doubles with each call."""
        delay, self.backoff_s = self.backoff_s, min(self.backoff_s * 2.0, BACKOFF_LAST_S)
        return delay

    async def comes_up(self, owner: TaskOwner) -> None:
        """Waits until it is linked; ``owner``: of the tasks that wait.

        Raises RestartError if it ends instead, or takes too long.
        """
        child = self.child
        assert child is not None
        up = owner.spawn(self.linked.wait(), name=f"up-{self.name}")
        gone = owner.spawn(child.wait(), name=f"end-{self.name}")
        try:
            await asyncio.wait((up, gone), timeout=SUCCESSOR_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            gone.cancel()
        if child.exit is not None:
            raise RestartError(f"its successor {child.exit}: {' | '.join(child.last_output(3)) or 'it wrote nothing'}")
        if not self.linked.is_set():
            raise RestartError(f"its successor did not answer within {SUCCESSOR_S:g} s")

    async def retire(self) -> None:
        """Orders it to stop accepting, finish and end by itself."""
        try:
            await self.link.post("/retire")
            self.unanswered_s = 0.0
        except LinkError:  # an older version, or it hangs: a drain without the last sample
            if self.child is not None:
                self.child.send(signal.SIGTERM)

    def view(self) -> GatewayView:
        sample = self.sample
        return GatewayView(
            worker=self.name,
            pid=self.child.pid if self.child is not None else 0,
            state=self.state,
            restarts=self.restarts,
            table=None if sample is None else f"{sample.table_epoch}.{sample.table_number}",
            connections=None if sample is None else sample.connections,
        )

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state}>"


class Seat:
    """One listening socket and its worker."""

    def __init__(self, number: int, worker: Worker, generation: int = 1) -> None:
        self.number = number
        self.worker = worker
        self.generation = generation
        """Generation of the newest worker here."""
        self.successor: Worker | None = None
        """The worker that is being started to replace the present one."""
        self.socket: socket.socket | None = None
        """None if only the worker, which an earlier control process started, has it."""

    def close(self) -> None:
        """Closes the socket; processes that inherited it keep it."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def __repr__(self) -> str:
        return f"<Seat {self.number}: {self.worker!r}>"
