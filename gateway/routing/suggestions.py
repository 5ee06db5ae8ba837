"""Suggestions for a name that no function or model has: names like it, else some of those that are deployed.

Only functions without an access rule are named: others are for their callers alone to know.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from tidegate.records.route_table import FunctionRoute

SHOWN: Final = 5
"""Names in a message. Our choice."""
COMPARED: Final = 64
"""Names that are compared with an unknown one, and characters of it: a request for an unknown name stays cheap."""


class Suggestions:
    """The public names of one route table; a new table makes new ones."""

    __slots__ = ("_names", "_routes")

    def __init__(self, routes: Iterable[FunctionRoute]) -> None:
        self._routes = routes
        self._names: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of models, and of functions that state none, sorted. Computed when first needed."""
        if self._names is None:
            public = (route for route in self._routes if route.access is None)
            self._names = tuple(sorted({name for route in public for name in (route.name, *route.models)}))
        return self._names

    def words(self, named: str) -> str:
        """Returns `` (did you mean a?)`` or `` (deployed: a, b)``; empty if no public function is deployed."""
        wanted = named[:COMPARED]
        alike = [name for name in self.names if abs(len(name) - len(wanted)) <= 1 + len(wanted) // 3]
        near = [name for name in alike if name[:1] == wanted[:1] or name[-2:] == wanted[-2:]]
        close = get_close_matches(wanted, near[:COMPARED], n=2, cutoff=0.7)
        if close:
            return f" (did you mean {' or '.join(close)}?)"
        if not self.names:
            return ""
        left = len(self.names) - SHOWN
        more = f" and {left} more" if left > 0 else ""
        return f" (deployed: {', '.join(self.names[:SHOWN])}{more})"

    def __repr__(self) -> str:
        return f"<Suggestions {len(self.names)} names>"
