"""Where the golden vectors lie: ``tests/golden/data``, or the folder that ``TIDEGATE_GOLDEN`` names."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

DATA = (
    Path(os.environ.get("TIDEGATE_GOLDEN", "")) if os.environ.get("TIDEGATE_GOLDEN") else Path(__file__).parent / "data"
)


@cache
def load(name: str) -> tuple[dict[str, Any], ...]:
    """The cases of one JSON-lines file."""
    with (DATA / name).open(encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines if line.strip())


def near(actual: float | None, expected: float | None) -> bool:
    """Relative tolerance of averages: Go's and libm's powers differ by units in the last place."""
    if actual is None or expected is None:
        return actual is expected
    return abs(actual - expected) <= max(1e-9 * abs(expected), 1e-12)
