"""KServe's V1 protocol: the instances of ``POST /v1/models/NAME:predict`` in, predictions out. Pure.

An instance is one row: the value of the model's only input, or an object with a value for each input. The rows of all
instances become tensors whose first dimension is their number. Predictions are taken apart in the same way: the value
of the only output, or an object with a value for each output.

Every fault of a request is a RequestError with a message that names the fault and what is allowed.
"""

from collections.abc import Mapping
from typing import Any, Final

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import generate, tensors
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import InferRequest, ModelSpec, TensorSpec

INSTANCES: Final = "instances"
"""The request's key, and the input of instances without names at a model that declares no inputs."""


def parse(body: bytes, spec: ModelSpec) -> InferRequest:
    """Returns the request in ``body``; other keys than ``instances`` are not read. Raises RequestError."""
    document = protocol.load_object(body)
    instances = document.get(INSTANCES)
    if not isinstance(instances, list) or not instances:
        instead = ", not 'inputs'" if "inputs" in document else ""
        raise RequestError(f"'{INSTANCES}' must be a list with at least one instance{instead}")
    declared = None if spec.inputs is None else {wanted.name: wanted for wanted in spec.inputs}
    columns = _columns(instances, None if declared is None else list(declared))
    return InferRequest(
        inputs=[_input(name, values, None if declared is None else declared[name]) for name, values in columns.items()]
    )


def render(request: InferRequest, outputs: Mapping[str, Tensor]) -> bytes:
    """Returns the answer's body. NaN and infinities are null.

    Raises RequestError: with status 500 if an output does not have one row for each instance, and for bytes that are
    not UTF-8.
    """
    columns = {name: _rows(tensor, request.rows) for name, tensor in outputs.items()}
    if len(columns) == 1:
        (predictions,) = columns.values()
    else:
        predictions = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return protocol.dump({"predictions": predictions})


def _columns(instances: list[Any], inputs: list[str] | None) -> dict[str, list[Any]]:
    """Returns the values of each input, one for each instance; ``inputs``: those of the model, None if it takes any."""
    named = [isinstance(instance, dict) for instance in instances]
    if not any(named):
        if inputs is not None and len(inputs) != 1:
            raise RequestError(f"every instance must be an object with this model's inputs: {', '.join(inputs)}")
        return {INSTANCES if inputs is None else inputs[0]: instances}
    if not all(named):
        raise RequestError(f"{INSTANCES}[{named.index(False)}] is no object, and others are")
    names = list(instances[0]) if inputs is None else inputs
    if not names:
        raise RequestError(f"{INSTANCES}[0] names no input")
    for at, instance in enumerate(instances):
        for name in instance:
            if name not in names:
                raise RequestError(f"{INSTANCES}[{at}]: {protocol.unknown('input', name, names)}")
        for name in names:
            if name not in instance:
                raise RequestError(f"{INSTANCES}[{at}]: input '{name}' is missing")
    return {name: [instance[name] for instance in instances] for name in names}


def _input(name: str, values: list[Any], spec: TensorSpec | None) -> Tensor:
    shape, flat = generate.measured(name, values)
    datatype = generate.datatype_of(name, flat) if spec is None else spec.datatype
    return tensors.from_json(name, datatype, shape, flat)


def _rows(tensor: Tensor, count: int) -> list[Any]:
    if tensor.rows != count:
        raise RequestError(
            f"output '{tensor.name}' has the shape {list(tensor.shape)}, which is not one row for each of "
            f"{count} instances: call the model by V2",
            500,
        )
    flat, _ = tensors.to_json(tensor)
    rows: list[Any] = tensors.nest(flat, tensor.shape)
    return rows
