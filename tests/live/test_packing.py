"""Functions that share devices, while model servers and the control process are killed: what the living servers were
given of a device never exceeds it. Each server notes its own environment in a file that it keeps locked while it lives;
the driver is a fake, processes are real."""

import fcntl
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

HANDLER = """
import fcntl, json, os
class Model:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    def load(self):
        given = {
            "device": os.environ["CUDA_VISIBLE_DEVICES"],
            "share": int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100)),
            "memory": int(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=0M")[2:-1]),
        }
        self.note = open(os.path.join(NOTES, str(os.getpid())), "w")
        fcntl.flock(self.note, fcntl.LOCK_EX)
        self.note.write(json.dumps(given))
        self.note.flush()
    def predict(self, inputs):
        return {"y": inputs["x"]}
"""
DEVICES = {
    "GPU-1": {"name": "Tesla T4"},
    "GPU-2": {"name": "NVIDIA A100"},
    "MIG-1": {"name": "NVIDIA A100 MIG 3g.20gb", "of": "GPU-2"},
    "MIG-2": {"name": "NVIDIA A100 MIG 3g.20gb", "of": "GPU-2"},
}
ACCELERATORS = """
accelerators:
  - {name: t4, kind: nvidia, mps: true}
  - {name: a100-mig, kind: nvidia}
"""
FUNCTIONS = {
    "a": ("t4", 40, 6),
    "b": ("t4", 30, 5),
    "c": ("t4", 25, 7),
    "m": ("a100-mig", 100, 5),
    "n": ("a100-mig", 100, 5),
}
"""Accelerator, percent of a device and gigabytes of each. They ask for more than there is."""
MEMORY_MIB = 16 << 10
CHAOS_S = 6.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    for folder in ("path", "notes"):
        (tmp_path / folder).mkdir()
    shutil.copyfile(str(fake_nvml.__file__), tmp_path / "path" / "pynvml.py")
    (tmp_path / "nvml.json").write_text(json.dumps({"devices": DEVICES}))
    (tmp_path / "accelerators.yaml").write_text(ACCELERATORS)
    (tmp_path / "handler.py").write_text(HANDLER.replace("NOTES", repr(str(tmp_path / "notes"))))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "accelerators.yaml")) as made:
        made.up(as_program=True)
        yield made


class Watch(threading.Thread):
    """Adds up what the living servers were given, again and again."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes
        self.stop = threading.Event()
        self.most = {"share": Counter[str](), "memory": Counter[str]()}
        """The most of each device that was ever given at a time."""

    def run(self) -> None:
        while not self.stop.wait(0.02):
            living = self.living()
            for what, most in self.most.items():
                now = Counter[str]()
                for given in living.values():
                    now[given["device"]] += given[what]
                self.most[what] = most | now

    def living(self) -> dict[int, dict[str, Any]]:
        """What each living server was given, by its pid."""
        found = {}
        for note in self.notes.iterdir():
            with note.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:  # Its server lives.
                    text = file.read()
                    if text:
                        found[int(note.name)] = json.loads(text)
        return found


def test_what_living_servers_hold_never_exceeds_a_device_while_processes_are_killed(world: Deployment) -> None:
    watch = Watch(world.folder / "notes")
    watch.start()
    try:
        for name, (kind, share, memory) in FUNCTIONS.items():
            mps = ("--mps-on", "true", "--gpu-core-percentage", str(share)) if share < 100 else ()
            part = ("--accelerators", kind, "--dnn-model", name, "--gpu-mem-limit", str(memory), *mps)
            world.deploy("handler.py:Model", *part, "--min-scale", "2", name=name)
        world.until(lambda: len(watch.living()) >= 4, 30.0, "devices that are full")
        rng, ends = random.Random(1), time.monotonic() + CHAOS_S
        kills = 0
        while time.monotonic() < ends:
            for pid in rng.sample(sorted(watch.living()), k=min(2, len(watch.living()))):
                os.kill(pid, signal.SIGKILL)
            kills += 1
            if kills % 4 == 0:
                world.kill()
                world.up(as_program=True)
            time.sleep(0.7)
    finally:
        watch.stop.set()
        watch.join()
    assert watch.most["share"].keys() == {"GPU-1", "MIG-1", "MIG-2"}
    assert max(watch.most["share"].values()) <= 100
    assert watch.most["share"]["GPU-1"] >= 70, "it was shared"
    assert max(watch.most["memory"].values()) <= MEMORY_MIB
