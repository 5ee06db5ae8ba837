"""The paths of OpenAI's API at the gateway, their error formats, and their lists of models.

``/v1/...`` and ``/openai/v1/...`` are one surface. The prefix ``/openai`` distinguishes it from KServe's V1, where
``/v1/models`` means something else; it is cut off before a model server sees the request. Anthropic's ``/v1/messages``
is part of the surface. The model in the body names the function of a request (``openai_body.py``).

``GET /v1/models`` and ``/v1/models/NAME`` are answered from the route table and start no replica. Their objects have
OpenAI's keys and V1's (``models``; ``name`` and ``ready``) beside each other, so that clients of both read them. A
model is ready by V1 where a request for it is served, if need be after a start: it has not failed.
"""

import json
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tidegate.errors import BAD_REQUEST, MODEL_NOT_FOUND, NOT_FOUND, ErrorKind, Executed
from tidegate.records.route_table import FunctionRoute
from tidegate.wire.bodies.openai import anthropic_error, openai_error

PREFIX: Final = b"/openai"
_SURFACE: Final = b"/v1/"
_MODELS: Final = b"/v1/models"
_MESSAGES: Final = b"/v1/messages"
OWNER: Final = "tidegate"


StatusOf = Callable[[FunctionRoute], str]
"""Returns ``ready``, ``starting``, ``asleep`` or ``failed``."""


class ErrorFormat(Protocol):
    """Writes an error in the shape that a client's protocol reads."""

    def __call__(
        self, kind: ErrorKind, message: str, *, function: str | None, request_id: str | None, executed: Executed
    ) -> bytes: ...


def prefix_length(path: bytes) -> int | None:
    """Returns the length of the prefix that the model server does not see; None if the path is not on the surface."""
    if path.startswith(_SURFACE):
        return 0
    return len(PREFIX) if path.startswith(_SURFACE, len(PREFIX)) and path.startswith(PREFIX) else None


def error_format_for(path: bytes) -> ErrorFormat | None:
    """Returns the error format for a path (without ``/openai``); None if the path is not on the surface.

    V1's ``/v1/models/NAME:predict`` is KServe's: its clients read ``error`` as a string, as V2's do.
    """
    if not path.startswith(_SURFACE) or (path.startswith(_MODELS) and b":" in path):
        return None
    if path.startswith(_MESSAGES) and path[len(_MESSAGES) :][:1] in (b"", b"/"):
        return anthropic_error
    return openai_error


def is_list(path: bytes) -> bool:
    """Returns whether a GET of this path (without ``/openai``) asks for the list of models."""
    return path.rstrip(b"/") == _MODELS


def named_model(path: bytes, decoded: Callable[[bytes], str]) -> str:
    """Returns the model that ``/v1/models/NAME`` names, else "". A name may have slashes, as they are or encoded."""
    return decoded(path[len(_MODELS) + 1 :]) if path.startswith(_MODELS + b"/") else ""


# --- models ----------------------------------------------------------------------------------------------------------


def model_list(routes: Iterable[FunctionRoute], status_of: StatusOf) -> tuple[int, bytes]:
    """Returns every model that these functions answer to, by name; of equal names the first one counts, as for
    requests."""
    owners: dict[str, FunctionRoute] = {}
    for route in routes:
        for model in route.models or (route.name,):
            owners.setdefault(model, route)
    names = sorted(owners)
    data = [_model(name, owners[name], status_of) for name in names]
    return 200, json.dumps({"object": "list", "data": data, "models": names}).encode()


def model_object(name: str, route: FunctionRoute, status_of: StatusOf) -> tuple[int, bytes]:
    """Returns one model of the list; a 404 for a model that the function does not answer to."""
    if name not in (route.models or (route.name,)):
        message = no_such_model(name)
        body = openai_error(MODEL_NOT_FOUND, message, function=route.name, request_id=None, executed=Executed.FALSE)
        return MODEL_NOT_FOUND.status, body
    return 200, json.dumps(_model(name, route, status_of)).encode()


def _model(name: str, route: FunctionRoute, status_of: StatusOf) -> dict[str, object]:
    """Returns a model's object. ``created`` is unknown here; it is 0 because clients require a number.

    Anybody may read it: a function with an access rule shows its names alone.
    """
    found: dict[str, object] = {**_own_keys(name), "name": name, "function": route.name}
    if route.access is None:
        status = status_of(route)
        found |= {"ready": status != "failed", "status": status}
    return found


def with_own_keys(name: str, readiness: bytes) -> bytes:
    """Returns V1's answer about a model with OpenAI's keys beside its own."""
    return json.dumps({**_own_keys(name), **json.loads(readiness)}).encode()


def _own_keys(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


def missing(model: str, *, has_body: bool) -> tuple[ErrorKind, str]:
    """Returns the error of a call on the surface for which no function was found; ``model`` is empty if it names
    none."""
    if model:
        return MODEL_NOT_FOUND, no_such_model(model)
    if has_body:
        return (
            BAD_REQUEST,
            "the body names no 'model' (it is read as JSON or multipart/form-data), and there is no default function",
        )
    return NOT_FOUND, "the call names no model, and there is no default function: GET /v1/models lists the models"


def no_such_model(name: str) -> str:
    """Returns the message for a model that no function answers to."""
    return f"the model {name[:256]!r} does not exist here; GET /v1/models lists those that do"
