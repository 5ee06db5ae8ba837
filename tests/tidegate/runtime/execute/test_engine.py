"""Joining requests into a batch and taking its outputs apart again."""

import asyncio
import struct
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.runtime.execute.engine import ModelEngine, NotBatchable, divide, join
from tidegate.runtime.execute.model import Inputs, zeros
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.protocols.arrays import Arrays, PlainArrays
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec


def test_rows_are_put_after_each_other_whatever_the_order_of_the_inputs() -> None:
    first = [Tensor("a", "UINT8", (1, 2), b"\x01\x02"), Tensor("b", "BYTES", (1,), [b"x"])]
    second = [Tensor("b", "BYTES", (2,), [b"y", b"z"]), Tensor("a", "UINT8", (2, 2), memoryview(b"\x03\x04\x05\x06"))]
    numbers, words = join([first, second])
    assert (numbers.name, numbers.shape, numbers.data) == ("a", (3, 2), b"\x01\x02\x03\x04\x05\x06")
    assert (words.name, words.shape, words.data) == ("b", (3,), [b"x", b"y", b"z"])


def test_each_request_gets_its_rows_back() -> None:
    outputs = {
        "y": Tensor("y", "INT16", (3, 2), struct.pack("<6h", 1, 2, 3, 4, 5, 6)),
        "w": Tensor("w", "BYTES", (3, 2), [b"a", b"b", b"c", b"d", b"e", b"f"]),
    }
    first, second = divide(outputs, [1, 2])
    assert (first["y"].shape, bytes(first["y"].data)) == ((1, 2), struct.pack("<2h", 1, 2))  # type: ignore[arg-type]  # not BYTES
    assert (second["y"].shape, bytes(second["y"].data)) == ((2, 2), struct.pack("<4h", 3, 4, 5, 6))  # type: ignore[arg-type]  # not BYTES
    assert (first["w"].data, second["w"].data) == ([b"a", b"b"], [b"c", b"d", b"e", b"f"])


@pytest.mark.parametrize("shape", [(), (1,), (4, 3)])
def test_outputs_without_a_row_per_input_cannot_be_shared(shape: tuple[int, ...]) -> None:
    with pytest.raises(NotBatchable, match=r"output 'y' has the shape .* for a batch of 3"):
        divide({"y": Tensor("y", "UINT8", shape, bytes(12))}, [1, 2])


def test_made_up_inputs_take_free_dimensions_as_one() -> None:
    assert zeros(TensorSpec("x", "FP32", (-1, 3))) == Tensor("x", "FP32", (1, 3), bytes(12))
    assert zeros(TensorSpec("x", "BYTES", (2, -1))) == Tensor("x", "BYTES", (2, 1), [b"", b""])


@given(st.lists(st.integers(1, 5), min_size=1), st.integers(0, 3))
def test_divide_reverses_join(rows: list[int], width: int) -> None:
    requests = [
        [Tensor("x", "UINT8", (count, width), bytes((n + i) % 256 for i in range(count * width)))]
        for n, count in enumerate(rows)
    ]
    joined = {tensor.name: tensor for tensor in join(requests)}
    for (tensor,), part in zip(requests, divide(joined, rows), strict=True):
        assert (part["x"].shape, bytes(part["x"].data)) == (tensor.shape, tensor.data)  # type: ignore[arg-type]  # not BYTES


class Meets:
    """A model whose run ends when a second run has begun."""

    runners, loop = 1, None
    arrays: Arrays = PlainArrays()

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def load(self) -> ModelSpec:
        return ModelSpec(platform="test", inputs=None, outputs=None, is_reentrant=True)

    def probe(self) -> Inputs | None:
        return None

    def must_pass(self) -> bool:
        return False

    def run(self, inputs: dict[str, Any], arrived: float) -> Mapping[str, Any]:
        self._both.wait(20.0)
        return {"y": inputs["x"]}


def test_a_model_that_allows_it_runs_in_several_threads() -> None:
    async def main() -> None:
        engine = ModelEngine(Meets(), Worker("model"))
        await engine.load()
        engine.grow(2)
        inputs = [Tensor("x", "UINT8", (1,), b"\x07")]
        first, second = await asyncio.gather(engine.execute([inputs]), engine.execute([inputs]))
        assert first.outputs == second.outputs
        engine.stop()

    asyncio.run(main())
