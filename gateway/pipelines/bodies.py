"""The body of a stage's request, made from the answer of the stage before. Pure.

Between two functions that speak the Open Inference Protocol (V2) the ``outputs`` of an answer are the ``inputs`` of the
next request, with their binary data if they have any. Several answers join in one request. Every other answer is passed
on as it is. A condition reads one value of an answer.
"""

import json
import re
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from tidegate.records.pipeline import Comparison, Condition

_ASKED: Final = ("outputs", "parameters")
"""Keys of a V2 request that are about the answer: they are for the last stages."""
LAYOUTS: Final = {
    "BOOL": "<?", "FP16": "<e", "FP32": "<f", "FP64": "<d",
    "INT8": "<b", "INT16": "<h", "INT32": "<i", "INT64": "<q",
    "UINT8": "<B", "UINT16": "<H", "UINT32": "<I", "UINT64": "<Q",
}  # fmt: skip
"""First value of binary data, by datatype."""


_TEXT: Final = rb'"(?:[^"\\]|\\.)*+"'
_NAME: Final = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*(?:null|%b)\s*,\s*)?"model_name"\s*:\s*(%b)' % (_TEXT, _TEXT))
"""The name of the model where servers write it: first, or behind the id."""


class UnfitAnswerError(ValueError):
    """An answer cannot become the next stage's request; the message states why."""


class StageBody(NamedTuple):
    """A request's body, and how much of it is JSON."""

    data: bytes
    json_bytes: int | None = None
    """Length of the JSON before binary tensors (``Inference-Header-Content-Length``). None if all is one text."""


def content_type_of(body: StageBody) -> bytes:
    """Returns the content type of a V2 request or answer."""
    return b"application/json" if body.json_bytes is None else b"application/octet-stream"


def text_bytes(body: StageBody) -> int:
    """Returns the bytes of a body that are text, if it is a V2 request or answer."""
    return len(body.data) if body.json_bytes is None else body.json_bytes


def has_asked(body: StageBody) -> bool:
    """Returns whether ``without_asked`` may find something in a body, by a look at its text."""
    return any(body.data.find(b'"%b"' % key.encode(), 0, text_bytes(body)) >= 0 for key in _ASKED)


def without_asked(body: StageBody) -> tuple[StageBody, Mapping[str, Any]]:
    """Returns a client's V2 request for the first of several stages, and what it says about the answer. A body that is
    no JSON object is returned as it is: its stage answers it."""
    if not has_asked(body):
        return body, {}
    text, binary = _parts(body)
    try:
        document = parsed(text)
        if not isinstance(document, dict):
            return body, {}
        asked = {key: document.pop(key) for key in _ASKED if key in document}
        return (_joined(document, binary, body), asked) if asked else (body, {})
    except ValueError:
        return body, {}


class OpenedBody(NamedTuple):
    """A client's request, as its stages get it."""

    body: StageBody
    first: StageBody
    """The same without ``asked``, for stages that others follow."""
    asked: Mapping[str, Any]
    """What it says about the answer."""


def opened(body: StageBody, splits: bool) -> OpenedBody:
    """Returns a client's request as its stages get it. ``splits``: ``without_asked`` applies."""
    first, asked = without_asked(body) if splits else (body, {})
    return OpenedBody(body, first, asked)


def is_named_at_its_start(body: StageBody) -> bool:
    """Returns whether ``with_model_name`` finds the name without a look at the rest, or there is none."""
    return _NAME.match(body.data) is not None or body.data.find(b'"model_name"', 0, text_bytes(body)) < 0


def with_model_name(body: StageBody, name: str) -> StageBody:
    """Returns a V2 answer with this name of its model, if it has one; any other body as it is."""
    found = _NAME.match(body.data)
    if found is not None and found.end() <= text_bytes(body):
        start, end = found.span(1)
        written = json.dumps(name).encode()
        length = None if body.json_bytes is None else body.json_bytes + len(written) - (end - start)
        return StageBody(b"".join((body.data[:start], written, body.data[end:])), length)
    if is_named_at_its_start(body):
        return body
    text, binary = _parts(body)
    try:
        document = parsed(text)
        if not isinstance(document, dict) or "model_name" not in document:
            return body
        return _joined({**document, "model_name": name}, binary, body)
    except ValueError:
        return body


def parsed(text: bytes) -> Any:
    """Returns what a JSON text says. Raises ValueError, as well if it is nested more deeply than the parser goes."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Tensors(NamedTuple):
    """The tensors of a V2 request or answer."""

    found: Mapping[str, tuple[Mapping[str, Any], bytes]]
    """By name: what the JSON says of it, and its binary data, empty if its data is JSON."""
    id: str | None
    is_split: bool
    """Its JSON has a stated length, as binary data follows or may follow."""
    parameters: object = None
    """What the JSON says as its ``parameters``."""


def tensors(body: StageBody, key: str = "outputs") -> Tensors:
    """Returns the tensors of an answer, or with ``key`` *inputs* those of a request. Raises UnfitAnswerError."""
    whose = "its answer" if key == "outputs" else "the client's request"
    text, binary = _parts(body)
    try:
        document = parsed(text)
    except ValueError as error:
        raise UnfitAnswerError(f"{whose} is not JSON") from error
    listed = document.get(key) if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise UnfitAnswerError(f"{whose} has no list of {key}")
    found: dict[str, tuple[Mapping[str, Any], bytes]] = {}
    at = 0
    for tensor in listed:
        size = _binary_bytes(tensor)
        if tensor["name"] in found:
            raise UnfitAnswerError(f"{whose} has two {key} of the name {tensor['name']!r}")
        found[tensor["name"]] = (tensor, binary[at : at + size])
        at += size
    if at != len(binary):
        raise UnfitAnswerError(f"{whose} has {len(binary)} bytes of tensors, and its {key} state {at}")
    named = document.get("id")
    its_id = named if isinstance(named, str) else None
    return Tensors(found, its_id, body.json_bytes is not None, document.get("parameters"))


def next_body(
    before: Mapping[str, Tensors],
    inputs: tuple[tuple[str, str], ...],
    asked: Mapping[str, Any],
    *,
    others: Mapping[str, Tensors] | None = None,
    skipped: Collection[str] = (),
    key: str = "inputs",
) -> StageBody:
    """Returns the V2 request that the answers of the stages ``before`` become. Raises UnfitAnswerError.

    ``inputs``: pairs of an input and the output that fills it, empty for all outputs by their own names; ``asked``:
    keys of the client about the last answer; ``others``: what else ``inputs`` may name, by stage; ``skipped``: stages
    that did not run: inputs that they would fill are left out. With ``key`` *outputs* the answers become one.
    """
    named = {**(others or {}), **before}
    if not inputs:
        names = [name for each in before.values() for name in each.found]
        inputs = tuple((name, name) for name in names)
    listed, pieces = [], []
    for taken, given in inputs:
        stage, dot, output = given.partition(".")
        if dot and stage in skipped:
            continue
        tensor, piece = _tensor(named[stage], output) if dot and stage in named else _tensor_of_any(before, given)
        listed.append({**tensor, "name": taken})
        pieces.append(piece)
    wanted: dict[str, Any] = {key: listed, **asked}
    ids = [each.id for each in named.values() if each.id is not None]
    if ids:
        wanted["id"] = ids[0]
    is_split = any(each.is_split for each in named.values())
    text = _written(wanted)
    return StageBody(text + b"".join(pieces), len(text) if is_split else None)


def _tensor(tensors: Tensors, name: str) -> tuple[Mapping[str, Any], bytes]:
    found = tensors.found.get(name)
    if found is None:
        known = ", ".join(sorted(tensors.found)) or "none"
        raise UnfitAnswerError(f"its answer has no output {name!r}; it has {known}")
    return found


def _tensor_of_any(before: Mapping[str, Tensors], name: str) -> tuple[Mapping[str, Any], bytes]:
    """Returns the tensor of that name in the one answer that has it."""
    having = [stage for stage, each in before.items() if name in each.found]
    if len(having) > 1:
        raise UnfitAnswerError(f"output {name!r} is in the answers of {' and '.join(having)}: inputs must name one")
    if having:
        return before[having[0]].found[name]
    return _tensor(
        Tensors({each: both for one in before.values() for each, both in one.found.items()}, None, False), name
    )


def holds(condition: Condition, answers: Mapping[str, tuple[StageBody, bool]]) -> bool:
    """Returns whether a condition holds of the answers before a stage; each with whether it is V2. Raises
    UnfitAnswerError if none has the value."""
    for body, is_v2 in answers.values():
        value = _first_value(tensors(body), condition.field) if is_v2 else _value_at(body, condition.field)
        if value is not None:
            return _compares(condition, value)
    raise UnfitAnswerError(f"its answer has no value {condition.field!r}, which a condition asks for")


def _first_value(tensors: Tensors, name: str) -> object:
    """Returns the first value of an output; None if there is no such output or it is empty."""
    tensor, binary = tensors.found.get(name, ({}, b""))
    if binary:
        datatype = tensor.get("datatype")
        layout = LAYOUTS.get(datatype) if isinstance(datatype, str) else None
        if datatype == "BYTES" and len(binary) >= 4:
            (size,) = struct.unpack_from("<I", binary)
            return binary[4 : 4 + size].decode("utf-8", "replace")
        if layout is None or len(binary) < struct.calcsize(layout):
            return None
        value: object = struct.unpack_from(layout, binary)[0]
        return value
    value = tensor.get("data")
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def _value_at(body: StageBody, path: str) -> object:
    """Returns the value at a path of a JSON answer; None if there is none."""
    try:
        value: Any = parsed(body.data)
    except ValueError:
        return None
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return None if isinstance(value, (dict, list)) else value


def _compares(condition: Condition, value: object) -> bool:
    if condition.test in (Comparison.ABOVE, Comparison.BELOW):
        number, bound = _number(value), float(condition.values[0])
        if number is None:
            raise UnfitAnswerError(f"{condition.field!r} in its answer is no number, and a condition compares it")
        return number > bound if condition.test is Comparison.ABOVE else number < bound
    text = {True: "true", False: "false"}.get(value, "") if isinstance(value, bool) else str(value)
    number = None if isinstance(value, (bool, str)) else _number(value)
    is_one = any(text == each or (number is not None and _number(each) == number) for each in condition.values)
    return is_one is (condition.test is Comparison.IS)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


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
    text = _written(document)
    return StageBody(text + binary, None if before.json_bytes is None else len(text))


def _written(document: Mapping[str, Any]) -> bytes:
    """Returns a document as JSON. Raises UnfitAnswerError if it is nested too deeply."""
    try:
        return json.dumps(document, separators=(",", ":")).encode()
    except RecursionError:
        raise UnfitAnswerError("a tensor or a parameter is nested too deeply") from None
