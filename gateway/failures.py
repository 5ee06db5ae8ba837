"""Failures in the shape that the client's protocol reads.

V2 clients read ``error`` as a string (tritonclient shows it as the message), so on ``/v2`` paths it is one, and the
other keys of Tidegate's error shape stand beside it. Everybody else gets the shape of ``tidegate.errors``.
"""

import json
from collections.abc import Iterable

from tidegate.errors import ErrorKind, Executed, error_body


def failure_body(
    kind: ErrorKind, message: str, *, v2: bool, function: str | None, request_id: str | None, executed: Executed
) -> bytes:
    """The JSON body of a failure."""
    if not v2:
        return error_body(kind, message, function=function, request_id=request_id, executed=executed)
    return json.dumps(
        {
            "error": message,
            "code": kind.code,
            "function": function,
            "request_id": request_id,
            "executed": executed.value,
            "action": kind.action,
        }
    ).encode()


def no_such_function(named: str) -> str:
    """No function is called as a request says."""
    if named:
        return f"no function or model is called {named!r} here"
    return "the request names no function: use the host NAME.<domain>, /functions/NAME/ or a V2 model path"


def no_such_tag(function: str, tag: str, known: Iterable[bytes]) -> str:
    """A function has no tag of this name."""
    tags = ", ".join(sorted(name.decode("latin-1") for name in known)) or "none"
    return f"{function} has no tag {tag!r}; its tags: {tags}"
