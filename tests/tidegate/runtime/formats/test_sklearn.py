"""Estimators: the tensors that are read from them, what is refused, and what their methods get. By stand-ins; the real
library is tried by ``make test-presets``."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tests.tidegate.runtime.formats.conftest import Answers, Modules
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.formats.arrays_model import LoaderSettings
from tidegate.runtime.formats.sklearn import SklearnModel
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import InferRequest, check_inputs

VECTORIZER = type("TfidfVectorizer", (), {"__module__": "sklearn.feature_extraction.text"})


class Classifier:
    """Class 1 if the row's sum is above 0."""

    n_features_in_ = 2
    classes_ = numpy.array(["no", "yes"])

    def predict(self, rows: Any) -> Any:
        return self.classes_[(self._sums(rows) > 0).astype(int)]

    def predict_proba(self, rows: Any) -> Any:
        share = (self._sums(rows) > 0).astype("float64")
        return numpy.stack([1 - share, share], axis=1)

    def _sums(self, rows: Any) -> Any:
        if numpy.isnan(numpy.asarray(rows, dtype="float64")).any():
            raise ValueError("Input X contains NaN.\nmore")
        return numpy.asarray(rows).sum(axis=1)


def model(
    path: Path, kept: Any, modules: Modules, *, more: dict[str, Any] | None = None, **arguments: Any
) -> SklearnModel:
    path.write_bytes(b"pickle")
    joblib = SimpleNamespace(load=lambda source: kept)
    settings = LoaderSettings(
        path=str(path),
        source=str(path),
        max_batch=8,
        arguments=arguments,
        import_module=modules(joblib=joblib, sklearn=SimpleNamespace(), **(more or {})),
    )
    return SklearnModel(settings)


def matrix(*rows: float, datatype: str = "FP64") -> list[Tensor]:
    code = {"FP64": "d", "FP32": "f", "INT64": "q"}[datatype]
    return [Tensor("X", datatype, (len(rows) // 2, 2), struct.pack(f"<{len(rows)}{code}", *rows))]


def test_a_classifier_has_one_matrix_its_classes_and_their_probabilities(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    spec, (one, two) = answers(model(tmp_path / "m.joblib", Classifier(), modules), matrix(1, 2), matrix(-1, 0, 3, 0))
    assert spec.inputs is not None
    assert [each.as_metadata() for each in spec.inputs] == [{"name": "X", "datatype": "FP64", "shape": [-1, 2]}]
    assert spec.outputs is not None
    assert [each.as_metadata() for each in spec.outputs] == [
        {"name": "predict", "datatype": "BYTES", "shape": [-1]},
        {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]},
    ]
    assert (spec.max_batch, spec.notes) == (8, {"classes": ["no", "yes"]})
    assert (one["predict"].data, two["predict"].data) == ([b"yes"], [b"no", b"yes"])
    assert bytes(two["predict_proba"].data) == struct.pack("<4d", 1, 0, 0, 1)  # type: ignore[arg-type]  # not BYTES


def test_other_numbers_are_taken_and_everything_else_is_refused_with_what_is_allowed(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    kept = model(tmp_path / "m.pkl", Classifier(), modules)
    spec, (answer,) = answers(kept, matrix(1, 2, datatype="INT64"))
    assert answer["predict"].data == [b"yes"]
    check_inputs(InferRequest(inputs=matrix(1, 2, datatype="FP32")), spec)
    with pytest.raises(RequestError, match=r"'X' must be FP64 \(or BF16, .*INT64.*\), got BYTES"):
        check_inputs(InferRequest(inputs=[Tensor("X", "BYTES", (1, 2), [b"1", b"2"])]), spec)
    with pytest.raises(RequestError, match=r"'X' must have the shape \[-1, 2\] \(-1: any\), got \[2\]"):
        check_inputs(InferRequest(inputs=[Tensor("X", "FP64", (2,), bytes(16))]), spec)
    with pytest.raises(RequestError, match=r"scikit-learn refuses the inputs: Input X contains NaN\.$"):
        kept.run({"X": numpy.array([[numpy.nan, 1]])})


def test_a_missing_library_names_the_extra_and_the_other_way(tmp_path: Path, modules: Modules) -> None:
    path = tmp_path / "m.joblib"
    path.write_bytes(b"")
    settings = LoaderSettings(path=str(path), source=str(path), import_module=modules())
    with pytest.raises(LoadError) as raised:
        SklearnModel(settings).load()
    message = str(raised.value)
    assert f"need scikit-learn in {sys.executable}: No module named 'joblib'" in message
    assert "pip install 'tidegate[sklearn]'" in message
    assert "tidegate deploy --requirements FILE" in message


def test_names_of_features_are_shown_and_the_input_stays_one_matrix(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    kept = Classifier()
    kept.feature_names_in_ = numpy.array(["age", "income"], dtype=object)  # type: ignore[attr-defined]
    spec, _ = answers(model(tmp_path / "m.joblib", kept, modules))
    assert spec.inputs is not None
    assert [each.name for each in spec.inputs] == ["X"]
    assert spec.notes["feature_names"] == ["age", "income"]


def test_a_model_that_picks_columns_by_name_has_an_input_for_each(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    class Frames(Classifier):
        feature_names_in_ = numpy.array(["age", "city"], dtype=object)
        seen: list[Any] = []  # noqa: RUF012 what a call got
        steps = [  # noqa: RUF012 as in a pipeline
            (
                "columns",
                SimpleNamespace(
                    transformers_=[
                        ("numbers", SimpleNamespace(), ["age"]),
                        (
                            "texts",
                            SimpleNamespace(categories_=[numpy.array(["Oslo", "Rome"], dtype=object)]),
                            ["city"],
                        ),
                    ]
                ),
            )
        ]

        def _sums(self, rows: Any) -> Any:
            self.seen.append(rows)
            return rows["age"]

    pandas = SimpleNamespace(DataFrame=dict)
    kept = Frames()
    spec, (answer,) = answers(
        model(tmp_path / "m.joblib", kept, modules, more={"pandas": pandas}),
        [Tensor("city", "BYTES", (1,), [b"Rome"]), Tensor("age", "FP64", (1,), struct.pack("<d", 3))],
    )
    assert spec.inputs is not None
    assert [(each.name, each.datatype, each.shape) for each in spec.inputs] == [
        ("age", "FP64", (-1,)),
        ("city", "BYTES", (-1,)),
    ]
    assert answer["predict"].data == [b"yes"]
    assert [list(frame["city"]) for frame in kept.seen[-2:]] == [["Rome"], ["Rome"]]
    assert list(kept.seen[0]["city"]) == ["Oslo"], "the first run is made up of a text that the model knows"
    assert list(kept.seen[-1]) == ["age", "city"]
    with pytest.raises(LoadError, match="models that pick columns by name need pandas"):
        model(tmp_path / "m.joblib", kept, modules).load()


@pytest.mark.parametrize(
    ("chosen", "texts"),
    [
        ("b", ["b"]),
        (["b", "c"], ["b", "c"]),
        ([1, -1], ["b", "c"]),
        (2, ["c"]),
        (slice("a", "b"), ["a", "b"]),
        (slice(0, 1), ["a"]),
        (slice(None, None), ["a", "b", "c"]),
        (numpy.array([False, True, True]), ["b", "c"]),
        ([True, False, False], ["a"]),
        ([], []),
    ],
)
def test_columns_are_picked_in_every_way_that_a_column_transformer_has(
    tmp_path: Path, modules: Modules, answers: Answers, chosen: Any, texts: list[str]
) -> None:
    encoder = SimpleNamespace(categories_=[numpy.array(["x"], dtype=object)] * max(1, len(texts)))
    kept = SimpleNamespace(
        feature_names_in_=numpy.array(["a", "b", "c"], dtype=object),
        transformers_=[("texts", encoder, chosen), ("rest", "passthrough", ["a"] if not texts else texts[:1])],
        transform=lambda frame: numpy.zeros((1, 1)),
    )
    spec, _ = answers(model(tmp_path / "m.joblib", kept, modules, more={"pandas": SimpleNamespace(DataFrame=dict)}))
    assert spec.inputs is not None
    assert [each.name for each in spec.inputs] == ["a", "b", "c"]
    assert [each.name for each in spec.inputs if each.datatype == "BYTES"] == texts


def test_whatever_a_model_does_when_it_is_looked_at_is_said(tmp_path: Path, modules: Modules) -> None:
    class Odd(Classifier):
        @property
        def feature_names_in_(self) -> Any:
            raise OSError("no names here")

    with pytest.raises(LoadError, match=r"m\.joblib cannot be prepared: OSError: no names here"):
        model(tmp_path / "m.joblib", Odd(), modules).load()


def test_a_model_of_texts_takes_one_text_a_row(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    class Texts(Classifier):
        steps = [("words", VECTORIZER())]  # noqa: RUF012 as in a pipeline

        def _sums(self, rows: Any) -> Any:
            return numpy.array([1 if "good" in text else -1 for text in rows])

    spec, (answer,) = answers(
        model(tmp_path / "m.joblib", Texts(), modules), [Tensor("X", "BYTES", (2,), [b"good", b"bad"])]
    )
    assert spec.inputs is not None
    assert spec.inputs[0].as_metadata() == {"name": "X", "datatype": "BYTES", "shape": [-1]}
    assert answer["predict"].data == [b"yes", b"no"]


def test_outputs_may_be_chosen_and_a_missing_one_is_said(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    path = tmp_path / "m.joblib"
    spec, _ = answers(model(path, Classifier(), modules, outputs="predict"))
    assert spec.outputs is not None
    assert [each.name for each in spec.outputs] == ["predict"]
    with pytest.raises(LoadError, match="outputs: Classifier has no method decision_function"):
        model(path, Classifier(), modules, outputs=["decision_function"]).load()
    transformer = SimpleNamespace(transform=lambda rows: rows, n_features_in_=2)
    spec, _ = answers(model(path, transformer, modules))
    assert spec.outputs is not None
    assert [each.name for each in spec.outputs] == ["transform"]
    with pytest.raises(LoadError, match=r"holds a builtins\.dict, which has neither predict nor transform"):
        model(path, {}, modules).load()


def test_probabilities_of_several_targets_are_left_out(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    class Several(Classifier):
        def predict_proba(self, rows: Any) -> Any:
            return [super().predict_proba(rows)] * 2

    spec, _ = answers(model(tmp_path / "m.joblib", Several(), modules))
    assert spec.outputs is not None
    assert [each.name for each in spec.outputs] == ["predict"]


def test_a_first_run_that_fails_leaves_the_outputs_unknown(
    tmp_path: Path, modules: Modules, answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    class Picky(Classifier):
        def _sums(self, rows: Any) -> Any:
            if not rows.all():
                raise ZeroDivisionError("of zero")
            return rows.sum(axis=1)

    kept = model(tmp_path / "m.joblib", Picky(), modules)
    spec, (answer,) = answers(kept, matrix(1, 2))
    assert spec.outputs is None
    assert answer["predict"].data == [b"yes"]
    assert "a first run on made-up inputs failed, which need not mean anything" in capsys.readouterr().err
    with pytest.raises(ModelError, match="scikit-learn failed: ZeroDivisionError: of zero"):
        kept.run({"X": numpy.zeros((1, 2))})


def test_a_file_that_cannot_be_read_says_why_and_what_it_may_need(tmp_path: Path, modules: Modules) -> None:
    def load(source: str) -> Any:
        raise ModuleNotFoundError("No module named 'our_features'")

    path = tmp_path / "m.pkl"
    path.write_bytes(b"")
    joblib, sklearn = SimpleNamespace(load=load), SimpleNamespace()
    import_module = modules(joblib=joblib, sklearn=sklearn)
    with pytest.raises(LoadError, match=r"No module named 'our_features'\. A pickle needs the modules of its classes"):
        SklearnModel(LoaderSettings(path=str(path), source=str(path), import_module=import_module)).load()
    absent = LoaderSettings(path="/m.pkl", source=str(tmp_path / "absent"), import_module=import_module)
    with pytest.raises(LoadError, match="there is no file"):
        SklearnModel(absent).load()


def test_a_skops_file_loads_types_that_are_trusted_alone(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    asked: list[list[str]] = []

    def load(source: str, trusted: list[str]) -> Any:
        asked.append(trusted)
        return Classifier()

    skops = SimpleNamespace(get_untrusted_types=lambda file: ["our.Scaler"], load=load)
    more = {"skops_io": skops}
    with pytest.raises(LoadError, match=r"holds types that skops does not trust: our\.Scaler\. .*--arg 'trusted="):
        model(tmp_path / "m.skops", None, modules, more=more).load()
    answers(model(tmp_path / "m.skops", None, modules, more=more, trusted=["our.Scaler"]))
    assert asked == [["our.Scaler"]]
