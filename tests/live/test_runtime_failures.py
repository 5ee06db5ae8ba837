"""What the shipped model server does when the model, the environment or the client is at fault."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.deadline import Patience
from tests.support.live.runtime_process import RuntimeProcess, failed, finish, free_port, running, start

pytestmark = pytest.mark.live

ONE = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_package", "No module named 'no_such_package' (handler.py, line 1)"),
        ("raise RuntimeError('on import')", "handler.py cannot be imported: RuntimeError: on import"),
        ("class Other:\n    pass", "handler.py has no class Model; it has Other"),
        (
            "class Model:\n    def load(self): raise OSError('no weights')\n    def predict(self, inputs): pass",
            "Model failed to load: OSError: no weights (handler.py, line 2)",
        ),
        ("import sys; sys.exit('bye')", "handler.py cannot be imported: SystemExit: bye"),
    ],
)
def test_a_class_that_cannot_be_loaded_ends_with_3_and_the_reason_last(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "handler.py").write_text(text + "\n")
    code, stderr = failed(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"})
    assert code == 3
    last = stderr.splitlines()[-1]
    assert last.startswith("the model cannot be served: ")
    assert says in last


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_model_ends_with_3(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bad.onnx").write_bytes(content)
    code, stderr = failed(f"unix:{tmp_path / 's'}", {"MODEL": tmp_path / "bad.onnx"})
    assert code == 3
    assert stderr.splitlines()[-1].startswith("the model cannot be served: ")
    assert "bad.onnx" in stderr
    assert "Traceback" not in stderr


def test_threads_that_a_handler_leaves_do_not_keep_it_from_ending(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "import threading\n"
        "class Model:\n"
        "    arrays = 'plain'\n"
        "    def load(self): threading.Thread(target=threading.Event().wait, daemon=False).start()\n"
        "    def predict(self, inputs): return 1\n"
    )
    with running(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}) as server:
        assert server.terminate() == 0


def test_a_wrong_environment_ends_with_2_and_every_fault(tmp_path: Path) -> None:
    code, stderr = failed(f"unix:{tmp_path / 's'}", {"THREADS": "many", "MAX_BATCH": "-1"})
    assert code == 2
    assert [line.split(":")[0].strip() for line in stderr.splitlines()[1:]] == [
        "the model",
        "TIDEGATE_RUNTIME_THREADS",
        "TIDEGATE_RUNTIME_MAX_BATCH",
    ]


def test_an_address_in_use_ends_with_1() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, stderr = failed(listen, {"EMULATED": '{"base_s": 0}'})
    assert code == 1
    assert stderr.startswith(f"cannot listen on {listen}: ")


def test_sigterm_while_the_model_loads_ends_at_once(tmp_path: Path) -> None:
    server = start(f"unix:{tmp_path / 's'}", {"EMULATED": '{"base_s": 0, "start_s": 60}'})
    try:
        server.wait_for("/v2/health/live")
        patience = Patience(5.0)
        assert server.terminate() == 0
        assert not patience.is_over
    finally:
        finish(server)


def test_an_exception_in_predict_is_reported_without_its_trace_and_logged_with_it(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "class Model:\n    def predict(self, inputs):\n        raise ValueError('only even numbers')\n"
    )
    server = start(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"})
    try:
        server.wait_for("/v2/health/ready")
        status, body, _ = server.request("POST", "/v2/models/model/infer", ONE)
        assert (status, json.loads(body)) == (500, {"error": "ValueError: only even numbers (handler.py, line 3)"})
        assert server.metric("nv_inference_request_failure", "BACKEND") == 1
        assert server.request("GET", "/v2/health/ready")[0] == 200
        assert server.terminate() == 0
    finally:
        stderr = finish(server)
    assert "Traceback (most recent call last)" in stderr
    assert "raise ValueError('only even numbers')" in stderr


def test_one_bad_request_does_not_fail_the_batch_that_it_was_in(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "import time\n"
        "class Model:\n"
        "    max_batch_size, arrays = 8, 'plain'\n"
        "    def predict(self, inputs):\n"
        "        time.sleep(0.1)\n"
        "        if 3.0 in inputs['x']: raise ValueError('no threes')\n"
        "        return inputs['x']\n"
    )
    with running(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}) as server:
        clients = []
        for number in range(5):
            body = ONE.replace(b"[1]}", b"[%d]}" % number)
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(10)
            client.connect(server.listen.removeprefix("unix:"))
            head = b"POST /v2/models/model/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            client.sendall(head + body)
            clients.append(client)
        answers = []
        for client in clients:
            with client:
                answers.append(client.recv(65536))
        assert [answer.split(b" ")[1] for answer in answers] == [b"200", b"200", b"200", b"500", b"200"]
        assert b"ValueError: no threes" in answers[3]


@pytest.fixture(scope="module")
def picky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """A class with two inputs, several dimensions and batching: much that a request can get wrong."""
    folder = tmp_path_factory.mktemp("picky")
    (folder / "handler.py").write_text(
        "class Model:\n"
        "    inputs = {'x': ('FP32', [-1, 2]), 'words': ('BYTES', [-1])}\n"
        "    outputs = {'y': ('FP32', [-1]), 'w': ('BYTES', [-1])}\n"
        "    max_batch_size = 4\n"
        "    def predict(self, inputs):\n"
        "        return {'y': inputs['x'].sum(axis=1), 'w': inputs['words']}\n"
    )
    with running(f"127.0.0.1:{free_port()}", {"HANDLER": f"{folder / 'handler.py'}:Model"}) as server:
        yield server


numbers = st.integers(-1, 3) | st.just(2**40) | st.floats() | st.none() | st.booleans()
words = st.sampled_from(["x", "words", "y", "w", "FP32", "BYTES", "INT8", ""]) | st.text(max_size=3)
values = st.recursive(numbers | words, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": words,
        "datatype": words,
        "shape": st.lists(numbers, max_size=3) | values,
        "data": values,
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "binary_data", "k"]), values, max_size=2)
        | values,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(tensors, max_size=3) | values,
        "outputs": st.lists(tensors, max_size=3) | values,
        "id": values,
        "parameters": st.dictionaries(words, values, max_size=2) | values,
    },
)
deep = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@deep
@given(body=requests.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=60), tail=st.binary())
def test_no_garbage_is_answered_as_our_fault(picky: RuntimeProcess, body: bytes, tail: bytes) -> None:
    headers = {"Inference-Header-Content-Length": str(len(body))} if tail else {}
    status, answer, _ = picky.request("POST", "/v2/models/model/infer", body + tail or b" ", headers)
    assert status == 400, answer
    assert set(json.loads(answer)) == {"error"}
    assert b"Traceback" not in answer


@deep
@given(
    rows=st.integers(0, 5),
    values=st.data(),
    binary=st.booleans(),
)
def test_every_request_that_fits_is_answered_and_right(
    picky: RuntimeProcess, rows: int, values: st.DataObject, binary: bool
) -> None:
    floats = values.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2 * rows, max_size=2 * rows))
    texts = values.draw(st.lists(st.text(max_size=5), min_size=rows, max_size=rows))
    x: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": [rows, 2]}
    words: dict[str, object] = {"name": "words", "datatype": "BYTES", "shape": [rows]}
    raw = b""
    if binary:
        raw = struct.pack(f"<{2 * rows}f", *floats)
        x["parameters"] = {"binary_data_size": len(raw)}
    else:
        x["data"] = floats
    words["data"] = texts
    head = json.dumps({"inputs": [words, x]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
    status, answer, _ = picky.request("POST", "/v2/models/model/infer", head + raw, headers)
    if rows > 4:
        assert status == 400
        assert "a batch of 5 is larger than this model's largest, 4" in json.loads(answer)["error"]
        return
    assert status == 200, answer
    y, w = json.loads(answer)["outputs"]
    assert y["data"] == pytest.approx([floats[2 * i] + floats[2 * i + 1] for i in range(rows)], rel=1e-5, abs=1)
    assert w["data"] == texts


@deep
@given(data=st.binary(max_size=200), cut=st.booleans())
def test_bytes_that_are_no_http_do_not_hurt(picky: RuntimeProcess, data: bytes, cut: bool) -> None:
    host, port = picky.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        if cut:
            data = b"POST /v2/models/model/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n" + data
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert not client.recv(4096).startswith(b"HTTP/1.1 5")
    assert picky.process.poll() is None


def test_after_all_that_it_still_answers(picky: RuntimeProcess) -> None:
    assert picky.request("GET", "/v2/health/ready")[0] == 200
    assert picky.metric("nv_inference_request_failure", "BACKEND") == 0
    assert picky.metric("nv_inference_pending_request_count") == 0
