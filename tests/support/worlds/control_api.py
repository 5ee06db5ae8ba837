"""The control API over a deployment of a test. The application is built once: that takes longer than most tests."""

from functools import cache
from typing import Any

from tidegate.control.api.app import build_app


class _Behind:
    """The deployment that answers at present."""

    deployment: object

    def __getattr__(self, name: str) -> Any:
        return getattr(self.deployment, name)


_BEHIND: Any = _Behind()


@cache
def _app(token: str, version: str, names: tuple[str, ...]) -> Any:
    return build_app(_BEHIND, token=token, version=version, names=names)


def app_over(deployment: object, *, token: str, version: str, names: tuple[str, ...] = ()) -> Any:
    """The application; it answers from ``deployment`` until the next one is built."""
    _BEHIND.deployment = deployment
    return _app(token, version, names)
