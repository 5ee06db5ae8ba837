"""What a remote gateway reports of itself: in its registration, and in each answer to its control process."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorker:
    """One worker process of a remote gateway."""

    worker: str
    pid: int
    state: str
    restarts: int
    connections: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteState:
    """A remote gateway."""

    gateway: str
    """Its name, which no other gateway of the deployment has."""
    address: str
    """HOST:PORT of its admin endpoint."""
    front: str
    """HOST:PORT that its clients use."""
    epoch: int
    number: int
    """Version of the oldest route table that a worker of it works from."""
    workers: tuple[RemoteWorker, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.number)


def fingerprint(token: str) -> str:
    """Returns what a deployment is known by in a Redis that others use as well; its token does not follow from it."""
    return hashlib.sha256(b"tidegate deployment\0" + token.encode()).hexdigest()[:32]
