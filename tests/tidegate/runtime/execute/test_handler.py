"""Python classes as models: what is read from them, what they get and give, and how their faults are reported."""

import asyncio
import sys
from pathlib import Path

import numpy
import pytest

from tests.tidegate.runtime.conftest import WriteHandler
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.engine import Execution, ModelEngine
from tidegate.runtime.execute.handler import HandlerModel
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec


def serve(path: Path, *requests: list[Tensor], class_name: str = "Model", max_batch: int = 1) -> list[Execution]:
    """Loads the class in a thread of its own and runs the requests at the same time."""

    async def main() -> list[Execution]:
        worker = Worker("test")
        engine = ModelEngine(HandlerModel(str(path), class_name, max_batch=max_batch), worker)
        try:
            await engine.load()
            return await asyncio.gather(*(engine.execute([inputs]) for inputs in requests))
        finally:
            engine.stop()
            worker.stop()
            assert worker.join(5)

    return asyncio.run(main())


def load(path: Path, class_name: str = "Model", max_batch: int = 1) -> ModelSpec:
    return HandlerModel(str(path), class_name, max_batch=max_batch).load()


def refusal(path: Path, class_name: str = "Model") -> str:
    with pytest.raises(LoadError) as caught:
        load(path, class_name)
    return str(caught.value)


X = [tensors.from_json("x", "FP32", (2, 2), [1, 2, 3, 4])]


def test_numpy_arrays_in_and_out(write_handler: WriteHandler) -> None:
    path = write_handler(
        "class Model:\n"
        "    def load(self): self.factor = 2\n"
        "    def predict(self, inputs):\n"
        "        x = inputs['x']; x *= self.factor\n"
        "        return {'sum': x.sum(axis=1), 'kind': [str(type(x).__name__)]}\n"
    )
    (execution,) = serve(path, X)
    (outputs,) = execution.outputs
    assert outputs["sum"].data == numpy.array([6, 14], dtype="float32").tobytes()
    assert outputs["kind"].data == [b"ndarray"]


def test_plain_lists_for_a_class_that_says_so(write_handler: WriteHandler) -> None:
    path = write_handler(
        "class Model:\n"
        "    arrays = 'plain'\n"
        "    outputs = {'y': ('FP32', [-1])}\n"
        "    def predict(self, inputs): return [sum(row) for row in inputs['x']]\n"
    )
    (execution,) = serve(path, X)
    assert execution.outputs[0]["y"].data == numpy.array([3, 7], dtype="float32").tobytes()


def test_a_single_result_needs_no_name(write_handler: WriteHandler) -> None:
    path = write_handler("class Model:\n    def predict(self, inputs): return [1, 2]\n")
    (execution,) = serve(path, X)
    assert (execution.outputs[0]["output"].datatype, execution.outputs[0]["output"].shape) == ("INT64", (2,))


def test_async_methods_run_at_a_time_on_one_loop(write_handler: WriteHandler) -> None:
    path = write_handler(
        "import asyncio\n"
        "class Model:\n"
        "    concurrency = 3\n"
        "    async def load(self):\n"
        "        self.loop, self.inside, self.most = asyncio.get_running_loop(), 0, 0\n"
        "        self.all_here = asyncio.Event()\n"
        "    async def predict(self, inputs):\n"
        "        assert asyncio.get_running_loop() is self.loop\n"
        "        self.inside += 1; self.most = max(self.most, self.inside)\n"
        "        if self.inside == 3: self.all_here.set()\n"
        "        await self.all_here.wait()\n"
        "        self.inside -= 1\n"
        "        return [self.most]\n"
    )
    executions = serve(path, X, X, X)
    assert [tensors.to_flat(execution.outputs[0]["output"]) for execution in executions] == [[3], [3], [3]]


def test_an_async_load_with_a_plain_predict(write_handler: WriteHandler) -> None:
    path = write_handler(
        "class Model:\n"
        "    async def load(self): self.word = 'loaded'\n"
        "    def predict(self, inputs): return [self.word]\n"
    )
    (execution,) = serve(path, X)
    assert execution.outputs[0]["output"].data == [b"loaded"]


def test_declared_attributes(write_handler: WriteHandler) -> None:
    spec = load(
        write_handler(
            "class Model:\n"
            "    inputs = {'x': ('FP32', [-1, 2])}\n"
            "    outputs = {'y': ('INT64', (-1,))}\n"
            "    max_batch_size = 8\n"
            "    def predict(self, inputs): return {}\n"
        ),
        max_batch=1,
    )
    assert spec.inputs is not None
    assert spec.outputs is not None
    assert [(s.name, s.datatype, s.shape) for s in (*spec.inputs, *spec.outputs)] == [
        ("x", "FP32", (-1, 2)),
        ("y", "INT64", (-1,)),
    ]
    assert (spec.max_batch, spec.max_rows, spec.concurrency) == (8, 8, 16)


@pytest.mark.parametrize(
    ("attributes", "environment", "max_batch", "concurrency"),
    [
        ("", 1, 1, 1),
        ("", 16, 16, 32),
        ("max_batch_size = 8", 1, 8, 16),
        ("max_batch_size = 8", 4, 4, 8),
        ("max_batch_size = 8", 32, 8, 16),
        ("max_batch_size = 1", 32, 1, 1),
        ("max_batch_size = 8; concurrency = 3", 1, 8, 3),
        ("concurrency = 1", 1, 1, 1),
    ],
)
def test_batches_and_concurrency_that_are_declared(
    write_handler: WriteHandler, attributes: str, environment: int, max_batch: int, concurrency: int
) -> None:
    path = write_handler(f"class Model:\n    {attributes or 'pass'}\n    def predict(self, inputs): return 1\n")
    spec = load(path, max_batch=environment)
    assert (spec.max_batch, spec.concurrency) == (max_batch, concurrency)


def test_a_class_that_runs_one_call_at_a_time_declares_one_slot_an_async_one_some(write_handler: WriteHandler) -> None:
    """With more slots requests would wait inside the model server, and look like slow executions."""
    plain = write_handler("class Model:\n    def predict(self, inputs): return 1\n")
    assert load(plain, max_batch=1).concurrency == 1
    several = write_handler("class Model:\n    async def predict(self, inputs): return 1\n")
    model = HandlerModel(str(several), "Model", max_batch=1)
    assert model.load().concurrency == 4
    assert model.loop is not None
    model.loop.close()


def test_an_exception_is_reported_with_its_line_and_logged_with_its_trace(
    write_handler: WriteHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_handler(
        "import json\n"
        "class Model:\n"
        "    def predict(self, inputs):\n"
        "        return self.inner('secret argument')\n"
        "    def inner(self, text):\n"
        "        return json.loads(text)\n"
    )
    with pytest.raises(ModelError) as caught:
        serve(path, X)
    assert str(caught.value) == (f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({path.name}, line 6)")
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration"])
@pytest.mark.parametrize("keyword", ["", "async "])
def test_no_exception_ends_the_server(write_handler: WriteHandler, kind: str, keyword: str) -> None:
    path = write_handler(f"class Model:\n    {keyword}def predict(self, inputs):\n        raise {kind}\n")
    with pytest.raises(ModelError, match=kind):
        serve(path, X)


def test_a_handler_may_blame_its_caller(write_handler: WriteHandler) -> None:
    path = write_handler(
        "from tidegate.runtime.errors import RequestError\n"
        "class Model:\n    def predict(self, inputs): raise RequestError('no such word', 422)\n"
    )
    with pytest.raises(RequestError, match="no such word") as caught:
        serve(path, X)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return None", "predict returned None"),
        ("return {'y': object()}", "output 'y' holds object"),
        ("return {'y': {}}", "output 'y' holds dict"),
        ("return [[1], [1, 2]]", "output 'output' is ragged"),
    ],
)
def test_a_result_that_is_no_tensor_is_named(write_handler: WriteHandler, body: str, says: str) -> None:
    path = write_handler(f"class Model:\n    def predict(self, inputs): {body}\n")
    with pytest.raises(ModelError, match=says):
        serve(path, X)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return {'a': [1]}", "predict returned a; declared: a, b"),
        ("return [1]", "predict must return a mapping: 2 outputs are declared"),
        ("return {'a': ['x'], 'b': [1]}", "output 'a' does not fit INT64"),
    ],
)
def test_a_result_must_be_what_was_declared(write_handler: WriteHandler, body: str, says: str) -> None:
    path = write_handler(
        "class Model:\n"
        "    outputs = {'a': ('INT64', [-1]), 'b': ('FP64', [-1])}\n"
        f"    def predict(self, inputs): {body}\n"
    )
    with pytest.raises(ModelError, match=says):
        serve(path, X)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (", "cannot be imported: SyntaxError"),
        ("import no_such_package", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(5)", "cannot be imported: SystemExit: 5"),
        ("class Other: pass", "has no class Model; it has Other"),
        ("Model = 5", "has no class Model"),
        ("class Model: pass", "has no method predict(self, inputs)"),
        ("class Model:\n    def __init__(self): 1/0\n    def predict(self, i): pass", "ZeroDivisionError"),
        ("class Model:\n    def load(self): raise OSError('no weights')\n    def predict(self, i): pass", "line 2"),
        ("class Model:\n    max_batch_size = 0\n    def predict(self, i): pass", "Model.max_batch_size must be"),
        ("class Model:\n    concurrency = True\n    def predict(self, i): pass", "Model.concurrency must be"),
        ("class Model:\n    arrays = 'torch'\n    def predict(self, i): pass", 'Model.arrays must be "numpy"'),
        ("class Model:\n    inputs = []\n    def predict(self, i): pass", "Model.inputs must be a mapping"),
        ("class Model:\n    inputs = {'x': 5}\n    def predict(self, i): pass", "must be (datatype, shape)"),
        ("class Model:\n    outputs = {'x': ('F', [1])}\n    def predict(self, i): pass", "datatypes are BF16"),
        ("class Model:\n    outputs = {'x': ('FP32', [-2])}\n    def predict(self, i): pass", "sizes -1 (any)"),
    ],
)
def test_a_class_that_cannot_be_served_is_reported_why(write_handler: WriteHandler, text: str, says: str) -> None:
    assert says in refusal(write_handler(text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.py")


def test_the_folder_may_hold_modules_with_our_names(
    write_handler: WriteHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway", raising=False)  # a model server never has ours, this process may
    path = write_handler(
        "import gateway, helper\nclass Model:\n    def predict(self, i): return [gateway.WORD + helper.WORD]\n"
    )
    (path.parent / "gateway.py").write_text("WORD = 'my own '\n")
    (path.parent / "helper.py").write_text("import tidegate.runtime.errors\nWORD = 'gateway'\n")
    (path.parent / "random.py").write_text("raise RuntimeError('not for numpy')\n")
    (path.parent / "tests").mkdir()
    (execution,) = serve(path, X)
    assert execution.outputs[0]["output"].data == [b"my own gateway"]


@pytest.mark.parametrize("rival", ["tidegate.py", "tidegate"])
def test_a_tidegate_of_the_users_own_is_refused(write_handler: WriteHandler, rival: str) -> None:
    path = write_handler("class Model:\n    def predict(self, i): return 1\n")
    if rival.endswith(".py"):
        (path.parent / rival).touch()
    else:
        (path.parent / rival).mkdir()
    assert f"{rival} has the name of Tidegate's own package: rename it" in refusal(path)


def test_a_file_named_like_a_module_of_python(write_handler: WriteHandler) -> None:
    path = write_handler("class Model:\n    def predict(self, i): return 1\n").rename
    renamed = path(Path(str(write_handler("").parent / "json.py")))
    assert load(renamed).platform == "python"
    assert "loads" in vars(sys.modules["json"])


def test_a_copy_is_read_in_the_place_of_the_file(write_handler: WriteHandler, tmp_path: Path) -> None:
    """Deployed, then overwritten: the copy counts, also in messages, and the module beside the file is found."""
    path = write_handler(
        "import beside_it\n"
        "class Model:\n"
        "    def load(self): assert (__file__, beside_it.NAME) == ({PATH!r}, 'beside')\n"
        "    def predict(self, inputs): raise ValueError('of the copy')\n"
    )
    (path.parent / "beside_it.py").write_text("NAME = 'beside'\n")
    copy = tmp_path / "copy.py"
    copy.write_text(path.read_text().replace("{PATH!r}", repr(str(path))))
    path.unlink()
    model = HandlerModel(str(path), "Model", max_batch=1, copy=str(copy))
    model.load()
    with pytest.raises(ModelError, match=rf"of the copy \({path.name}, line 4\)"):
        model.run({})
    copy.unlink()
    with pytest.raises(LoadError, match="there is no file"):
        HandlerModel(str(path), "Model", max_batch=1, copy=str(copy)).load()


def test_made_up_inputs_only_where_all_are_declared_as_numbers(write_handler: WriteHandler) -> None:
    for declared, made_up in (
        ("{'x': ('FP32', [-1, 2])}", [Tensor("x", "FP32", (1, 2), bytes(8))]),
        ("{'x': ('BYTES', [-1])}", None),
        ("None", None),
    ):
        path = write_handler(f"class Model:\n    inputs = {declared}\n    def predict(self, i): return 1\n")
        model = HandlerModel(str(path), "Model", max_batch=1)
        model.load()
        assert model.probe() == made_up
        assert not model.must_pass()
