"""What a model's graph says of its speed: work, traffic, character, and a first time on a device without measurements.

An operator takes the longer of two times, that of its arithmetic and that of its memory traffic (the roofline model:
Williams and others, CACM 2009). An operator is bound by computation if it does at least ``RIDGE`` floating point
operations for a byte. The character of a model weighs its operators by their time (OLTunes, Eq. 1, counts kernels as a
profiler of a GPU reports them; without a GPU there are none to count).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.oltunes.character import Character, kernel_ratio
from tidegate.autoscaler.oltunes.prediction.onnx_graph import Operator, OperatorGraph

RIDGE: Final = 10.0
"""Floating point operations per byte at which arithmetic takes as long as traffic: 5 to 15 on most processors."""
OVERHEAD_S: Final = 5e-6
"""Time of an operator beside its work (our choice)."""
EFFICIENCY: Final = 0.45
"""Share of a device's peak arithmetic that models reach (our choice; OT-P has the same)."""
CORE_FLOPS: Final = 200e9
"""Peak arithmetic of one processor core with vectors of 512 bits (our choice)."""
CORE_BYTES: Final = 20e9
"""Memory traffic of one processor core per second (our choice)."""

PEAKS: Final[Mapping[str, tuple[float, float]]] = {
    "a100": (19.5e12, 1555e9),
    "a30": (10.3e12, 933e9),
    "rtx4090": (82.6e12, 1008e9),
    "v100": (15.7e12, 900e9),
    "t4": (8.1e12, 320e9),
    "l4": (30.3e12, 300e9),
    "h100": (67e12, 3350e9),
    "h200": (67e12, 4800e9),
}
"""Single-precision operations and bytes per second of devices, by a part of their names; from their data sheets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Figures of one item of a model."""

    flops: float
    bytes: float
    parameters: int
    input_size: int
    """Longest dimension of its inputs."""
    operators: Mapping[str, int]
    """Operators by kind."""
    unknown: int
    """Operators that count for nothing because their shapes are not known."""
    character: Character
    work: tuple[tuple[float, float], ...]
    """(operations, bytes) of each operator."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Reached arithmetic and traffic of a device."""

    flops_per_s: float
    bytes_per_s: float


def analyse(graph: OperatorGraph) -> ModelFigures:
    """Returns the figures of a graph."""
    work = tuple(_work(each) for each in graph.operators)
    bound = [0.0, 0.0]
    for flops, size in work:
        bound[flops < RIDGE * size] += max(flops / RIDGE, size)
    total = sum(bound)
    compute, memory = (100.0 * each / total for each in bound) if total else (0.0, 0.0)
    return ModelFigures(
        flops=sum(flops for flops, _ in work),
        bytes=sum(size for _, size in work),
        parameters=graph.parameters,
        input_size=max((max(each.shape, default=1) for each in graph.inputs), default=0),
        operators=dict(Counter(each.kind for each in graph.operators).most_common()),
        unknown=graph.unknown,
        character=kernel_ratio(compute, memory),
        work=work,
    )


def _work(operator: Operator) -> tuple[float, float]:
    """Returns (operations, bytes) of one operator; nothing if its output is not known."""
    output = operator.outputs[0] if operator.outputs else None
    if output is None:
        return 0.0, 0.0
    moved = sum(each.size_bytes for each in operator.inputs if each is not None) + output.size_bytes
    if operator.kind == "Gather":  # reads the rows that it copies, not the whole table
        moved = 2 * output.size_bytes
    weights = operator.inputs[1] if len(operator.inputs) > 1 else None
    if operator.kind == "Conv" and weights is not None:
        return 2.0 * output.elements * math.prod(weights.shape[1:]), float(moved)
    a = operator.inputs[0] if operator.inputs else None
    if operator.kind in ("MatMul", "Gemm") and a is not None and a.shape:
        is_turned = operator.kind == "Gemm" and operator.attributes.get("transA", {}).get("i", 0)
        return 2.0 * output.elements * (a.shape[0] if is_turned else a.shape[-1]), float(moved)
    return float(output.elements), float(moved)


def rates_of(name: str, *, cores: float | None) -> DeviceRates | None:
    """Returns the rates of ``cores`` processor cores, or of the GPU whose name is in ``name``; None if neither is
    known."""
    if cores is not None:
        return DeviceRates(EFFICIENCY * CORE_FLOPS * cores, CORE_BYTES * cores)
    plain = "".join(each for each in name.lower() if each.isalnum())
    known = next((peaks for part, peaks in PEAKS.items() if part in plain), None)
    return None if known is None else DeviceRates(EFFICIENCY * known[0], known[1])


def first_time_s(model: ModelFigures, rates: DeviceRates, batch: int = 1) -> float:
    """Returns the analytic time of a batch."""
    return sum(
        OVERHEAD_S + batch * max(flops / rates.flops_per_s, size / rates.bytes_per_s) for flops, size in model.work
    )
