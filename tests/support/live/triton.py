"""The real Triton server for tests: the one inside a wheel of PyPI, unpacked into ``build/triton``.

``python -m tests.support.live.triton`` fetches it (55 MB, once); exit code 3 and one line where it cannot be had. It
runs on a CPU with its Python backend, whose models need this interpreter's shared library and numpy.
"""

import hashlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HOME = ROOT / "build" / "triton"
LOCK = Path(__file__).with_name("triton.lock")
SERVER = HOME / "pytriton" / "tritonserver"
LIBRARIES = HOME / "nvidia_pytriton.libs"
BINARY = SERVER / "bin" / "tritonserver"
MARK = HOME / "complete"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
STUB = "triton_python_backend_stub"
CANNOT = 3

MODEL = """
import time
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        found = [np.from_dlpack(triton.get_input_tensor_by_name(request, "x")) for request in requests]
        return [triton.InferenceResponse([triton.Tensor.from_dlpack("y", 2 * x)]) for x in found]
"""
"""By DLPack: this build's ``as_numpy`` is of numpy 1."""
CONFIG = """
name: "double"
backend: "python"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group [{ kind: KIND_CPU count: 1 }]
"""


class CannotBeHadError(Exception):
    """There is no Triton for this machine; the message says why."""


def is_there() -> bool:
    return MARK.exists() and MARK.read_text() == _wanted()


def fetch() -> None:
    """Downloads and unpacks it where it is not there yet. Raises CannotBeHadError."""
    if is_there():
        return
    if libpython() is None:
        raise CannotBeHadError(f"this Python {VERSION} has no shared library, which Triton's Python backend loads")
    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        wanted = ["--only-binary", ":all:", "--require-hashes", "-r", str(LOCK), "-d", folder]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            lines = done.stderr.strip().splitlines() or ["pip said nothing"]
            raise CannotBeHadError(f"its wheel (Linux x86_64, glibc 2.35 or newer) cannot be downloaded: {lines[-1]}")
        _unpack(wheels[0])
    MARK.write_text(_wanted())


def _unpack(wheel: Path) -> None:
    """The server, the backend for this Python, and the libraries of both."""
    ours = f"pytriton/tritonserver/python_backend_stubs/{VERSION}/{STUB}"
    wanted = re.compile(
        rf"pytriton/tritonserver/(bin|backends)/.+|{re.escape(ours)}|nvidia_pytriton\.libs/(?!libpython).+"
    )
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if wanted.fullmatch(name)]
        if ours not in names:
            raise CannotBeHadError(f"{wheel.name} has no Python backend for Python {VERSION}")
        archive.extractall(HOME, names)
    (HOME / ours).rename(SERVER / "backends" / "python" / STUB)
    for program in (BINARY, SERVER / "backends" / "python" / STUB):
        program.chmod(0o755)


def _wanted() -> str:
    return f"{VERSION} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"


def libpython() -> Path | None:
    """Folder of this interpreter's shared library; None: it has none."""
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    if folder is None or name is None:
        return None
    places = (Path(folder), Path(folder) / (sysconfig.get_config_var("MULTIARCH") or ""))
    return next((place for place in places if (place / name).exists() and ".so" in name), None)


def repository(folder: Path) -> Path:
    """A model repository with one model that batches: ``double``."""
    model = folder / "repository" / "double"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    return model.parent


def command(models: Path, metrics_port: str, *, grpc: bool = False) -> list[str]:
    """Words of the server's command, for REST or gRPC; ports as Tidegate fills them in."""
    rest = ["--http-address=127.0.0.1", "--http-port={port}", "--allow-grpc=false"]
    return [
        str(BINARY),
        f"--model-repository={models}",
        f"--backend-directory={SERVER / 'backends'}",
        *(["--grpc-address=127.0.0.1", "--grpc-port={port}", "--allow-http=false"] if grpc else rest),
        "--metrics-address=127.0.0.1",
        f"--metrics-port={metrics_port}",
        "--metrics-interval-ms=500",
        "--allow-gpu-metrics=false",
        "--disable-auto-complete-config",
    ]


def environment() -> dict[str, str]:
    import numpy

    return {"LD_LIBRARY_PATH": f"{LIBRARIES}:{libpython()}", "PYTHONPATH": str(Path(numpy.__file__).parents[1])}


if __name__ == "__main__":
    try:
        fetch()
    except CannotBeHadError as error:
        sys.stderr.write(f"Triton cannot be had here: {error}\n")
        sys.exit(CANNOT)
