"""Models of scikit-learn and XGBoost, deployed from their files with an interpreter that has the libraries: metadata,
the libraries' own answers over V2 and V1, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live import presets
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120), pytest.mark.needs(tool="presets")]

WRITE = """
import json, pickle, joblib, numpy, pandas, skops.io, xgboost
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
X = numpy.random.default_rng(1).normal(size=(60, 3))
y = (X.sum(axis=1) > 0).astype(int)
words = numpy.array(["no", "yes"])[y]
frame = pandas.DataFrame({"age": X[:, 0], "city": numpy.where(X[:, 1] > 0, "Rome", "Oslo")})
columns = ColumnTransformer([("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["city"])])
models = {
    "iris": make_pipeline(StandardScaler(), LogisticRegression()).fit(X, words),
    "line": LinearRegression().fit(X, X[:, :2]),
    "columns": make_pipeline(columns, LogisticRegression()).fit(frame, y),
}
joblib.dump(models["iris"], "iris.joblib")
skops.io.dump(models["line"], "line.skops")
pickle.dump(models["columns"], open("columns.pkl", "wb"))
pickle.dump({"weights": 1}, open("broken.pkl", "wb"))
boosted = xgboost.XGBClassifier(n_estimators=5, max_depth=2).fit(X, y)
boosted.save_model("trees.ubj")
boosted.save_model("text.json")
json.dump({
    "rows": X[:2].tolist(),
    "cities": frame[:2].to_dict("records"),
    "iris": [models["iris"].predict(X[:2]).tolist(), models["iris"].predict_proba(X[:2]).tolist()],
    "line": models["line"].predict(X[:2]).tolist(),
    "columns": models["columns"].predict_proba(frame[:2]).tolist(),
    "trees": [boosted.predict(X[:2]).tolist(), boosted.predict_proba(X[:2]).tolist()],
}, open("expected.json", "w"))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("formats")
    presets.write("presets", WRITE, folder)
    with deployment(folder, *places(folder, 5)) as made:
        made.up()
        for file in ("iris.joblib", "line.skops", "columns.pkl", "trees.ubj", "text.json"):
            made.cli("deploy", file, "--python", str(presets.python("presets")), "--no-wait")
        yield made


@pytest.fixture(scope="module")
def expected(world: Deployment) -> Any:
    return json.loads((world.folder / "expected.json").read_text())


def metadata(world: Deployment, name: str) -> Any:
    return httpx.get(f"{world.gateway}/v2/models/{name}", timeout=60, trust_env=False, verify=False).json()


def infer(world: Deployment, name: str, **tensor: Any) -> httpx.Response:
    body = {"inputs": [{"name": "X", "datatype": "FP64", **tensor}]}
    return httpx.post(f"{world.gateway}/v2/models/{name}/infer", json=body, timeout=60, trust_env=False, verify=False)


def predict(world: Deployment, name: str, instances: Any) -> Any:
    url = f"{world.gateway}/v1/models/{name}:predict"
    return httpx.post(url, json={"instances": instances}, timeout=60, trust_env=False, verify=False).json()


def test_an_estimator_answers_as_the_library_does(world: Deployment, expected: Any) -> None:
    answer = infer(world, "iris", shape=[2, 3], data=expected["rows"])
    assert answer.status_code == 200, answer.text
    classes, probabilities = answer.json()["outputs"]
    assert (classes["name"], classes["datatype"], classes["data"]) == ("predict", "BYTES", expected["iris"][0])
    assert probabilities["data"] == pytest.approx([each for row in expected["iris"][1] for each in row])
    found = metadata(world, "iris")
    assert found["inputs"] == [{"name": "X", "datatype": "FP64", "shape": [-1, 3]}]
    assert found["outputs"][1] == {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]}
    assert (found["platform"], found["classes"]) == ("sklearn", ["no", "yes"])


def test_a_skops_file_and_several_targets(world: Deployment, expected: Any) -> None:
    found = predict(world, "line", expected["rows"])["predictions"]
    assert found == [pytest.approx(row) for row in expected["line"]]


def test_columns_by_name_are_inputs_of_their_own(world: Deployment, expected: Any) -> None:
    found = predict(world, "columns", expected["cities"])["predictions"]
    assert [row["predict_proba"] for row in found] == [pytest.approx(row) for row in expected["columns"]]
    assert [(each["name"], each["datatype"]) for each in metadata(world, "columns")["inputs"]] == [
        ("age", "FP64"),
        ("city", "BYTES"),
    ]
    assert "unknown categories ['Paris']" in predict(world, "columns", [{"age": 1, "city": "Paris"}])["error"]


@pytest.mark.parametrize("name", ["trees", "text"])
def test_trees_of_xgboost_give_classes_and_probabilities(world: Deployment, expected: Any, name: str) -> None:
    answer = infer(world, name, shape=[2, 3], data=expected["rows"])
    assert answer.status_code == 200, answer.text
    classes, probabilities = answer.json()["outputs"]
    assert (classes["datatype"], classes["data"]) == ("INT64", expected["trees"][0])
    assert probabilities["data"] == pytest.approx([each for row in expected["trees"][1] for each in row], rel=1e-5)


def test_wrong_requests_are_reported_what_is_allowed(world: Deployment) -> None:
    answer = infer(world, "iris", shape=[1, 2], data=[1, 2])
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "input 'X' must have the shape [-1, 3] (-1: any), got [1, 2]"},
    )
    answer = infer(world, "trees", shape=[1, 3], datatype="BYTES", data=["1", "2", "3"])
    assert answer.status_code == 400
    assert "input 'X' must be FP32 (or " in answer.json()["error"]


def test_a_missing_library_and_a_file_that_is_no_model_are_said_at_the_deploy(world: Deployment) -> None:
    done = world.cli("deploy", "iris.joblib", "--name", "bare", code=1)
    assert "pip install 'tidegate[sklearn]'" in done.stderr
    assert "warning: line 7: spec.server.model: a pickle runs code" in done.stderr
    done = world.cli("deploy", "broken.pkl", "--python", str(presets.python("presets")), code=1)
    assert "holds a builtins.dict, which has neither predict nor transform" in done.stderr
