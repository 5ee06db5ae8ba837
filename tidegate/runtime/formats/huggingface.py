"""Folders that ``save_pretrained`` wrote, served by ``transformers.pipeline``.

The task is an argument (``args: {task: ..}``), or follows from the architecture that ``config.json`` names. All
other arguments go to the pipeline as they are: ``top_k``, ``aggregation_strategy``, ``max_new_tokens``.
Nothing is fetched from the hub.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from tidegate.runtime.errors import LoadError, RequestError
from tidegate.runtime.formats.arrays_model import ArraysModel, LoaderSettings, as_text
from tidegate.runtime.protocols.tensors import BYTES
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec

TEXT: Final = "text"
IMAGE: Final = "image"
FEATURES: Final = "features"
ENTITIES: Final = "entities"
FEATURE_EXTRACTION: Final = "feature-extraction"


@dataclass(frozen=True, slots=True)
class Task:
    """A task of ``transformers.pipeline``: its inputs, of one string for each row, and the keys of its results."""

    architectures: tuple[str, ...]
    """Ends of the names of the architectures that are made for it."""
    outputs: Mapping[str, str]
    """Datatype by key."""
    inputs: tuple[str, ...] = (TEXT,)


TASKS: Final[Mapping[str, Task]] = {
    "text-classification": Task(("ForSequenceClassification",), {"label": BYTES, "score": "FP32"}),
    "token-classification": Task(("ForTokenClassification",), {ENTITIES: BYTES}),
    "question-answering": Task(
        ("ForQuestionAnswering",),
        {"answer": BYTES, "score": "FP32", "start": "INT64", "end": "INT64"},
        ("question", "context"),
    ),
    "fill-mask": Task(("ForMaskedLM",), {"token_str": BYTES, "score": "FP32", "sequence": BYTES}),
    "text-generation": Task(("ForCausalLM", "LMHeadModel"), {"generated_text": BYTES}),
    "text2text-generation": Task(("ForConditionalGeneration",), {"generated_text": BYTES}),
    "zero-shot-classification": Task((), {"labels": BYTES, "scores": "FP32"}),
    "image-classification": Task(("ForImageClassification",), {"label": BYTES, "score": "FP32"}, (IMAGE,)),
    FEATURE_EXTRACTION: Task(("Model",), {FEATURES: "FP32"}),
}


class HuggingFaceModel(ArraysModel):
    """One pipeline."""

    library = "transformers"

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(settings)
        self._device = "cuda" if settings.has_gpu else "cpu"
        self._arguments = dict(settings.arguments)
        self._task = ""
        self._numpy: Any = None
        self._images: Any = None
        self._pipeline: Any = None

    def prepare(self) -> ModelSpec:
        task = self._task = self._chosen()
        self._numpy, torch, transformers = self.imported(
            "Hugging Face folders", ("torch", "transformers"), "transformers and torch", "huggingface"
        )
        if TASKS[task].inputs == (IMAGE,):
            _, self._images = self.imported("tasks on images", ("PIL.Image",), "pillow", "huggingface")
        if self._device == "cuda" and not torch.cuda.is_available():
            raise LoadError("the replica has a GPU, but this build of PyTorch cannot use it")
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        transformers.utils.logging.disable_progress_bar()
        self._pipeline = self.opened(
            lambda: transformers.pipeline(task, model=self.settings.path, device=self._device, **self._arguments)
        )
        inputs = tuple(TensorSpec(name, BYTES, (-1,)) for name in TASKS[task].inputs)
        made_up = None if self._images is not None else {spec.name: self._made_up() for spec in inputs}
        spec = self.spec(
            "huggingface_transformers", inputs, made_up, batches=task != FEATURE_EXTRACTION, notes={"task": task}
        )
        if task == FEATURE_EXTRACTION and spec.outputs is not None:  # Tokens vary from text to text.
            (features,) = spec.outputs
            return replace(spec, outputs=(replace(features, shape=(-1, -1, features.shape[-1])),))
        return spec

    def compute(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        rows = self._rows(inputs)
        results = self._pipeline(rows, batch_size=len(rows) if self._can_batch() else 1)
        if self._task == FEATURE_EXTRACTION:
            return {FEATURES: self._features(results)}
        if self._task == "token-classification":
            return {ENTITIES: [json.dumps(found, default=float) for found in results]}
        return self._by_key(results if isinstance(results, list) else [results])

    def _can_batch(self) -> bool:
        """Returns whether rows of different lengths may share a run. Features of padding would be answered as such."""
        if self._images is not None:
            return True
        tokenizer = getattr(self._pipeline, "tokenizer", None)
        return getattr(tokenizer, "pad_token_id", None) is not None and self._task != FEATURE_EXTRACTION

    def _chosen(self) -> str:
        """Takes the task out of the arguments, or derives it. Raises LoadError if it is none that is served."""
        served = ", ".join(TASKS)
        if "model" in self._arguments:
            raise LoadError("args.model: the model is the folder itself")
        if (given := self._arguments.pop("task", None)) is not None:
            if given not in TASKS:
                raise LoadError(
                    f"args.task is {given!r}; these tasks are served: {served}. A Python class serves others"
                )
            return str(given)
        try:
            config = json.loads((Path(self.settings.path) / "config.json").read_bytes())
            architectures = [str(name) for name in config["architectures"] or ()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LoadError(
                f"{self.settings.path}/config.json names no architectures; state the task: args.task"
            ) from error
        for name in architectures:
            for task, row in TASKS.items():
                if name.endswith(row.architectures):
                    return task
        named = ", ".join(architectures) or "nothing"
        raise LoadError(f"the task does not follow from {named}; state it as args.task, one of {served}")

    def _rows(self, inputs: dict[str, Any]) -> list[Any]:
        """Returns what the pipeline takes, one for each row."""
        if self._images is not None:
            return [self._image(data) for data in inputs[IMAGE]]
        columns = {name: as_text(name, values).tolist() for name, values in inputs.items()}
        if len(columns) == 1:
            (texts,) = columns.values()
            return list(texts)
        lengths = {name: len(texts) for name, texts in columns.items()}
        if len(set(lengths.values())) > 1:
            raise RequestError(f"the inputs must have equally many rows, got {lengths}")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _image(self, data: bytes) -> Any:
        """Returns an image of the contents of a file. A path or an address is none: nothing else is read."""
        try:
            return self._images.open(BytesIO(data)).convert("RGB")
        except Exception as error:
            raise RequestError(f"input '{IMAGE}' must be the contents of an image file (binary data)") from error

    def _features(self, results: Iterable[Any]) -> Any:
        """Returns a vector for each token: [texts, tokens, width]."""
        found = [self._numpy.asarray(each, dtype="float32")[0] for each in results]
        if len({each.shape for each in found}) > 1:
            tokens = ", ".join(str(len(each)) for each in found)
            raise RequestError(f"texts of one request must have equally many tokens, got {tokens}: send one at a time")
        return self._numpy.stack(found)

    def _by_key(self, results: list[Any]) -> dict[str, Any]:
        """Returns the results by output: a column for each key, with a second dimension where a row has several."""
        if all(isinstance(each, list) and len(each) == 1 for each in results):
            results = [each[0] for each in results]
        columns: dict[str, Any] = {}
        for key, datatype in TASKS[self._task].outputs.items():
            try:
                values = [[one[key] for one in each] if isinstance(each, list) else each[key] for each in results]
                columns[key] = self._numpy.asarray(values, dtype=object if datatype == BYTES else datatype_of(datatype))
            except (KeyError, TypeError, ValueError) as error:
                raise RequestError(
                    f"the pipeline's results are not {', '.join(TASKS[self._task].outputs)} for each text "
                    f"(fill-mask: one mask for each text): {error}"
                ) from error
        return columns

    def _made_up(self) -> Any:
        tokenizer = getattr(self._pipeline, "tokenizer", None)
        text = str(getattr(tokenizer, "mask_token", None)) if self._task == "fill-mask" else "text"
        values = self._numpy.empty(1, dtype=object)
        values.fill(text.encode())
        return values


def datatype_of(datatype: str) -> str:
    """Returns numpy's name of FP32 or INT64."""
    return "float32" if datatype == "FP32" else "int64"
