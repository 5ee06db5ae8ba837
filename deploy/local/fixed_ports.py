"""Functions with a fixed port, and which of their servers require it. Pure.

A server that gets another port than its manifest names (because a replica has that one) mostly takes it, from ``PORT``.
A server that does not fails and reports that its address is in use. From then on one replica of the function fits on
the machine, and a new revision replaces the old one, as with any other lack of room, until the function is deployed
with another command.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final

from tidegate.function import Function

_IN_USE: Final = re.compile(r"address (is )?(already )?in use|EADDRINUSE|port \d+ is (already )?in use", re.IGNORECASE)

_PORT: Final = re.compile(
    r"""(?:port[ =:]*|(?<!\.[a-z])(?<!\.[a-z]{2})(?<!\.[a-z]{3}):|['"], ?)(\d{3,5})(?!\d)""", re.IGNORECASE
)
"""Matches the port in ``:8002``, ``0.0.0.0:8002``, ``('0.0.0.0', 8002)`` or ``port 8002``. Dates, times, processes and
lines do not match."""


def is_replaceable(function: Function) -> bool:
    """Returns True if its command names the port by placeholder, so that any port does."""
    return function.port is None or any("{port}" in word for word in function.server.argv)


def lost_port(function: Function, given: int | None, holder: str | None) -> str | None:
    """Returns a hint if a server did not get its fixed port: the holder and the port given instead."""
    if function.port in (None, given) or is_replaceable(function):
        return None
    return f"port {function.port} is held by {holder or 'another program'}, so it was given {given} instead (PORT)"


def port_hint(given: int, listening: Collection[int], lost: str | None) -> str | None:
    """Returns where a server listens instead of the port that it was given; None if it listens there. ``lost``: the
    hint of a fixed port that it did not get."""
    if given in listening:
        return None
    if lost is not None:
        return lost
    if not listening:
        return f"it listens on no port, {given} was expected (PORT, {{port}})"
    return f"it listens on port {', '.join(map(str, listening))}, {given} was expected (PORT, {{port}})"


class FixedPorts:
    """The functions of this deployment that are known to require their port."""

    __slots__ = ("_required_by",)

    def __init__(self) -> None:
        self._required_by: set[tuple[str, int | None, tuple[str, ...]]] = set()

    def has_failed_for_it(self, function: Function, given: int | None, output: Iterable[str]) -> bool:
        """Returns True if a server that was never ready ended because it requires the port that it was not given, and
        remembers it.

        A line that names only other ports is about another one, of metrics for example.
        """
        if function.port is None or given == function.port or is_replaceable(function):
            return False
        if not any(_IN_USE.search(line) and _may_mean(line, function.port) for line in output):
            return False
        self._required_by.add(_server(function))
        return True

    def is_required(self, function: Function) -> bool:
        """Returns True if the function's server takes no other port."""
        return _server(function) in self._required_by

    def is_wanted(self, port: int | None) -> bool:
        """Returns True if some server is known to require this port."""
        return port is not None and any(required == port for _, required, _ in self._required_by)

    def __repr__(self) -> str:
        return f"<FixedPorts of {sorted(name for name, _, _ in self._required_by)}>"


def _server(function: Function) -> tuple[str, int | None, tuple[str, ...]]:
    return function.name, function.port, tuple(function.server.argv)


def _may_mean(line: str, port: int) -> bool:
    named = _PORT.findall(line)
    return not named or str(port) in named
