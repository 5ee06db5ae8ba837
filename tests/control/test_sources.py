"""What a deploy takes from Python: annotations of any plain type, and faults that name arguments."""

from datetime import timedelta
from pathlib import Path

import pytest

from tidegate.control.sources import faults_by_argument, flags_of, read_source, renamed
from tidegate.errors import InvalidInputError


def test_numbers_booleans_and_timedeltas_are_written_as_a_manifest_has_them() -> None:
    flags, labels = flags_of(
        {"policy.window": "30s", "percentile": 99.5},
        {"max_scale": 2, "dry_run": True, "scale_to_zero_after": timedelta(seconds=90), "latency": "200ms"},
    )
    assert flags == {
        "policy.window": "30s",
        "percentile": "99.5",
        "max-scale": "2",
        "dry-run": "true",
        "scale-to-zero-after": "90s",
        "latency": "200ms",
    }
    assert labels["max-scale"] == "max_scale"
    assert labels["policy.window"] == "annotations['policy.window']"


def test_every_fault_of_the_arguments_is_reported_at_once_by_their_names() -> None:
    with pytest.raises(InvalidInputError) as raised:
        flags_of({"max-scale": 3}, {"max_scale": 2, "slo": "fast", "dry_run": ["yes"]})
    assert [each.where for each in raised.value.faults] == ["max_scale", "slo", "dry_run"]
    assert "once: annotations['max-scale'] sets it too" in str(raised.value)
    assert "--" not in str(raised.value)


def test_slo_is_short_for_two() -> None:
    assert flags_of({}, {"sla": "200ms@99"})[0] == {"percentile": "99", "latency": "200ms"}
    assert flags_of({}, {"slo": "p99=200ms"}) == (
        {"percentile": "99", "latency": "200ms"},
        {"percentile": "slo", "latency": "slo"},
    )


def test_flags_become_arguments_and_other_dashes_stay() -> None:
    labels = {"max-scale": "max_scale", "policy.window": "annotations['policy.window']"}
    text = "--max-scale: got 1; --policy.window, --name, --min-scale, a--max-scale"
    assert renamed(text, labels).startswith("max_scale: got 1; annotations['policy.window'], name, --min-scale")


def test_a_fault_of_the_name_names_the_argument(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("kind: Function", encoding="utf-8")
    wanted = "name: got other; allowed: only with model files"
    with pytest.raises(InvalidInputError, match=wanted) as raised, faults_by_argument({}):
        read_source(str(tmp_path / "m.yaml"), "other")
    assert "--name" not in str(raised.value)


def test_classes_models_and_manifests_are_read(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("class Model:\n    def predict(self, inputs): ...\n", encoding="utf-8")
    (tmp_path / "net.onnx").write_bytes(b"onnx")
    assert f"handler: {tmp_path}/handler.py:Model" in read_source(f"{tmp_path}/handler.py")[0]
    assert f"handler: {tmp_path}/handler.py:Model" in read_source(f"{tmp_path}/handler.py:Model")[0]
    assert f"model: {tmp_path}/net.onnx" in read_source(f"{tmp_path}/net.onnx", "resnet")[0]
    with pytest.raises(InvalidInputError, match="no such file"):
        read_source(f"{tmp_path}/none.py:Model")
    with pytest.raises(InvalidInputError, match=r"a manifest, a model \(model\.onnx, .*\) or file\.py:Class"):
        read_source("-")


def test_a_models_file_or_folder_is_deployed_as_it_is(tmp_path: Path) -> None:
    for name in ("iris.joblib", "iris.pkl", "iris.skops", "bc.ubj", "bc.xgb", "net.pt", "net.pth"):
        (tmp_path / name).write_bytes(b"model")
        assert f"model: {tmp_path}/{name}" in read_source(f"{tmp_path}/{name}")[0]
    bert = tmp_path / "Bert Base.v2"
    bert.mkdir()
    (bert / "config.json").write_text("{}", encoding="utf-8")
    text, _, _ = read_source(str(bert))
    assert f"model: {bert}" in text
    assert "name: bert-base" in text
    (tmp_path / "repository" / "double").mkdir(parents=True)
    (tmp_path / "repository" / "double" / "config.pbtxt").write_text("", encoding="utf-8")
    assert "name: repository" in read_source(f"{tmp_path}/repository/")[0]


def test_a_folder_with_the_named_model_is_a_repository(tmp_path: Path) -> None:
    (tmp_path / "models" / "resnet").mkdir(parents=True)
    text, _, _ = read_source(f"{tmp_path}/models", flags={"dnn-model": "resnet"})
    assert f"model: {tmp_path}/models" in text and "name: resnet" in text
    with pytest.raises(InvalidInputError, match="a folder of the model that dnn-model names"):
        read_source(f"{tmp_path}/models", flags={"dnn-model": "vgg"})


def test_a_json_file_is_a_model_if_it_begins_as_xgboost_writes_it(tmp_path: Path) -> None:
    (tmp_path / "bc.json").write_text('{"learner":{"attributes":{}}}', encoding="utf-8")
    (tmp_path / "function.json").write_text('{"apiVersion": "tidegate.dev/v1alpha1"}', encoding="utf-8")
    assert f"model: {tmp_path}/bc.json" in read_source(f"{tmp_path}/bc.json")[0]
    assert read_source(f"{tmp_path}/function.json")[0].startswith('{"apiVersion"')


def test_a_folder_of_another_kind_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "repository" / "double").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match=r"a folder with a config\.json \(Hugging Face\)"):
        read_source(str(tmp_path))
    (tmp_path / "repository" / "double" / "config.pbtxt").write_text("", encoding="utf-8")
    with pytest.raises(
        InvalidInputError, match=f"the repository that holds this model of Triton: {tmp_path}/repository$"
    ):
        read_source(str(tmp_path / "repository" / "double"))
