"""Formats that paths show, and what a manifest makes of them."""

from pathlib import Path

import pytest

from tidegate.function import ModelFormat, Protocol
from tidegate.manifest import formats
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.schema.files import Disk

GOOD = Path(__file__).parent / "manifests" / "good" / "model-formats.yaml"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("m.onnx", "onnx"),
        ("m.JOBLIB", "sklearn"),
        ("a.b/m.v2.pkl", "sklearn"),
        ("m.skops", "sklearn"),
        ("m.ubj", "xgboost"),
        ("m.json", "xgboost"),
        ("m.pth", "torchscript"),
        ("m.safetensors", None),
        ("m", None),
    ],
)
def test_a_file_shows_its_format_by_its_suffix(path: str, expected: str | None) -> None:
    assert formats.by_suffix(path) == expected


def test_every_format_says_which_arguments_its_loader_takes() -> None:
    assert set(formats.ARGUMENTS) == set(ModelFormat)
    assert set(formats.SUFFIXES.values()) | formats.FOLDERS == set(ModelFormat)


def test_a_folder_shows_its_format_by_what_lies_in_it(tmp_path: Path) -> None:
    assert formats.by_content(str(tmp_path), Disk()) is None
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert formats.by_content(str(tmp_path), Disk()) is ModelFormat.TRITON
    (tmp_path / "triple").mkdir()
    (tmp_path / "triple" / "config.pbtxt").write_text("", encoding="utf-8")
    assert formats.models_in(str(tmp_path), Disk()) == ("double", "triple")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert formats.by_content(str(tmp_path), Disk()) is ModelFormat.HUGGINGFACE
    assert formats.by_content(str(tmp_path / "absent"), Disk()) is None


def test_a_manifest_states_the_format_or_the_path_shows_it(context: ParseContext) -> None:
    parsed = read(GOOD.read_text(encoding="utf-8"), source="formats", context=context)
    iris, stated, bert, repository = parsed.functions
    assert [each.server.format for each in parsed.functions] == ["sklearn", "onnx", "huggingface", "triton"]
    assert (iris.args, bert.args) == ({"outputs": "predict"}, {"task": "text-classification", "top_k": "3"})
    assert stated.server.target == "/home/warmup.json"
    assert (bert.models, repository.models) == (("bert",), ("double", "triple"))
    assert repository.protocol is Protocol.GRPC


def test_a_pickle_is_deployed_with_a_warning(context: ParseContext) -> None:
    parsed = read(GOOD.read_text(encoding="utf-8"), source="formats", context=context)
    (warning,) = parsed.warnings
    assert str(warning).startswith("line 6: spec.server.model: a pickle runs code when it is loaded")
