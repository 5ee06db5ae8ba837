"""Copies of the files that revisions run: a revision serves what was deployed, also after its file was overwritten.

A handler's file and a model's file are copied at the deploy, under the digest of their content, so that revisions with
the same content share one copy. The modules beside a handler that it imports are copied with it, as one bundle
(``local_modules``). What replicas derive from a copy (mapped forms) lies beside it, in a folder that goes with it. Data
that a handler opens, compiled modules, commands and environments are not copied. Models that are folders, files beyond
``MAX_BYTES``, and ONNX files that keep their tensors in further files, are not copied either. The answer to the deploy
says so, and such a revision reads its file at every start.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.control.api import local_modules
from tidegate.control.state.directory import private
from tidegate.deploy.environment import mapped_name
from tidegate.function import Function, ModelFormat, Server, ServerKind
from tidegate.manifest.formats import FOLDERS

MAX_BYTES: Final = 256 << 20
"""Largest file that is copied. Our choice: a deploy takes a second for it, ten kept revisions take 2.5 GB at most."""
EXTERNAL: Final = b"\n\x08location\x12"
"""The key of ``TensorProto.external_data`` as protobuf writes it."""
BUNDLE: Final = ".modules.zip"
_CHUNK: Final = 1 << 20
_UNFINISHED: Final = ".unfinished"


class Copies:
    """The copies in one folder, which exists. No method may run in an event loop: files are read as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, function: Function) -> tuple[Function, str | None]:
        """Returns the function with a copy of its file. If there is no copy where one would be expected, returns the
        function as it is, with the reason."""
        server = function.server
        if server.forms:
            return self._with_forms(function)
        path = file_of(server)
        if path is None:
            is_folder = server.kind is ServerKind.MODEL
            return function, _warning(Path(server.target), "it is a folder") if is_folder else None
        try:
            with path.open("rb") as source:
                if os.fstat(source.fileno()).st_size > MAX_BYTES:
                    return function, _warning(path, f"it is larger than {MAX_BYTES >> 20} MiB")
                is_onnx = server.kind is ServerKind.MODEL and server.format is ModelFormat.ONNX
                kept = self._copied(source, path.suffix, EXTERNAL if is_onnx else None)
        except OSError as error:
            return function, _warning(path, f"copying failed: {error.strerror or error}")
        if kept is None:
            return function, _warning(path, "it keeps tensors in files of their own")
        function = replace(function, server=replace(server, copy=kept))
        return self._with_modules(function, path) if server.kind is not ServerKind.MODEL else (function, None)

    def _with_modules(self, function: Function, handler: Path) -> tuple[Function, str | None]:
        """Copies the modules that a copied handler imports."""
        server, of = function.server, f"the modules that {handler.name} imports"
        try:
            found = local_modules.find(handler, (self._folder / (server.copy or "")).read_bytes())
            name = f"{found.digest}{BUNDLE}" if found.files else None
            if name is not None and not (self._folder / name).exists():
                part = self._folder / _UNFINISHED
                with open(part, "wb", opener=private) as target:
                    found.write(target)
                    target.flush()
                    os.fsync(target.fileno())
                part.replace(self._folder / name)
        except local_modules.TooManyError as error:
            return function, _warning(of, str(error))
        except OSError as error:
            return function, _warning(of, f"copying failed: {error.strerror or error}")
        compiled = _warning(", ".join(found.compiled), "compiled") if found.compiled else None
        return replace(function, server=replace(server, modules=name)), compiled

    def _with_forms(self, function: Function) -> tuple[Function, str | None]:
        """Copies the files of a model repository that the function can run."""
        forms, warnings = [], []
        for form in function.server.forms:
            alone = replace(function, server=Server(kind=ServerKind.MODEL, target=form.path, format=form.format))
            taken, warning = self.take(alone)
            forms.append(replace(form, copy=taken.server.copy))
            warnings += [warning] if warning is not None else []
        server = replace(function.server, forms=tuple(forms))
        return replace(function, server=server), "; ".join(warnings) or None

    def sweep(self, functions: Iterable[Function]) -> None:
        """Removes each copy that none of ``functions`` uses."""
        used: set[str | None] = set()
        for function in functions:
            server = function.server
            files = (server.copy, *(form.copy for form in server.forms))
            used |= {*files, server.modules, *(mapped_name(function.name, name) for name in files if name)}
        with suppress(OSError):  # the next deploy tries again
            for path in self._folder.iterdir():
                if path.name in used:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def _copied(self, source: BinaryIO, suffix: str, without: bytes | None) -> str | None:
        """Copies a file and returns the copy's name; None if the file contains ``without``. One call at a time, as
        deploys are."""
        digest, tail, part = hashlib.sha256(), b"", self._folder / _UNFINISHED
        with open(part, "wb", opener=private) as target:
            while data := source.read(_CHUNK):
                if without is not None and without in tail + data:
                    return None
                tail = data[-len(without) :] if without is not None else b""
                digest.update(data)
                target.write(data)
            target.flush()
            os.fsync(target.fileno())
        name = f"{digest.hexdigest()}{suffix}"
        part.replace(self._folder / name)
        return name

    def __repr__(self) -> str:
        return f"<Copies in {self._folder}>"


def file_of(server: Server) -> Path | None:
    """Returns the one file that a server of Tidegate's own runtime serves; None if there is no such file."""
    if server.kind in (ServerKind.HANDLER, ServerKind.ASGI):
        return Path(server.target.rpartition(":")[0])
    is_file = server.kind is ServerKind.MODEL and server.format not in FOLDERS and not server.forms
    return Path(server.target) if is_file else None


def _warning(what: Path | str, why: str) -> str:
    name = what if isinstance(what, str) else what.name
    return f"no copy of {name} is kept ({why}): overwriting it changes this revision too"
