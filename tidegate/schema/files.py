"""The disk as a reader of manifests sees it: the kind of thing at a path, and the beginning of a small file.

:class:`Files` is the protocol, :class:`Disk` the real disk, :class:`NamedFiles` a mapping in its place, and
:class:`Elsewhere` what cannot be seen from here.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Found(StrEnum):
    """The kind of thing at a path, in the words of a fault."""

    FILE = "a file"
    FOLDER = "a folder"
    UNREADABLE = "there, but not readable"
    OTHER = "neither a file nor a folder"
    MISSING = "missing"
    ELSEWHERE = "elsewhere"
    """On another machine, which is not asked."""


class Files(Protocol):
    def look(self, path: str) -> Found:
        """Returns the kind of thing at the absolute ``path``."""
        ...

    def names(self, folder: str) -> list[str]:
        """Returns the names in the absolute ``folder``, in order; empty if it cannot be read."""
        ...


class NamedFiles:
    """Files declared by a mapping."""

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = dict(found)

    def look(self, path: str) -> Found:
        return self._found.get(path, Found.MISSING)

    def names(self, folder: str) -> list[str]:
        start = f"{folder}/"
        return sorted({path.removeprefix(start).partition("/")[0] for path in self._found if path.startswith(start)})


class Elsewhere:
    """The files of another machine, such as those of a container's image: every path may be there."""

    def look(self, path: str) -> Found:
        return Found.ELSEWHERE

    def names(self, folder: str) -> list[str]:
        return []


def absolute(base: str, path: str) -> str:
    """Returns ``path`` relative to the folder ``base`` as an absolute path without ``.`` and ``..``; symbolic links
    stay as they are."""
    return posixpath.normpath(posixpath.join(base, path))


class Disk:
    """The local disk."""

    def look(self, path: str) -> Found:
        place = Path(path)
        try:
            mode = place.stat().st_mode
            if stat.S_ISDIR(mode):
                return Found.FOLDER
            if not stat.S_ISREG(mode):
                return Found.OTHER
            with place.open("rb"):
                return Found.FILE
        except PermissionError:
            return Found.UNREADABLE
        except (OSError, ValueError):
            return Found.MISSING

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in Path(folder).iterdir())
        except (OSError, ValueError):
            return []


def read_start(path: str, limit: int) -> bytes:
    """Returns the first ``limit`` bytes of a file. Raises OSError, also if it is not a regular file: reading never
    blocks on a pipe."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return file.read(limit)
