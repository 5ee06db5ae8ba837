"""Stand-ins for the libraries that load models: tests of the loaders need none of them."""

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.runtime.execute.engine import ModelEngine
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.formats.arrays_model import ArraysModel
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec

Answers = Callable[..., tuple[ModelSpec, list[dict[str, Tensor]]]]
Modules = Callable[..., Callable[[str], Any]]


@pytest.fixture
def modules() -> Modules:
    """Makes an ``import_module`` that knows numpy and the modules that are given, and nothing else."""

    def make(**given: Any) -> Callable[[str], Any]:
        def import_module(name: str) -> Any:
            if name == "numpy":
                return importlib.import_module(name)
            if (found := given.get(name.replace(".", "_"))) is None:
                raise ModuleNotFoundError(f"No module named '{name}'")
            return found

        return import_module

    return make


@pytest.fixture
def answers() -> Answers:
    """Loads a model in a thread of its own, and runs the requests as one batch."""

    def run(model: ArraysModel, *requests: list[Tensor]) -> tuple[ModelSpec, list[dict[str, Tensor]]]:
        async def main() -> tuple[ModelSpec, list[dict[str, Tensor]]]:
            worker = Worker("test")
            engine = ModelEngine(model, worker)
            try:
                spec = await engine.load()
                return spec, (await engine.execute(list(requests))).outputs if requests else []
            finally:
                worker.stop()
                assert worker.join(5)

        return asyncio.run(main())

    return run
