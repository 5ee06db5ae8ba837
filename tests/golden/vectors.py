"""Where the golden vectors lie: ``tests/golden/data``, or the folder that ``TIDEGATE_GOLDEN`` names."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

OWN = Path(__file__).parent / "data"
DATA = Path(os.environ.get("TIDEGATE_GOLDEN") or OWN)
IS_OWN = DATA.resolve() == OWN.resolve()
"""Whether these are our own: of others it is not known how many there are."""


@cache
def load(name: str) -> tuple[dict[str, Any], ...]:
    """The cases of one JSON-lines file; a caller that cannot read them fails."""
    with (DATA / name).open(encoding="utf-8") as lines:
        cases = tuple(json.loads(line) for line in lines if line.strip())
    assert cases, f"{DATA / name} has no cases"
    return cases


def near(actual: float | None, expected: float | None) -> bool:
    """Relative tolerance of averages: Go's and libm's powers differ by units in the last place."""
    if actual is None or expected is None:
        return actual is expected
    return abs(actual - expected) <= max(1e-9 * abs(expected), 1e-12)
