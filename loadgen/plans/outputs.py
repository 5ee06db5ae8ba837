"""Checks of the files that a run will write, made before it starts."""

import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.schema.yaml_nodes import Faults


def check_files(outputs: Iterable[tuple[str, Path | None]], inputs: Iterable[Path | None], faults: Faults) -> None:
    """Adds a fault for each output that cannot be written or that an input or another option uses.

    A long run must not be lost because its report cannot be written, nor an input file. Devices and pipes are neither
    kept nor overwritten.
    """
    taken = {os.path.realpath(path) for path in inputs if path is not None}
    for option, path in outputs:
        if path is None:
            continue
        place = os.path.realpath(path)
        if not _can_be_written(path):
            faults.add(option, str(path), "a file in a folder that exists, where it may be written")
        elif place in taken:
            faults.add(option, str(path), "a file of its own: this one is read, or written by another option")
        elif path.is_file() or not path.exists():
            taken.add(place)


def _can_be_written(path: Path) -> bool:
    try:
        folder = path.absolute().parent
        return folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK)
    except OSError:  # Such as of a name that is too long.
        return False
