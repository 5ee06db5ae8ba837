"""Tools in Go that tests and their runners use: installed by their ordinary ``go install`` into ``build/go``, once.

Nothing of them is part of this checkout. ``python -m tests.support.live.go_tools`` installs those of the
interoperability tests; exit code 3 and one line where there is no Go, or no way to its modules.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HOME = ROOT / "build" / "go"
WHERE = f"{os.environ.get('PATH', '')}:/usr/local/go/bin"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@latest"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
INTEROP_CLIENT = "google.golang.org/grpc/interop/client@v1.85.0"
INTEROP_SERVER = "google.golang.org/grpc/interop/server@v1.85.0"
CANNOT = 3
PATIENCE_S = 600.0
TIMES, PAUSE_S = 3, 5.0
"""So often an installation is tried where there is no way to the modules."""
_NO_WAY = re.compile(r"dial tcp|no such host|proxyconnect|i/o timeout|connection refused|GOPROXY=off")


class NoGoError(Exception):
    """There is no Go toolchain, or no way to the modules; the message says which."""


def toolchain() -> str:
    """Path of ``go``; raises NoGoError."""
    found = shutil.which("go", path=WHERE)
    if found is None:
        raise NoGoError("no Go toolchain: neither on the path nor in /usr/local/go/bin (https://go.dev/dl)")
    return found


def tool(package: str) -> Path:
    """The binary of a package ``path@version``, installed where it is not there yet. Raises NoGoError, and RuntimeError
    when it cannot be installed."""
    go = toolchain()
    path, _, version = package.partition("@")
    name = "-".join(path.split("/")[-2:] if path.endswith(("/client", "/server")) else path.split("/")[-1:])
    kept = HOME / f"{name}-{version}"
    if kept.exists():
        return kept
    folder = HOME / f".{name}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _install(go, package, folder)
        (folder / path.rpartition("/")[2]).rename(kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kept


def _install(go: str, package: str, folder: Path) -> None:
    why = ""
    for attempt in range(TIMES):
        time.sleep(PAUSE_S * (attempt > 0))
        done = subprocess.run(
            [go, "install", package],
            env={**os.environ, "GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if not done.returncode:
            return
        why = f"go install {package}: {done.stderr.strip()[-300:] or 'it said nothing'}"
        if not _NO_WAY.search(done.stderr):
            raise RuntimeError(why)
    raise NoGoError(why)


if __name__ == "__main__":
    try:
        for each in (GRPCURL, INTEROP_CLIENT, INTEROP_SERVER):
            tool(each)
    except NoGoError as error:
        sys.stderr.write(f"Go's tools cannot be had here: {error}\n")
        sys.exit(CANNOT)
