"""Copies of the files that revisions run: a revision serves what was deployed, also after its file was overwritten.

A handler's file and an ONNX file are copied at the deploy, under the digest of their content, so that revisions with
the same content share one copy. Files that a handler imports or opens are not copied, nor are commands and
environments. Files beyond ``MAX_BYTES``, and models that keep their tensors in further files, are not copied either.
The answer to the deploy says so, and such a revision reads its file at every start.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.function import Function, Server, ServerKind

MAX_BYTES: Final = 256 << 20
"""Largest file that is copied. Our choice: a deploy takes a second for it, ten kept revisions take 2.5 GB at most."""
EXTERNAL: Final = b"\n\x08location\x12"
"""The key of ``TensorProto.external_data`` as protobuf writes it."""
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
        path = file_of(server)
        if path is None:
            return function, None
        try:
            with path.open("rb") as source:
                if os.fstat(source.fileno()).st_size > MAX_BYTES:
                    return function, _warning(path, f"it is larger than {MAX_BYTES >> 20} MiB")
                kept = self._copied(source, path.suffix, EXTERNAL if server.kind is ServerKind.MODEL else None)
        except OSError as error:
            return function, _warning(path, f"copying failed: {error.strerror or error}")
        if kept is None:
            return function, _warning(path, "it keeps tensors in files of their own")
        return replace(function, server=replace(server, copy=kept)), None

    def sweep(self, functions: Iterable[Function]) -> None:
        """Removes each copy that none of ``functions`` uses."""
        used = {function.server.copy for function in functions}
        with suppress(OSError):  # the next deploy tries again
            for path in self._folder.iterdir():
                if path.name not in used:
                    path.unlink(missing_ok=True)

    def _copied(self, source: BinaryIO, suffix: str, without: bytes | None) -> str | None:
        """Copies a file and returns the copy's name; None if the file contains ``without``. One call at a time, as
        deploys are."""
        digest, tail, part = hashlib.sha256(), b"", self._folder / _UNFINISHED
        with part.open("wb") as target:
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
    if server.kind is ServerKind.HANDLER:
        return Path(server.target.rpartition(":")[0])
    return Path(server.target) if server.kind is ServerKind.MODEL else None


def _warning(path: Path, why: str) -> str:
    return f"no copy of {path.name} is kept ({why}): overwriting it changes this revision too"
