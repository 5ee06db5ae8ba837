"""The operators of an ONNX file with the shapes of their tensors, read without a library and without the weights.

Shapes come from the graph's inputs and weights and are carried through the operators that models are mostly made of.
Where one is not known, the shape that the file states for it counts; without one the operators that follow are counted
as unknown. A free dimension is one item where it comes first, else ``ASSUMED`` (our choice).

The tables are those of ``onnx.proto`` (https://onnx.ai/onnx/intro/concepts.html), as far as they are needed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.wire.grpc.protobuf import BYTES, FLOAT, INT32, INT64, MESSAGE, STRING, Field, Message, ProtobufError

ASSUMED: Final = 128
"""Length of a dimension that the file leaves open, such as that of a sequence."""
MAX_NODES: Final = 100_000
MAX_CONSTANT: Final = 16
"""Elements of a tensor whose values are read: a shape or a list of axes."""

_DIMENSION: Final = Message(
    "onnx.TensorShapeProto.Dimension", Field(1, "dim_value", INT64), Field(2, "dim_param", STRING)
)
_SHAPE: Final = Message("onnx.TensorShapeProto", Field(1, "dim", MESSAGE, _DIMENSION, repeated=True))
_TENSOR_TYPE: Final = Message("onnx.TypeProto.Tensor", Field(1, "elem_type", INT32), Field(2, "shape", MESSAGE, _SHAPE))
_TYPE: Final = Message("onnx.TypeProto", Field(1, "tensor_type", MESSAGE, _TENSOR_TYPE))
_VALUE: Final = Message("onnx.ValueInfoProto", Field(1, "name", STRING), Field(2, "type", MESSAGE, _TYPE))
_TENSOR: Final = Message(
    "onnx.TensorProto",
    Field(1, "dims", INT64, repeated=True),
    Field(2, "data_type", INT32),
    Field(5, "int32_data", INT32, repeated=True),
    Field(7, "int64_data", INT64, repeated=True),
    Field(8, "name", STRING),
    Field(9, "raw_data", BYTES),
)
_ATTRIBUTE: Final = Message(
    "onnx.AttributeProto",
    Field(1, "name", STRING),
    Field(2, "f", FLOAT),
    Field(3, "i", INT64),
    Field(4, "s", BYTES),
    Field(5, "t", MESSAGE, _TENSOR),
    Field(8, "ints", INT64, repeated=True),
)
_NODE: Final = Message(
    "onnx.NodeProto",
    Field(1, "input", STRING, repeated=True),
    Field(2, "output", STRING, repeated=True),
    Field(4, "op_type", STRING),
    Field(5, "attribute", MESSAGE, _ATTRIBUTE, repeated=True),
)
_GRAPH: Final = Message(
    "onnx.GraphProto",
    Field(1, "node", MESSAGE, _NODE, repeated=True),
    Field(5, "initializer", MESSAGE, _TENSOR, repeated=True),
    Field(11, "input", MESSAGE, _VALUE, repeated=True),
    Field(12, "output", MESSAGE, _VALUE, repeated=True),
    Field(13, "value_info", MESSAGE, _VALUE, repeated=True),
)
_MODEL: Final = Message("onnx.ModelProto", Field(7, "graph", MESSAGE, _GRAPH))

_WHOLE: Final = {6: (4, "int32_data"), 7: (8, "int64_data")}
"""Bytes of an element, and the field of the values, of the types that shapes have."""
_SIZES: Final = {1: 4, 2: 1, 3: 1, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}
"""Bytes of an element by data type; others count as four."""

Shape = tuple[int, ...]


class GraphError(ValueError):
    """The bytes are no ONNX model that can be read."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph."""

    shape: Shape
    item_bytes: int = 4
    is_weight: bool = False
    values: Shape | None = None
    """Its values, if it is a short constant of whole numbers."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.item_bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator; None stands for a tensor of unknown shape."""

    kind: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """The operators that compute something, and the graph's own inputs."""

    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...]
    parameters: int
    """Elements of all weights."""
    unknown: int
    """Operators without a known shape."""


def read(data: bytes) -> OperatorGraph:
    """Returns the operators of an ONNX file for one item. Raises GraphError."""
    try:
        graph = _MODEL.decode(data).get("graph")
    except (ProtobufError, ValueError, RecursionError) as error:
        raise GraphError(f"not an ONNX model: {error}") from None
    if not graph or not graph.get("node"):
        raise GraphError("not an ONNX model: it has no operators")
    if len(graph["node"]) > MAX_NODES:
        raise GraphError(f"{len(graph['node'])} operators; at most {MAX_NODES} are read")
    tensors: dict[str, Tensor] = {}
    stated: dict[str, Tensor] = {}
    for value in (*graph.get("value_info", ()), *graph.get("output", ())):
        tensor = _stated(value, is_input=False)
        if tensor is not None:
            stated[value.get("name", "")] = tensor
    for weight in graph.get("initializer", ()):
        tensors[weight.get("name", "")] = _constant(weight)
    inputs = []
    for value in graph.get("input", ()):
        tensor = _stated(value, is_input=True)
        if tensor is not None and value.get("name", "") not in tensors:
            tensors[value.get("name", "")] = tensor
            inputs.append(tensor)
    operators = []
    unknown = 0
    for node in graph["node"]:
        kind = node.get("op_type", "")
        attributes = {each.get("name", ""): each for each in node.get("attribute", ())}
        given = tuple(tensors.get(name) for name in node.get("input", ()))
        names = node.get("output", ())
        found = _infer(kind, given, attributes, len(names))
        outputs = tuple(
            tensor if tensor is not None else stated.get(name) for tensor, name in zip(found, names, strict=True)
        )
        tensors.update({name: each for name, each in zip(names, outputs, strict=True) if each is not None})
        if kind in _FREE or (outputs and outputs[0] is not None and outputs[0].is_weight):
            continue
        operators.append(Operator(kind, given, outputs, attributes))
        unknown += not outputs or outputs[0] is None
    parameters = sum(each.elements for each in tensors.values() if each.is_weight and each.values is None)
    return OperatorGraph(tuple(operators), tuple(inputs), parameters, unknown)


def _stated(value: Mapping[str, Any], *, is_input: bool) -> Tensor | None:
    """Returns the tensor that the file states; None if it states no rank."""
    of = value.get("type", {}).get("tensor_type", {})
    if "shape" not in of:
        return None
    shape = []
    for index, each in enumerate(of["shape"].get("dim", ())):
        length = each.get("dim_value", 0)
        shape.append(length if length > 0 else 1 if index == 0 else ASSUMED)
    if is_input and len(shape) > 1:
        shape[0] = 1
    return Tensor(tuple(shape), _SIZES.get(of.get("elem_type", 1), 4))


def _constant(weight: Mapping[str, Any]) -> Tensor:
    shape = tuple(weight.get("dims", ()))
    kind = weight.get("data_type", 1)
    values: Shape | None = None
    if kind in _WHOLE and math.prod(shape) <= MAX_CONSTANT:
        size, name = _WHOLE[kind]
        raw = weight.get("raw_data", b"")
        values = tuple(weight.get(name, ())) or tuple(
            int.from_bytes(raw[at : at + size], "little", signed=True) for at in range(0, len(raw), size)
        )
    return Tensor(shape, _SIZES.get(kind, 4), True, values)


# --- shapes -----------------------------------------------------------------------------------------------------------

_FREE: Final = frozenset(
    {"Constant", "ConstantOfShape", "Shape", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
)
"""Operators that move and compute nothing."""
_SAME: Final = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Gelu",
        "Softmax",
        "LogSoftmax",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LRN",
        "Clip",
        "Identity",
        "Dropout",
        "Cast",
        "Sqrt",
        "Exp",
        "Log",
        "Neg",
        "Abs",
        "Not",
        "HardSigmoid",
        "HardSwish",
        "Elu",
        "Selu",
        "Softplus",
        "Sin",
        "Cos",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Reciprocal",
        "IsNaN",
        "CumSum",
        "Mish",
        "GroupNormalization",
        "SimplifiedLayerNormalization",
        "QuantizeLinear",
        "DequantizeLinear",
    }
)
_BROADCAST: Final = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Min",
        "Max",
        "Sum",
        "Mean",
        "Mod",
        "Where",
        "Equal",
        "Greater",
        "Less",
        "And",
        "Or",
        "GreaterOrEqual",
        "LessOrEqual",
    }
)
_POOLS: Final = frozenset({"MaxPool", "AveragePool", "LpPool"})
_GLOBAL_POOLS: Final = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_REDUCTIONS: Final = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"})


def _infer(
    kind: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], outputs: int
) -> list[Tensor | None]:
    """Returns the outputs' tensors, None for those that are not known."""
    try:
        if kind == "Split":
            return list(_split(inputs, attributes, outputs))
        found = _shape(kind, inputs, attributes)
    except (IndexError, TypeError, ValueError, ZeroDivisionError, KeyError, AttributeError):
        return [None] * outputs
    if isinstance(found, tuple):
        found = Tensor(found, next((each.item_bytes for each in inputs if each is not None), 4))
    return [found, *([None] * (outputs - 1))][:outputs]


def _shape(kind: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Shape | Tensor | None:
    if kind == "Constant":
        return _constant(attributes["value"]["t"])
    known = [each for each in inputs if each is not None]
    if not known:
        return None
    if kind in _BROADCAST:
        return _broadcast([each.shape for each in known]) if len(known) == len(inputs) else None
    x = inputs[0]
    if x is None:
        return None
    if kind == "Shape":
        return Tensor((len(x.shape),), 8, True, x.shape)
    if kind == "ConstantOfShape":
        return None if x.values is None else Tensor(x.values, 4, True)
    if kind in _SAME:
        return x
    if kind in _POOLS or kind == "Conv":
        return _window(kind, x.shape, inputs, attributes)
    if kind in _GLOBAL_POOLS:
        return (*x.shape[:2], *(1 for _ in x.shape[2:]))
    if kind in _REDUCTIONS or kind in ("Squeeze", "Unsqueeze"):
        return _axes_changed(kind, x, inputs, attributes)
    return _rearranged(kind, x, inputs, attributes)


def _rearranged(
    kind: str, x: Tensor, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> Shape | Tensor | None:
    if kind in ("Gemm", "MatMul"):
        return _product(kind, x.shape, inputs, attributes)
    if kind == "Reshape":
        target = inputs[1] if len(inputs) > 1 else None
        values = tuple(_ints(attributes, "shape")) if target is None else target.values
        return None if not values else _reshaped(x.shape, values)
    if kind == "Flatten":
        axis = _int(attributes, "axis", 1) % (len(x.shape) + 1)
        return math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    if kind == "Transpose":
        order = _ints(attributes, "perm") or range(len(x.shape) - 1, -1, -1)
        return tuple(x.shape[each] for each in order)
    if kind == "Concat":
        return _concat(x, inputs, attributes)
    if kind == "Gather":
        return _gather(x, inputs[1], _int(attributes, "axis", 0) % len(x.shape))
    if kind == "Slice":
        return _slice(x, inputs, attributes)
    if kind == "Expand":
        target = inputs[1]
        return None if target is None or target.values is None else _broadcast([x.shape, target.values])
    return None


def _concat(x: Tensor, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Shape | Tensor | None:
    known = [each for each in inputs if each is not None]
    if len(known) < len(inputs):
        return None
    axis = _int(attributes, "axis", 0) % len(x.shape)
    shape = (*x.shape[:axis], sum(each.shape[axis] for each in known), *x.shape[axis + 1 :])
    if len(shape) == 1 and all(each.values is not None for each in known):
        return Tensor(shape, 8, True, tuple(value for each in known for value in each.values or ()))
    return shape


def _gather(x: Tensor, indices: Tensor | None, axis: int) -> Shape | Tensor | None:
    if indices is None:
        return None
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.values is not None and len(x.shape) == 1 and indices.values is not None:
        return Tensor(shape, 8, True, tuple(x.values[each] for each in indices.values))
    return shape


def _slice(x: Tensor, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Shape | Tensor | None:
    """Returns the slice of a tensor; bounds are inputs, or attributes in old files."""

    def bounds(index: int, name: str) -> Shape:
        of = inputs[index] if len(inputs) > index else None
        return tuple(_ints(attributes, name)) if of is None else of.values or ()

    starts, ends = bounds(1, "starts"), bounds(2, "ends")
    if not starts or len(starts) != len(ends):
        return None
    axes = bounds(3, "axes") or tuple(range(len(starts)))
    steps = bounds(4, "steps") or (1,) * len(starts)
    shape = list(x.shape)
    part = slice(None)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        part = slice(start, end, step)
        shape[axis] = len(range(*part.indices(x.shape[axis])))
    if x.values is not None and len(shape) == 1:
        return Tensor(tuple(shape), 8, True, x.values[part])
    return tuple(shape)


def _split(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], outputs: int) -> Sequence[Tensor | None]:
    x = inputs[0]
    if x is None:
        return [None] * outputs
    axis = _int(attributes, "axis", 0) % len(x.shape)
    sizes = _ints(attributes, "split") or (inputs[1].values if len(inputs) > 1 and inputs[1] is not None else None)
    lengths = sizes or [x.shape[axis] // outputs] * outputs
    return [Tensor((*x.shape[:axis], each, *x.shape[axis + 1 :]), x.item_bytes) for each in lengths][:outputs]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(each) for each in shapes)
    padded = [(1,) * (rank - len(each)) + each for each in shapes]
    return tuple(max(lengths) for lengths in zip(*padded, strict=True))


def _window(kind: str, x: Shape, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Shape | None:
    """Returns the output of a convolution or a pool."""
    spatial = x[2:]
    weights = inputs[1] if kind == "Conv" and len(inputs) > 1 else None
    if kind == "Conv" and weights is None:
        return None
    kernel = _ints(attributes, "kernel_shape") or (weights.shape[2:] if weights is not None else ())
    strides = _ints(attributes, "strides") or (1,) * len(spatial)
    dilations = _ints(attributes, "dilations") or (1,) * len(spatial)
    pads = _ints(attributes, "pads") or (0,) * (2 * len(spatial))
    found = []
    for index, length in enumerate(spatial):
        span = dilations[index] * (kernel[index] - 1) + 1
        padded = length + pads[index] + pads[index + len(spatial)]
        if attributes.get("auto_pad", {}).get("s", b"")[:4] == b"SAME":
            found.append(math.ceil(length / strides[index]))
        else:
            space = (padded - span) / strides[index]
            found.append((math.ceil(space) if _int(attributes, "ceil_mode", 0) else math.floor(space)) + 1)
    channels = weights.shape[0] if weights is not None else x[1]
    return (x[0], channels, *found) if all(each > 0 for each in found) else None


def _product(kind: str, a: Shape, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Shape | None:
    other = inputs[1]
    if other is None:
        return None
    b = other.shape
    if kind == "Gemm":
        rows = a[1] if _int(attributes, "transA", 0) else a[0]
        columns = b[0] if _int(attributes, "transB", 0) else b[1]
        return rows, columns
    if len(a) == 1 or len(b) == 1:
        return a[:-1] if len(b) == 1 else (*b[:-2], b[-1])
    return (*_broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _reshaped(x: Shape, values: Shape) -> Shape:
    lengths = [x[index] if value == 0 else value for index, value in enumerate(values)]
    if -1 in lengths:
        rest = math.prod(each for each in lengths if each != -1)
        lengths[lengths.index(-1)] = math.prod(x) // rest
    return tuple(lengths)


def _axes_changed(
    kind: str, x: Tensor, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> Shape | Tensor | None:
    axes = _ints(attributes, "axes")
    if not axes and len(inputs) > 1 and inputs[1] is not None:
        axes = inputs[1].values or ()
    if kind == "Unsqueeze":
        rank = len(x.shape) + len(axes)
        places = {each % rank for each in axes}
        rest = iter(x.shape)
        found = tuple(1 if index in places else next(rest) for index in range(rank))
        return Tensor(found, x.item_bytes, x.is_weight, x.values)
    places = {each % len(x.shape) for each in axes} or set(range(len(x.shape)))
    if kind == "Squeeze":
        if not axes:
            places = {index for index, length in enumerate(x.shape) if length == 1}
        found = tuple(length for index, length in enumerate(x.shape) if index not in places)
        return Tensor(found, x.item_bytes, x.is_weight, x.values)
    keeps = _int(attributes, "keepdims", 1)
    return tuple(
        1 if index in places else length for index, length in enumerate(x.shape) if keeps or index not in places
    )


def _ints(attributes: Mapping[str, Any], name: str) -> Sequence[int]:
    return tuple(attributes.get(name, {}).get("ints", ()))


def _int(attributes: Mapping[str, Any], name: str, default: int) -> int:
    """Returns a number; one that is there without a value is 0, which some writers leave out."""
    found: int = attributes[name].get("i", 0) if name in attributes else default
    return found
