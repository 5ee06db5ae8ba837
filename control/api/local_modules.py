"""The Python modules beside a handler that it imports: found by reading import statements, never by running them.

The rules are the interpreter's, with the handler's folder first on its path: ``import name`` means the package
``name/__init__.py``, else the module ``name.py``, else the folder ``name/``. Of a package or folder every Python file
is taken, since parts of it may be imported by names that only running it would show. The files found are read in turn.

A bundle is an archive of these files by their paths relative to the folder. Its name is the digest of its content.
"""

import ast
import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import IO, Final

MAX_FILES: Final = 2000
MAX_BYTES: Final = 64 << 20
"""Bounds of the modules of one handler. Our choice: beyond them the folder is an environment rather than a model."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class TooManyError(Exception):
    """The modules are beyond the bounds; the message names the bound."""


@dataclass(slots=True)
class LocalModules:
    """Contents by path relative to the handler's folder, and what was imported but cannot be copied."""

    files: dict[str, bytes] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Digest of paths and contents."""
        found = hashlib.sha256()
        for path, data in sorted(self.files.items()):
            found.update(b"%d %d " % (len(path.encode()), len(data)) + path.encode() + data)
        return found.hexdigest()

    def write(self, target: IO[bytes]) -> None:
        """Writes the bundle."""
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in sorted(self.files.items()):
                archive.writestr(zipfile.ZipInfo(path, _EPOCH), data, zipfile.ZIP_DEFLATED)


def find(handler: Path, source: bytes) -> LocalModules:
    """Returns the modules beside ``handler`` that ``source``, its content, imports directly or through others. Raises
    TooManyError and OSError."""
    folder, found = handler.resolve().parent, LocalModules()
    names, seen, size = list(_imported(source)), set[str](), 0
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        for path in _files_of(folder, name, found):
            relative = path.relative_to(folder).as_posix()
            if relative in found.files or path == handler.resolve():
                continue
            data = path.read_bytes()
            size += len(data)
            found.files[relative] = data
            if len(found.files) > MAX_FILES:
                raise TooManyError(f"it imports more than {MAX_FILES} files")
            if size > MAX_BYTES:
                raise TooManyError(f"what it imports is larger than {MAX_BYTES >> 20} MiB")
            names += _imported(data)
    return found


def _files_of(folder: Path, name: str, found: LocalModules) -> Iterator[Path]:
    """Yields the files of a top-level name; notes one that is compiled."""
    package, module = folder / name, folder / f"{name}.py"
    if (package / "__init__.py").is_file():
        yield from sorted(package.rglob("*.py"))
    elif module.is_file():
        yield module
    else:
        found.compiled += [f"{name}{end}" for end in EXTENSION_SUFFIXES if (folder / f"{name}{end}").is_file()]
        if package.is_dir():
            yield from sorted(package.rglob("*.py"))


def _imported(source: bytes) -> Iterator[str]:
    """Yields the top-level names of absolute imports, also inside functions. Nothing for a file with a syntax error."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module.partition(".")[0]
