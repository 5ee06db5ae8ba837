"""The start of Triton: its words, its variables, and what is said where there is none."""

from pathlib import Path

from tidegate.runtime.triton.main import command, environment, why_not


def test_rest_or_grpc_alone_listens_and_metrics_where_they_are_asked_for(tmp_path: Path) -> None:
    assert command("/opt/bin/tritonserver", "/models", "http", "4711", None) == [
        "/opt/bin/tritonserver",
        "--model-repository=/models",
        "--http-address=127.0.0.1",
        "--http-port=4711",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    (tmp_path / "backends").mkdir()
    assert command(f"{tmp_path}/bin/tritonserver", "/models", "grpc", "4711", "4712")[2:] == [
        "--grpc-address=127.0.0.1",
        "--grpc-port=4711",
        "--allow-http=false",
        f"--backend-directory={tmp_path}/backends",
        "--metrics-address=127.0.0.1",
        "--metrics-port=4712",
    ]


def test_models_in_python_do_not_find_tidegates_folder_on_their_path() -> None:
    assert environment({"PYTHONPATH": "/tidegate:/own", "A": "1"}, "/tidegate") == {"PYTHONPATH": "/own", "A": "1"}
    assert environment({"PYTHONPATH": "/tidegate"}, "/tidegate") == {}


def test_without_triton_the_reason_names_the_onnx_file_that_needs_none(tmp_path: Path) -> None:
    assert "no tritonserver is on PATH or in /opt/tritonserver/bin" in why_not(tmp_path)
    assert "ONNX" not in why_not(tmp_path)
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.onnx").write_bytes(b"")
    assert why_not(tmp_path).endswith(f"tidegate deploy {tmp_path}/net/1/model.onnx")
