"""A GPU that fails under load: what waits or comes later is served on another kind, and nothing is placed there until
the device is well. The driver is a fake; processes and requests are real."""

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import fake_nvml
from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ACCELERATORS = """
accelerators:
  - {name: t4, kind: nvidia, price-per-hour: 0.1}
  - {name: spare, kind: cpu, cores: 1, count: 2, memory: 1Gi, price-per-hour: 1}
"""
HANDLER = """
import time
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    concurrency = 1
    def predict(self, inputs):
        time.sleep(0.02)
        return {"y": inputs["x"]}
"""


class Gpu:
    """The devices of the fake driver."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "nvml.json"
        self.set()

    def set(self, *events: int, devices: Sequence[str] = ("GPU-1",), **state: Any) -> None:
        """``events`` and ``state`` are of GPU-1."""
        found = {uuid: {"name": "NVIDIA T4 PCIe", **(state if uuid == "GPU-1" else {})} for uuid in devices}
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"devices": found, "events": [["GPU-1", event] for event in events]}))
        part.replace(self._file)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Deployment, Gpu]]:
    (tmp_path / "path").mkdir()
    shutil.copyfile(str(fake_nvml.__file__), tmp_path / "path" / "pynvml.py")
    (tmp_path / "accelerators.yaml").write_text(ACCELERATORS)
    (tmp_path / "handler.py").write_text(HANDLER)
    gpu = Gpu(tmp_path)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "accelerators.yaml")) as made:
        made.up(as_program=True)
        yield made, gpu


def places(world: Deployment) -> set[tuple[str, str]]:
    """Accelerator and state of each replica."""
    return {
        (replica["accelerator"], replica["state"])
        for revision in world.status("handler")["revisions"]
        for replica in revision["replicas"]
    }


def units(world: Deployment, name: str = "handler") -> set[tuple[str, int, str]]:
    """Accelerator, unit and state of each replica."""
    return {
        (replica["accelerator"], replica["unit"], replica["state"])
        for revision in world.status(name)["revisions"]
        for replica in revision["replicas"]
    }


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "xid"])
def test_a_device_that_fails_under_load_is_left_and_no_waiting_request_is_lost(
    world: tuple[Deployment, Gpu], is_lost: bool
) -> None:
    made, gpu = world
    made.cli("deploy", "handler.py:Echo", "--gpu-mem-limit", "1", "--dnn-model", "echo", "--accelerators", "t4,spare")
    made.until(lambda: ("t4", "ready") in places(made), 20.0, "the replica on the GPU")
    assert "16 GiB, compute 7.5, driver 570.86.15" in made.cli("status").stdout
    made.until(lambda: made.status()["accelerators"][0]["power_w"] == 31.5, 5.0, "the power of the GPU")
    (gpu_kind, spare) = made.status()["accelerators"]
    assert gpu_kind["utilization_percent"] == [50.0]
    assert (gpu_kind["utilization_variation"], gpu_kind["power_unknown"]) == (0.0, None)
    assert spare["power_w"] is not None or spare["power_unknown"]
    answers: list[int] = []
    stop = threading.Event()

    def call() -> None:
        with httpx.Client(timeout=60, trust_env=False, verify=False) as client:
            while not stop.is_set():
                answers.append(client.post(f"{made.gateway}/v2/models/handler/infer", json=REQUEST).status_code)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    made.until(lambda: len(answers) > 20, 20.0, "load")
    gpu.set(79, lost=is_lost)
    made.until(lambda: ("t4", "ready") not in places(made), 10.0, "the end of the replica on it")
    made.until(lambda: {("spare", "ready")} == places(made), 30.0, "replicas on the other kind alone")
    before = len(answers)
    made.until(lambda: len(answers) > before + 20, 20.0, "answers of the other kind")
    stop.set()
    for each in callers:
        each.join()
    failed = [code for code in answers if code != 200]
    assert len(failed) <= (1 if is_lost else 0), "only what ran on a lost device may fail"
    (fault,) = made.status()["faults"]
    assert fault.startswith("device t4 unit 0 (GPU-1): ") and fault.endswith("; nothing is placed on it")
    assert ("XID 79" in fault) or is_lost
    with made.sdk() as sdk:
        assert 'tidegate_device_healthy{accelerator="t4",unit="0"} 0' in sdk.metrics()


def test_a_replica_is_counted_on_its_device_through_reloads_and_a_crash_that_renumber_and_rename_devices(
    world: tuple[Deployment, Gpu],
) -> None:
    made, gpu = world
    words = ("handler.py:Echo", "--gpu-mem-limit", "1", "--dnn-model", "echo", "--min-scale", "1")
    gpu.set(devices=("GPU-1", "GPU-2"))
    made.cli("reload")
    made.cli("deploy", *words)
    made.until(lambda: units(made) == {("t4", 0, "ready")}, 20.0, "the replica on the first GPU")
    gpu.set(79, devices=("GPU-1", "GPU-2"))
    made.until(lambda: units(made) == {("t4", 1, "ready")}, 30.0, "its successor on the second")
    made.cli("reload")
    assert "GPU-1" in made.status()["faults"][0], "a reload heals nothing"
    gpu.set(devices=("GPU-2",))
    made.cli("reload")
    made.until(lambda: made.status()["faults"] == [], 10.0, "the end of the fault of a device that is not there")
    refused = made.cli("deploy", *words, "--name", "other", code=1)
    assert "t4 has 0 of 1 places free; held by handler with 1" in refused.stderr
    made.cli("delete", "other")
    gpu.set(devices=("GPU-2", "GPU-1"))
    made.kill()
    made.up(as_program=True)
    assert units(made) == {("t4", 0, "ready")}, "adopted where its device is now"
    made.cli("deploy", *words, "--name", "other")
    made.until(lambda: units(made, "other") == {("t4", 1, "ready")}, 20.0, "the other GPU for the other function")
    (made.folder / "accelerators.yaml").write_text(ACCELERATORS.replace("{name: t4", "{name: t4-pcie"))
    made.cli("reload")
    renamed = {("t4-pcie", 0, "ready"), ("t4-pcie", 1, "ready")}
    made.until(lambda: units(made) | units(made, "other") == renamed, 30.0, "both under the kind's new name")
