"""Modules from a bundle: as if their files still lay beside the handler, also when they changed or are gone."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.runtime.execute.handler import HandlerModel

HANDLER = """
import bundled_helper
from bundled_pack.part import factor
class Model:
    arrays = "plain"
    def predict(self, inputs):
        import bundled_space.late
        values = [bundled_helper.ADDED, factor(), bundled_space.late.VALUE]
        return {"y": values}
"""
FILES = {
    "bundled_helper.py": "import sys\nADDED = 1\n",
    "bundled_pack/__init__.py": "",
    "bundled_pack/part.py": "from .own import TEN\ndef factor():\n    return TEN\n",
    "bundled_pack/own.py": "TEN = 10\n",
    "bundled_space/late.py": "VALUE = 100\n",
}


@pytest.fixture(autouse=True)
def _imports() -> Iterator[None]:
    """Leaves the interpreter's imports as they were."""
    path, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - modules:
        if name.startswith(("bundled_", "handler_of_bundle")):
            del sys.modules[name]


@pytest.mark.parametrize("there", ["gone", "changed"])
def test_a_revision_imports_the_modules_that_were_deployed(tmp_path: Path, there: str) -> None:
    folder, bundle, copy = tmp_path / "work", tmp_path / "bundle.zip", tmp_path / "copy.py"
    folder.mkdir()
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
            if there == "changed":
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text("raise AssertionError('the file of today')\n")
    copy.write_text(HANDLER)
    path = folder / "handler_of_bundle.py"
    model = HandlerModel(str(path), "Model", max_batch=1, copy=str(copy), modules=str(bundle))
    model.load()
    assert model.run({"x": [1]}) == {"y": [1, 10, 100]}
    helper = sys.modules["bundled_helper"]
    assert helper.__file__ == str(folder / "bundled_helper.py"), "it opens its data where it always did"


def test_a_name_of_the_standard_library_keeps_its_precedence(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("sys.py", "raise AssertionError('built-in modules come first')\n")
        archive.writestr("bundled_helper.py", "import sys\nADDED = len(sys.argv)\n")
    copy = tmp_path / "copy.py"
    copy.write_text("import bundled_helper\nclass Model:\n    def predict(self, inputs): return [1]\n")
    path = tmp_path / "handler_of_bundle.py"
    HandlerModel(str(path), "Model", max_batch=1, copy=str(copy), modules=str(bundle)).load()
