"""A model of real work for real processors: ResNet-50 from the ``onnx`` package, one image at a time."""

import os
from typing import Any, ClassVar

import numpy
import onnxruntime


class ResNet:
    """With as many threads as its accelerator has cores; each inference is one image, whatever it is sent."""

    inputs: ClassVar = {"x": ("FP32", [-1, 1])}
    arrays = "plain"

    def load(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(os.environ["RESNET50"], options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name
        self.image = numpy.zeros((1, 3, 224, 224), dtype=numpy.float32)

    def predict(self, inputs: dict[str, Any]) -> list[list[float]]:
        rows = len(inputs["x"])
        for _ in range(rows):
            self.session.run(None, {self.name: self.image})
        return [[0.0]] * rows
