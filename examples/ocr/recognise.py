"""The second stage: the lines of a picture in, their texts out. A picture is one inference."""

from typing import ClassVar

import numpy as np
from pictures import batches_of, model, texts_of


class Recogniser:
    inputs: ClassVar = {"strip": ("UINT8", [1, 48, -1, 3]), "ends": ("INT32", [1, -1]), "boxes": ("INT32", [1, -1, 4])}
    outputs: ClassVar = {"text": ("BYTES", [1, -1]), "certainty": ("FP32", [1, -1]), "box": ("INT32", [1, -1, 4])}
    concurrency = 1

    def load(self) -> None:
        self.model = model("ch_PP-OCRv4_rec_infer.onnx")
        known = self.model.get_modelmeta().custom_metadata_map["character"]
        self.characters = [*known.splitlines(), " "]

    def predict(self, inputs):
        name, ends = self.model.get_inputs()[0].name, inputs["ends"][0].tolist()
        found = [("", 0.0)] * len(ends)
        for chosen, lines in batches_of(inputs["strip"][0], ends):
            (scores,) = self.model.run(None, {name: lines})
            for at, read in zip(chosen, texts_of(scores, self.characters), strict=True):
                found[at] = read
        return {
            "text": np.array([[text.encode() for text, _ in found]], object),
            "certainty": np.array([[certainty for _, certainty in found]], np.float32),
            "box": inputs["boxes"],
        }
