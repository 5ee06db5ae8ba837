"""The disk, as the vocabulary needs it: whether the files of a manifest are there, and what a small file says."""

import errno
import os
import stat
from pathlib import Path

from tidegate.schema.files import Found


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


def read_start(path: str, most: int) -> bytes:
    """The first ``most`` bytes of a file. Raises OSError, also for what is no plain file: nobody waits for a pipe."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return file.read(most)
