"""A Python class as a model: ``handler.py:Class``.

The class has ``predict(self, inputs)`` and may have ``load(self)``; either may be ``async``. ``inputs`` maps names to
numpy arrays. Without numpy, or with ``arrays = "plain"`` (which saves the import of numpy: about 0.1 s of every cold
start), they are nested lists. The result is a mapping of names to arrays or lists, or one array or list. Class
attributes that are read, all optional:

``inputs``, ``outputs``   its tensors: ``{"name": ("FP32", [-1, 4])}``; checked, and shown as metadata
``max_batch_size``        largest batch in rows; above 1, requests may share a call ``concurrency``           requests
at a time that it wants; for an async ``predict``, calls at a time ``arrays``                ``"numpy"`` or ``"plain"``
"""

import asyncio
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Awaitable, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, zeros
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.arrays import Arrays, NumpyArrays, PlainArrays
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

_PACKAGE = "tidegate"


class HandlerModel:
    """One instance of a user's class."""

    def __init__(self, path: str, class_name: str, *, max_batch: int, copy: str | None = None) -> None:
        """``copy`` is read instead of ``path``, which stays the module's file in all other respects."""
        self._path = Path(path)
        self._source = Path(path if copy is None else copy)
        self._class_name = class_name
        self._max_batch = max_batch
        self._arrays: Arrays = PlainArrays()
        self._instance: Any = None
        self._spec = ModelSpec("python", None, None)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def runners(self) -> int:
        return self._spec.concurrency if self._loop is not None else 1

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    @property
    def arrays(self) -> Arrays:
        return self._arrays

    def load(self) -> ModelSpec:
        kind = self._find_class()
        self._spec = _read_attributes(kind, self._max_batch)
        self._arrays = _choose_arrays(kind, str(self._path.resolve().parent))
        try:
            self._instance = kind()
            self._load_instance()
        except BaseException as error:
            traceback.print_exception(error)
            raise LoadError(f"{self._class_name} failed to load: {_describe(error, self._path)}") from error
        return self._spec

    def _load_instance(self) -> None:
        load = getattr(self._instance, "load", None)
        loop = None
        if inspect.iscoroutinefunction(load) or inspect.iscoroutinefunction(self._instance.predict):
            loop = asyncio.new_event_loop()
        loading = load() if load is not None else None
        if loop is not None and inspect.isawaitable(loading):
            loop.run_until_complete(loading)
        if inspect.iscoroutinefunction(self._instance.predict):
            self._loop = loop
        elif loop is not None:
            loop.close()

    def probe(self) -> Inputs | None:
        declared = self._spec.inputs
        if not declared or any(spec.datatype == tensors.BYTES for spec in declared):
            return None
        return [zeros(spec) for spec in declared]

    def must_pass(self) -> bool:
        """Returns False: a class may have a reason to refuse zeros."""
        return False

    def run(self, inputs: dict[str, Any], arrived: float = 0.0) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        if self._loop is not None:
            return self._run_async(inputs)
        try:
            result = self._instance.predict(inputs)
        except RequestError:
            raise
        except BaseException as error:
            raise self._failure(error) from error
        return self._name(result)

    async def _run_async(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        try:
            result = await self._instance.predict(inputs)
        except (RequestError, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise self._failure(error) from error
        return self._name(result)

    def _failure(self, error: BaseException) -> ModelError:
        traceback.print_exception(error)
        return ModelError(_describe(error, self._path))

    def _name(self, result: Any) -> Mapping[str, Any]:
        """Returns the result as a mapping of output names. Raises ModelError if it is not what ``outputs`` declares."""
        outputs = self._spec.outputs
        if result is None:
            raise ModelError("predict returned None")
        if not isinstance(result, Mapping):
            if outputs is not None and len(outputs) != 1:
                raise ModelError(f"predict must return a mapping: {len(outputs)} outputs are declared")
            return {outputs[0].name if outputs else "output": result}
        names = [str(name) for name in result]
        if outputs is not None and sorted(names) != sorted(output.name for output in outputs):
            declared = ", ".join(output.name for output in outputs)
            raise ModelError(f"predict returned {', '.join(names) or 'nothing'}; declared: {declared}")
        return dict(zip(names, result.values(), strict=True))

    def _find_class(self) -> Any:
        if not self._source.is_file():
            raise LoadError(f"there is no file {self._source}")
        try:
            module = _import_file(self._path, self._source)
        except LoadError:
            raise
        except BaseException as error:
            traceback.print_exception(error)
            raise LoadError(f"{self._path.name} cannot be imported: {_describe(error, self._path)}") from error
        kind = getattr(module, self._class_name, None)
        if not inspect.isclass(kind):
            classes = sorted(name for name, value in vars(module).items() if inspect.isclass(value))
            known = f"; it has {', '.join(classes)}" if classes else ""
            raise LoadError(f"{self._path.name} has no class {self._class_name}{known}")
        if not callable(getattr(kind, "predict", None)):
            raise LoadError(f"class {self._class_name} in {self._path.name} has no method predict(self, inputs)")
        return kind


class _CopyLoader(SourceFileLoader):
    """Loads a module from a copy of its file, without the bytecode that may lie beside the file."""

    def __init__(self, name: str, path: str, source: Path) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        data = self._source.read_bytes()
        lines = decode_source(data).splitlines(keepends=True)
        linecache.cache[self.path] = (len(data), None, lines, self.path)  # For tracebacks; without a time it is kept.
        return self.source_to_code(data, self.path)


def _import_file(path: Path, source: Path) -> ModuleType:
    """Imports the user's file with its folder first on the path. ``source`` is the file that is read.

    All our modules that are needed have been imported by now, so that a ``gateway.py`` or ``queue.py`` beside it
    shadows none of them. Only a ``tidegate`` of the user's own could not be reached by its name and is refused.
    """
    folder = path.resolve().parent
    ours = Path(__file__).resolve().parents[2]
    for rival in (folder / f"{_PACKAGE}.py", folder / _PACKAGE):
        if rival.exists() and rival.resolve() != ours:
            raise LoadError(f"{rival} has the name of Tidegate's own package: rename it")
    sys.path.insert(0, str(folder))
    name = path.stem if path.stem not in sys.modules else f"_handler_{path.stem}"
    loader = None if source == path else _CopyLoader(name, str(path), source)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _read_attributes(kind: Any, max_batch: int) -> ModelSpec:
    declared = _whole_number(kind, "max_batch_size")
    bounds = [size for size in (declared, max_batch) if size is not None and size > 1]
    batch = 1 if declared == 1 else min(bounds, default=1)
    concurrency = _whole_number(kind, "concurrency")
    return ModelSpec(
        platform="python",
        inputs=_tensor_specs(kind, "inputs"),
        outputs=_tensor_specs(kind, "outputs"),
        max_batch=batch,
        max_rows=declared if declared is not None and declared > 1 else None,
        concurrency=concurrency if concurrency is not None else concurrency_for(batch),
    )


def _whole_number(kind: Any, attribute: str) -> int | None:
    value = getattr(kind, attribute, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LoadError(f"{kind.__name__}.{attribute} must be a whole number from 1, got {value!r}")
    return value


def _tensor_specs(kind: Any, attribute: str) -> tuple[TensorSpec, ...] | None:
    value = getattr(kind, attribute, None)
    if value is None:
        return None
    where = f"{kind.__name__}.{attribute}"
    if not isinstance(value, Mapping) or not value:
        raise LoadError(f'{where} must be a mapping such as {{"x": ("FP32", [-1, 4])}}, got {value!r}')
    specs = []
    for name, declared in value.items():
        try:
            datatype, shape = declared
            sizes = tuple(int(size) for size in shape)
        except (TypeError, ValueError):
            raise LoadError(f"{where}[{name!r}] must be (datatype, shape), got {declared!r}") from None
        if datatype not in tensors.DATATYPES or any(size < -1 for size in sizes):
            known = ", ".join(sorted(tensors.DATATYPES))
            raise LoadError(f"{where}[{name!r}]: got {declared!r}; datatypes are {known}, sizes -1 (any) or from 0")
        specs.append(TensorSpec(str(name), datatype, sizes))
    return tuple(specs)


def _choose_arrays(kind: Any, folder: str) -> Arrays:
    choice = getattr(kind, "arrays", None)
    if choice not in (None, "numpy", "plain"):
        raise LoadError(f'{kind.__name__}.arrays must be "numpy" or "plain", got {choice!r}')
    if choice == "plain":
        return PlainArrays()
    sys.path.remove(folder)  # numpy must not import a random.py beside the handler.
    try:
        import numpy
    except ImportError as error:
        if choice == "numpy":
            raise LoadError(f"{kind.__name__}.arrays is numpy, but {sys.executable} cannot import it") from error
        return PlainArrays()
    finally:
        sys.path.insert(0, folder)
    return NumpyArrays(numpy, writable=True)


def _describe(error: BaseException, path: Path) -> str:
    """Returns kind and message of an error, and the last line of the user's own file in its traceback. No stack
    trace."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" ({path.name}, line {own[-1].lineno})" if own else ""
    return " ".join(text.split())[:500] + place
