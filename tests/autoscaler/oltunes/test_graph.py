"""ONNX graphs: shapes, work and character, against figures worked out by hand and one known model."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tidegate.autoscaler.oltunes.character import Bound
from tidegate.autoscaler.oltunes.prediction import onnx_graph
from tidegate.autoscaler.oltunes.prediction.analysis import OVERHEAD_S, DeviceRates, analyse, first_time_s, rates_of
from tidegate.autoscaler.oltunes.prediction.onnx_graph import ASSUMED, GraphError, read


def value(name: str, *lengths: int | str) -> dict[str, Any]:
    dims = [{"dim_param": each} if isinstance(each, str) else {"dim_value": each} for each in lengths]
    return {"name": name, "type": {"tensor_type": {"elem_type": 1, "shape": {"dim": dims}}}}


def weight(name: str, *lengths: int) -> dict[str, Any]:
    return {"name": name, "dims": list(lengths), "data_type": 1}


def whole(name: str, *values: int) -> dict[str, Any]:
    return {"name": name, "dims": [len(values)], "data_type": 7, "int64_data": list(values)}


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> dict[str, Any]:
    found = []
    for name, each in attributes.items():
        field = "ints" if isinstance(each, list) else "s" if isinstance(each, bytes) else "i"
        found.append({"name": name, field: each})
    return {"op_type": kind, "input": inputs.split(), "output": outputs.split(), "attribute": found}


def model(*nodes: dict[str, Any], inputs: Any = (), weights: Any = (), stated: Any = ()) -> bytes:
    graph = {"node": list(nodes), "input": list(inputs), "initializer": list(weights), "value_info": list(stated)}
    return onnx_graph._MODEL.encode({"graph": graph})


def shape_after(
    *nodes: dict[str, Any], inputs: Any = (), weights: Any = (), stated: Any = ()
) -> tuple[int, ...] | None:
    """The shape that the last operator reads."""
    probe = node("Relu", nodes[-1]["output"][0], "end")
    found = read(model(*nodes, probe, inputs=inputs, weights=weights, stated=stated)).operators[-1].inputs[0]
    return None if found is None else found.shape


X = value("x", "batch", 3, 32, 32)


@pytest.mark.parametrize(
    ("last", "weights", "shape"),
    [
        (node("Conv", "x w", "y", pads=[1, 1, 1, 1]), [weight("w", 8, 3, 3, 3)], (1, 8, 32, 32)),
        (node("Conv", "x w", "y", strides=[2, 2]), [weight("w", 8, 3, 3, 3)], (1, 8, 15, 15)),
        (node("Conv", "x w", "y", strides=[2, 2], auto_pad=b"SAME_UPPER"), [weight("w", 8, 3, 3, 3)], (1, 8, 16, 16)),
        (node("Conv", "x w", "y", dilations=[2, 2]), [weight("w", 8, 3, 3, 3)], (1, 8, 28, 28)),
        (node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2]), [], (1, 3, 15, 15)),
        (node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1), [], (1, 3, 16, 16)),
        (node("GlobalAveragePool", "x", "y"), [], (1, 3, 1, 1)),
        (node("Flatten", "x", "y"), [], (1, 3072)),
        (node("Transpose", "x", "y", perm=[0, 2, 3, 1]), [], (1, 32, 32, 3)),
        (node("Transpose", "x", "y"), [], (32, 32, 3, 1)),
        (node("Reshape", "x s", "y"), [whole("s", 0, -1)], (1, 3072)),
        (node("Concat", "x x", "y", axis=1), [], (1, 6, 32, 32)),
        (node("Add", "x w", "y"), [weight("w", 1, 3, 1, 1)], (1, 3, 32, 32)),
        (node("ReduceMean", "x", "y", axes=[2, 3], keepdims=0), [], (1, 3)),
        (node("ReduceMean", "x", "y", axes=[-1]), [], (1, 3, 32, 1)),
        (node("Unsqueeze", "x s", "y"), [whole("s", 0)], (1, 1, 3, 32, 32)),
        (node("Squeeze", "x", "y"), [], (3, 32, 32)),
        (node("Slice", "x a b c", "y"), [whole("a", 4), whole("b", -4), whole("c", 3)], (1, 3, 32, 24)),
        (node("Gather", "w x", "y"), [weight("w", 1000, 16)], (1, 3, 32, 32, 16)),
        (node("Expand", "w s", "y"), [weight("w", 3, 1), whole("s", 2, 1, 6)], (2, 3, 6)),
        (node("Split", "x", "y z", axis=2), [], (1, 3, 16, 32)),
        (node("MatMul", "x w", "y"), [weight("w", 32, 5)], (1, 3, 32, 5)),
        (node("Conv", "x w", "y"), [weight("w", 8, 3, 40, 40)], None),
        (node("Unknown", "x", "y"), [], None),
        (node("Reshape", "x s", "y"), [whole("s", -1, 0, 0, 0, 0, 0)], None),
    ],
)
def test_the_shape_behind_an_operator(last: dict[str, Any], weights: Any, shape: tuple[int, ...] | None) -> None:
    assert shape_after(last, inputs=[X], weights=weights) == shape


def test_a_shape_that_is_computed_in_the_graph_is_known() -> None:
    """As exporters write a reshape: the length is taken from the input, and the rest follows."""
    found = shape_after(
        node("Shape", "x", "s"),
        node("Gather", "s zero", "first"),
        node("Concat", "first rest", "target", axis=0),
        node("Reshape", "x target", "y"),
        inputs=[X],
        weights=[whole("zero", 0), whole("rest", -1)],
    )
    assert found == (1, 3072)


def test_what_the_file_states_counts_where_a_shape_does_not_follow() -> None:
    assert shape_after(node("Custom", "x", "y"), inputs=[X], stated=[value("y", 1, 7)]) == (1, 7)


def test_open_dimensions_are_one_item_and_an_assumed_length() -> None:
    (given,) = read(model(node("Relu", "x", "y"), inputs=[value("x", "batch", "length")])).inputs
    assert given.shape == (1, ASSUMED)


def test_the_work_of_two_layers_worked_out_by_hand() -> None:
    """A convolution of 8 filters of 3x3x3 over 32x32: 2 * 8 * 32 * 32 * 27 operations. Its output pooled to 8, times a
    matrix of 8 x 10, plus a bias: 2 * 10 * 8."""
    data = model(
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "a", "b"),
        node("Flatten", "b", "c"),
        node("Gemm", "c m v", "d"),
        inputs=[X],
        weights=[weight("w", 8, 3, 3, 3), weight("m", 8, 10), weight("v", 10)],
    )
    found = analyse(read(data))
    assert found.flops == 2 * 8 * 32 * 32 * 27 + 8 + 2 * 10 * 8
    assert found.bytes == 4 * (3072 + 216 + 8192) + 4 * (8192 + 8) + 4 * (8 + 80 + 10 + 10)
    assert (found.parameters, found.input_size, found.unknown) == (216 + 80 + 10, 32, 0)
    assert found.operators == {"Conv": 1, "GlobalAveragePool": 1, "Gemm": 1}, "a flatten computes nothing"
    rates = DeviceRates(1e9, 1e9)
    assert first_time_s(found, rates) == pytest.approx(3 * OVERHEAD_S + 442368e-9 + 32800e-9 + 432e-9)


def test_a_large_product_is_bound_by_computation_and_a_sum_by_memory() -> None:
    product = model(node("MatMul", "a b", "c"), inputs=[value("a", 1, 512, 512)], weights=[weight("b", 512, 512)])
    added = model(node("Add", "a a", "c"), inputs=[value("a", 1, 512, 512)])
    assert analyse(read(product)).character.kind is Bound.COMPUTE
    assert analyse(read(added)).character.kind is Bound.MEMORY


def test_operators_without_a_shape_are_counted() -> None:
    data = model(node("Custom", "x", "y"), node("Relu", "y", "z"), inputs=[X])
    assert analyse(read(data)).unknown == 2


def test_resnet50_has_the_work_that_is_known_of_it() -> None:
    spec = find_spec("onnx")
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parent / "backend/test/data/light/light_resnet50.onnx"
    found = analyse(read(file.read_bytes()))
    assert found.flops / 1e9 == pytest.approx(8.2, rel=0.01)
    assert found.parameters / 1e6 == pytest.approx(25.6, rel=0.01)
    assert (found.input_size, found.unknown, found.character.kind) == (224, 0, Bound.COMPUTE)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xff\xff", b"PK\x03\x04 a zip file", b"\x00" * 64, onnx_graph._MODEL.encode({"graph": {}})]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(GraphError, match="not an ONNX model"):
        read(data)


def test_a_truncated_file_is_refused() -> None:
    data = model(node("Relu", "x", "y"), inputs=[X])
    for end in range(1, len(data)):
        with pytest.raises(GraphError):
            read(data[:end])


def test_rates_of_devices() -> None:
    assert rates_of("nvidia-geforce-rtx-4090", cores=None) == rates_of("RTX4090", cores=None) is not None
    assert rates_of("tpu", cores=None) is None
    one, half = rates_of("cpu", cores=1.0), rates_of("cpu", cores=0.5)
    assert one is not None and half is not None
    assert math.isclose(one.flops_per_s, 2 * half.flops_per_s)
