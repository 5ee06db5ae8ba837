"""The body of a stage's request, made from the answer of the stage before. Pure.

Between two functions that speak the Open Inference Protocol (V2) the ``outputs`` of an answer are the ``inputs`` of the
next request, with their binary data if they have any. Every other answer is passed on as it is.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_ASKED: Final = ("outputs", "parameters")
"""Keys of a V2 request that are about the answer: they are for the last stage."""


class UnfitAnswerError(ValueError):
    """An answer cannot become the next stage's request; the message states why."""


class StageBody(NamedTuple):
    """A request's body, and how much of it is JSON."""

    data: bytes
    json_bytes: int | None = None
    """Length of the JSON before binary tensors (``Inference-Header-Content-Length``). None if all is one text."""


def without_asked(body: StageBody) -> tuple[StageBody, Mapping[str, Any]]:
    """Returns a client's V2 request for the first of several stages, and what it says about the answer. A body that is
    no JSON object is returned as it is: its stage answers it."""
    text, binary = _parts(body)
    if b'"outputs"' not in text and b'"parameters"' not in text:
        return body, {}
    try:
        document = json.loads(text)
    except ValueError:
        return body, {}
    if not isinstance(document, dict):
        return body, {}
    asked = {key: document.pop(key) for key in _ASKED if key in document}
    return (_joined(document, binary, body), asked) if asked else (body, {})


def next_body(answer: StageBody, inputs: tuple[tuple[str, str], ...], asked: Mapping[str, Any]) -> StageBody:
    """Returns the V2 request that a V2 answer becomes. ``inputs``: pairs of an input and the output that fills it,
    empty for all outputs by their own names; ``asked``: keys of the client about the last answer. Raises
    UnfitAnswerError."""
    text, binary = _parts(answer)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UnfitAnswerError("its answer is not JSON") from error
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list):
        raise UnfitAnswerError("its answer has no list of outputs")
    found: dict[str, tuple[dict[str, Any], bytes]] = {}
    at = 0
    for tensor in outputs:
        size = _binary_bytes(tensor)
        found[tensor["name"]] = (tensor, binary[at : at + size])
        at += size
    if at != len(binary):
        raise UnfitAnswerError(f"its answer has {len(binary)} bytes of tensors, and its outputs state {at}")
    tensors, pieces = [], []
    for taken, given in inputs or tuple((name, name) for name in found):
        if given not in found:
            raise UnfitAnswerError(f"its answer has no output {given!r}; it has {', '.join(sorted(found)) or 'none'}")
        tensor, piece = found[given]
        tensors.append({**tensor, "name": taken})
        pieces.append(piece)
    wanted: dict[str, Any] = {"inputs": tensors, **asked}
    if isinstance(document.get("id"), str):
        wanted["id"] = document["id"]
    return _joined(wanted, b"".join(pieces), answer)


def _binary_bytes(tensor: object) -> int:
    """Returns the bytes of an output's binary data; 0 if its data is JSON. Raises UnfitAnswerError."""
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise UnfitAnswerError("an output of its answer has no name")
    parameters = tensor.get("parameters")
    size = parameters.get("binary_data_size", 0) if isinstance(parameters, dict) else 0
    if type(size) is not int or size < 0:
        raise UnfitAnswerError(f"its output {tensor['name']!r} has no valid binary_data_size")
    return size


def _parts(body: StageBody) -> tuple[bytes, bytes]:
    if body.json_bytes is None:
        return body.data, b""
    return body.data[: body.json_bytes], body.data[body.json_bytes :]


def _joined(document: Mapping[str, Any], binary: bytes, before: StageBody) -> StageBody:
    text = json.dumps(document, separators=(",", ":")).encode()
    return StageBody(text + binary, None if before.json_bytes is None else len(text))
