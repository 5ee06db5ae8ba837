"""`tidegate deploy FILE`: manifests made from files go through the same parser as written ones."""

from collections.abc import Mapping

import pytest

from tidegate.deploy.builder import from_file, from_handler, from_model, handler_in, name_of, slo_flags
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.reader import parse
from tidegate.schema.files import Found, NamedFiles

FILES = NamedFiles({"/home/models/ResNet 50.onnx": Found.FILE, "/home/handler.py": Found.FILE})
ACCELERATORS = {"h100": "nvidia", "cpu": "cpu"}


def deployed(text: str, flags: Mapping[str, str] | None = None) -> Function:
    (function,) = parse(
        text,
        source="built",
        base="/home",
        policies=("kpa", "smif"),
        accelerators=ACCELERATORS,
        files=FILES,
        flags=flags,
    )
    return function


def test_a_model_file_and_a_latency_are_enough() -> None:
    function = deployed(from_model("models/ResNet 50.onnx", flags={"latency": "200ms"}))
    assert function.name == "resnet-50"
    assert function.server == Server(kind=ServerKind.MODEL, target="/home/models/ResNet 50.onnx")
    assert (function.sla.latency_s, function.scaling.policy) == (0.2, "smif")


def test_a_python_class_is_enough() -> None:
    function = deployed(from_handler("handler.py:Model", name="mine"))
    assert function.name == "mine"
    assert function.server == Server(kind=ServerKind.HANDLER, target="/home/handler.py:Model")


def test_flags_may_also_be_handed_over_beside_the_text() -> None:
    """The command line does both: the text is complete by itself, and a fault names the flag."""
    flags = {"latency": "200ms", "policy.window": "30s", "policy": "kpa"}
    text = from_model("models/ResNet 50.onnx", flags=flags)
    assert deployed(text, flags) == deployed(text)
    with pytest.raises(InvalidInputError) as raised:
        deployed(from_model("models/ResNet 50.onnx", flags={"latency": "1y"}), {"latency": "1y"})
    assert [fault.where for fault in raised.value.faults] == ["--latency"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/ResNet_50 v2.onnx", "resnet-50-v2"),
        ("/a/b/--x--.onnx", "x"),
        ("模型.onnx", "model"),
        ("7b.onnx", "7b"),
        ("a" * 200 + ".onnx", "a" * 50),
        ("a" * 49 + "--b.onnx", "a" * 49),
        ("no-suffix", "no-suffix"),
    ],
)
def test_names_come_from_file_names(path: str, name: str) -> None:
    assert name_of(path) == name


def test_what_a_gpu_requires_is_filled_in() -> None:
    """Memory: twice the file's 100 MB and 0.5 GB for the context."""
    flags = {"gpu-model": "h100"}
    function = deployed(from_model("models/ResNet 50.onnx", flags=flags, size_bytes=100 * 10**6))
    assert (function.gpu.model, function.dnn.name, function.gpu.memory_gb) == ("h100", "resnet-50", 0.7)
    own = {**flags, "gpu-mem-limit": "4", "dnn-model": "mine"}
    function = deployed(from_model("models/ResNet 50.onnx", flags=own, size_bytes=10**9))
    assert (function.dnn.name, function.gpu.memory_gb) == ("mine", 4.0)


def test_a_stored_form_requires_the_models_name_only() -> None:
    text = from_model("models/ResNet 50.onnx", flags={"dnn-quantization": "fp16"}, size_bytes=10**9)
    assert (deployed(text).dnn.name, deployed(text).gpu.memory_gb) == ("resnet-50", None)


def test_accelerators_may_be_named() -> None:
    assert deployed(from_model("models/ResNet 50.onnx", accelerators=("cpu",))).accelerators == ("cpu",)


def test_a_manifest_is_left_to_the_parser() -> None:
    assert from_file("function.yaml") is None
    assert from_file("models/ResNet 50.onnx") == from_model("models/ResNet 50.onnx")
    assert from_file("handler.py:Model") == from_handler("handler.py:Model")


@pytest.mark.parametrize("path", ["handler.py:", "handler.py:a.b", "handler.py:1"])
def test_a_class_must_be_named(path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"FILE\.py:CLASS"):
        from_file(path)


@pytest.mark.parametrize("path", ["models/ResNet 50.onnx", "handler.py:Model"])
def test_a_wrong_name_is_told_as_a_flag(path: str) -> None:
    with pytest.raises(InvalidInputError, match="--name: got 'BAD_'; allowed: a DNS label"):
        from_file(path, name="BAD_")


def test_the_one_class_of_a_file_that_predicts_is_its_handler() -> None:
    source = "class Helper: ...\n\nclass Net:\n    def load(self): ...\n    def predict(self, inputs): ...\n"
    assert handler_in("net.py", source) == "net.py:Net"
    assert handler_in("net.py", "class Net:\n    async def predict(self, inputs): ...\n") == "net.py:Net"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def predict(inputs): ...", "no class that has predict"),
        ("class A:\n    def predict(self): ...\nclass B:\n    def predict(self): ...", "A, B"),
        ("class A(", "net.py"),
        ("a\0b", "net.py"),
    ],
)
def test_a_file_without_one_such_class_is_told(source: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        handler_in("net.py", source)


def test_an_slo_in_short_is_a_percentile_and_a_latency() -> None:
    assert slo_flags("p99=200ms") == {"percentile": "99", "latency": "200ms"}
    assert slo_flags("p99.9=1s") == {"percentile": "99.9", "latency": "1s"}
    for wrong in ("99=200ms", "p99", "p99=", "=200ms", "p=1s", "p99x=1s"):
        with pytest.raises(InvalidInputError, match="--slo"):
            slo_flags(wrong)
