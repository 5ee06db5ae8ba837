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
        policies=("kpa", "smif", "tide"),
        accelerators=ACCELERATORS,
        files=FILES,
        flags=flags,
    )
    return function


def test_a_model_file_and_a_latency_are_enough() -> None:
    function = deployed(from_model("models/ResNet 50.onnx", flags={"latency": "200ms"}))
    assert function.name == "resnet-50"
    assert function.server == Server(kind=ServerKind.MODEL, target="/home/models/ResNet 50.onnx")
    assert (function.sla.latency_s, function.scaling.policy) == (0.2, "tide")


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
    assert from_file("models/ResNet 50.onnx", is_model=True) == from_model("models/ResNet 50.onnx")
    assert from_file("handler.py:Model") == from_handler("handler.py:Model")


@pytest.mark.parametrize("path", ["handler.py:", "handler.py:a.b", "handler.py:1"])
def test_a_class_must_be_named(path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"FILE\.py:CLASS"):
        from_file(path)


@pytest.mark.parametrize("path", ["models/ResNet 50.onnx", "handler.py:Model"])
def test_a_wrong_name_is_reported_as_a_flag(path: str) -> None:
    with pytest.raises(InvalidInputError, match="--name: got 'BAD_'; allowed: a DNS label"):
        from_file(path, name="BAD_", is_model=path.endswith(".onnx"))


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
def test_a_file_without_one_such_class_is_reported(source: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        handler_in("net.py", source)


def test_a_name_that_the_file_does_not_have_is_refused_before_anything_starts() -> None:
    source = "from a import B as C\nimport d.e\nclass Model:\n    def predict(self, inputs): ...\nif True:\n    F = C\n"
    for name in ("Model", "C", "d", "F"):
        assert f"net.py:{name}" in from_handler(f"net.py:{name}", source=source)
    with pytest.raises(InvalidInputError, match=r"net.py:Nope \(no such name in it\); allowed: a class of it: Model"):
        from_handler("net.py:Nope", source=source)
    for unknown in ("from a import *", "globals()['Nope'] = 1", "def __getattr__(name): ...", "class ("):
        assert "net.py:Nope" in from_handler("net.py:Nope", source=unknown)


def test_an_slo_in_short_is_a_percentile_and_a_latency() -> None:
    assert slo_flags("p99=200ms") == {"percentile": "99", "latency": "200ms"}
    assert slo_flags("p99.9=1s") == {"percentile": "99.9", "latency": "1s"}
    paced = {"percentile": "99", "latency": "500ms", "time-per-output-token": "50ms"}
    assert slo_flags("p99=500ms,50ms/token") == paced
    for wrong in ("p99=200ms,50ms", "p99=200ms,", "p99=200ms,/token", "p99=,5ms/token", "p99=5ms/token,1s"):
        with pytest.raises(InvalidInputError, match="--slo"):
            slo_flags(wrong)
    assert slo_flags("200ms@99") == slo_flags("200ms@p99%") == slo_flags("p99=200ms")
    assert slo_flags("200ms") == {"latency": "200ms"}
    for wrong in ("99=200ms", "p99", "p99=", "=200ms", "p=1s", "p99x=1s", "200ms@", "@99", "p99=200ms@98"):
        with pytest.raises(InvalidInputError, match="--slo"):
            slo_flags(wrong)


ASGI = """
import fastapi
served = fastapi.FastAPI()
class Own:
    async def __call__(self, scope, receive, send): ...
class Model:
    def predict(self, inputs): ...
    def __call__(self, scope, receive, send): ...
"""


@pytest.mark.parametrize(("name", "kind"), [("served", "asgi"), ("Own", "asgi"), ("Model", "handler")])
def test_an_asgi_application_is_recognised_and_speaks_http(name: str, kind: str) -> None:
    text = from_file(f"files/handler.py:{name}", source=ASGI)
    assert text is not None
    assert f"{kind}: files/handler.py:{name}" in text


def test_a_file_with_one_asgi_application_needs_no_name() -> None:
    assert handler_in("a.py", "app = make()\n") == "a.py:app"
    assert handler_in("a.py", "async def served(scope, receive, send): ...\n") == "a.py:served"
    assert handler_in("a.py", ASGI) == "a.py:Model"
