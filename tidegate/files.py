"""What a reader of manifests may know of the disk: whether a path is there. Tests put a set of names in its place."""

import posixpath
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Found(StrEnum):
    """What lies at a path, in the words of a fault."""

    FILE = "a file"
    FOLDER = "a folder"
    UNREADABLE = "there, but not readable"
    OTHER = "neither a file nor a folder"
    MISSING = "missing"


class Files(Protocol):
    def look(self, path: str) -> Found:
        """What lies at the absolute ``path``."""
        ...


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


class NamedFiles:
    """Files that are there because a mapping says so."""

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = dict(found)

    def look(self, path: str) -> Found:
        return self._found.get(path, Found.MISSING)


def absolute(base: str, path: str) -> str:
    """``path`` seen from the folder ``base``, without ``.`` and ``..``; symbolic links stay as they are."""
    return posixpath.normpath(posixpath.join(base, path))
