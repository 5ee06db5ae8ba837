"""Conversions of bodies between the stages of a pipeline: of small ones at once, of large ones in another process.

JSON is read and written at some 30 ms a megabyte, the typed contents of a gRPC message at 120 ms. The loop of a worker
must not stand still for that, and a thread would not help: the parser keeps the interpreter to itself. A conversion is
a pure function of plain data; what decides is the text that it reads, since binary tensors are only cut and joined.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from tidegate.gateway.pipelines.bodies import UnfitAnswerError
from tidegate.gateway.pipelines.calls import UnfitCallError

LARGE_BYTES: Final = 64 * 1024
"""Conversions of more text than this run in another process."""
LENGTH: Final = 8
"""Bytes that state the length of a message from or to that process."""


class ConversionLostError(Exception):
    """The other process ended amid a conversion, repeatedly, or cannot be started."""


Unfit = UnfitAnswerError | UnfitCallError | ConversionLostError
"""What the caller gets in place of a result."""


class ConvertElsewhere(Protocol):
    """Runs a conversion in another process (``gateway/process/converter.py``)."""

    def __call__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """``done`` gets the result, or an :data:`Unfit`, in a later loop turn. Without ``is_wanted`` it may be left
        out."""


def converted(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Returns the result of a conversion, or the error that it raised."""
    try:
        return function(*arguments)
    except (UnfitAnswerError, UnfitCallError) as error:
        return error
