"""Flags that are keys of `spec`: they win over the manifest, and a fault names the flag."""

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import Function
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.schema.files import Found, NamedFiles

FILES = NamedFiles({"/home/m.py": Found.FILE, "/usr/bin/python3.12": Found.FILE, "/home/own": Found.FILE})
KINDS = {"cpu": "cpu", "t4": "emulated"}
TEXT = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: m}
spec:
  server: {handler: 'm.py:Model'}
  python: own
  accelerators: [cpu]
  env: {COLOUR: blue, SIZE: '1'}
  args: {factor: 2}
"""


def parsed(flags: dict[str, str], text: str = TEXT, kinds: dict[str, str] = KINDS) -> Function:
    context = ParseContext(base="/home", policies=("kpa", "smif", "tide"), accelerators=kinds, files=FILES, flags=flags)
    return read(text, source="m.yaml", context=context).functions[0]


def faults(flags: dict[str, str], text: str = TEXT, kinds: dict[str, str] = KINDS) -> list[str]:
    with pytest.raises(InvalidInputError) as raised:
        parsed(flags, text, kinds)
    return [str(fault) for fault in raised.value.faults]


def test_flags_win_over_the_manifest_and_names_are_joined() -> None:
    plain = parsed({})
    assert (plain.python, plain.accelerators, plain.args) == ("/home/own", ("cpu",), {"factor": "2"})
    flags = {"spec.python": "/usr/bin/python3.12", "spec.accelerators": "t4, cpu", "spec.env.COLOUR": "red"}
    found = parsed(flags | {"spec.args.word": "a", "latency": "200ms"})
    assert (found.python, found.accelerators) == ("/usr/bin/python3.12", ("t4", "cpu"))
    assert found.env == {"COLOUR": "red", "SIZE": "1"}
    assert found.args == {"factor": "2", "word": "a"}
    assert found.sla.latency_s == 0.2


def test_a_fault_names_the_flag() -> None:
    found = faults({"spec.python": "/no", "spec.accelerators": "v100", "spec.env.PORT": "1", "spec.args.a-b": "1"})
    assert [fault.partition(":")[0] for fault in found] == ["--python", "--accelerators", "--env", "--arg"]
    command = TEXT.replace("{handler: 'm.py:Model'}", "{command: [serve]}").replace("  python: own\n", "")
    (args,) = faults({}, command)
    assert args.startswith("line 9: spec.args.factor: got '2'; allowed: no such key without a handler")


def test_a_cpu_is_no_gpu_and_a_similar_name_is_suggested() -> None:
    text = TEXT.replace("  accelerators: [cpu]\n", "")
    (fault,) = faults({"gpu-model": "CPU"}, text, {"cpu": "cpu"})
    assert "there is no GPU here" in fault
    (fault,) = faults({"gpu-model": "A10"}, text, {"a100": "nvidia"})
    assert "did you mean `a100`?" in fault


def test_a_key_that_a_flag_needs_is_named_as_a_flag() -> None:
    found = faults({"gpu-model": "T4"}, TEXT.replace("  accelerators: [cpu]\n", ""))
    assert [fault.partition(":")[0] for fault in found] == ["--dnn-model", "--gpu-mem-limit"]


def test_an_unknown_flag_that_the_manifest_repeats_is_one_fault() -> None:
    text = TEXT.replace("{name: m}", "{name: m, annotations: {tidegate.dev/latencyy: 1s}}")
    (fault,) = faults({"latencyy": "1s"}, text)
    assert fault.startswith("--latencyy: got an unknown annotation")


@pytest.mark.parametrize(
    ("flags", "kinds", "allowed"),
    [
        (
            {"gpu-model": "v100"},
            {"cpu": "cpu"},
            "no such key: there is no GPU here (the accelerators are cpu)",
        ),
        (
            {"gpu-model": "v100"},
            KINDS,
            "a GPU that is here: t4 (the accelerators are cpu, t4)",
        ),
        (
            {"gpu-mem-limit": "4"},
            {"cpu": "cpu"},
            "no such key: there is no GPU here (the accelerators are cpu)",
        ),
    ],
)
def test_a_gpu_that_is_not_here_is_the_fault_and_not_the_keys_that_it_needs(
    flags: dict[str, str], kinds: dict[str, str], allowed: str
) -> None:
    (fault,) = faults(flags, TEXT.replace("  accelerators: [cpu]\n", ""), kinds)
    (flag,) = flags
    assert fault == f"--{flag}: got {flags[flag]!r}; allowed: {allowed}"
