"""Model repositories: what is stored, what each kind of accelerator runs, and what a manifest makes of it."""

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import DnnModel, ModelFormat, Quantization, StoredForm
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import Parsed, read
from tidegate.manifest.repository import choose, scan
from tidegate.manifest.writer import write
from tidegate.schema.files import Found, NamedFiles

STORED = (
    "t4/fp32/b1.onnx",
    "t4/fp32/b8.onnx",
    "t4/int8/b4.onnx",
    "h100/fp16/b64/model.onnx",
    "any/fp32/b2.onnx",
)


def files(*paths: str, root: str = "/home/models/resnet") -> NamedFiles:
    found: dict[str, Found] = {}
    for path in paths:
        parts = f"{root}/{path}".split("/")
        found |= {"/".join(parts[:end]): Found.FOLDER for end in range(2, len(parts))}
        found[f"{root}/{path}"] = Found.FILE
    return NamedFiles(found)


def test_forms_are_found_by_the_layout_and_everything_else_is_named() -> None:
    strange = ("t4/int4/b1.onnx", "t4/fp32/b0.onnx", "t4/fp32/8.onnx", "t4/fp32/b8.txt", "README", "t4/fp32/b9/x.onnx")
    stored = scan("/home/models/resnet", files(*STORED, *strange))
    assert [str(form) for form in stored.forms] == [
        "any/fp32/b2",
        "h100/fp16/b64",
        "t4/int8/b4",
        "t4/fp32/b1",
        "t4/fp32/b8",
    ]
    assert set(stored.strange) == {
        "README",
        "t4/int4",
        "t4/fp32/b0.onnx",
        "t4/fp32/8.onnx",
        "t4/fp32/b8.txt",
        "t4/fp32/b9",
    }
    assert stored.forms[1].path == "/home/models/resnet/h100/fp16/b64/model.onnx"


def test_a_folder_of_a_batch_has_exactly_one_model() -> None:
    two = scan("/m", files("any/fp32/b1/model.onnx", "any/fp32/b1/model.pt", root="/m"))
    assert (two.forms, two.strange) == ((), ("any/fp32/b1",))


@pytest.mark.parametrize(
    ("quantization", "batch", "expected"),
    [
        ("fp32", 1, ["t4/fp32/b1"]),
        ("fp32", 7, ["any/fp32/b2", "t4/fp32/b1"]),
        ("fp32", 8, ["any/fp32/b2", "t4/fp32/b8"]),
        ("int8", 4, ["any/fp32/b2", "t4/int8/b4"]),
        ("int8", 3, ["any/fp32/b2", "t4/fp32/b1"]),
        ("int8", 64, ["any/fp32/b2", "h100/fp16/b64", "t4/int8/b4"]),
        ("fp16", 63, ["any/fp32/b2", "t4/fp32/b8"]),
    ],
)
def test_a_kind_runs_the_nearest_form_that_is_no_less_precise_and_no_larger(
    quantization: str, batch: int, expected: list[str]
) -> None:
    wanted = DnnModel(name="resnet", quantization=Quantization(quantization), batch_size=batch)
    assert [str(form) for form in choose(scan("/home/models/resnet", files(*STORED)).forms, wanted)] == expected


MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: eyes
  annotations:
    tidegate.dev/dnn-model: resnet
    tidegate.dev/dnn-quantization: int8
    tidegate.dev/infer-batch-size: "{batch}"
spec:
  server: {{model: models}}
"""


def parsed(*paths: str, batch: int = 4, **accelerators: str) -> Parsed:
    context = ParseContext(base="/home", policies=("kpa",), accelerators=accelerators or None, files=files(*paths))
    return read(MANIFEST.format(batch=batch), source="eyes", context=context)


def test_a_manifest_names_the_repository_and_each_kind_gets_its_form() -> None:
    found = parsed(*STORED, "t4/int8/c4.onnx", t4="nvidia", cpu="cpu")
    (function,) = found.functions
    server = function.server
    assert (server.target, server.format, function.batching.max_size) == ("/home/models", ModelFormat.ONNX, 4)
    assert [str(server.form_on(name)) for name in ("t4", "T4-16gb", "t40", "cpu")] == [
        "t4/int8/b4",
        "t4/int8/b4",
        "any/fp32/b2",
        "any/fp32/b2",
    ]
    on_t4 = server.on("t4")
    assert on_t4 is not None and (on_t4.target, on_t4.forms) == ("/home/models/resnet/t4/int8/b4.onnx", ())
    assert [note.message for note in found.warnings] == [
        "resnet/t4/int8/c4.onnx is no stored form and is not used (ACCELERATOR/QUANTIZATION/bBATCH.SUFFIX, for example"
        " any/fp32/b1.onnx)",
        "cpu runs any/fp32/b2: it has no int8 for a batch of 4",
    ]


def test_a_kind_without_a_form_runs_nothing_and_the_deploy_says_so() -> None:
    found = parsed("t4/int8/b4.onnx", t4="nvidia", cpu="cpu")
    assert found.functions[0].server.on("cpu") is None
    assert [note.message for note in found.warnings] == ["no form of resnet is stored for cpu: it runs no replica"]


@pytest.mark.parametrize(
    ("paths", "allowed"),
    [
        (
            ("t4/int8/b8.onnx",),
            "a repository with a form of resnet in int8 or more precise, for a batch of at most 4; it has t4/int8/b8",
        ),
        (
            ("README",),
            "a repository with a form of resnet in int8 or more precise, for a batch of at most 4; it has nothing",
        ),
        (("t4/int8/b1.onnx", "any/fp32/b1.pt"), "forms of one format; resnet has onnx, torchscript"),
    ],
)
def test_a_repository_that_does_not_serve_is_refused_with_what_it_has(paths: tuple[str, ...], allowed: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parsed(*paths)
    assert [fault.allowed for fault in raised.value.faults] == [allowed]


def test_what_is_written_is_read_back() -> None:
    (function,) = parsed(*STORED).functions
    context = ParseContext(base="/home", policies=("kpa",), files=files(*STORED))
    assert read(write(function), source="written", context=context).functions == (function,)


def test_the_longest_name_that_is_the_accelerators_own_wins() -> None:
    names = ("h100", "any", "h100-80gb")
    forms = tuple(StoredForm(accelerator=name, path=f"/{name}", format=ModelFormat.ONNX) for name in names)
    (function,) = parsed(*STORED).functions
    server = type(function.server)(kind=function.server.kind, forms=forms)
    assert [str(server.form_on(name)).partition("/")[0] for name in ("h100-80gb-hbm3", "h100", "h10")] == [
        "h100-80gb",
        "h100",
        "any",
    ]
    assert type(server)(kind=server.kind, forms=forms[:1]).form_on("t4") is None
