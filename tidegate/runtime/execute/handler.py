"""A Python class as a model: ``handler.py:Class``.

The class has ``predict(self, inputs)`` and may have ``load(self)``; either may be ``async``. ``inputs`` maps names to
numpy arrays. Without numpy, or with ``arrays = "plain"`` (which saves the import of numpy: about 0.1 s of every cold
start), they are nested lists. The result is a mapping of names to arrays or lists, or one array or list. Class
attributes that are read, all optional:

``inputs``, ``outputs``   its tensors: ``{"name": ("FP32", [-1, 4])}``; checked, and shown as metadata
``max_batch_size``        largest batch in rows; above 1, requests may share a call ``concurrency``           requests
at a time that it wants; for an async ``predict``, calls at a time ``arrays``                ``"numpy"`` or ``"plain"``

A ``predict`` that yields streams: each item is one answer, of the same form as a result. It may have a second argument
``parameters``, a mapping with the parameters of the request.
"""

import asyncio
import importlib.util
import inspect
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegate.aio.log_stream import say_error
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute import local_modules
from tidegate.runtime.execute.model import Inputs, zeros
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.arrays import Arrays, NumpyArrays, PlainArrays
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

_PACKAGE = "tidegate"
_ASYNC_CONCURRENCY = 4
"""Calls at a time of an async ``predict`` that states no number."""


class HandlerModel:
    """One instance of a user's class."""

    def __init__(
        self,
        path: str,
        class_name: str,
        *,
        max_batch: int,
        copy: str | None = None,
        modules: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """``arguments`` are those of the class. ``copy`` is read instead of ``path``, which stays the module's file in
        all other respects. ``modules`` is a bundle of modules beside it, which are imported from there."""
        self._path = Path(path)
        self._source = Path(path if copy is None else copy)
        self._bundle = None if modules is None else Path(modules)
        self._class_name = class_name
        self._arguments = dict(arguments or {})
        self._max_batch = max_batch
        self._arrays: Arrays = PlainArrays()
        self._instance: Any = None
        self._spec = ModelSpec("python", None, None)
        self._takes_parameters = False
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
            self._instance = kind(**self._arguments)
            self._load_instance()
        except BaseException as error:
            say_error(error)
            raise LoadError(f"{self._class_name} failed to load: {described(error, self._path)}") from error
        return self._spec

    def _load_instance(self) -> None:
        load = getattr(self._instance, "load", None)
        predict = self._instance.predict
        is_async = inspect.iscoroutinefunction(predict) or inspect.isasyncgenfunction(predict)
        self._takes_parameters = self._spec.streams and "parameters" in inspect.signature(predict).parameters
        loop = None
        if inspect.iscoroutinefunction(load) or is_async:
            loop = asyncio.new_event_loop()
        loading = load() if load is not None else None
        if loop is not None and inspect.isawaitable(loading):
            loop.run_until_complete(loading)
        if is_async:
            self._loop = loop
        elif loop is not None:
            loop.close()

    def probe(self) -> Inputs | None:
        declared = self._spec.inputs
        if not declared or self._spec.streams or any(spec.datatype == tensors.BYTES for spec in declared):
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

    def stream(
        self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> Generator[Mapping[str, Any], None, None] | AsyncGenerator[Mapping[str, Any], None]:
        more = {"parameters": parameters} if self._takes_parameters else {}
        items = self._instance.predict(inputs, **more)
        return self._named(items) if self._loop is None else self._named_async(items)

    def _named(self, items: Generator[Any, None, None]) -> Generator[Mapping[str, Any], None, None]:
        try:
            for item in items:
                yield self._name(item)
        except (RequestError, ModelError, GeneratorExit):
            raise
        except BaseException as error:
            raise self._failure(error) from error
        finally:
            try:
                items.close()
            except BaseException as error:  # The client has left or has its answer: only the log can have it.
                say_error(error)

    async def _named_async(self, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            async for item in items:
                yield self._name(item)
        except (RequestError, ModelError, GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise self._failure(error) from error
        finally:
            try:
                await items.aclose()
            except Exception as error:  # As above.
                say_error(error)

    def _failure(self, error: BaseException) -> ModelError:
        say_error(error)
        return ModelError(describe(error, self._path))

    def _name(self, result: Any) -> Mapping[str, Any]:
        """Returns the result as a mapping of output names. Raises ModelError if it is not what ``outputs`` declares."""
        outputs = self._spec.outputs
        if result is None:
            raise ModelError(f"predict {'yielded' if self._spec.streams else 'returned'} None")
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise ModelError("predict returned a generator: write predict itself with yield, and its answers stream")
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
            module = import_file(self._path, self._source, self._bundle)
        except LoadError:
            raise
        except BaseException as error:
            say_error(error)
            raise LoadError(f"{self._path.name} cannot be imported: {described(error, self._path)}") from error
        kind = getattr(module, self._class_name, None)
        if not inspect.isclass(kind):
            classes = sorted(name for name, value in vars(module).items() if inspect.isclass(value))
            known = f"; it has {', '.join(classes)}" if classes else ""
            raise LoadError(f"{self._path.name} has no class {self._class_name}{known}")
        if not callable(getattr(kind, "predict", None)):
            raise LoadError(f"class {self._class_name} in {self._path.name} has no method predict(self, inputs)")
        return kind


def import_file(path: Path, source: Path, bundle: Path | None) -> ModuleType:
    """Imports the user's file with its folder first on the path. ``source`` is the file that is read, ``bundle`` has
    the modules beside it.

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
    if bundle is not None:
        local_modules.install(folder, bundle)
    loader = None if source == path else local_modules.ContentLoader(name, str(path), source.read_bytes())
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
    is_async_stream = inspect.isasyncgenfunction(kind.predict)
    streams = is_async_stream or inspect.isgeneratorfunction(kind.predict)
    batch = 1 if declared == 1 or streams else min(bounds, default=1)
    concurrency = _whole_number(kind, "concurrency")
    return ModelSpec(
        platform="python",
        inputs=tensor_specs(kind, "inputs"),
        outputs=tensor_specs(kind, "outputs"),
        max_batch=batch,
        max_rows=declared if declared is not None and declared > 1 else None,
        streams=streams,
        concurrency=concurrency if concurrency is not None else _concurrency_of(kind, batch),
    )


def _concurrency_of(kind: Any, batch: int) -> int:
    if batch == 1 and (inspect.iscoroutinefunction(kind.predict) or inspect.isasyncgenfunction(kind.predict)):
        return _ASYNC_CONCURRENCY
    return concurrency_for(batch)


def _whole_number(kind: Any, attribute: str) -> int | None:
    value = getattr(kind, attribute, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LoadError(f"{kind.__name__}.{attribute} must be a whole number from 1, got {value!r}")
    return value


def tensor_specs(kind: Any, attribute: str) -> tuple[TensorSpec, ...] | None:
    """Returns the tensors that a class declares in ``inputs`` or ``outputs``. Raises LoadError if they are invalid."""
    value = getattr(kind, attribute, None)
    return None if value is None else declared_specs(f"{kind.__name__}.{attribute}", value)


def declared_specs(where: str, value: Any) -> tuple[TensorSpec, ...]:
    """Returns the tensors of ``{"x": ("FP32", [-1, 4])}``. Raises LoadError, with ``where``, if it is invalid."""
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


def described(error: BaseException, path: Path) -> str:
    """Returns :func:`describe`, and for a module that is missing how to have it."""
    text = describe(error, path)
    if not isinstance(error, ModuleNotFoundError):
        return text
    have = "`deploy --requirements FILE` installs what a file lists, `--python PATH` chooses another interpreter"
    return f"{text}. It runs under {sys.executable}; {have}"


def describe(error: BaseException, path: Path) -> str:
    """Returns kind and message of an error, and the last line of the user's own file in its traceback. No stack
    trace."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" ({path.name}, line {own[-1].lineno})" if own else ""
    return " ".join(text.split())[:500] + place
