"""Checks of a function before its server is started: whether its files are there."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tidegate.function import Function, ServerKind
from tidegate.manifest.formats import FOLDERS


def problems(function: Function, search_path: str | None) -> list[str]:
    """Returns everything that would make a start fail, for the developer. Empty if nothing would."""
    return [*_server(function, search_path), *_surroundings(function)]


def _server(function: Function, search_path: str | None) -> Iterator[str]:
    server = function.server
    if server.kind is ServerKind.STAGES:
        return
    if server.kind is ServerKind.IMAGE:
        yield f"image {server.target} needs Kubernetes; the local backend runs models, handlers, asgi and commands"
    elif server.kind is ServerKind.COMMAND:
        program = server.argv[0] if server.argv else ""
        found = shutil.which(program, path=search_path)
        if found is None and not os.access(Path(function.workdir) / program, os.X_OK):
            yield f"command {program!r} is not a program on PATH or in {function.workdir}"
    elif server.forms:
        for form in server.forms:
            if not Path(form.path).is_file():
                yield f"model {form.path} is not a file"
    elif server.kind is ServerKind.MODEL and server.format in FOLDERS:
        if not Path(server.target).is_dir():
            yield f"model {server.target} is not a folder"
    else:
        file = server.target if server.kind is ServerKind.MODEL else server.target.rpartition(":")[0]
        if not Path(file).is_file():
            yield f"{server.kind.value} {file} is not a file"


def _surroundings(function: Function) -> Iterator[str]:
    if not Path(function.workdir).is_dir():
        yield f"workdir {function.workdir} is not a folder"
    if function.python is not None and not os.access(function.python, os.X_OK):
        yield f"python {function.python} cannot be run"
    if function.warmup is not None and not os.access(function.warmup, os.R_OK):
        yield f"warmup {function.warmup} cannot be read"
    for name, path in function.secrets.items():
        if not os.access(path, os.R_OK):
            yield f"secret {name}: {path} cannot be read"
