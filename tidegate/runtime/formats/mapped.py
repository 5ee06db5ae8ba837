"""Mapped weights of ONNX files: replicas of one model share the pages of its weights.

    python -P -m tidegate.runtime.formats.mapped SOURCE FOLDER

ONNX Runtime copies the weights of a file into memory of its own, and again into the order that its kernels read. So
each replica has its own copy, and loads it for as long. A *mapped form* is the same model after both steps:
``model.onnx`` with the optimised graph and ``weights.bin`` with the weights as the kernels read them. A replica maps
that file: its pages are the system's, once for all replicas, and stay in memory between two starts for as long as
nothing else needs it.

The first replica that loads a large file lets a process of the lowest priority write the form for the next ones; of
several that start at once, one does. It is for one version of ONNX Runtime and one kind of processor, which name its
folder; of older ones, the last is kept. A form that cannot be loaded is left alone, and the file is read as without.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, Final

LEAST_BYTES: Final = 16 << 20
"""Size of a file from which on a form is worth its place on the disk. Our choice: it saves 30 ms of a start then."""
MODEL: Final = "model.onnx"
WEIGHTS: Final = "weights.bin"
KEPT_FORMS: Final = 2
"""Forms of one file: two, so that two revisions with different versions of ONNX Runtime have theirs."""
_LEAST_WEIGHT: Final = "1024"
"""Bytes from which on a tensor is kept outside the graph."""


def form_of(folder: str, version: str) -> Path:
    """Returns the folder of the form for this version of ONNX Runtime and this machine's processor."""
    return Path(folder) / f"{version}-{_processor()}"


def is_wanted(source: str, form: Path) -> bool:
    """Returns whether the form of a file is worth being written and is not there."""
    return not form.exists() and Path(source).stat().st_size >= LEAST_BYTES


def write_soon(source: str, form: Path) -> None:
    """Lets a process write the form. Its failure is a line of the log: the file is read as before."""
    threading.Thread(target=_write_beside, args=(source, form), name="mapped form", daemon=True).start()


def _write_beside(source: str, form: Path) -> None:
    import subprocess  # Saves most starts a millisecond.

    command = [sys.executable, "-P", "-m", "tidegate.runtime.formats.mapped", source, str(form)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        sys.stderr.write(f"no mapped form of {source}: {last[:300]}\n")


def give_back() -> None:
    """Returns what was freed while a model was loaded to the system: as much as its weights, where they were copied."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:  # glibc
        trim(0)


def write(source: str, form: Path, runtime: Any) -> None:
    """Writes the form of a file; it is there as a whole or not at all."""
    for left in form.parent.glob(f"{form.name}.*"):
        if not Path("/proc", left.suffix[1:]).exists():  # Its writer was killed with its model server.
            shutil.rmtree(left, ignore_errors=True)
    part = form.with_name(f"{form.name}.{os.getpid()}")
    part.mkdir(mode=0o700, parents=True)
    try:
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.optimized_model_filepath = str(part / MODEL)
        for name, value in (
            ("optimized_model_external_initializers_file_name", WEIGHTS),
            ("optimized_model_external_initializers_min_size_in_bytes", _LEAST_WEIGHT),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{name}", value)
        runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        try:
            part.replace(form)
        except OSError:
            if not form.exists():  # Else another replica was first.
                raise
        by_age = sorted(form.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in [each for each in by_age if each != form][KEPT_FORMS - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _processor() -> str:
    """Returns a short name of what the kernels depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        named = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {named}".encode()).hexdigest()[:12]


def main() -> int:
    os.nice(19)
    source, form = sys.argv[1], Path(sys.argv[2])
    form.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(form.parent, os.O_RDONLY)  # Open and locked until the end of this process.
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # Another replica's process writes it.
    if not form.exists():
        import onnxruntime

        write(source, form, onnxruntime)
    return 0


if __name__ == "__main__":
    sys.exit(main())
