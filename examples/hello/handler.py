"""A model in plain Python: how much of each text is which script. No package is needed, not even numpy."""

import unicodedata
from typing import ClassVar


class Scripts:
    """Counts letters by script: ``LATIN``, ``GREEK``, ``CYRILLIC``, ``CJK``, ... (the first word of their names)."""

    inputs: ClassVar = {"text": ("BYTES", [-1])}
    outputs: ClassVar = {"script": ("BYTES", [-1]), "share": ("FP32", [-1])}
    max_batch_size = 16
    arrays = "plain"

    def load(self) -> None:
        """Called once, before the first request; what takes long belongs here."""
        self.names = unicodedata.name

    def predict(self, inputs):
        """One answer per text: the script of most of its letters, and their share of all letters."""
        found = [self.read(text.decode("utf-8", "replace")) for text in inputs["text"]]
        return {"script": [name for name, _ in found], "share": [share for _, share in found]}

    def read(self, text: str) -> tuple[str, float]:
        counts: dict[str, int] = {}
        for letter in filter(str.isalpha, text):
            script = self.names(letter, "UNKNOWN").split()[0]
            counts[script] = counts.get(script, 0) + 1
        if not counts:
            return "NONE", 0.0
        best = max(counts, key=lambda script: counts[script])
        return best, counts[best] / sum(counts.values())
