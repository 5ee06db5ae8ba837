"""One gateway worker as its supervisor sees it, and the seat at the front door that it sits on.

A *seat* is a listening socket and its number. On it sits one worker, which accepts; at a hot restart its successor
accepts beside it for a moment, and then the old one *retires*: it accepts nothing more and finishes what it has.

A worker's name is its seat and its life: ``g0`` is the first on seat 0, ``g0.2`` its first successor. A worker that
dies is started again under its own name.
"""

import asyncio
import re
import socket
from typing import Final

from tidegate.control.views.deployment import GatewayView
from tidegate.control.workers.links import GatewayLink
from tidegate.deploy.local.processes import Child
from tidegate.deploy.local.records import ProcessRecord
from tidegate.records.gateway_sample import GatewaySample

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 5.0

SILENT_S: Final = 10.0
"""A worker that has answered nothing for so long, however often it was asked, hangs: another takes its place."""

WORKER: Final = "worker"
ADDRESS: Final = "address"
ADMIN: Final = "admin"
RETIRING: Final = "retiring"
SETTINGS: Final = "settings"
SCHEME: Final = "scheme"
"""Keys of a worker's process record."""

_NAME: Final = re.compile(r"g(\d{1,4})(?:\.(\d{1,9}))?")


def name_of(seat: int, life: int) -> str:
    """``g0``, then ``g0.2``, ``g0.3``, ..."""
    return f"g{seat}" if life == 1 else f"g{seat}.{life}"


def place_of(record: ProcessRecord) -> tuple[int, int] | None:
    """Seat and life of a recorded worker; None: the record is not one of a worker."""
    found = _NAME.fullmatch(record.details.get(WORKER, ""))
    return None if found is None else (int(found[1]), int(found[2] or 1))


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
        """It answers: tables and pulls go to it."""
        self.linked = asyncio.Event()
        """It works from the newest table and its activations arrive."""
        self.sample: GatewaySample | None = None
        self.unanswered_s = 0.0
        """Seconds of questions in a row that it has not answered. Counted by question: time in which nobody asks,
        because the control process itself was stopped, is no silence."""
        self.is_given_up = False
        """It hangs, and is being replaced."""

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
        """Of its faults."""
        return f"gateway worker {self.name}"

    def unlink(self) -> None:
        self.is_linked = False
        self.linked.clear()

    def ended(self) -> None:
        """Its process is gone."""
        self.child = self.sample = None
        self.unanswered_s = 0.0
        self.unlink()

    def next_backoff_s(self) -> float:
        """Before it is started again; doubles each time."""
        delay, self.backoff_s = self.backoff_s, min(self.backoff_s * 2.0, BACKOFF_LAST_S)
        return delay

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
    """One place at the front door."""

    def __init__(self, number: int, worker: Worker, life: int = 1) -> None:
        self.number = number
        self.worker = worker
        self.life = life
        """Of the newest worker here."""
        self.successor: Worker | None = None
        """It is being started to take the worker's place."""
        self.socket: socket.socket | None = None
        """None: only the worker, which an earlier control process started, has it."""

    def close(self) -> None:
        """Lets go of the socket; whoever inherited it keeps it."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def __repr__(self) -> str:
        return f"<Seat {self.number}: {self.worker!r}>"
