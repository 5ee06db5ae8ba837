"""Failures in the shape that the client's protocol reads.

V2 clients read ``error`` as a string (tritonclient shows it as the message), so on ``/v2`` paths it is one, and the
other keys of Tidegate's error shape stand beside it. Everybody else gets the shape of ``tidegate.errors``.
"""

import json

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
