"""The environment of the model server."""

import pytest

from tidegate.errors import InvalidInputError
from tidegate.runtime import settings
from tidegate.runtime.execute.emulated import Profile


def test_the_least_that_is_needed() -> None:
    parsed = settings.parse({"TIDEGATE_RUNTIME_MODEL": "/m.onnx", "OTHER": "x", "TIDEGATE_RUNTIME_THREADS": ""})
    assert parsed == settings.RuntimeSettings(model="/m.onnx", names=("model",))


def test_everything() -> None:
    parsed = settings.parse(
        {
            "TIDEGATE_RUNTIME_HANDLER": "/a:b/handler.py:Model",
            "TIDEGATE_RUNTIME_ARGS": '{"factor": "2", "word": "two", "layers": "[1, 2]"}',
            "TIDEGATE_RUNTIME_NAME": "a, b,a,",
            "TIDEGATE_RUNTIME_LISTEN": "unix:/run/x.sock",
            "TIDEGATE_RUNTIME_THREADS": "2",
            "TIDEGATE_RUNTIME_MAX_BATCH": "32",
            "TIDEGATE_RUNTIME_BATCH_DELAY": "0.005",
            "TIDEGATE_RUNTIME_BODY_BYTES": "4096",
            "TIDEGATE_RUNTIME_PROVIDERS": "CUDAExecutionProvider,CPUExecutionProvider",
        }
    )
    assert parsed == settings.RuntimeSettings(
        handler=("/a:b/handler.py", "Model"),
        arguments={"factor": 2, "word": "two", "layers": [1, 2]},
        names=("a", "b"),
        listen="unix:/run/x.sock",
        threads=2,
        max_batch=32,
        batch_delay_s=0.005,
        body_bytes=4096,
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    )


def test_an_emulated_accelerator() -> None:
    parsed = settings.parse({"TIDEGATE_RUNTIME_EMULATED": '{"base_s": 0.01, "per_item_s": 0.005, "jitter": 0.05}'})
    assert parsed.emulated == Profile(0.01, 0.005, 0.05)


def test_every_fault_is_reported() -> None:
    with pytest.raises(InvalidInputError) as caught:
        settings.parse(
            {
                "TIDEGATE_RUNTIME_NAME": " , ",
                "TIDEGATE_RUNTIME_LISTEN": "8080",
                "TIDEGATE_RUNTIME_THREADS": "0",
                "TIDEGATE_RUNTIME_MAX_BATCH": "1_0",
                "TIDEGATE_RUNTIME_BATCH_DELAY": "nan",
                "TIDEGATE_RUNTIME_BODY_BYTES": "5",
            }
        )
    assert [fault.where for fault in caught.value.faults] == [
        "the model",
        "TIDEGATE_RUNTIME_NAME",
        "TIDEGATE_RUNTIME_LISTEN",
        "TIDEGATE_RUNTIME_THREADS",
        "TIDEGATE_RUNTIME_MAX_BATCH",
        "TIDEGATE_RUNTIME_BATCH_DELAY",
        "TIDEGATE_RUNTIME_BODY_BYTES",
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {"TIDEGATE_RUNTIME_MODEL": "m", "TIDEGATE_RUNTIME_HANDLER": "h.py:C"},
        {"TIDEGATE_RUNTIME_HANDLER": "h.py"},
        {"TIDEGATE_RUNTIME_HANDLER": "h.py:1x"},
        {"TIDEGATE_RUNTIME_HANDLER": "h.txt:C"},
        {"TIDEGATE_RUNTIME_EMULATED": "{"},
        {"TIDEGATE_RUNTIME_EMULATED": "[]"},
        {"TIDEGATE_RUNTIME_EMULATED": "{}"},
        {"TIDEGATE_RUNTIME_EMULATED": '{"base_s": "1"}'},
        {"TIDEGATE_RUNTIME_EMULATED": '{"base_s": -1}'},
        {"TIDEGATE_RUNTIME_EMULATED": '{"base_s": 1, "jitter": 2}'},
        {"TIDEGATE_RUNTIME_EMULATED": '{"base_s": 1, "speed": 2}'},
        {"TIDEGATE_RUNTIME_MODEL": "m", "TIDEGATE_RUNTIME_LISTEN": "unix:relative"},
        {"TIDEGATE_RUNTIME_MODEL": "m", "TIDEGATE_RUNTIME_LISTEN": "host:70000"},
        {"TIDEGATE_RUNTIME_MODEL": "m", "TIDEGATE_RUNTIME_BATCH_DELAY": "61"},
    ],
)
def test_wrong_values(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        settings.parse(environment)
