"""The control API over a deployment of a test. The application is built once: that takes longer than most tests."""

from functools import cache
from typing import Any

from tidegate.clock import ManualClock
from tidegate.control.api.app import build_app
from tidegate.control.api.sessions import Sessions
from tidegate.control.console.routes import Console


class _Behind:
    """The deployment that answers at present."""

    deployment: Any
    number = 0
    """Deployments so far."""

    @property
    def changed(self) -> int:
        """The count of changes, which no two deployments have in common."""
        return int(self.deployment.changed) + 1_000_000 * self.number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.deployment, name)


_BEHIND: Any = _Behind()

CLOCK = ManualClock(1_000.0)
"""The clock of the console's codes, sessions and documents. It stands still unless a test advances it."""


@cache
def _app(token: str, version: str, names: tuple[str, ...]) -> Any:
    sessions = Sessions(token, CLOCK.now)
    pages = Console(_BEHIND, sessions, CLOCK.now).add_to
    return build_app(_BEHIND, token=token, version=version, sessions=sessions, names=names, add_pages=pages)


def app_over(deployment: object, *, token: str, version: str, names: tuple[str, ...] = ()) -> Any:
    """The application; it answers from ``deployment`` until the next one is built."""
    _BEHIND.deployment, _BEHIND.number = deployment, _BEHIND.number + 1
    CLOCK.advance(60.0)
    return _app(token, version, names)
