"""Models of the experiments on real processors. (On an emulated accelerator the profile answers in their place.)"""

import os
import time
from typing import Any, ClassVar


class Spin:
    """Each inference burns processor time and waits for as long again: a model that has half a core for itself, and
    that is faster the more cores its accelerator has. Two of them take one core between them."""

    inputs: ClassVar = {"x": ("FP32", [-1, 1])}
    arrays = "plain"

    def load(self) -> None:
        cores = int(os.environ.get("OMP_NUM_THREADS", "1"))
        self.burn_s = float(os.environ.get("BURN_S", "0.008")) / cores

    def predict(self, inputs: dict[str, Any]) -> list[list[float]]:
        rows = len(inputs["x"])
        end = time.thread_time() + self.burn_s * rows
        while time.thread_time() < end:
            sum(range(200))
        time.sleep(self.burn_s * rows)
        return [[0.0]] * rows


class Nap:
    """Takes the seconds that ``NAP_S`` says for each inference, on whatever it runs: injected service times."""

    inputs: ClassVar = {"x": ("FP32", [-1, 1])}
    arrays = "plain"

    def load(self) -> None:
        self.nap_s = float(os.environ.get("NAP_S", "0.02"))

    def predict(self, inputs: dict[str, Any]) -> list[list[float]]:
        rows = len(inputs["x"])
        time.sleep(self.nap_s * rows)
        return [[0.0]] * rows
