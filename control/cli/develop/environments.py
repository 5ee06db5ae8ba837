"""Virtual environments of functions: what a requirements file lists, installed once for each interpreter.

An environment lies in ``environments/HASH`` of the state directory. The hash is of the file's bytes and the
interpreter, so that the next deploy of the same file takes it as it is. A file that was only begun, because the
installation failed or was interrupted, is removed and made again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidegate.control.state.directory import private
from tidegate.errors import Fault, InvalidInputError, TidegateError

FOLDER: Final = "environments"
DONE: Final = ".complete"
"""File in an environment whose installation has succeeded."""
LAST_LINES: Final = 15
PIP: Final = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")


class EnvironmentFailedError(TidegateError):
    """An environment cannot be made; the message has the installer's own last lines."""


def interpreter(given: str | None) -> Path:
    """Returns the absolute path of an interpreter: a path, a name on ``PATH``, or this one. Raises
    InvalidInputError."""
    if given is None:
        return Path(sys.executable)
    found = shutil.which(given) if "/" not in given else given
    path = None if found is None else Path(found).expanduser().absolute()
    if path is None or not os.access(path, os.X_OK) or path.is_dir():
        raise InvalidInputError("command line", [Fault("--python", repr(given), "a Python interpreter that exists")])
    return path


def interpreter_for(root: Path, requirements: Path, python: Path) -> Path:
    """Returns the interpreter of the environment for ``requirements``, whether it has been made or not. Raises
    InvalidInputError."""
    try:
        listed = requirements.read_bytes()
    except OSError as error:
        fault = Fault("--requirements", f"{requirements} ({error.strerror})", "a file as `pip install -r` takes it")
        raise InvalidInputError("command line", [fault]) from error
    name = hashlib.sha256(os.fsencode(python.resolve()) + b"\0" + listed).hexdigest()[:16]
    return root / FOLDER / name / "bin" / "python"


def prepared(root: Path, requirements: Path, python: Path, show: Callable[[str], None]) -> Path:
    """Returns the interpreter of the environment for ``requirements``, which is made if it is not there.

    ``root`` is the state directory; ``show`` is called with the installer's lines. Raises InvalidInputError,
    EnvironmentFailedError.
    """
    made = interpreter_for(root, requirements, python)
    place = made.parent.parent
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(place.with_name(f".{place.name}.lock")):
        if (place / DONE).exists() and made.exists():
            show(f"the environment {place} has what {requirements} lists")
            return made
        shutil.rmtree(place, ignore_errors=True)
        show(f"a virtual environment is made in {place}")
        _run([str(python), "-m", "venv", str(place)], requirements, show)
        _run([str(made), "-m", "pip", "install", *PIP, "-r", str(requirements.absolute())], requirements, show)
        (place / DONE).touch(0o600)
    return made


def _run(command: Sequence[str], requirements: Path, show: Callable[[str], None]) -> None:
    """Runs one step of an installation in the folder of the requirements. Raises EnvironmentFailedError."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        process = subprocess.Popen(
            command,
            cwd=requirements.absolute().parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            umask=0o077,
        )
    except OSError as error:
        raise EnvironmentFailedError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip())
                show(line.strip())
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code:
        what = " ".join(command[2:4])
        lines = "\n".join(f"  {line}" for line in last)
        raise EnvironmentFailedError(f"{requirements} is not installed: {what} ended with {code}:\n{lines}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until no other command makes the same environment."""
    with open(lock, "w", opener=private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
