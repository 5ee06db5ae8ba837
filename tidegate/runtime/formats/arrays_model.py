"""The common part of models of a library: calls one at a time, on numpy arrays; a first run shows the outputs.

No library is imported by its name. ``import_module`` is an argument, so that a test passes a stand-in.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.aio.log_stream import say_error
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.model import Inputs
from tidegate.runtime.protocols.arrays import Arrays, NumpyArrays, PlainArrays
from tidegate.runtime.protocols.tensors import ITEM_SIZES, Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

ImportModule = Callable[[str], Any]

NUMBERS: Final = tuple(sorted(ITEM_SIZES))
"""Every datatype but BYTES."""
MAX_REASON: Final = 160
"""Characters of a library's reason that leave room for the hint after it: a line of a log is shown up to 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """One model, and how its library is to run it."""

    path: str
    """Path of the file or folder, for messages."""
    source: str
    """Path that is read: ``path``, or a copy of the file."""
    max_batch: int = 1
    threads: int | None = None
    """Threads for one inference. None is the library's own choice."""
    has_gpu: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the loader (``args`` of a manifest)."""
    import_module: ImportModule = importlib.import_module


class ArraysModel(ABC):
    """A model of a library. Subclasses load it, and compute outputs from inputs."""

    library: str
    """Name of the library in messages."""

    def __init__(self, settings: LoaderSettings) -> None:
        self.settings = settings
        self._arrays: Arrays = PlainArrays()

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
        try:
            return self.prepare()
        except LoadError:
            raise
        except Exception as error:
            say_error(error)
            raise LoadError(f"{self.settings.path} cannot be prepared: {described(error)}") from error

    @abstractmethod
    def prepare(self) -> ModelSpec:
        """Loads the model. Raises LoadError."""

    @abstractmethod
    def compute(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        """Returns outputs by name. Raises ValueError for values that the model refuses."""

    def probe(self) -> Inputs | None:
        """Returns None: ``load`` has run the model."""
        return None

    def must_pass(self) -> bool:
        return False

    def run(self, inputs: dict[str, Any], arrived: float = 0.0) -> Mapping[str, Any]:
        try:
            return self.compute(inputs)
        except (RequestError, ModelError):
            raise
        except ValueError as error:
            raise RequestError(f"{self.library} refuses the inputs: {first_line(error)}") from error
        except Exception as error:
            say_error(error)
            raise ModelError(f"{self.library} failed: {described(error)}") from error

    def imported(self, what: str, names: Sequence[str], packages: str, extra: str) -> list[Any]:
        """Returns numpy and the modules ``names``, and prepares arrays. Raises LoadError, which names the extra."""
        try:
            numpy, *found = [self.settings.import_module(name) for name in ("numpy", *names)]
        except ImportError as error:
            raise LoadError(f"{what} need {packages} in {sys.executable}: {error}. {how_to_install(extra)}") from error
        self._arrays = NumpyArrays(numpy, writable=True)
        return [numpy, *found]

    def opened(self, load: Callable[[], Any], hint: str = "") -> Any:
        """Returns what ``load`` reads from the file. Raises LoadError with the library's reason and ``hint``."""
        if not Path(self.settings.source).exists():
            raise LoadError(f"there is no file {self.settings.source}")
        try:
            return load()
        except Exception as error:
            reason = described(error)[:MAX_REASON]
            raise LoadError(f"{self.library} cannot load {self.settings.path}: {reason}{hint}") from error

    def spec(
        self,
        platform: str,
        inputs: tuple[TensorSpec, ...] | None,
        made_up: Mapping[str, Any] | None,
        *,
        batches: bool = True,
        notes: Mapping[str, Any] | None = None,
    ) -> ModelSpec:
        """Returns the specification. The outputs are those of a first run on the inputs ``made_up``; they stay unknown
        if it fails, or without such inputs."""
        outputs = None if made_up is None else self._first_run(dict(made_up))
        free = all(each.shape[:1] == (-1,) for each in (*(inputs or ()), *(outputs or ())))
        max_batch = self.settings.max_batch if batches and free else 1
        return ModelSpec(
            platform=platform,
            inputs=inputs,
            outputs=outputs,
            max_batch=max_batch,
            concurrency=concurrency_for(max_batch),
            notes={} if notes is None else notes,
        )

    def _first_run(self, made_up: dict[str, Any]) -> tuple[TensorSpec, ...] | None:
        try:
            values = self.compute(made_up)
            return tuple(_shown(self._arrays.encode(name, value, None)) for name, value in values.items())
        except Exception as error:
            sys.stderr.write(
                "its outputs are not known: a first run on made-up inputs failed, which need not mean anything: "
                f"{described(error)}\n"
            )
            return None


def _shown(tensor: Tensor) -> TensorSpec:
    """Returns the specification of an output, of which the first run had one row."""
    first = (-1,) if tensor.shape[:1] == (1,) else tensor.shape[:1]
    return TensorSpec(tensor.name, tensor.datatype, (*first, *tensor.shape[1:]))


def how_to_install(extra: str) -> str:
    """Returns the two ways to a library that the interpreter lacks."""
    return (
        f"`pip install 'tidegate[{extra}]'` installs that there; `tidegate deploy --requirements FILE` makes an "
        "interpreter with what a file lists"
    )


def as_text(name: str, values: Any) -> Any:
    """Returns an array of strings for an array of ``bytes``. Raises RequestError for bytes that are not UTF-8."""
    out = values.copy()
    flat = out.reshape(-1)
    for at, item in enumerate(flat):
        try:
            flat[at] = item.decode()
        except UnicodeDecodeError:
            raise RequestError(f"input '{name}': a string is not UTF-8") from None
    return out


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]


def described(error: BaseException) -> str:
    """Returns kind and first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__
