"""The errors of the API's commands; ``tidegate.control.api.app`` gives each its status."""

from collections.abc import Mapping

from tidegate.errors import TidegateError


class UnknownFunctionError(TidegateError):
    """No function of that name is deployed; the message names the deployed ones."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) if known else "none"
        super().__init__(f"no function {name!r} is deployed (deployed: {listed})")


class CannotRunError(TidegateError):
    """The function cannot run on this machine: a command or a model is missing."""


class RefusedError(TidegateError):
    """The command does not fit the present state; the message says why."""


class OtherSourceError(TidegateError):
    """A function of that name was deployed from another file."""

    def __init__(self, before: Mapping[str, str], origin: str) -> None:
        parts = [f"the source of {name} was {known}, is {origin}" for name, known in before.items()]
        super().__init__("; ".join(parts))


class LeavingError(TidegateError):
    """The control process is shutting down and takes no more commands."""
