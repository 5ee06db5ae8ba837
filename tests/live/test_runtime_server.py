"""The shipped model server as a process, spoken to by real clients over TCP and unix sockets."""

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import tritonclient.http as triton

from tests.support.deadline import Patience
from tests.support.live.runtime_process import ROOT, RuntimeProcess, finish, free_port, running, start

pytestmark = pytest.mark.live


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def magika(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RuntimeProcess, Any]]:
    """The magika example, served over TCP with batching."""
    prepare = example("magika")
    folder = tmp_path_factory.mktemp("magika")
    prepare.prepare(folder)
    environment = {
        "MODEL": folder / "model.onnx",
        "NAME": "magika",
        "THREADS": 1,
        "MAX_BATCH": 4,
        "BATCH_DELAY": 0.002,
    }
    with running(f"127.0.0.1:{free_port()}", environment) as server:
        yield server, prepare


@pytest.mark.parametrize("binary", [False, True])
def test_tritonclient_gets_the_packages_own_answers(magika: tuple[RuntimeProcess, Any], binary: bool) -> None:
    from magika import Magika

    server, prepare = magika
    layout = prepare.own_layout()
    paths = [ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / "tidegate" / "errors.py", Path(sys.executable)]
    rows = numpy.array([prepare.features_of(path.read_bytes(), layout) for path in paths], dtype=numpy.int32)
    with contextlib.closing(triton.InferenceServerClient(server.listen)) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("magika")
        assert client.is_model_ready("magika", "1")
        assert client.get_server_metadata()["name"] == "tidegate"
        assert client.get_model_metadata("magika")["inputs"][0]["shape"] == [-1, 2048]
        given = triton.InferInput("bytes", rows.shape, "INT32")
        given.set_data_from_numpy(rows, binary_data=binary)
        wanted = triton.InferRequestedOutput("target_label", binary_data=binary)
        for version, compression in (("", None), ("1", "gzip"), ("1", "deflate")):
            result = client.infer(
                "magika",
                [given],
                model_version=version,
                outputs=[wanted] if version else None,
                request_id="r1",
                request_compression_algorithm=compression,
            )
            scores = result.as_numpy("target_label")
            assert result.get_response()["id"] == "r1"
            assert scores.shape == (4, len(layout.labels))
            for row, own in zip(scores, Magika().identify_paths(paths), strict=True):
                assert layout.labels[row.argmax()] == str(own.dl.label)
                assert row.max() == pytest.approx(own.score, abs=1e-3)


def test_tritonclient_shows_our_errors(magika: tuple[RuntimeProcess, Any]) -> None:
    server, _ = magika
    with contextlib.closing(triton.InferenceServerClient(server.listen)) as client:
        given = triton.InferInput("bytes", [1, 7], "INT32")
        given.set_data_from_numpy(numpy.zeros((1, 7), dtype=numpy.int32))
        with pytest.raises(triton.InferenceServerException, match=r"must have the shape \[-1, 2048\]"):
            client.infer("magika", [given])
        with pytest.raises(triton.InferenceServerException, match="unknown model 'other'"):
            client.infer("other", [given])


def test_many_clients_at_a_time_share_batches_and_get_their_own_answers(magika: tuple[RuntimeProcess, Any]) -> None:
    server, _ = magika
    before = server.metric("nv_inference_exec_count"), server.metric("nv_inference_count")
    draw = numpy.random.default_rng(1)
    rows = draw.integers(0, 256, size=(8, 2048), dtype=numpy.int32)
    alone = [answer(server, rows[index : index + 1]) for index in range(8)]
    found: dict[int, list[numpy.ndarray]] = {index: [] for index in range(8)}

    def caller(index: int) -> None:
        for _ in range(5):
            found[index].append(answer(server, rows[index : index + 1]))

    threads = [threading.Thread(target=caller, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, answers in found.items():
        for scores in answers:
            assert numpy.abs(scores - alone[index]).max() < 1e-3
    executions, inferences = server.metric("nv_inference_exec_count"), server.metric("nv_inference_count")
    assert inferences - before[1] == 48
    assert executions - before[0] < 48 - 15


def answer(server: RuntimeProcess, rows: numpy.ndarray) -> numpy.ndarray:
    tensor = {
        "name": "bytes",
        "datatype": "INT32",
        "shape": list(rows.shape),
        "parameters": {"binary_data_size": rows.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    status, body, headers = server.request(
        "POST",
        "/v2/models/magika/infer",
        head + rows.tobytes(),
        {"Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200, body
    return numpy.frombuffer(body[int(headers["inference-header-content-length"]) :], dtype=numpy.float32)


@pytest.mark.needs(tool="clients")
def test_curl_over_a_unix_socket_and_a_plain_class(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    handler = f"{ROOT / 'examples' / 'hello' / 'handler.py'}:Scripts"
    body = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["Ebbe", "прилив 12"]}]}'
    with running(f"unix:{path}", {"HANDLER": handler, "NAME": "hello"}) as server:
        reply = subprocess.run(
            ["curl", "-sS", "--unix-socket", str(path), "-d", body, "http://localhost/v2/models/hello/infer"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(reply.stdout)["outputs"] == [
            {"name": "script", "datatype": "BYTES", "shape": [2], "data": ["LATIN", "CYRILLIC"]},
            {"name": "share", "datatype": "FP32", "shape": [2], "data": [1.0, 1.0]},
        ]
        assert json.loads(server.request("GET", "/tidegate/declared")[1]) == {"concurrency": 32}
    assert not path.exists()


def test_an_interpreter_with_nothing_installed_serves_a_plain_class(tmp_path: Path) -> None:
    """Without site-packages there is no msgspec, uvloop or numpy: only this package on PYTHONPATH."""
    (tmp_path / "handler.py").write_text(
        "import sys\n"
        "class Model:\n"
        "    def predict(self, inputs):\n"
        "        found = [name for name in ('msgspec', 'uvloop', 'numpy') if name in sys.modules]\n"
        "        return {'found': ','.join(found), 'twice': [2 * row[0] for row in inputs['x']]}\n"
    )
    body = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [2, 1], "data": [[1], [2]]}]}'
    environment = {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}
    with running(f"127.0.0.1:{free_port()}", environment, (sys.executable, "-S")) as server:
        status, text, _ = server.request("POST", "/v2/models/model/infer", body)
        assert status == 200
        assert [output["data"] for output in json.loads(text)["outputs"]] == [[""], [2, 4]]
        assert json.loads(server.request("GET", "/v2")[1])["name"] == "tidegate"


def test_it_lives_before_it_is_ready_and_says_that_it_is_emulated(tmp_path: Path) -> None:
    server = start(f"unix:{tmp_path / 's'}", {"EMULATED": '{"base_s": 0.01, "start_s": 1.0}', "NAME": "e"})
    try:
        server.wait_for("/v2/health/live")
        assert server.request("GET", "/v2/health/ready")[0] == 503
        assert server.request("GET", "/v2/models/e/ready")[0] == 503
        server.wait_for("/v2/health/ready")
        assert json.loads(server.request("GET", "/v2/models/e")[1])["emulated"] is True
        assert server.terminate() == 0
    finally:
        finish(server)


ONE = b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1], "data": [1]}]}'


def send(server: RuntimeProcess, body: bytes = ONE) -> socket.socket:
    """Sends an inference request and does not wait for its answer."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(server.listen.removeprefix("unix:"))
    client.sendall(b"POST /v2/models/model/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return client


def wait_until_pending(server: RuntimeProcess, count: int) -> None:
    patience = Patience(10.0)
    while server.metric("nv_inference_pending_request_count") != count:
        assert not patience.is_over
        time.sleep(0.005)


def test_sigterm_answers_what_runs_and_what_waits(tmp_path: Path) -> None:
    with running(f"unix:{tmp_path / 's'}", {"EMULATED": '{"base_s": 0.2}'}) as server:
        clients = [send(server) for _ in range(4)]
        wait_until_pending(server, 3)
        patience = Patience(5.0)
        assert server.terminate() == 0
        assert patience.passed_s > 0.5 and not patience.is_over
        for client in clients:
            with client:
                assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_sigterm_waits_for_a_client_that_reads_slowly(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "class Model:\n    arrays = 'plain'\n    def predict(self, inputs): return ['x' * 20_000_000]\n"
    )
    with running(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}) as server:
        with send(server) as client:
            client.recv(1)
            server.process.terminate()
            size = 0
            while piece := client.recv(1 << 20):
                size += len(piece)
            assert size > 20_000_000
        assert server.process.wait(10) == 0


def test_a_client_that_hangs_up_takes_its_waiting_request_with_it(tmp_path: Path) -> None:
    with running(f"unix:{tmp_path / 's'}", {"EMULATED": '{"base_s": 0.3}'}) as server:
        with send(server) as first:
            with send(server):
                wait_until_pending(server, 1)
            wait_until_pending(server, 0)
            assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert server.metric("nv_inference_exec_count") == 1
        assert server.metric("nv_inference_request_failure", "CANCELED") == 1


def test_an_async_call_of_a_gone_client_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "import asyncio\n"
        "class Model:\n"
        "    arrays, ended = 'plain', 0\n"
        "    async def predict(self, inputs):\n"
        "        if inputs['x'] == [1]:\n"
        "            try: await asyncio.sleep(3600)\n"
        "            finally: self.ended += 1\n"
        "        return [self.ended]\n"
    )
    other = ONE.replace(b"[1]}", b"[2]}")
    with running(f"unix:{tmp_path / 's'}", {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}) as server:
        with send(server):
            patience = Patience(10.0)
            while server.metric("nv_inference_exec_count") != 1:
                assert not patience.is_over
        while json.loads(server.request("POST", "/v2/models/model/infer", other)[1])["outputs"][0]["data"] != [1]:
            assert not patience.is_over
            time.sleep(0.005)


def test_a_handler_beside_modules_with_our_names(tmp_path: Path) -> None:
    for name in ("gateway", "deploy", "queue", "random", "select", "handler_helper"):
        (tmp_path / f"{name}.py").write_text(f"WORD = '{name}'\n")
    for name in ("traffic", "tests", "control"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WORD = '{name}'\n")
    (tmp_path / "handler.py").write_text(
        "import gateway, deploy, traffic, tests, control, handler_helper\n"
        "from tidegate.runtime.errors import RequestError\n"
        "class Model:\n"
        "    def predict(self, inputs):\n"
        "        return [m.WORD for m in (gateway, deploy, traffic, tests, control, handler_helper)]\n"
    )
    environment = {"HANDLER": f"{tmp_path / 'handler.py'}:Model"}
    with running(f"127.0.0.1:{free_port()}", environment) as server:
        _, body, _ = server.request("POST", "/v2/models/model/infer", ONE)
        assert json.loads(body)["outputs"][0]["data"] == [
            "gateway",
            "deploy",
            "traffic",
            "tests",
            "control",
            "handler_helper",
        ]
        assert server.request("GET", "/metrics")[0] == 200
