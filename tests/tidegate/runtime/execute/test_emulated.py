"""The emulated accelerator: its times, and that it says what it is."""

import random
from pathlib import Path

import pytest

from tidegate.runtime.errors import LoadError
from tidegate.runtime.execute.emulated import EmulatedModel, Profile
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import model_metadata


def test_a_batch_takes_what_the_profile_says() -> None:
    slept: list[float] = []
    model = EmulatedModel(Profile(0.010, 0.005, start_s=2.0), max_batch=8, sleep=slept.append, clock=lambda: 100.0)
    spec = model.load()
    tensor = Tensor("anything", "UINT8", (3, 2), bytes(6))
    outputs = model.run({tensor.name: model.arrays.decode(tensor)})
    assert slept == [2.0, pytest.approx(0.025)]
    answer = model.arrays.encode("output", outputs["output"], None)
    assert (answer.datatype, answer.shape, answer.data) == ("FP32", (3, 1), bytes(12))
    assert (spec.max_batch, spec.concurrency) == (8, 16)


def test_jitter_is_drawn_from_a_seed() -> None:
    profile = Profile(0.010, jitter=0.1)
    draws = [profile.batch_s(1, random.Random(seed)) for seed in range(200)]
    assert all(0.009 <= value <= 0.011 for value in draws)
    assert max(draws) - min(draws) > 0.0015
    assert profile.batch_s(1, random.Random(5)) == draws[5]


def test_it_says_that_it_is_emulated() -> None:
    model = EmulatedModel(Profile(0.0), max_batch=1, sleep=lambda seconds: None)
    metadata = model_metadata("m", model.load())
    assert (metadata["platform"], metadata["emulated"]) == ("tidegate_emulated", True)
    assert model.probe() is None
    assert not model.must_pass()
    assert (model.runners, model.loop) == (1, None)


class Device:
    """A model on a clock that moves by what it sleeps, and a little more."""

    def __init__(self, profile: Profile, late_s: float) -> None:
        self.now, self.late_s = 100.0, late_s
        self.model = EmulatedModel(profile, max_batch=8, sleep=self.sleep, clock=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late_s

    def run(self, arrived: float) -> float:
        """When a run ended, the process being late at both its ends."""
        self.now += self.late_s
        self.model.run({"x": 1}, arrived)
        return self.now


def test_what_waits_begins_when_the_device_is_free_however_late_the_process_is() -> None:
    device = Device(Profile(0.010), late_s=0.002)
    ends = [device.run(arrived=100.0) for _ in range(100)]
    assert ends[-1] - ends[0] == pytest.approx(0.99), "99 runs of 10 ms, not of 14"


def test_what_came_to_an_idle_device_begins_then() -> None:
    device = Device(Profile(0.010), late_s=0.0)
    device.run(arrived=100.0)
    device.now += 0.005
    assert device.run(arrived=device.now) == pytest.approx(100.0 + 0.010 + 0.005 + 0.010)


def test_a_process_that_was_stopped_makes_up_for_nothing() -> None:
    device = Device(Profile(0.010), late_s=0.0)
    device.run(arrived=100.0)
    device.now += 10.0
    assert device.run(arrived=100.0) == pytest.approx(100.010 + 10.0 + 0.010)


HANDLER = """
import a_library_that_is_not_here

class Model:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("INT64", [-1, 3]), "label": ("BYTES", [-1])}

class Computed:
    inputs = shapes()

class Wrong:
    inputs = {"x": ("FP31", [-1, 2])}
"""


def of_class(folder: Path, name: str, copy: str | None = None) -> EmulatedModel:
    path = folder / "handler.py"
    path.write_text(HANDLER, encoding="utf-8")
    return EmulatedModel(
        Profile(0.0), max_batch=8, handler=(str(path), name), copy=copy, sleep=lambda seconds: None, clock=lambda: 0.0
    )


def test_inputs_and_outputs_are_those_of_the_class_whose_libraries_are_not_here(tmp_path: Path) -> None:
    model = of_class(tmp_path, "Model")
    metadata = model_metadata("m", model.load())
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    outputs = {
        name: model.arrays.encode(name, value, None)
        for name, value in model.run({"x": model.arrays.decode(Tensor("x", "FP32", (4, 2), bytes(32)))}).items()
    }
    assert (outputs["y"].datatype, outputs["y"].shape, outputs["y"].data) == ("INT64", (4, 3), bytes(96))
    assert (outputs["label"].shape, outputs["label"].data) == ((4,), [b""] * 4)


def test_a_copy_is_read_instead_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("class Model:\n    inputs = {'old': ('INT8', [-1])}", encoding="utf-8")
    metadata = model_metadata("m", of_class(tmp_path, "Model", str(tmp_path / "copy")).load())
    assert [each["name"] for each in metadata["inputs"]] == ["old"]


def test_what_cannot_be_read_is_logged_and_any_input_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_class(tmp_path, "Computed").load().inputs is None
    assert "handler.py, line 9: Computed.inputs is computed; an emulated server runs none" in capsys.readouterr().err
    assert of_class(tmp_path, "Imported").load().inputs is None
    assert "no class Imported" in capsys.readouterr().err


def test_a_wrong_declaration_fails_as_it_does_for_the_class(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="datatypes are"):
        of_class(tmp_path, "Wrong").load()
