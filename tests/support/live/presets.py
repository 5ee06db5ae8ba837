"""Interpreters with the libraries of model formats, made once: ``build/presets`` (scikit-learn, XGBoost; 20 s) and
``build/torch`` (PyTorch, transformers; some 6 GB). What each has is locked beside this file.

``python -m tests.support.live.presets NAME`` makes one. ``python -m tests.support.live.presets NAME --list`` prints the
requirements of its extras, which ``make lock`` resolves. Tests deploy with ``--python`` and write their models with it,
so nothing of this comes into the interpreter that runs the tests.
"""

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = {"presets": ("sklearn", "xgboost"), "torch": ("torchscript", "huggingface")}


def python(name: str) -> Path:
    """Path of the interpreter."""
    return ROOT / "build" / name / "bin" / "python"


def is_there(name: str) -> bool:
    mark = _mark(name)
    return mark.exists() and mark.read_text() == _wanted(name)


def make(name: str) -> None:
    """Makes the interpreter where it is not there yet."""
    if is_there(name):
        return
    folder = ROOT / "build" / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(_lock(name))], check=True)
    _mark(name).write_text(_wanted(name))


def requirements(name: str) -> list[str]:
    """Lines of the extras in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return sorted({line for extra in EXTRAS[name] for line in extras[extra]})


def write(name: str, script: str, folder: Path) -> None:
    """Runs a script that writes models, in ``folder``."""
    done = subprocess.run([str(python(name)), "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _lock(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.lock")


def _mark(name: str) -> Path:
    return ROOT / "build" / name / "complete"


def _wanted(name: str) -> str:
    return f"{sys.version} {hashlib.sha256(_lock(name).read_bytes()).hexdigest()}"


if __name__ == "__main__":
    if "--list" in sys.argv[2:]:
        sys.stdout.write("\n".join(requirements(sys.argv[1])) + "\n")
    else:
        make(sys.argv[1])
