"""ONNX files: what is read from them, what is refused, and that their answers are right."""

import asyncio
import struct
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.tidegate.runtime.conftest import WriteOnnx
from tidegate.runtime.errors import LoadError, RequestError
from tidegate.runtime.execute.engine import ModelEngine, NotBatchable
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.formats.onnx import OnnxModel
from tidegate.runtime.protocols.tensors import Tensor

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def opened(path: Path, *, max_batch: int = 1, threads: int | None = 1) -> OnnxModel:
    return OnnxModel(str(path), threads=threads, max_batch=max_batch, providers=["CPUExecutionProvider"])


def run(model: OnnxModel, *requests: list[Tensor], probe: bool = False) -> list[dict[str, Tensor]]:
    """Loads the model in a thread of its own, and runs the requests as one batch."""

    async def main() -> list[dict[str, Tensor]]:
        worker = Worker("test")
        engine = ModelEngine(model, worker)
        try:
            await engine.load()
            if probe:
                assert await engine.probe() is None
            return (await engine.execute(list(requests))).outputs if requests else []
        finally:
            engine.stop()
            worker.stop()
            assert worker.join(5)

    return asyncio.run(main())


@pytest.fixture
def doubler(write_onnx: WriteOnnx) -> Path:
    return write_onnx([helper.make_node("Add", ["x", "x"], ["y"])], [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])


def test_the_metadata_of_a_file(doubler: Path) -> None:
    spec = opened(doubler, max_batch=8).load()
    assert spec.inputs is not None
    assert spec.outputs is not None
    (x,), (y,) = spec.inputs, spec.outputs
    assert (x.name, x.datatype, x.shape, x.symbols) == ("x", "FP32", (-1, 2), ("n", None))
    assert (y.name, y.datatype, y.shape) == ("y", "FP32", (-1, 2))
    assert (spec.platform, spec.max_batch, spec.concurrency) == ("onnxruntime_onnx", 8, 16)
    assert opened(doubler).load().concurrency == 1


def test_a_batch_of_two_requests_is_answered_row_by_row(doubler: Path) -> None:
    first = [Tensor("x", "FP32", (1, 2), struct.pack("<2f", 1, 2))]
    second = [Tensor("x", "FP32", (2, 2), memoryview(b"?" + struct.pack("<4f", 3, 4, 5, 6))[1:])]
    one, two = run(opened(doubler, max_batch=8), first, second, probe=True)
    assert (one["y"].shape, bytes(one["y"].data)) == ((1, 2), struct.pack("<2f", 2, 4))  # type: ignore[arg-type]  # not BYTES
    assert (two["y"].shape, bytes(two["y"].data)) == ((2, 2), struct.pack("<4f", 6, 8, 10, 12))  # type: ignore[arg-type]  # not BYTES


def test_an_empty_batch_has_an_empty_answer(doubler: Path) -> None:
    (answer,) = run(opened(doubler), [Tensor("x", "FP32", (0, 2), b"")])
    assert (answer["y"].shape, bytes(answer["y"].data)) == ((0, 2), b"")  # type: ignore[arg-type]  # not BYTES


def test_a_fixed_first_dimension_means_no_batches(write_onnx: WriteOnnx, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_onnx([helper.make_node("Add", ["x", "x"], ["y"])], [("x", FLOAT, [1, 2])], [("y", FLOAT, [1, 2])])
    assert opened(path, max_batch=8).load().max_batch == 1
    assert "no batches: the first dimension of an input or output has a fixed length" in capsys.readouterr().err


def test_a_free_first_dimension_that_is_no_batch_is_found_out(write_onnx: WriteOnnx) -> None:
    path = write_onnx(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], [("x", FLOAT, ["n"])], [("y", FLOAT, ["m"])]
    )
    one = [Tensor("x", "FP32", (1,), bytes(4))]
    with pytest.raises(NotBatchable):
        run(opened(path, max_batch=8), one, one)


def test_strings_are_text(write_onnx: WriteOnnx) -> None:
    path = write_onnx([helper.make_node("Identity", ["x"], ["y"])], [("x", STRING, [None])], [("y", STRING, [None])])
    (answer,) = run(opened(path), [Tensor("x", "BYTES", (2,), ["é".encode(), b""])], probe=True)
    assert answer["y"].data == ["é".encode(), b""]
    with pytest.raises(RequestError, match="input 'x': a string is not UTF-8"):
        run(opened(path), [Tensor("x", "BYTES", (1,), [b"\xff"])])


def test_inputs_that_only_the_runtime_can_judge_are_the_callers_fault(write_onnx: WriteOnnx) -> None:
    # Unnamed free dimensions: only ONNX Runtime knows that both must be equal.
    path = write_onnx(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        [("x", FLOAT, [None]), ("i", INT64, [None])],
        [("y", FLOAT, [None])],
    )
    tensors = [Tensor("x", "FP32", (1,), bytes(4)), Tensor("i", "INT64", (1,), struct.pack("<q", 7))]
    with pytest.raises(RequestError, match="ONNX Runtime refuses the inputs"):
        run(opened(path), tensors)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "there is no file"), (b"", "is not a model that ONNX Runtime can load"), (b"junk" * 100, "is not a model")],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadError, match=says):
        opened(path).load()


def test_a_provider_that_is_not_there_is_named(doubler: Path) -> None:
    model = OnnxModel(str(doubler), threads=None, max_batch=1, providers=["NoSuchProvider"])
    with pytest.raises(LoadError, match=r"no provider NoSuchProvider; it has .*CPUExecutionProvider"):
        model.load()


def test_inputs_that_the_protocol_cannot_carry(write_onnx: WriteOnnx) -> None:
    path = write_onnx(
        [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)],
        [("x", TensorProto.BFLOAT16, [1])],
        [("y", FLOAT, [1])],
    )
    with pytest.raises(LoadError, match=r"tensor\(bfloat16\), which the protocol cannot carry"):
        opened(path).load()


def test_only_tensors_are_shown_of_the_outputs(write_onnx: WriteOnnx, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_onnx(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["z"], to=TensorProto.BFLOAT16)],
        [("x", FLOAT, [1])],
        [("y", FLOAT, [1]), ("z", TensorProto.BFLOAT16, [1])],
    )
    spec = opened(path).load()
    assert spec.outputs is not None
    assert [output.name for output in spec.outputs] == ["y"]
    assert "output 'z' is left out" in capsys.readouterr().err
    only = write_onnx(
        [helper.make_node("Cast", ["x"], ["z"], to=TensorProto.BFLOAT16)],
        [("x", FLOAT, [1])],
        [("z", TensorProto.BFLOAT16, [1])],
        "only.onnx",
    )
    with pytest.raises(LoadError, match="no output is a tensor that the protocol can carry"):
        opened(only).load()


def test_a_model_with_further_free_dimensions_need_not_answer_made_up_inputs(write_onnx: WriteOnnx) -> None:
    fixed = write_onnx([helper.make_node("Add", ["x", "x"], ["y"])], [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])
    free = write_onnx(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", FLOAT, ["n", "m"]), ("s", INT64, [1])],
        [("y", FLOAT, ["k"])],
        "free.onnx",
    )
    model, other = opened(fixed), opened(free)
    model.load()
    other.load()
    assert model.must_pass()
    assert not other.must_pass()
