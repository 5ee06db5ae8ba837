"""Imports the modules beside a handler from the bundle that was made of them at the deploy.

The finder stands directly before the one that looks at files, so that the precedence of built-in and frozen modules is
unchanged. A module keeps the file name that it had, for ``__file__`` and for tracebacks. Modules that are not in the
bundle are found as always.
"""

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class ContentLoader(SourceFileLoader):
    """Loads a module from its content, without the bytecode that may lie beside the file of its name."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        data = self._content
        lines = decode_source(data).splitlines(keepends=True)
        linecache.cache[self.path] = (len(data), None, lines, self.path)  # For tracebacks; without a time it is kept.
        return self.source_to_code(data, self.path)


class BundleFinder:
    """Finds the modules of a bundle as if its files lay in ``folder``."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._files = files
        self._folders = {parent.as_posix() for path in map(Path, files) for parent in path.parents if parent != Path()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None for a module that is not in the bundle, and while the folder is not on the path."""
        if str(self._folder) not in sys.path:
            return None
        place = fullname.replace(".", "/")
        for relative, is_package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            content = self._files.get(relative)
            if content is not None:
                file = str(self._folder / relative)
                folders = [str(self._folder / place)] if is_package else None
                loader = ContentLoader(fullname, file, content)
                return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)
        if place not in self._folders:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None:  # The folder of a namespace package is gone.
            found = ModuleSpec(fullname, None, is_package=True)
            found.submodule_search_locations = [str(self._folder / place)]
        return found


def install(folder: Path, bundle: Path) -> None:
    """Imports the modules in ``bundle`` from it from now on. Raises OSError and zipfile.BadZipFile."""
    import zipfile  # Some milliseconds that handlers without modules of their own do not spend.

    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    at = next((number for number, each in enumerate(sys.meta_path) if each is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(at, BundleFinder(folder, files))
