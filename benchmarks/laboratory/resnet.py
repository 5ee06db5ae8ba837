"""The model of real work that experiments on processors deploy."""

import subprocess
import sys
from pathlib import Path

from benchmarks.autoscaling.lab import Lab

HERE = Path(__file__).resolve().parent
PREPARE = HERE.parent.parent / "examples" / "resnet50" / "prepare.py"


def prepare(folder: str) -> None:
    """Writes ``model.onnx`` into a folder. Raises RuntimeError if that fails."""
    prepared = subprocess.run([sys.executable, str(PREPARE), folder], check=False, capture_output=True, text=True)
    if prepared.returncode:
        raise RuntimeError(f"no model of real work: {prepared.stderr.strip()[-500:]}")


def deploy(world: Lab, name: str, on: str, replicas: int, folder: str) -> None:
    """Deploys that many replicas of the model, each with one slot, and waits for them."""
    annotations = {"policy": "kpa", "concurrency": 1, "min-scale": replicas, "max-scale": replicas}
    model = {"RESNET50": str(Path(folder) / "model.onnx")}
    world.deploy(
        name, on=[on], replicas=replicas, handler="work.py:ResNet", env=model, annotations=annotations, base=HERE
    )
