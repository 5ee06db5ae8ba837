"""The model of real work of experiments on processors: deployed, or in sessions of ONNX Runtime with given threads."""

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import numpy
import onnxruntime

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


class Session:
    """One model in this process."""

    def __init__(self, folder: str, *, within: int, between: int) -> None:
        """``folder``: where it was written; ``within``, ``between``: threads within an operator, and between them."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = within, between
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(Path(folder) / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._name = self._session.get_inputs()[0].name
        self.seconds(1)

    def seconds(self, batch: int) -> float:
        """Returns the time of one execution."""
        images = numpy.zeros((batch, 3, 224, 224), dtype=numpy.float32)
        began = perf_counter()
        self._session.run(None, {self._name: images})
        return perf_counter() - began
