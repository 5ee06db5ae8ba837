"""The libraries that the console ships: their record, and how they are fetched again.

``python -m tests.support.vendored`` fetches each package of npm at the recorded version, compares it with the recorded
hashes and writes its files into ``control/console/static/vendor``. A newer version: change ``version`` in the
library's ``vendored.json``; the command then fails and prints the new hashes to be read, judged and recorded.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "control" / "console" / "static" / "vendor"
RECORD = "vendored.json"


@dataclass(frozen=True, slots=True)
class Library:
    """One library. ``files``: SHA-256 by path inside the package."""

    folder: Path
    package: str
    version: str
    integrity: str
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Library":
        text = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return cls(folder, text["package"], text["version"], text["integrity"], text["files"])

    def names(self) -> dict[str, str]:
        """Returns the SHA-256 of each file by its name in the folder."""
        return {Path(path).name: digest for path, digest in self.files.items()}


def libraries() -> list[Library]:
    return [Library.read(path.parent) for path in sorted(VENDOR.glob(f"*/{RECORD}"))]


def faults_of(library: Library, archive: bytes, contents: dict[str, bytes]) -> list[str]:
    """Returns how a fetched package differs from its record."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    faults = [] if found == library.integrity else [f"integrity is {found}"]
    for path, digest in library.files.items():
        actual = hashlib.sha256(contents[path]).hexdigest() if path in contents else "missing"
        if actual != digest:
            faults.append(f"{path} is {actual}")
    return faults


def fetch(library: Library) -> list[str]:
    """Fetches a library and writes its files. Returns how it differs from its record; then nothing is written."""
    with tempfile.TemporaryDirectory() as place:
        name = f"{library.package}@{library.version}"
        subprocess.run(
            ["npm", "pack", "--silent", "--ignore-scripts", name], cwd=place, check=True, capture_output=True
        )
        (path,) = Path(place).glob("*.tgz")
        archive = path.read_bytes()
        with tarfile.open(path) as packed:
            contents = {
                member.name.removeprefix("package/"): held.read()
                for member in packed.getmembers()
                if member.isfile() and (held := packed.extractfile(member)) is not None
            }
    faults = faults_of(library, archive, contents)
    if not faults:
        for each in library.files:
            (library.folder / Path(each).name).write_bytes(contents[each])
    return faults


def main() -> int:
    wrong = 0
    for library in libraries():
        faults = fetch(library)
        wrong += len(faults)
        for line in faults or ["as recorded"]:
            sys.stdout.write(f"{library.package} {library.version}: {line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
