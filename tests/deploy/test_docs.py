"""The example in docs/operate/local-backend.md is what the parser accepts."""

import re
from pathlib import Path

from tidegate.deploy.devices.declared import parse
from tidegate.deploy.placement.ledger import AcceleratorKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "local-backend.md"


def test_the_example_of_accelerators_can_be_used() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [each.kind for each in parse(example, source="docs")] == list(AcceleratorKind)
