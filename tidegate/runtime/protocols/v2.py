"""Open Inference Protocol V2 over REST: request bodies in, answer bodies out. Pure.

An inference request is JSON, or JSON followed by binary tensors. In the second form the header
``Inference-Header-Content-Length`` gives the length of the JSON, and each binary input has the parameter
``binary_data_size``. An output is binary if its entry sets ``binary_data``, or else if the request sets
``binary_data_output``.

Every fault of a request is a RequestError with a message that names the fault and what is allowed.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.tensors import MAX_RANK, Tensor

HEADER_LENGTH = "inference-header-content-length"
SERVER_NAME = "tidegate"
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "model_repository", "statistics")
"""Extensions of the shipped server, by the names that Triton gives them."""
VERSION = "1"
"""The only version of a model that a replica serves. Another revision is another replica."""

_MAX_EMPTY = 1 << 24
"""Bound of the other dimensions of a tensor without elements: an empty [0, 10**9] must not become 10**9 results."""

_MAX_CONCURRENCY = 128
"""Bound of the concurrency that a model declares, however large its batches."""

Parameters = Mapping[str, bool | int | float | str]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A model's declaration of one input or output; -1 in ``shape`` is any length.

    ``symbols`` names the free dimensions (ONNX: ``batch``, ``sequence``): equal names must get equal lengths.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    symbols: tuple[str | None, ...] = ()
    further: tuple[str, ...] = ()
    """Datatypes that the model takes in place of ``datatype``; its library converts them."""

    def as_metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The specification of a loaded model. ``inputs`` is None if it takes any."""

    platform: str
    inputs: tuple[TensorSpec, ...] | None
    outputs: tuple[TensorSpec, ...] | None
    max_batch: int = 1
    """Largest batch, in rows of the first dimension, of combined requests. 1 is no batching."""
    max_rows: int | None = None
    """Largest batch of one request. None is no bound."""
    is_reentrant: bool = False
    """True if several threads may run it at a time."""
    streams: bool = False
    """True if one request has any number of answers."""
    concurrency: int = 1
    """Requests at a time that keep it busy, as reported by ``GET /tidegate/declared``."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the metadata answer (``emulated``)."""


def concurrency_for(max_batch: int) -> int:
    """Returns the requests at a time that keep a model busy, whose calls run one after the other: one batch runs while
    the next gathers. Without batches it is 1: a second request would only wait inside the model server, where nothing
    can see that it waits."""
    return min(_MAX_CONCURRENCY, 2 * max_batch) if max_batch > 1 else 1


@dataclass(frozen=True, slots=True)
class OutputRequest:
    name: str
    binary: bool


@dataclass(slots=True)
class InferRequest:
    """One valid inference request."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    outputs: list[OutputRequest] | None = None
    """Requested outputs. None is all."""
    binary_default: bool = False

    @property
    def rows(self) -> int:
        """Inferences in this request: the common length of the first dimension, at least 1."""
        return max(1, self.inputs[0].rows or 1) if self.inputs else 1


def parse_infer(body: bytes, header_length: str | None) -> InferRequest:
    """Returns the request in ``body``. ``header_length`` is the value of HEADER_LENGTH. Raises RequestError."""
    text, tail = _split(body, header_length)
    document = _object(_load(text), "request")
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise RequestError("'inputs' must be a list with at least one tensor")
    parameters = _parameters(document, "request")
    request = InferRequest(
        inputs=[],
        id=_identity(document),
        parameters=parameters,
        outputs=_outputs(document),
        binary_default=_flag(parameters, "binary_data_output", "request") is True,
    )
    at = 0
    for entry in inputs:
        tensor, at = _input(entry, tail, at)
        request.inputs.append(tensor)
    if at != len(tail):
        raise RequestError(f"{len(tail) - at} bytes of binary data belong to no input")
    refuse_duplicates("inputs", [tensor.name for tensor in request.inputs])
    return request


def check_inputs(request: InferRequest, spec: ModelSpec) -> None:
    """Refuses unknown inputs and outputs, and inputs of another datatype or shape."""
    if spec.inputs is not None:
        _check_names("input", [tensor.name for tensor in request.inputs], spec.inputs)
        given = {tensor.name: tensor for tensor in request.inputs}
        missing = [wanted.name for wanted in spec.inputs if wanted.name not in given]
        if missing:
            raise RequestError(f"input '{missing[0]}' is missing")
        lengths: dict[str, int] = {}
        for wanted in spec.inputs:
            _check_tensor(given[wanted.name], wanted, lengths)
    if spec.outputs is not None and request.outputs is not None:
        _check_names("output", [output.name for output in request.outputs], spec.outputs)
    if spec.max_rows is not None and request.rows > spec.max_rows:
        raise RequestError(f"a batch of {request.rows} is larger than this model's largest, {spec.max_rows}")


def render_infer(model: str, request: InferRequest, results: Mapping[str, Tensor]) -> tuple[bytes, int | None]:
    """Returns the answer's body, and the value of HEADER_LENGTH if it contains binary tensors. Raises RequestError."""
    wanted = request.outputs
    if wanted is None:
        wanted = [OutputRequest(name, request.binary_default) for name in results]
    entries, pieces = [], []
    for output in wanted:
        tensor = results.get(output.name)
        if tensor is None:
            raise RequestError(unknown("output", output.name, results))
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if output.binary:
            raw = tensors.to_binary(tensor)
            entry["parameters"] = {"binary_data_size": len(raw)}
            pieces.append(raw)
        else:
            entry["data"], lost = tensors.to_json(tensor)
            if lost:
                entry["parameters"] = {"non_finite": lost}
        entries.append(entry)
    answer: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if request.id is not None:
        answer["id"] = request.id
    answer["outputs"] = entries
    head = dump(answer)
    return (b"".join([head, *pieces]), len(head)) if pieces else (head, None)


def server_metadata(version: str) -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [VERSION],
        "platform": spec.platform,
        "inputs": [tensor.as_metadata() for tensor in spec.inputs or ()],
        "outputs": [tensor.as_metadata() for tensor in spec.outputs or ()],
        **spec.notes,
    }


def dump(document: object) -> bytes:
    """Returns compact JSON, never with the non-standard NaN."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def error_body(message: str) -> bytes:
    return dump({"error": message})


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    text = header_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(f"Inference-Header-Content-Length is not a number: {header_length[:40]!r}")
    length = int(text)
    if length > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {length}, the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def load_object(text: bytes) -> dict[str, Any]:
    """Returns a request that is a JSON object. Raises RequestError."""
    return _object(_load(text), "request")


def _load(text: bytes) -> object:
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the request is not JSON: {error}") from None


def _refuse_constant(name: str) -> object:
    raise RequestError(f"{name} is not JSON: send tensors that hold it as binary data")


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"the {what} must be a JSON object")
    return value


def _identity(document: dict[str, Any]) -> str | None:
    value = document.get("id")
    if value is not None and not isinstance(value, str):
        raise RequestError("'id' must be a string")
    return value


def _name(entry: dict[str, Any], what: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"every {what} needs a 'name', a string")
    return name


def _parameters(entry: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    for key, value in _object(parameters, f"'parameters' of {what}").items():
        if not isinstance(value, bool | int | float | str):
            raise RequestError(f"parameter '{key}' of {what} must be a string, a number or a boolean")
    return _object(parameters, what)


def _flag(parameters: Parameters, key: str, what: str) -> bool | None:
    value = parameters.get(key)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"parameter '{key}' of {what} must be true or false")
    return value


def _outputs(document: dict[str, Any]) -> list[OutputRequest] | None:
    entries = document.get("outputs")
    if entries is None or entries == []:
        return None
    if not isinstance(entries, list):
        raise RequestError("'outputs' must be a list")
    default = _flag(_parameters(document, "request"), "binary_data_output", "request") is True
    wanted = []
    for entry in entries:
        name = _name(_object(entry, "output"), "output")
        parameters = _parameters(entry, f"output '{name}'")
        if "classification" in parameters:
            raise RequestError("the classification extension is not offered")
        binary = _flag(parameters, "binary_data", f"output '{name}'")
        wanted.append(OutputRequest(name, default if binary is None else binary))
    refuse_duplicates("outputs", [output.name for output in wanted])
    return wanted


def _input(entry: object, tail: memoryview, at: int) -> tuple[Tensor, int]:
    """Returns one input and the offset of the next binary one."""
    fields = _object(entry, "input")
    name = _name(fields, "input")
    datatype = check_datatype(name, fields.get("datatype"))
    shape = checked_shape(name, fields.get("shape"))
    parameters = _parameters(fields, f"input '{name}'")
    if "shared_memory_region" in parameters:
        raise RequestError(f"input '{name}': the shared memory extension is not offered")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in fields:
            raise RequestError(f"input '{name}' has neither 'data' nor the parameter 'binary_data_size'")
        return tensors.from_json(name, datatype, shape, fields["data"]), at
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise RequestError(f"input '{name}': 'binary_data_size' must be a whole number, not negative")
    if "data" in fields:
        raise RequestError(f"input '{name}' has both 'data' and 'binary_data_size'")
    if at + size > len(tail):
        raise RequestError(f"input '{name}': binary_data_size is {size}, but {len(tail) - at} bytes follow the JSON")
    return tensors.from_binary(name, datatype, shape, tail[at : at + size]), at + size


def check_datatype(name: str, value: object) -> str:
    """Returns the datatype of the input ``name``. Raises RequestError if it is invalid."""
    if not isinstance(value, str) or value not in tensors.DATATYPES:
        raise RequestError(f"input '{name}': 'datatype' must be one of {', '.join(sorted(tensors.DATATYPES))}")
    return value


def checked_shape(name: str, value: object) -> tuple[int, ...]:
    """Returns the shape of the input ``name``. Raises RequestError if it is invalid."""
    if not isinstance(value, list) or len(value) > MAX_RANK:
        raise RequestError(f"input '{name}': 'shape' must be a list of at most {MAX_RANK} whole numbers")
    for size in value:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 63:
            raise RequestError(f"input '{name}': 'shape' must be a list of whole numbers, none negative")
    if 0 in value and math.prod(size for size in value if size) > _MAX_EMPTY:
        raise RequestError(f"input '{name}': shape {value} holds nothing, with dimensions that are too large")
    return tuple(value)


def _check_tensor(given: Tensor, wanted: TensorSpec, lengths: dict[str, int]) -> None:
    if given.datatype != wanted.datatype and given.datatype not in wanted.further:
        allowed = wanted.datatype + (f" (or {', '.join(wanted.further)})" if wanted.further else "")
        raise RequestError(f"input '{given.name}' must be {allowed}, got {given.datatype}")
    fits = len(given.shape) == len(wanted.shape) and all(
        size in (-1, got) for size, got in zip(wanted.shape, given.shape, strict=True)
    )
    if not fits:
        raise RequestError(
            f"input '{given.name}' must have the shape {list(wanted.shape)} (-1: any), got {list(given.shape)}"
        )
    for symbol, got in zip(wanted.symbols, given.shape, strict=False):
        if symbol is not None and lengths.setdefault(symbol, got) != got:
            raise RequestError(
                f"input '{given.name}': dimension '{symbol}' is {got} here and {lengths[symbol]} in another input"
            )


def _check_names(what: str, given: list[str], known: tuple[TensorSpec, ...]) -> None:
    names = [spec.name for spec in known]
    for name in given:
        if name not in names:
            raise RequestError(unknown(what, name, names))


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Returns the message for a name that the model does not have."""
    return f"unknown {what} '{name}': this model's {what}s are {', '.join(names) or 'none'}"


def refuse_duplicates(what: str, names: list[str]) -> None:
    """Raises RequestError if a name occurs twice in the list ``what``."""
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise RequestError(f"'{twice}' is given twice in '{what}'")
