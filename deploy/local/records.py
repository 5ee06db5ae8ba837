"""Process records, one file per process: its identity, its purpose, and how to recognise it.

``processes/<id>.json`` is written *before* its process is spawned and completed (pid, start time) after it. A control
process that is killed between the two thus leaves a trace: the new process carries the path of its record in its
environment (:data:`MARK`) and is found by it. A record is deleted when its process has ended. Files are replaced at
once (rename). They are not flushed to the disk, since after a power cut the boot id makes all of them worthless.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tidegate.deploy.placement.ledger import Assignment
from tidegate.records.codec import CodecError, decode, encode

MARK: Final = "TIDEGATE_PROCESS"
"""Environment variable of every child: the absolute path of its record."""


class ProcessKind(StrEnum):
    GATEWAY = "gateway"
    QUEUE_PROXY = "queue_proxy"
    MODEL_SERVER = "model_server"
    FORK_SERVER = "fork_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDetails:
    """The part of both records of a replica that is needed to adopt it."""

    id: str
    function: str
    revision: str
    assignment: Assignment
    address: str
    admin: str
    upstream: str
    created_at: float
    """Unix seconds."""
    threads: int | None = None
    shipped: bool = False
    """The model server is Tidegate's own runtime."""
    metrics_port: int | None = None
    """Port of the model server's own metrics, if it differs from its listening address."""
    asleep_at: float | None = None
    """Unix seconds at which it fell asleep: it is paused and holds no unit. None if it is awake."""

    @property
    def addresses(self) -> tuple[str, str, str]:
        """The listening addresses of queue_proxy, admin endpoint and model server."""
        return (self.address, self.admin, self.upstream)

    @property
    def port(self) -> int | None:
        """The model server's port. None if it has a unix socket."""
        return None if self.upstream.startswith("unix:") else int(self.upstream.rpartition(":")[2])

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports that the model server was given."""
        return tuple(port for port in (self.port, self.metrics_port) if port is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    id: str
    """``<replica>.proxy``, ``<replica>.server`` or ``gateway-g0``: the name of the file."""
    kind: ProcessKind
    boot_id: str
    epoch: int
    """Epoch of the control process that started it."""
    program: str
    """First words of its command, for people."""
    log: str
    pid: int | None = None
    """None in a record that was written before the spawn and not completed."""
    start_time: int | None = None
    """Clock ticks since boot."""
    stopping: bool = False
    """The stop is decided: the process is ended, never adopted."""
    replica: ReplicaDetails | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    """Further properties for its owner (a gateway's admin socket)."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is not a record. A child of it would carry ``path`` as its mark."""

    path: Path
    why: str


class RecordStore:
    """The folder of records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def path(self, record_id: str) -> Path:
        return self.directory / f"{record_id}.json"

    def write(self, record: ProcessRecord) -> None:
        path = self.path(record.id)
        temporary = path.with_name(f".{path.name}.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode(record))
        temporary.replace(path)

    def delete(self, record_id: str) -> None:
        self.path(record_id).unlink(missing_ok=True)

    def read_all(self) -> tuple[list[ProcessRecord], list[Unreadable]]:
        """Returns all records, and the other files (half written, older, foreign)."""
        records: list[ProcessRecord] = []
        unreadable: list[Unreadable] = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                record = decode(path.read_bytes(), ProcessRecord)
            except FileNotFoundError:
                continue
            except (CodecError, OSError) as error:
                unreadable.append(Unreadable(path, str(error)))
                continue
            if record.id == path.stem:
                records.append(record)
            else:
                unreadable.append(Unreadable(path, f"holds the record of {record.id}"))
        return records, unreadable
