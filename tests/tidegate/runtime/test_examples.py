"""The examples: their manifests are valid, and what they tell the models is right."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from tidegate.function import Protocol, ServerKind
from tidegate.manifest.reader import parse
from tidegate.runtime.execute.handler import HandlerModel
from tidegate.runtime.formats.onnx import OnnxModel

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def magika() -> Any:
    return load(EXAMPLES / "magika" / "prepare.py", "example_magika")


@pytest.mark.parametrize(
    ("name", "kind", "batch"),
    [("magika", ServerKind.MODEL, 4), ("resnet50", ServerKind.MODEL, 4), ("hello", ServerKind.HANDLER, 16)],
)
def test_manifests_are_valid(name: str, kind: ServerKind, batch: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLES / name, tmp_path / name))
    (folder / "model.onnx").touch()  # prepare.py brings it
    text = (folder / "manifest.yaml").read_text()
    (function,) = parse(text, source="manifest.yaml", base=str(folder), policies=["kpa", "smif", "tide"])
    assert (function.name, function.server.kind, function.batching.max_size) == (name, kind, batch)
    assert function.server.target.startswith(str(folder))


def test_the_grpc_examples_manifest_is_valid() -> None:
    folder = EXAMPLES / "greeter"
    text = (folder / "manifest.yaml").read_text()
    (function,) = parse(text, source="manifest.yaml", base=str(folder), policies=["kpa", "smif", "tide"])
    assert (function.name, function.protocol) == ("greeter", Protocol.GRPC)
    assert function.server.argv[-2:] == ("server.py", "{port}")
    assert function.workdir == str(folder)


def test_a_prepared_folder_holds_model_manifest_and_a_request(magika: Any, tmp_path: Path) -> None:
    manifest = magika.prepare(tmp_path / "new")
    assert manifest == tmp_path / "new" / "manifest.yaml"
    assert manifest.read_text() == (EXAMPLES / "magika" / "manifest.yaml").read_text()
    model = OnnxModel(str(tmp_path / "new" / "model.onnx"), threads=1, max_batch=4, providers=["CPUExecutionProvider"])
    spec = model.load()
    assert spec.inputs is not None
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in spec.inputs] == [("bytes", "INT32", (-1, 2048))]
    request = json.loads((tmp_path / "new" / "request.json").read_text())
    rows = numpy.array(request["inputs"][0]["data"], dtype=numpy.int32).reshape(request["inputs"][0]["shape"])
    scores = model.run({"bytes": rows})["target_label"]
    answer = {"outputs": [{"name": "target_label", "shape": list(scores.shape), "data": scores.ravel().tolist()}]}
    ((label, score),) = magika.labels_of(answer, magika.own_layout())
    assert label == "python"
    assert score > 0.9


def test_what_the_model_sees_of_a_file(magika: Any) -> None:
    layout = magika.Layout(begin=4, end=4, block=8, padding=256, least=2, labels=())
    pad = 256
    for content, row in (
        (b"abcdefgh", list(b"abcdefgh")),
        (b"  abcdef", [*b"abcd", *b"cdef"]),
        (b"abc", [*b"abc", pad, pad, *b"abc"]),
        (b"ab  ", [*b"ab  ", pad, pad, *b"ab"]),
        (b"0123456789abcdef \n", [*b"0123", *b"cdef"]),
        (b"       a01234567", None),  # only one byte of the first block is more than white space
        (b"a", None),
        (b"", None),
    ):
        assert magika.features_of(content, layout) == row


def test_a_layout_that_is_not_known_is_refused(magika: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.min.json"
    config.write_text('{"mid_size": 5}')
    with pytest.raises(ValueError, match="also looks at the middle of a file"):
        magika.read_layout(config)


def test_the_plain_class_knows_scripts() -> None:
    path = EXAMPLES / "hello" / "handler.py"
    model = HandlerModel(str(path), "Scripts", max_batch=16)
    spec = model.load()
    assert (spec.max_batch, spec.concurrency) == (16, 32)
    texts = ["Ebbe und Flut", "прилив", "潮汐", "123", "Ebbe潮汐ab"]
    outputs = model.run({"text": [text.encode() for text in texts]})
    assert outputs == {"script": ["LATIN", "CYRILLIC", "CJK", "NONE", "LATIN"], "share": [1.0, 1.0, 1.0, 0.0, 0.75]}


def test_the_batchable_resnet_answers_like_the_original(tmp_path: Path) -> None:
    script = EXAMPLES / "resnet50" / "prepare.py"
    # In a process of its own, as people do it: the model is 100 MB, and rewriting it takes twice that.
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "manifest.yaml").exists()
    resnet = load(script, "example_resnet50")
    images = numpy.random.default_rng(3).random((2, 3, 224, 224), dtype=numpy.float32)
    answers = []
    for path, rows in ((tmp_path / "model.onnx", images), (resnet.source(), images[:1])):
        model = OnnxModel(str(path), threads=1, max_batch=4, providers=["CPUExecutionProvider"])
        spec = model.load()
        assert spec.max_batch == (4 if len(rows) == 2 else 1)
        answers.append(model.run({"gpu_0/data_0": rows})["gpu_0/softmax_1"])
        del model  # before the next one: each takes 200 MB
    assert answers[0].shape == (2, 1000)
    assert numpy.allclose(answers[0][:1], answers[1])
