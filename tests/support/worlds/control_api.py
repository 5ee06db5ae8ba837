"""The control API over the service of a test. The application is built once: that takes longer than most tests."""

from functools import cache
from typing import Any

from tidegate.control.api.app import build_app
from tidegate.control.api.service import Service


class _Behind:
    """Whichever service answers at present."""

    service: Service

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)


_BEHIND: Any = _Behind()


@cache
def _app(token: str, version: str, names: tuple[str, ...]) -> Any:
    return build_app(_BEHIND, token=token, version=version, names=names)


def app_over(service: Service, *, token: str, version: str, names: tuple[str, ...] = ()) -> Any:
    """The application; it answers from ``service`` until the next one is asked for."""
    _BEHIND.service = service
    return _app(token, version, names)
