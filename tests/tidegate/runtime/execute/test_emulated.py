"""The emulated accelerator: its times, and that it says what it is."""

import random

import pytest

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
