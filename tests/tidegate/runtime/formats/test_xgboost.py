"""Boosters: outputs by objective, and the library's calls. By a stand-in; ``make test-presets`` tries the real one."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tests.tidegate.runtime.formats.conftest import Answers, Modules
from tidegate.runtime.errors import LoadError
from tidegate.runtime.formats.arrays_model import LoaderSettings
from tidegate.runtime.formats.xgboost import XgboostModel
from tidegate.runtime.protocols.tensors import Tensor


class Booster:
    """Answers with what a test says, and notes what it got."""

    feature_names = ("a", "b")
    feature_types = None

    def __init__(self, objective: str, values: Any, *, kind: str = "gbtree", best: int | None = None) -> None:
        self._config = {"learner": {"objective": {"name": objective}, "gradient_booster": {"name": kind}}}
        self._values = values
        self.asked: list[Any] = []
        if best is not None:
            self.best_iteration = best

    def load_model(self, source: str) -> None:
        if not Path(source).read_bytes():
            raise ValueError("[12:00] src/learner.cc: empty\nstack trace")

    def set_param(self, given: Any) -> None:
        self.asked.append(given)

    def save_config(self) -> str:
        return json.dumps(self._config)

    def num_features(self) -> int:
        return 2

    def predict(self, matrix: Any, iteration_range: Any) -> Any:
        self.asked.append((matrix, iteration_range))
        return numpy.asarray(self._values, dtype="float32")[: len(matrix["data"])]


def model(tmp_path: Path, booster: Booster, modules: Modules, *, threads: int | None = 1) -> XgboostModel:
    path = tmp_path / "m.ubj"
    path.write_bytes(b"model")
    library = SimpleNamespace(Booster=lambda: booster, DMatrix=lambda data, **more: {"data": data, **more})
    settings = LoaderSettings(
        path=str(path), source=str(path), max_batch=4, threads=threads, import_module=modules(xgboost=library)
    )
    return XgboostModel(settings)


ROWS = [Tensor("X", "FP32", (2, 2), bytes(16))]


def floats(tensor: Tensor) -> list[float]:
    return list(struct.unpack(f"<{tensor.count}f", bytes(tensor.data)))  # type: ignore[arg-type]  # not BYTES


def whole(tensor: Tensor) -> list[int]:
    return list(struct.unpack(f"<{tensor.count}q", bytes(tensor.data)))  # type: ignore[arg-type]  # not BYTES


def test_two_classes_are_numbers_with_a_column_of_probabilities_each(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    booster = Booster("binary:logistic", [0.25, 0.75], best=6)
    spec, (answer,) = answers(model(tmp_path, booster, modules), ROWS)
    assert spec.inputs is not None
    assert spec.outputs is not None
    assert spec.inputs[0].as_metadata() == {"name": "X", "datatype": "FP32", "shape": [-1, 2]}
    assert [(each.name, each.datatype, each.shape) for each in spec.outputs] == [
        ("predict", "INT64", (-1,)),
        ("predict_proba", "FP32", (-1, 2)),
    ]
    assert spec.notes == {"objective": "binary:logistic", "feature_names": ["a", "b"]}
    assert whole(answer["predict"]) == [0, 1]
    assert floats(answer["predict_proba"]) == [0.75, 0.25, 0.25, 0.75]
    matrix, trees = booster.asked[-1]
    assert (booster.asked[0], matrix["nthread"], matrix["feature_names"]) == ({"nthread": 1}, 1, ("a", "b"))
    assert trees == (0, 7), "up to the best iteration of a training that stopped early"


def test_several_classes_are_the_most_probable_one(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    booster = Booster("multi:softprob", [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    _, (answer,) = answers(model(tmp_path, booster, modules), ROWS)
    assert whole(answer["predict"]) == [0, 2]
    assert answer["predict_proba"].shape == (2, 3)
    assert booster.asked[-1][1] == (0, 0)
    _, (answer,) = answers(model(tmp_path, Booster("multi:softmax", [2.0, 1.0]), modules), ROWS)
    assert {name: whole(tensor) for name, tensor in answer.items()} == {"predict": [2, 1]}


def test_other_objectives_give_what_the_booster_gives(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    spec, (answer,) = answers(model(tmp_path, Booster("reg:squarederror", [0.5, 2.5]), modules), ROWS)
    assert spec.outputs is not None
    assert [each.name for each in spec.outputs] == ["predict"]
    assert floats(answer["predict"]) == [0.5, 2.5]


def test_a_linear_booster_is_asked_for_no_range_of_trees(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    booster = Booster("reg:squarederror", [0.5, 2.5], kind="gblinear", best=3)
    answers(model(tmp_path, booster, modules, threads=None), ROWS)
    assert {each[1] for each in booster.asked} == {(0, 0)}


def test_a_bad_file_and_a_missing_library_are_said(tmp_path: Path, modules: Modules) -> None:
    kept = model(tmp_path, Booster("x", []), modules)
    Path(kept.settings.source).write_bytes(b"")
    with pytest.raises(LoadError, match=r"XGBoost cannot load .*m\.ubj: ValueError: \[12:00\] src/learner\.cc: empty$"):
        kept.load()
    without = XgboostModel(LoaderSettings(path="m.ubj", source="m.ubj", import_module=modules()))
    with pytest.raises(LoadError, match=r"pip install 'tidegate\[xgboost\]'"):
        without.load()
