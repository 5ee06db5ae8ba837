"""The model of a file or folder that a library loads, by its format. The library itself is imported as it is loaded."""

from collections.abc import Mapping
from typing import Final

from tidegate.runtime.formats.arrays_model import ArraysModel, LoaderSettings
from tidegate.runtime.formats.huggingface import HuggingFaceModel
from tidegate.runtime.formats.sklearn import SklearnModel
from tidegate.runtime.formats.torchscript import TorchscriptModel
from tidegate.runtime.formats.xgboost import XgboostModel
from tidegate.runtime.settings import RuntimeSettings

_KINDS: Final[Mapping[str, type[ArraysModel]]] = {
    "huggingface": HuggingFaceModel,
    "sklearn": SklearnModel,
    "torchscript": TorchscriptModel,
    "xgboost": XgboostModel,
}


def library_model(path: str, settings: RuntimeSettings) -> ArraysModel:
    """Returns the model at ``path``, of the format that the settings name."""
    return _KINDS[settings.format](
        LoaderSettings(
            path=path,
            source=path if settings.copy is None else settings.copy,
            max_batch=settings.max_batch,
            threads=settings.threads,
            has_gpu=settings.providers[0].startswith("CUDA"),
            arguments=settings.arguments,
        )
    )
