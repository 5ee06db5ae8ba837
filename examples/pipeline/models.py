"""Two tiny models in plain Python: the first one smooths a series, the second one finds its peak."""

from typing import ClassVar


class Smooth:
    """Returns the mean of each value and its two neighbours."""

    inputs: ClassVar = {"series": ("FP32", [-1, -1])}
    outputs: ClassVar = {"smooth": ("FP32", [-1, -1])}
    arrays = "plain"

    def predict(self, inputs):
        return {"smooth": [[self.mean(row, at) for at in range(len(row))] for row in inputs["series"]]}

    def mean(self, row: list[float], at: int) -> float:
        near = row[max(0, at - 1) : at + 2]
        return sum(near) / len(near)


class Peak:
    """Returns the place and the height of the largest value of each series."""

    inputs: ClassVar = {"series": ("FP32", [-1, -1])}
    outputs: ClassVar = {"place": ("INT64", [-1]), "height": ("FP32", [-1])}
    arrays = "plain"

    def predict(self, inputs):
        rows = inputs["series"]
        return {"place": [row.index(max(row)) for row in rows], "height": [max(row) for row in rows]}
