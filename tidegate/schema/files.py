"""What a reader of manifests may know of the disk: what lies at a path (:class:`tidegate.schema.disk.Disk`)."""

import posixpath
from collections.abc import Mapping
from enum import StrEnum
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


class NamedFiles:
    """Files that are there because a mapping says so."""

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = dict(found)

    def look(self, path: str) -> Found:
        return self._found.get(path, Found.MISSING)


def absolute(base: str, path: str) -> str:
    """``path`` seen from the folder ``base``, without ``.`` and ``..``; symbolic links stay as they are."""
    return posixpath.normpath(posixpath.join(base, path))
