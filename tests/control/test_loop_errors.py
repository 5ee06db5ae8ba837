"""What the control process's loop reports of errors that no task has raised."""

import asyncio
from typing import Any

import pytest

from tidegate.control.main import _on_loop_error


@pytest.mark.parametrize(
    ("context", "is_reported"),
    [
        ({"exception": asyncio.InvalidStateError("invalid state"), "handle": "<Handle Future.set_result>"}, False),
        ({"exception": asyncio.InvalidStateError("invalid state"), "handle": "<Handle other>"}, True),
        ({"exception": asyncio.InvalidStateError("invalid state")}, True),
        ({"exception": ValueError("x"), "handle": "<Handle Future.set_result>"}, True),
    ],
)
def test_a_result_that_was_there_already_is_no_error(context: dict[str, Any], is_reported: bool) -> None:
    loop = asyncio.new_event_loop()
    reported: list[dict[str, Any]] = []
    loop.default_exception_handler = reported.append  # type: ignore[method-assign,assignment]  # seen instead of logged
    _on_loop_error(loop, {"message": "m", **context})
    loop.close()
    assert bool(reported) is is_reported
