"""Models of XGBoost, from the file that ``save_model`` writes, of a ``Booster`` or of an ``XGBModel``.

Outputs are those of ``XGBClassifier``: ``predict`` gives class numbers and ``predict_proba`` a column for each class.
Other objectives give what ``Booster.predict`` gives. scikit-learn is not needed.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from tidegate.runtime.formats.arrays_model import NUMBERS, ArraysModel, LoaderSettings
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec

MATRIX: Final = "X"
_OTHER_NUMBERS: Final = tuple(kind for kind in NUMBERS if kind != "FP32")


class XgboostModel(ArraysModel):
    """One booster."""

    library = "XGBoost"

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(settings)
        self._numpy: Any = None
        self._xgboost: Any = None
        self._booster: Any = None
        self._objective = ""
        self._trees = (0, 0)

    def prepare(self) -> ModelSpec:
        self._numpy, self._xgboost = self.imported("files of XGBoost", ("xgboost",), "xgboost", "xgboost")
        self._booster = booster = self.opened(self._read)
        learner = json.loads(booster.save_config())["learner"]
        self._objective = learner["objective"]["name"]
        if learner["gradient_booster"]["name"] != "gblinear":
            self._trees = _trees(booster)
        names = booster.feature_names
        width = int(booster.num_features())
        spec = TensorSpec(MATRIX, "FP32", (-1, width), further=_OTHER_NUMBERS)
        made_up = {MATRIX: self._numpy.zeros((1, width), dtype="float32")}
        notes = {"objective": self._objective} | ({} if names is None else {"feature_names": list(names)})
        return self.spec("xgboost", (spec,), made_up, notes=notes)

    def compute(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        booster, numpy = self._booster, self._numpy
        matrix = self._xgboost.DMatrix(
            inputs[MATRIX],
            feature_names=booster.feature_names,
            feature_types=booster.feature_types,
            nthread=self.settings.threads,
        )
        values = booster.predict(matrix, iteration_range=self._trees)
        if self._objective == "binary:logistic":
            return {
                "predict": (values > 0.5).astype("int64"),
                "predict_proba": numpy.stack([1 - values, values], axis=-1),
            }
        if self._objective == "multi:softprob":
            return {"predict": values.argmax(axis=-1).astype("int64"), "predict_proba": values}
        if self._objective in ("multi:softmax", "binary:hinge"):
            return {"predict": values.astype("int64")}
        return {"predict": values}

    def _read(self) -> Any:
        booster = self._xgboost.Booster()
        booster.load_model(self.settings.source)
        if self.settings.threads is not None:
            booster.set_param({"nthread": self.settings.threads})
        return booster


def _trees(booster: Any) -> tuple[int, int]:
    """Returns the range of trees up to the best one of a training that stopped early, as ``XGBModel`` does; (0, 0) for
    all."""
    try:
        return (0, int(booster.best_iteration) + 1)
    except AttributeError:
        return (0, 0)
