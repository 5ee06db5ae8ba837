"""The waiting requests of other gateway workers, as the room reads them: one bound holds for all workers of a machine.

Each worker publishes the number and size of its own waiting requests and reads the sums of the others, without messages
(``tidegate.aio.waiting_board`` does it in shared memory). Both happen only when a request begins or ends to wait. Two
workers may take the last place at the same moment, so together they exceed the bound by at most workers - 1. Over
several machines workers lease parts of the bound instead (:mod:`tidegate.flow.rooms.leases`).
"""

from typing import NamedTuple, Protocol


class Others(NamedTuple):
    """The waiting requests of a function at all other workers."""

    requests: int = 0
    size: int = 0
    """Bytes."""
    load: float = 0.0
    """The highest load of a tenant at one of them (:mod:`tidegate.activator.state.tenants`)."""


class FunctionBoard(Protocol):
    """The published figures of one function."""

    def resize(self, requests: int, size: int, longest_s: float) -> None:
        """Takes the bounds of the function. ``longest_s``: a request waits no longer."""
        ...

    def publish(self, requests: int, size: int, load: float) -> None:
        """Replaces this worker's figures."""
        ...

    def others(self) -> Others:
        """Returns the sums of all other workers."""
        ...

    def drop_ended(self) -> bool:
        """Leaves out workers that have ended without taking their figures back; returns whether there were any."""
        ...


class Board(Protocol):
    """The published figures of one machine."""

    def of(self, function: str) -> FunctionBoard | None:
        """Returns the figures of a function; None if there is no place for it: it then keeps to its part of the
        bound."""
        ...
