"""Estimators of scikit-learn, and of libraries with its interface, from a pickle (joblib) or a skops file.

The input is one matrix ``X``. A model that begins with a ``ColumnTransformer`` picks columns of a data frame by their
names, so it has one input for each column. Outputs are ``predict`` and, where there is one, ``predict_proba``;
``transform`` for a model that has neither.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Final

from tidegate.runtime.errors import LoadError
from tidegate.runtime.formats.arrays_model import NUMBERS, ArraysModel, LoaderSettings, as_text
from tidegate.runtime.protocols.tensors import BYTES
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec

MATRIX: Final = "X"
OUTPUTS: Final = ("predict", "predict_proba")
INSTEAD: Final = ("transform",)
_VECTORIZERS: Final = "sklearn.feature_extraction.text"
_OTHER_NUMBERS: Final = tuple(kind for kind in NUMBERS if kind != "FP64")


class SklearnModel(ArraysModel):
    """One estimator."""

    library = "scikit-learn"

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(settings)
        self._methods: dict[str, Any] = {}
        self._inputs: tuple[TensorSpec, ...] = ()
        self._pandas: Any = None

    def prepare(self) -> ModelSpec:
        numpy, joblib, _ = self.imported("files of scikit-learn", ("joblib", "sklearn"), "scikit-learn", "sklearn")
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        is_skops = self.settings.path.endswith(".skops")
        model = self._from_skops() if is_skops else self.opened(lambda: joblib.load(self.settings.source), _MODULES)
        self._methods = self._chosen(model)
        names: Any = getattr(model, "feature_names_in_", None)
        columns = {} if names is None else _columns(_first(model))
        notes: dict[str, Any] = {}
        if columns:
            (_, self._pandas) = self.imported("models that pick columns by name", ("pandas",), "pandas", "sklearn")
            self._inputs = tuple(_input(str(name), (-1,), columns.get(str(name)) is not None) for name in names)
        else:
            self._inputs = (self._matrix(model),)
            if names is not None:
                notes["feature_names"] = [str(name) for name in names]
        classes: Any = getattr(model, "classes_", None)
        if hasattr(classes, "tolist"):
            notes["classes"] = classes.tolist()
        made_up = {spec.name: _made_up(numpy, spec, columns.get(spec.name)) for spec in self._inputs}
        self._leave_out_lists(made_up)
        return self.spec("sklearn", self._inputs, made_up, notes=notes)

    def compute(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        data = self._data(inputs)
        return {name: _dense(method(data)) for name, method in self._methods.items()}

    def _data(self, inputs: dict[str, Any]) -> Any:
        for name, values in inputs.items():
            if values.dtype == object:
                inputs[name] = as_text(name, values)
        if self._pandas is not None:
            return self._pandas.DataFrame({spec.name: inputs[spec.name] for spec in self._inputs})
        return inputs[MATRIX]

    def _from_skops(self) -> Any:
        _, skops = self.imported("skops files", ("skops.io",), "skops", "sklearn")
        trusted = self.settings.arguments.get("trusted", [])
        trusted = [trusted] if isinstance(trusted, str) else list(trusted)
        found = self.opened(lambda: skops.get_untrusted_types(file=self.settings.source))
        if missing := [each for each in found if each not in trusted]:
            raise LoadError(
                f"{self.settings.path} holds types that skops does not trust: {', '.join(missing)}. "
                "If you do, give all of them: --arg 'trusted=[\"TYPE\", ..]'"
            )
        return self.opened(lambda: skops.load(self.settings.source, trusted=trusted))

    def _chosen(self, model: Any) -> dict[str, Any]:
        """Returns the methods that make the outputs. Raises LoadError if there is none, or one that is asked for is
        missing."""
        wanted = self.settings.arguments.get("outputs")
        if isinstance(wanted, str):
            wanted = [each.strip() for each in wanted.split(",")]
        if wanted is not None:
            missing = [str(name) for name in wanted if not callable(getattr(model, str(name), None))]
            if missing or not wanted:
                raise LoadError(f"outputs: {type(model).__name__} has no method {', '.join(missing) or 'for no name'}")
            return {str(name): getattr(model, str(name)) for name in wanted}
        for names in (OUTPUTS, INSTEAD):
            if found := {name: getattr(model, name) for name in names if callable(getattr(model, name, None))}:
                return found
        kind = f"{type(model).__module__}.{type(model).__name__}"
        raise LoadError(f"{self.settings.path} holds a {kind}, which has neither predict nor transform")

    def _matrix(self, model: Any) -> TensorSpec:
        first = _first(model)
        if type(first).__module__ == _VECTORIZERS:
            return _input(MATRIX, (-1,), is_text=True)
        return _input(MATRIX, (-1, int(getattr(model, "n_features_in_", -1))), is_text=_text_in(first) is not None)

    def _leave_out_lists(self, made_up: Mapping[str, Any]) -> None:
        """Leaves out ``predict_proba`` of a model with several targets: a list with a matrix for each of them."""
        method = self._methods.get("predict_proba")
        if method is None or "outputs" in self.settings.arguments or len(self._methods) == 1:
            return
        try:
            is_list = isinstance(method(self._data(dict(made_up))), list)
        except Exception:
            return  # The first run reports it.
        if is_list:
            del self._methods["predict_proba"]


_MODULES: Final = (
    ". A pickle needs the modules of its classes: `--requirements FILE` installs packages, "
    "`--env PYTHONPATH=FOLDER` shows modules of your own"
)


def _input(name: str, shape: tuple[int, ...], is_text: bool) -> TensorSpec:
    if is_text:
        return TensorSpec(name, BYTES, shape)
    return TensorSpec(name, "FP64", shape, further=_OTHER_NUMBERS)


def _first(model: Any) -> Any:
    """Returns the estimator that gets the inputs: the best one of a search, the first step of a pipeline."""
    while True:
        if (best := getattr(model, "best_estimator_", None)) is not None:
            model = best
        elif steps := getattr(model, "steps", None):
            model = steps[0][1]
        else:
            return model


def _columns(transformer: Any) -> dict[str, str | None]:
    """Returns the columns that a ``ColumnTransformer`` picks, each with one of its texts; None for numbers."""
    known = [str(name) for name in getattr(transformer, "feature_names_in_", ())]
    found: dict[str, str | None] = {}
    for _, fitted, chosen in getattr(transformer, "transformers_", ()):
        texts = _text_in(fitted)
        for at, name in enumerate(_picked(chosen, known)):
            text = None if texts is None else texts[min(at, len(texts) - 1)]
            found[name] = found.get(name) if text is None else text
    return found


def _picked(chosen: Any, known: list[str]) -> list[str]:
    """Returns the names of the columns that a ``ColumnTransformer`` picks: by name, number, slice or mask."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice):
        start = known.index(chosen.start) if isinstance(chosen.start, str) else chosen.start
        stop = known.index(chosen.stop) + 1 if isinstance(chosen.stop, str) else chosen.stop  # A named end is included.
        return known[start : stop : chosen.step]
    picked = chosen.tolist() if hasattr(chosen, "tolist") else chosen
    if isinstance(picked, int):
        return [known[picked]]
    if picked and all(isinstance(each, bool) for each in picked):
        return [name for name, is_picked in zip(known, picked, strict=True) if is_picked]
    return [each if isinstance(each, str) else known[each] for each in picked]


def _text_in(estimator: Any) -> list[str | None] | None:
    """Returns a text that each column may hold, if a step of ``estimator`` was fitted on texts; else None."""
    steps = [step for _, step in getattr(estimator, "steps", ())] or [estimator]
    for step in steps:
        if type(step).__module__ == _VECTORIZERS:
            return [""]
        kept = getattr(step, "categories_", None)
        if kept is not None and any(each.dtype.kind in "OUS" for each in kept):
            return [str(each[0]) if each.dtype.kind in "OUS" else None for each in kept]
    return None


def _made_up(numpy: Any, spec: TensorSpec, text: str | None) -> Any:
    shape = tuple(1 if size < 0 else size for size in spec.shape)
    if spec.datatype != BYTES:
        return numpy.zeros(shape)
    values = numpy.empty(shape, dtype=object)
    values.fill((text or "").encode())
    return values


def _dense(values: Any) -> Any:
    return values.toarray() if hasattr(values, "toarray") else values
