"""ONNX files, run by ONNX Runtime. numpy and onnxruntime are imported by ``load``, in the model's thread."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, zeros
from tidegate.runtime.formats import mapped
from tidegate.runtime.formats.arrays_model import as_text, first_line, how_to_install
from tidegate.runtime.protocols.arrays import Arrays, NumpyArrays, PlainArrays
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


class OnnxModel:
    """One ``.onnx`` file in one session."""

    def __init__(
        self,
        path: str,
        *,
        threads: int | None,
        max_batch: int,
        providers: Sequence[str],
        copy: str | None = None,
        mapped: str | None = None,
    ) -> None:
        """``copy`` is read instead of ``path``. ``mapped``: folder of its mapped forms; None if there are none."""
        self._path = path
        self._source = path if copy is None else copy
        self._mapped = mapped
        self._threads = threads
        self._max_batch = max_batch
        self._providers = list(providers)
        self._session: Any = None
        self._arrays: Arrays = PlainArrays()
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[str, ...] = ()
        self._bad_argument: type[BaseException] = LoadError

    @property
    def runners(self) -> int:
        return 1

    @property
    def loop(self) -> None:
        return None

    @property
    def arrays(self) -> Arrays:
        return self._arrays

    def load(self) -> ModelSpec:
        if not Path(self._source).is_file():
            raise LoadError(f"there is no file {self._source}")
        runtime = self._import()
        self._session = self._open(runtime)
        mapped.give_back()
        self._inputs = tuple(map(_spec, self._session.get_inputs()))
        outputs = tuple(_spec(value) for value in self._session.get_outputs() if value.type in _DATATYPES)
        for value in self._session.get_outputs():
            if value.type not in _DATATYPES:
                sys.stderr.write(f"output '{value.name}' is left out: the protocol cannot carry {value.type}\n")
        if not outputs:
            raise LoadError(f"{self._path}: no output is a tensor that the protocol can carry")
        self._outputs = tuple(output.name for output in outputs)
        max_batch = self._max_batch if all(_is_free(spec) for spec in (*self._inputs, *outputs)) else 1
        if self._max_batch > max_batch:
            sys.stderr.write("no batches: the first dimension of an input or output has a fixed length\n")
        return ModelSpec(
            platform="onnxruntime_onnx",
            inputs=self._inputs,
            outputs=outputs,
            max_batch=max_batch,
            concurrency=concurrency_for(max_batch),
            is_reentrant=True,
        )

    def probe(self) -> Inputs | None:
        return [zeros(spec) for spec in self._inputs]

    def must_pass(self) -> bool:
        """Returns False if a dimension other than the first is free: it may refuse to be 1 (an image of one pixel), so
        a failure proves nothing."""
        return all(-1 not in spec.shape[1:] for spec in self._inputs)

    def run(self, inputs: dict[str, Any], arrived: float = 0.0) -> Mapping[str, Any]:
        for spec in self._inputs:
            if spec.datatype == "BYTES":
                inputs[spec.name] = as_text(spec.name, inputs[spec.name])
        try:
            values = self._session.run(self._outputs, inputs)
        except self._bad_argument as error:
            raise RequestError(f"ONNX Runtime refuses the inputs: {first_line(error)}") from error
        except Exception as error:
            raise ModelError(f"ONNX Runtime failed: {first_line(error)}") from error
        return dict(zip(self._outputs, values, strict=True))

    def _import(self) -> Any:
        try:
            import numpy
            import onnxruntime
        except ImportError as error:
            raise LoadError(
                f"ONNX files need the packages onnxruntime and numpy in {sys.executable}: {error}. "
                + how_to_install("onnx")
            ) from error
        self._arrays = NumpyArrays(numpy, writable=False)
        self._bad_argument = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument
        return onnxruntime

    def _open(self, runtime: Any) -> Any:
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.inter_op_num_threads = 1
        if self._threads is not None:
            options.intra_op_num_threads = self._threads
        # Threads that spin between runs would burn the cores that neighbouring replicas need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        available = runtime.get_available_providers()
        unknown = [provider for provider in self._providers if provider not in available]
        if unknown:
            raise LoadError(
                f"the onnxruntime in {sys.executable} has no provider {unknown[0]}; it has {', '.join(available)} "
                "(GPUs need the package onnxruntime-gpu)"
            )
        form = None if self._mapped is None else mapped.form_of(self._mapped, runtime.__version__)
        if form is not None and (session := self._open_mapped(runtime, options, form)) is not None:
            return session
        try:
            session = runtime.InferenceSession(self._source, options, providers=self._providers)
        except Exception as error:
            raise LoadError(f"{self._path} is not a model that ONNX Runtime can load: {first_line(error)}") from error
        # ONNX Runtime only warns if a provider's libraries are missing, and uses another device unnoticed.
        lost = [provider for provider in self._providers if provider not in session.get_providers()]
        if lost:
            raise LoadError(f"ONNX Runtime could not start {lost[0]}: its libraries or its device are missing")
        if form is not None and mapped.is_wanted(self._source, form):
            mapped.write_soon(self._source, form)
        return session

    def _open_mapped(self, runtime: Any, options: Any, form: Path) -> Any:
        """Returns a session over the mapped form. None if there is none, or it cannot be loaded."""
        path = form / mapped.MODEL
        if not path.is_file():
            return None
        try:
            return runtime.InferenceSession(str(path), options, providers=self._providers)
        except Exception as error:
            sys.stderr.write(f"{path} is not used: {first_line(error)}\n")
            return None


def _spec(value: Any) -> TensorSpec:
    datatype = _DATATYPES.get(value.type)
    if datatype is None:
        raise LoadError(f"input '{value.name}' has the type {value.type}, which the protocol cannot carry")
    sizes = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in value.shape)
    symbols = tuple(size if isinstance(size, str) else None for size in value.shape)
    return TensorSpec(value.name, datatype, sizes, symbols)


def _is_free(spec: TensorSpec) -> bool:
    return bool(spec.shape) and spec.shape[0] == -1
