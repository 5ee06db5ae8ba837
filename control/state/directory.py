"""The state directory: everything a deployment keeps on disk, readable by its owner only.

::

    control.lock   held (flock) by the running control process; says who it is and where it listens
    epoch          number of the last control process; each start takes the next one
    token          the API's token          link-token   the deployment's own token
    state.db       functions and revisions  routes.json  the last route table
    processes/     one record per process   run/         sockets
    logs/          output of processes      decisions/   the autoscaler's decision logs
    cold-starts.jsonl   the last cold starts, newest last

The lock is the kernel's: it ends with its process, however that dies, and children do not inherit it.
"""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import TidegateError

SOCKET_PATH_LIMIT: Final = 100
"""Bytes of a unix socket path that work everywhere (Linux has 107, others less)."""
SOCKET_NAME_ROOM: Final = 40
"""Bytes kept for the longest name in ``run/``."""


class StateError(TidegateError):
    """The state directory cannot be used; the message says why and what to do."""


class StateLockedError(StateError):
    """Another control process holds the directory."""

    def __init__(self, directory: Path, holder: "Holder | None") -> None:
        self.holder = holder
        who = "another process" if not holder or not holder.pid else f"process {holder.pid}, since {holder.since}"
        super().__init__(f"{directory} is in use by {who}; stop it with `tidegate down --state {directory}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds the lock: written into the lock file for people and for the command line."""

    pid: int
    since: str
    """Local time with its offset, for people."""
    epoch: int
    api: str | None = None
    """``http://127.0.0.1:8081``; None while it starts."""
    gateway: str | None = None
    certificate: str | None = None
    """File with the front door's certificate; None without TLS."""


def default_directory(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/tidegate``, or ``~/.local/state/tidegate``."""
    base = environ.get("XDG_STATE_HOME", "")
    if not Path(base).is_absolute():
        base = str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "tidegate"


class StateDirectory:
    """Names and makes what lies in the directory. :meth:`prepare` before use; :meth:`lock` to be its owner."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.lock_file = self.root / "control.lock"
        self.epoch_file = self.root / "epoch"
        self.database = self.root / "state.db"
        self.routes = self.root / "routes.json"
        self.processes = self.root / "processes"
        self.logs = self.root / "logs"
        self.decisions = self.root / "decisions"
        self.recordings = self.root / "recordings"
        self.copies = self.root / "copies"
        """Of model files and handlers, as they were deployed."""
        self.cold_starts = self.root / "cold-starts.jsonl"
        self.control_log = self.logs / "control.log"
        """Of a control process in the background."""
        self.run = socket_directory(self.root)
        self.quotas = self.run / "quotas.sock"
        """Of the pool through which gateway workers share quotas."""

    def prepare(self) -> None:
        """Makes the directory and its folders (mode 0700); raises StateError when it is somebody else's."""
        for folder in (self.root, self.processes, self.logs, self.decisions, self.recordings, self.copies, self.run):
            own_directory(folder)
        # SQLite gives its other files the mode of this one.
        for file in (self.database, self.cold_starts, self.control_log):
            own_file(file)

    def clear(self) -> None:
        """Everything has ended: the folder of sockets goes where it lies outside the directory."""
        if self.run.parent != self.root:
            with suppress(OSError):  # something is left in it: the next start uses it again
                self.run.rmdir()

    @property
    def token(self) -> str:
        """The API's token, made at first use."""
        return _secret(self.root / "token")

    @property
    def link_token(self) -> str:
        """The token between gateway and queue_proxies, made at first use."""
        return _secret(self.root / "link-token")

    @property
    def name(self) -> str:
        """What this deployment is called in a store that several use, made at first use."""
        path = self.root / "name"
        with usable(path):
            if not path.exists():
                write_atomically(path, f"{secrets.token_hex(8)}\n".encode())
            return path.read_text(encoding="ascii").strip()

    @property
    def link_token_file(self) -> Path:
        return self.root / "link-token"

    def read_token(self) -> str | None:
        """The API's token if there is one; a reader makes none."""
        path = self.root / "token"
        with usable(path):
            return path.read_text(encoding="ascii").strip() if path.exists() else None

    def next_epoch(self) -> int:
        """One higher than any control process before; on disk before it is used."""
        epoch = self.last_epoch() + 1
        with usable(self.epoch_file):
            write_atomically(self.epoch_file, f"{epoch}\n".encode())
        return epoch

    def last_epoch(self) -> int:
        """Epoch of the last control process; 0 before the first."""
        if not self.epoch_file.exists():
            return 0
        text = self.epoch_file.read_text(encoding="ascii").strip()
        if not text.isascii() or not text.isdigit():
            raise StateError(f"{self.epoch_file} should hold a number, it holds {text[:40]!r}")
        return int(text)

    def lock(self) -> "DirectoryLock":
        """Takes the directory; raises StateLockedError when a living process holds it."""
        with usable(self.lock_file):
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StateLockedError(self.root, self._read_holder()) from error
        os.ftruncate(fd, 0)  # a holder that was killed has left its description
        return DirectoryLock(fd, self.lock_file)

    def holder(self) -> Holder | None:
        """Who holds the directory now; None when nobody does. Without its addresses while it starts or leaves."""
        with usable(self.lock_file):
            if not self.lock_file.exists():
                return None
            fd = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return self._read_holder() or Holder(pid=0, since="a moment ago", epoch=0)
        finally:
            os.close(fd)
        return None

    def _read_holder(self) -> Holder | None:
        """The description in the lock file; None where it is missing or a dead process has left it."""
        try:
            holder = Holder(**json.loads(self.lock_file.read_text(encoding="utf-8")))
            os.kill(holder.pid, 0)
        except (OSError, ValueError, TypeError):
            return None
        return holder

    def __repr__(self) -> str:
        return f"<StateDirectory {self.root}>"


class DirectoryLock:
    """The right to act on the directory, until :meth:`release` or the end of the process."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def describe(self, holder: Holder) -> None:
        """Writes who holds it, for whoever is refused and for the command line."""
        text = json.dumps(asdict(holder)).encode()
        with usable(self._path):
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


_ADVICE: Final = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EROFS: "choose a directory that can be written with --state",
    errno.EACCES: "choose a directory of your own with --state",
    errno.EPERM: "choose a directory of your own with --state",
    errno.ENOTDIR: "choose a directory, not a file, with --state",
    errno.EEXIST: "choose a directory, not a file, with --state",
}


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turns the system's refusal inside the state directory into a StateError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        why = f"the state directory cannot be used: {error.filename or path}: {error.strerror or error}"
        raise StateError(why if advice is None else f"{why}; {advice}") from error


def socket_directory(root: Path) -> Path:
    """``root/run``, or a folder under the system's temporary directory where that is too long for a unix socket."""
    run = root / "run"
    if len(os.fsencode(run)) + 1 + SOCKET_NAME_ROOM <= SOCKET_PATH_LIMIT:
        return run
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}-{name}"


def own_directory(path: Path) -> None:
    """Makes ``path`` with mode 0700; one that exists must be a real directory of this user, and is closed to others."""
    with usable(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StateError(f"{path} is not a directory")
    if found.st_uid != os.getuid():
        raise StateError(f"{path} belongs to user {found.st_uid}, not to you ({os.getuid()})")
    if stat.S_IMODE(found.st_mode) != 0o700:
        with usable(path):
            path.chmod(0o700)


def own_file(path: Path) -> None:
    """Makes an empty file with mode 0600; one that exists is closed to others."""
    with usable(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces the file at once, mode 0600: a reader sees the old content or the new.

    ``durable``: also after a power cut, for the price of waiting for the disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _secret(path: Path) -> str:
    with usable(path):
        if not path.exists():
            write_atomically(path, f"{secrets.token_urlsafe(32)}\n".encode())
        return path.read_text(encoding="ascii").strip()
