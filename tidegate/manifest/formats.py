"""Formats of models: the one that a path shows, and what a manifest may say to each. Pure but for ``Files``.

A file shows its format by its suffix, a folder by what lies in it. ``server: {model: PATH, format: FORMAT}`` states it
where the path does not.
"""

from collections.abc import Collection, Mapping
from typing import Final

from tidegate.function import ModelFormat
from tidegate.schema.files import Files, Found

SUFFIXES: Final[Mapping[str, ModelFormat]] = {
    ".onnx": ModelFormat.ONNX,
    ".ort": ModelFormat.ONNX,
    ".joblib": ModelFormat.SKLEARN,
    ".pkl": ModelFormat.SKLEARN,
    ".pickle": ModelFormat.SKLEARN,
    ".skops": ModelFormat.SKLEARN,
    ".ubj": ModelFormat.XGBOOST,
    ".xgb": ModelFormat.XGBOOST,
    ".json": ModelFormat.XGBOOST,
    ".pt": ModelFormat.TORCHSCRIPT,
    ".pth": ModelFormat.TORCHSCRIPT,
}
PICKLES: Final = (".joblib", ".pkl", ".pickle")
"""Suffixes of files that run code when they are loaded."""
FOLDERS: Final = frozenset({ModelFormat.HUGGINGFACE, ModelFormat.TRITON})
"""Formats of folders; the others are files."""
ARGUMENTS: Final[Mapping[ModelFormat, Collection[str] | None]] = {
    ModelFormat.ONNX: (),
    ModelFormat.SKLEARN: ("outputs", "trusted"),
    ModelFormat.XGBOOST: (),
    ModelFormat.TORCHSCRIPT: ("inputs",),
    ModelFormat.HUGGINGFACE: None,
    ModelFormat.TRITON: (),
}
"""Names of the ``args`` that the loader of a format takes. None if it takes any: they are those of
``transformers.pipeline``."""
KNOWN_FILES: Final = f"a file with the suffix {', '.join(SUFFIXES)}"
KNOWN_FOLDERS: Final = (
    "a folder with a config.json (Hugging Face), with models that have a config.pbtxt each (Triton), or with a folder"
    " of the model that dnn-model names (a model repository)"
)


def by_suffix(path: str) -> ModelFormat | None:
    """Returns the format that a file's name shows; None if it shows none."""
    return next((form for suffix, form in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def by_content(folder: str, files: Files) -> ModelFormat | None:
    """Returns the format of the absolute ``folder``; None if nothing in it shows one."""
    if files.look(f"{folder}/config.json") is Found.FILE:
        return ModelFormat.HUGGINGFACE
    return ModelFormat.TRITON if models_in(folder, files) else None


def models_in(repository: str, files: Files) -> tuple[str, ...]:
    """Returns the models of a Triton repository: its folders with a configuration, or with a first version."""
    return tuple(
        name
        for name in files.names(repository)
        if files.look(f"{repository}/{name}/config.pbtxt") is Found.FILE
        or files.look(f"{repository}/{name}/1") is Found.FOLDER
    )


def why_none(folder: str, files: Files) -> str:
    """Returns what is allowed in place of a folder that shows no format."""
    if files.look(f"{folder}/config.pbtxt") is Found.FILE:
        return f"the repository that holds this model of Triton: {folder.rpartition('/')[0] or '/'}"
    return KNOWN_FOLDERS
