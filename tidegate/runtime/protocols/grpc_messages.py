"""Open Inference Protocol V2 over gRPC: ``ModelInferRequest`` in, ``ModelInferResponse`` out. Pure.

Contents are typed, each datatype in its field, or raw, in the form of the binary tensors of REST. FP16 and BF16 exist
as raw contents only. An answer is raw if the request is, or if it contains FP16 or BF16: the protocol allows one kind
of contents in an answer. Faults have the same messages as in REST.
"""

import math
from array import array
from collections.abc import Mapping
from typing import Any, Final

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.tensors import BYTES, Tensor
from tidegate.runtime.protocols.v2 import VERSION, InferRequest, OutputRequest
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST
from tidegate.wire.grpc.protobuf import ProtobufError

CONTENTS_OF: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of ``InferTensorContents`` for each datatype that has one."""


def fields_of(data: bytes) -> dict[str, Any]:
    """Returns the fields of a message, unchecked. Raises RequestError if it is not a ModelInferRequest."""
    try:
        return MODEL_INFER_REQUEST.decode(data)
    except ProtobufError as error:
        raise RequestError(f"the request is no ModelInferRequest: {error}") from None


def read_infer(fields: Mapping[str, Any]) -> InferRequest:
    """Returns the request in the fields of a ModelInferRequest. ``binary_default`` is True if it is raw. Raises
    RequestError."""
    entries = fields.get("inputs", [])
    if not entries:
        raise RequestError("'inputs' must be a list with at least one tensor")
    raw = fields.get("raw_input_contents", [])
    if raw and len(raw) != len(entries):
        raise RequestError(f"raw_input_contents has {len(raw)} entries for {len(entries)} inputs")
    request = InferRequest(
        inputs=[_input(entry, raw[at] if raw else None) for at, entry in enumerate(entries)],
        id=fields.get("id"),
        parameters=_parameters(fields, "request"),
        outputs=_outputs(fields.get("outputs", [])),
        binary_default=bool(raw),
    )
    protocol.refuse_duplicates("inputs", [tensor.name for tensor in request.inputs])
    return request


def answer_infer(
    model: str, request: InferRequest, results: Mapping[str, Tensor], parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the fields of the ModelInferResponse. ``parameters`` are those of the answer, each an ``InferParameter``.

    Raises RequestError for an output that the model does not have.
    """
    names = list(results) if request.outputs is None else [output.name for output in request.outputs]
    found = []
    for name in names:
        tensor = results.get(name)
        if tensor is None:
            raise RequestError(protocol.unknown("output", name, results))
        found.append(tensor)
    is_raw = request.binary_default or any(tensor.datatype not in CONTENTS_OF for tensor in found)
    outputs: list[dict[str, Any]] = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape} for tensor in found
    ]
    answer: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": outputs}
    if request.id is not None:
        answer["id"] = request.id
    if parameters is not None:
        answer["parameters"] = parameters
    if is_raw:
        answer["raw_output_contents"] = [tensors.to_binary(tensor) for tensor in found]
    else:
        for output, tensor in zip(outputs, found, strict=True):
            output["contents"] = {CONTENTS_OF[tensor.datatype]: _elements(tensor)}
    return answer


def _elements(tensor: Tensor) -> Any:
    if tensor.datatype == "FP32":
        return array("f", bytes(tensor.data))  # type: ignore[arg-type]  # BYTES alone have a list
    if tensor.datatype == "FP64":
        return array("d", bytes(tensor.data))  # type: ignore[arg-type]  # as above
    return tensors.to_flat(tensor)


def _input(entry: Mapping[str, Any], raw: memoryview | None) -> Tensor:
    name = entry.get("name", "")
    if not name:
        raise RequestError("every input needs a 'name', a string")
    datatype = entry.get("datatype", "")
    protocol.check_datatype(name, datatype)
    shape = protocol.checked_shape(name, entry.get("shape", []))
    if "shared_memory_region" in _parameters(entry, f"input '{name}'"):
        raise RequestError(f"input '{name}': the shared memory extension is not offered")
    given = {field: value for field, value in entry.get("contents", {}).items() if len(value)}
    if raw is not None:
        if given:
            raise RequestError(f"input '{name}' has both contents and raw_input_contents")
        return tensors.from_binary(name, datatype, shape, raw)
    field = CONTENTS_OF.get(datatype)
    if field is None:
        raise RequestError(f"input '{name}': {datatype} has no typed contents: send raw_input_contents")
    wrong = [other for other in given if other != field]
    if wrong:
        raise RequestError(f"input '{name}': {datatype} contents belong into {field}, not into {wrong[0]}")
    return _typed(name, datatype, shape, given.get(field, []))


def _typed(name: str, datatype: str, shape: tuple[int, ...], elements: Any) -> Tensor:
    if len(elements) != math.prod(shape):
        raise RequestError(
            f"input '{name}': shape {list(shape)} takes {math.prod(shape)} elements, got {len(elements)}"
        )
    if datatype == BYTES:
        return Tensor(name, datatype, shape, [bytes(item) for item in elements])
    if isinstance(elements, array):
        return Tensor(name, datatype, shape, elements.tobytes())
    try:
        contents = tensors.pack(datatype, elements)
    except OverflowError:
        raise RequestError(f"input '{name}': a value is out of the range of {datatype}") from None
    return Tensor(name, datatype, shape, contents)


def _outputs(entries: list[dict[str, Any]]) -> list[OutputRequest] | None:
    if not entries:
        return None
    names = [entry.get("name", "") for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        if not name:
            raise RequestError("every output needs a 'name', a string")
        parameters = _parameters(entry, f"output '{name}'")
        if "classification" in parameters:
            raise RequestError("the classification extension is not offered")
        if "shared_memory_region" in parameters:
            raise RequestError(f"output '{name}': the shared memory extension is not offered")
    protocol.refuse_duplicates("outputs", names)
    return [OutputRequest(name, binary=True) for name in names]


def _parameters(entry: Mapping[str, Any], what: str) -> dict[str, bool | int | float | str]:
    found: dict[str, bool | int | float | str] = {}
    for key, value in entry.get("parameters", {}).items():
        choice = value.get("parameter_choice")
        if choice is None:
            raise RequestError(f"parameter '{key}' of {what} has no value")
        found[key] = value[choice]
    return found
