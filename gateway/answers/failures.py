"""Failures in the shape that the client's protocol reads.

V2 clients read ``error`` as a string (tritonclient shows it as the message), so on ``/v2`` paths it is one, and the
other keys of Tidegate's error shape stand beside it. Everybody else gets the shape of ``tidegate.errors``.
"""

import json
from collections.abc import Iterable
from typing import Final

from tidegate.errors import DEADLINE, NOT_FOUND, QUEUE_FULL, QUOTA_EXCEEDED, ErrorKind, Executed, error_body

_RPC_ACTIONS: Final = {
    DEADLINE.code: "allow the call more time",
    NOT_FOUND.code: "name a deployed function by the call's authority, NAME.<domain>, or by model_name",
    QUEUE_FULL.code: "retry after the seconds in retry-after",
    QUOTA_EXCEEDED.code: "retry after the seconds in retry-after",
}
"""What a gRPC client can do, where that is not what an HTTP client does."""


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


def rpc_message(kind: ErrorKind, message: str, function: str | None) -> str:
    """The ``grpc-message`` of a failure: where, unless it begins with that, what, and what to do."""
    where = "" if function is None or message.startswith(f"{function} ") else f"{function}: "
    return f"{where}{message}; {_RPC_ACTIONS.get(kind.code, kind.action)}"


def no_such_method(path: bytes) -> str:
    """Nobody is named by a call, and the front door has no such method."""
    return f"no function takes the call {path.decode('latin-1')[:200]}: it names none, and there is no default one"
