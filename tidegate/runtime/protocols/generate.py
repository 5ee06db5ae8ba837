"""Triton's generate extension: a flat JSON object in, flat JSON objects out. Pure.

Each key of a request that names an input of the model is that input; a model without declared inputs takes all keys.
A scalar is a tensor of one element. Other keys, and those of ``parameters``, are parameters of the request.
"""

import math
from collections.abc import Mapping
from typing import Any

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.tensors import BYTES, Tensor
from tidegate.runtime.protocols.v2 import VERSION, InferRequest, ModelSpec, TensorSpec


def parse(body: bytes, spec: ModelSpec) -> InferRequest:
    """Returns the request in ``body``. Raises RequestError."""
    document = protocol.load_object(body)
    identity = document.pop("id", None)
    if identity is not None and not isinstance(identity, str):
        raise RequestError("'id' must be a string")
    parameters = document.pop("parameters", None) or {}
    if not isinstance(parameters, dict):
        raise RequestError("'parameters' must be a JSON object")
    declared = None if spec.inputs is None else {wanted.name: wanted for wanted in spec.inputs}
    inputs = []
    for name, value in document.items():
        if declared is None or name in declared:
            inputs.append(_input(name, value, None if declared is None else declared[name]))
        else:
            parameters[name] = value
    if not inputs:
        known = "any" if declared is None else ", ".join(declared)
        raise RequestError(f"the request names no input; this model's inputs are {known}")
    return InferRequest(inputs=inputs, id=identity, parameters=parameters)


def render(model: str, request: InferRequest, outputs: Mapping[str, Tensor]) -> bytes:
    """Returns one answer. An output of one element is a scalar, another one a flat list; NaN and infinities are null.

    Raises RequestError for bytes that are not UTF-8.
    """
    answer: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if request.id is not None:
        answer["id"] = request.id
    for name, tensor in outputs.items():
        values, _ = tensors.to_json(tensor)
        answer[name] = values[0] if len(values) == 1 else values
    return protocol.dump(answer)


def event(data: bytes) -> bytes:
    """Returns one server-sent event."""
    return b"data: " + data + b"\n\n"


def _input(name: str, value: object, spec: TensorSpec | None) -> Tensor:
    shape, flat = measured(name, value)
    datatype = datatype_of(name, flat) if spec is None else spec.datatype
    rank = 1 if spec is None else len(spec.shape)
    if rank == 0 and math.prod(shape) == 1:
        shape = ()
    shape = (1,) * (rank - len(shape)) + shape
    return tensors.from_json(name, datatype, shape, flat)


def measured(name: str, value: object) -> tuple[tuple[int, ...], list[Any]]:
    """Returns shape and elements of a value of JSON. Raises RequestError for ragged lists."""
    if not isinstance(value, list):
        return (), [value]
    level: list[Any] = value
    shape = [len(value)]
    while level and all(isinstance(item, list) for item in level):
        if len({len(item) for item in level}) != 1 or len(shape) == tensors.MAX_RANK:
            raise RequestError(f"input '{name}': its lists differ in length, or are nested too deeply")
        shape.append(len(level[0]))
        level = [item for inner in level for item in inner]
    return tuple(shape), level


def datatype_of(name: str, flat: list[Any]) -> str:
    kinds = set(map(type, flat))
    if kinds == {str}:
        return BYTES
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64"
    if kinds and kinds <= {int, float}:
        return "FP64"
    raise RequestError(f"input '{name}' must be a string, a number, a boolean, or a list of one of them")
