"""TorchScript modules: names of arguments, declared tensors, outputs of any form. By a stand-in for PyTorch with its
documented calls; ``make test-torch`` tries the real one."""

import contextlib
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tests.tidegate.runtime.formats.conftest import Answers, Modules
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.formats.arrays_model import LoaderSettings
from tidegate.runtime.formats.torchscript import TorchscriptModel
from tidegate.runtime.protocols.tensors import Tensor

Pair = namedtuple("Pair", ("mean", "deviation"))


class FakeTensor:
    def __init__(self, values: Any, dtype: str = "torch.float32") -> None:
        self.values, self.dtype = values, dtype

    def to(self, device: str) -> "FakeTensor":
        return self

    def detach(self) -> "FakeTensor":
        return self

    def cpu(self) -> "FakeTensor":
        return self

    def float(self) -> "FakeTensor":
        return FakeTensor(self.values.astype("float32"))

    def numpy(self) -> Any:
        assert "bfloat16" not in self.dtype
        return self.values


class OutOfMemoryError(RuntimeError):
    pass


class Module:
    """``forward(x, mask=None)``, which gives what ``make`` makes of its tensors."""

    def __init__(self, make: Any) -> None:
        self._make = make
        arguments = [_argument("self"), _argument("x"), _argument("mask", has_default=True)]
        self.forward = SimpleNamespace(schema=SimpleNamespace(arguments=arguments))

    def eval(self) -> "Module":
        return self

    def __call__(self, **given: FakeTensor) -> Any:
        return self._make(**given)


def _argument(name: str, *, has_default: bool = False) -> Any:
    return SimpleNamespace(name=name, has_default_value=lambda: has_default)


def model(tmp_path: Path, modules: Modules, make: Any, *, has_gpu: bool = False, **arguments: Any) -> TorchscriptModel:
    path = tmp_path / "m.pt"
    path.write_bytes(b"zip")

    def load(source: str, map_location: str) -> Any:
        if not Path(source).read_bytes():
            raise RuntimeError("failed locating file constants.pkl\nmore")
        return Module(make)

    torch = SimpleNamespace(
        jit=SimpleNamespace(load=load),
        from_numpy=FakeTensor,
        inference_mode=contextlib.nullcontext,
        cuda=SimpleNamespace(is_available=lambda: False, OutOfMemoryError=OutOfMemoryError),
    )
    settings = LoaderSettings(
        path=str(path),
        source=str(path),
        max_batch=4,
        has_gpu=has_gpu,
        arguments=arguments,
        import_module=modules(torch=torch),
    )
    return TorchscriptModel(settings)


def doubled(x: FakeTensor, mask: FakeTensor | None = None) -> FakeTensor:
    if x.values.shape[-1] != 2:
        raise RuntimeError("The following operation failed.\nRuntimeError: shapes cannot be multiplied")
    return FakeTensor(2 * x.values)


DECLARED = {"x": ["FP32", [-1, 2]]}


def test_declared_inputs_are_checked_and_shown_with_the_outputs_of_a_first_run(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    request = [Tensor("x", "FP32", (1, 2), bytes(8))]
    spec, (one, _) = answers(model(tmp_path, modules, doubled, inputs=DECLARED), request, request)
    assert spec.inputs is not None
    assert spec.outputs is not None
    assert spec.inputs[0].as_metadata() == {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    assert spec.outputs[0].as_metadata() == {"name": "output", "datatype": "FP32", "shape": [-1, 2]}
    assert (spec.max_batch, spec.notes) == (4, {})
    assert one["output"].shape == (1, 2)


def test_without_declared_inputs_the_names_are_those_of_forward(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    kept = model(tmp_path, modules, doubled)
    spec, _ = answers(kept)
    assert (spec.inputs, spec.outputs, spec.notes) == (None, None, {"arguments": ["x", "mask"]})
    with pytest.raises(RequestError, match="unknown input 'y': this model's inputs are x, mask"):
        kept.run({"y": numpy.zeros((1, 2))})
    with pytest.raises(RequestError, match="input 'x' is missing"):
        kept.run({"mask": numpy.zeros((1, 2))})
    with pytest.raises(RequestError, match="refuses the inputs: shapes cannot be multiplied"):
        kept.run({"x": numpy.zeros((1, 3))})


def test_a_failure_on_declared_inputs_is_the_models_and_so_is_a_full_device(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    kept = model(tmp_path, modules, doubled, inputs={"x": ["FP32", [-1, -1]]})
    answers(kept)
    with pytest.raises(ModelError, match="PyTorch failed: RuntimeError: The following operation failed"):
        kept.run({"x": numpy.zeros((1, 3))})

    def full(x: FakeTensor) -> FakeTensor:
        raise OutOfMemoryError("CUDA out of memory")

    kept = model(tmp_path, modules, full)
    answers(kept)
    with pytest.raises(ModelError, match="CUDA out of memory"):
        kept.run({"x": numpy.zeros((1, 3))})


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (lambda x: (x, x), ["output_0", "output_1"]),
        (lambda x: Pair(x, x), ["mean", "deviation"]),
        (lambda x: {"logits": x}, ["logits"]),
        (lambda x: FakeTensor(x.values, "torch.bfloat16"), ["output"]),
    ],
)
def test_several_outputs_have_a_name_each(
    tmp_path: Path, modules: Modules, answers: Answers, made: Any, names: list[str]
) -> None:
    _, (answer,) = answers(model(tmp_path, modules, made), [Tensor("x", "FP32", (1, 2), bytes(8))])
    assert list(answer) == names


def test_wrong_declarations_and_files_are_said(tmp_path: Path, modules: Modules) -> None:
    for inputs in ({"z": ["FP32", [-1]]}, {"mask": ["FP32", [-1]]}, {"x": ["BYTES", [-1]]}):
        with pytest.raises(LoadError, match=r"args\.inputs must name tensors of numbers .* x, mask \(optional\)"):
            model(tmp_path, modules, doubled, inputs=inputs).load()
    with pytest.raises(LoadError, match=r"args\.inputs\['x'\]: got .*datatypes are"):
        model(tmp_path, modules, doubled, inputs={"x": ["FLOAT", [-1]]}).load()
    kept = model(tmp_path, modules, doubled)
    Path(kept.settings.source).write_bytes(b"")
    with pytest.raises(LoadError, match=r"constants\.pkl\. torch\.save keeps weights without their code"):
        kept.load()
    with pytest.raises(LoadError, match=r"pip install 'tidegate\[torchscript\]'"):
        TorchscriptModel(LoaderSettings(path="m.pt", source="m.pt", import_module=modules())).load()


def test_a_gpu_that_the_library_cannot_use_is_no_cpu_in_silence(tmp_path: Path, modules: Modules) -> None:
    with pytest.raises(LoadError, match="the replica has a GPU, but this build of PyTorch cannot use it"):
        model(tmp_path, modules, doubled, has_gpu=True).load()
