"""The console's static files: its page, modules, style sheets and the chart library, read when first requested."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
SHELL: Final = "console.html"
"""The one HTML page; its modules show what its address names."""
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    media_type: str
    etag: str


@cache
def names() -> frozenset[str]:
    """Returns the paths of all files that are served, below the folder."""
    return frozenset(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in _TYPES)


def static_file(name: str) -> StaticFile | None:
    """Returns a file by its path below the folder; None if it is not one of those served."""
    return _read(name) if name in names() else None


@cache
def _read(name: str) -> StaticFile:
    content = (FOLDER / name).read_bytes()
    return StaticFile(content, _TYPES[Path(name).suffix], etag_of(content))


def etag_of(content: bytes) -> str:
    """Returns the entity tag of a body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
