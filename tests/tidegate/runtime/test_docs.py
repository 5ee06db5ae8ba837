"""docs/use/runtime.md and README.md keep up with the code."""

import re
from pathlib import Path

from tidegate.loadgen.clients.bodies import inputs_of, v2_json
from tidegate.runtime import settings
from tidegate.runtime.execute.handler import HandlerModel
from tidegate.runtime.protocols import v2 as protocol

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "use" / "runtime.md").read_text()


def test_every_variable_is_documented_and_none_that_is_not_read() -> None:
    read = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("TIDEGATE_")}
    assert set(re.findall(r"`(TIDEGATE_RUNTIME_\w+)`", TEXT)) == read


def test_the_class_in_the_docs_can_be_served(tmp_path: Path) -> None:
    source, streams, *_ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "documented_handler.py"
    path.write_text(source)
    spec = HandlerModel(str(path), "Model", max_batch=1).load()
    assert (spec.max_batch, spec.concurrency) == (16, 8)
    path = tmp_path / "documented_stream.py"
    path.write_text(streams)
    assert HandlerModel(str(path), "Writer", max_batch=1).load().streams


def test_the_class_in_the_readme_can_be_served_and_says_what_a_load_is_made_of(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "readme_handler.py"
    path.write_text(source)
    spec = HandlerModel(str(path), "Model", max_batch=1).load()
    made = v2_json(inputs_of(protocol.model_metadata("handler", spec)), 3)
    protocol.check_inputs(protocol.parse_infer(made, None), spec)
