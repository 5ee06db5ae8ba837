"""docs/runtime.md keeps up with the code."""

import re
from pathlib import Path

from tidegate.runtime import settings
from tidegate.runtime.handler import HandlerModel

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "runtime.md").read_text()


def test_every_variable_is_documented_and_none_that_is_not_read() -> None:
    read = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("TIDEGATE_")}
    assert set(re.findall(r"`(TIDEGATE_RUNTIME_\w+)`", TEXT)) == read


def test_the_class_in_the_docs_can_be_served(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "documented_handler.py"
    path.write_text(source)
    spec = HandlerModel(str(path), "Model", max_batch=1).load()
    assert (spec.max_batch, spec.concurrency) == (16, 8)
