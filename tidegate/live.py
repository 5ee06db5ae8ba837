"""The disk, as the vocabulary needs it: looking whether the files of a manifest are there."""

import stat
from pathlib import Path

from tidegate.files import Found


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
