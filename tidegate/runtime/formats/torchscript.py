"""TorchScript modules, as ``torch.jit.save`` writes them.

Such a file has the names of ``forward``'s arguments, but neither their datatypes nor their shapes. The manifest may
declare them (``args: {inputs: '{"x": ["FP32", [-1, 4]]}'}``); then requests are checked, and metadata shows them.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Final

from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.handler import declared_specs
from tidegate.runtime.execute.model import zeros
from tidegate.runtime.formats.arrays_model import ArraysModel, LoaderSettings, first_line
from tidegate.runtime.protocols.tensors import BYTES
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, unknown

OUTPUT: Final = "output"
_HINT: Final = (
    ". torch.save keeps weights without their code: write the file by torch.jit.save, or serve a Python class that "
    "builds the network"
)


class TorchscriptModel(ArraysModel):
    """One module."""

    library = "PyTorch"

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(settings)
        self._device = "cuda" if settings.has_gpu else "cpu"
        self._torch: Any = None
        self._module: Any = None
        self._inputs: tuple[TensorSpec, ...] | None = None
        self._names: tuple[str, ...] = ()
        self._required: tuple[str, ...] = ()

    def prepare(self) -> ModelSpec:
        _, torch = self.imported("files of TorchScript", ("torch",), "torch", "torchscript")
        self._torch = torch
        if self._device == "cuda" and not torch.cuda.is_available():
            raise LoadError("the replica has a GPU, but this build of PyTorch cannot use it")
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        warnings.filterwarnings("ignore", message="`torch.jit.load` is deprecated")  # The format has no other loader.
        self._module = self.opened(
            lambda: torch.jit.load(self.settings.source, map_location=self._device), _HINT
        ).eval()
        arguments = self._module.forward.schema.arguments[1:]
        self._names = tuple(each.name for each in arguments)
        self._required = tuple(each.name for each in arguments if not each.has_default_value())
        self._inputs = self._declared()
        made_up = None
        if self._inputs is not None:
            made_up = {spec.name: self.arrays.decode(zeros(spec)) for spec in self._inputs}
        return self.spec(
            "pytorch_torchscript",
            self._inputs,
            made_up,
            notes={} if self._inputs is not None else {"arguments": list(self._names)},
        )

    def compute(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        torch = self._torch
        if self._inputs is None:
            self._check(list(inputs))
        tensors = {name: torch.from_numpy(values).to(self._device) for name, values in inputs.items()}
        try:
            with torch.inference_mode():
                found = self._module(**tensors)
        except torch.cuda.OutOfMemoryError as error:
            raise ModelError(f"PyTorch failed: {first_line(error)}") from error
        except RuntimeError as error:
            if self._inputs is not None:
                raise
            raise RequestError(
                f"PyTorch refuses the inputs: {_last_line(error)} (the model declares neither datatypes nor shapes)"
            ) from error
        return {name: _array(value) for name, value in _named(found).items()}

    def _declared(self) -> tuple[TensorSpec, ...] | None:
        if "inputs" not in self.settings.arguments:
            return None
        specs = declared_specs("args.inputs", self.settings.arguments["inputs"])
        names = [spec.name for spec in specs]
        wrong = [name for name in names if name not in self._names]
        missing = [name for name in self._required if name not in names]
        if wrong or missing or any(spec.datatype == BYTES for spec in specs):
            raise LoadError(f"args.inputs must name tensors of numbers for the arguments of forward: {self._takes()}")
        return specs

    def _check(self, given: list[str]) -> None:
        for name in given:
            if name not in self._names:
                raise RequestError(unknown("input", name, self._names))
        missing = [name for name in self._required if name not in given]
        if missing:
            raise RequestError(f"input '{missing[0]}' is missing")

    def _takes(self) -> str:
        return ", ".join(name if name in self._required else f"{name} (optional)" for name in self._names)


def _named(found: Any) -> dict[str, Any]:
    """Returns the outputs by name: those of a dictionary, ``output`` for a tensor, ``output_0`` and so on for more."""
    if isinstance(found, Mapping):
        return {str(name): value for name, value in found.items()}
    if isinstance(found, tuple | list):
        names = getattr(found, "_fields", None) or [f"{OUTPUT}_{at}" for at in range(len(found))]
        return dict(zip(names, found, strict=True))
    return {OUTPUT: found}


def _array(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()


def _last_line(error: BaseException) -> str:
    """Returns the reason of an error in TorchScript, which comes after the lines of its own trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].removeprefix("RuntimeError: ")[:500]
