"""The errors of the API's commands; ``tidegate.control.api.app`` gives each its status."""

from tidegate.errors import TidegateError


class UnknownFunctionError(TidegateError):
    """No function of that name is deployed; the message names those that are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) if known else "none"
        super().__init__(f"no function {name!r} is deployed (deployed: {listed})")


class CannotRunError(TidegateError):
    """What is to be deployed cannot run on this machine: a command or a model that is not here."""


class RefusedError(TidegateError):
    """What was asked for does not fit what is there; the message says why."""


class LeavingError(TidegateError):
    """The control process is shutting down and takes nothing new."""
