"""The state directory: everything that a deployment keeps on disk, readable by its owner only.

::

    control.lock   held (flock) by the running control process; has its pid and addresses
    epoch          number of the last control process; each start takes the next one
    token          the API's token          link-token   the deployment's own token
    state.db       functions and revisions  routes.json  the last route table
    processes/     one record per process   run/         sockets
    logs/          output of processes      decisions/   the autoscaler's decision logs
    cold-starts.jsonl   the last cold starts, newest last
    jobs/          jobs of the gateway workers and their answers
    payloads/      sampled payloads of functions that ask for it
    prometheus/    tidegate.json: where Prometheus finds this deployment
    costs.db       device time and its price, by function and tenant
    counted.json   what gateway workers that have ended had counted
    waiting        mapped by the gateway workers: what waits at each

The lock is the kernel's: it ends with its process, however that ends, and child processes do not inherit it.
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
"""Length in bytes of a unix socket path that works everywhere (Linux allows 107, other systems less)."""
SOCKET_NAME_ROOM: Final = 40
"""Bytes reserved for the longest name in ``run/``."""


class StateError(TidegateError):
    """The state directory cannot be used; the message says why and what to do."""


class StateLockedError(StateError):
    """Another control process has locked the directory."""

    def __init__(self, directory: Path, holder: "Holder | None") -> None:
        self.holder = holder
        holding = "another process" if not holder or not holder.pid else f"process {holder.pid}, since {holder.since}"
        super().__init__(f"{directory} is in use by {holding}; stop it with `tidegate down --state {directory}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that has locked the directory: written into the lock file for operators and the command line."""

    pid: int
    since: str
    """Local time with its offset, for display."""
    epoch: int
    api: str | None = None
    """``http://127.0.0.1:8081``; None while it starts."""
    gateway: str | None = None
    """Base URL; None while it starts, and without workers here: :attr:`api` has that of a remote gateway then."""
    certificate: str | None = None
    """File with the gateway's certificate; None without TLS."""


def default_directory(environ: Mapping[str, str]) -> Path:
    """Returns ``$XDG_STATE_HOME/tidegate``, or ``~/.local/state/tidegate``."""
    base = environ.get("XDG_STATE_HOME", "")
    if not Path(base).is_absolute():
        base = str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "tidegate"


class StateDirectory:
    """Names and creates the content of the directory. :meth:`prepare` it before use; :meth:`lock` it to write."""

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
        """Copies of model files and handlers, as they were deployed."""
        self.cold_starts = self.root / "cold-starts.jsonl"
        self.counted = self.root / "counted.json"
        """What processes that have ended had counted."""
        self.samples = self.root / "samples.jsonl"
        """The predictor's samples."""
        self.costs = self.root / "costs.db"
        """Device time and its price."""
        self.targets = self.root / "prometheus" / "tidegate.json"
        """Where Prometheus finds this deployment."""
        self.control_log = self.logs / "control.log"
        """Log of a control process in the background."""
        self.run = socket_directory(self.root)
        self.quotas = self.run / "quotas.sock"
        """Socket of the pool through which gateway workers share quotas."""
        self.waiting = self.root / "waiting"
        """File in which gateway workers publish what waits at them."""
        self.payloads = self.root / "payloads"
        """Folder of the files that sampled payloads go to."""
        self.jobs = self.root / "jobs"
        """Folder in which gateway workers keep jobs."""

    def prepare(self) -> None:
        """Creates the directory and its folders (mode 0700). Raises StateError if it belongs to another user."""
        folders = (
            self.processes,
            self.logs,
            self.decisions,
            self.recordings,
            self.copies,
            self.run,
            self.targets.parent,
        )
        for folder in (self.root, *folders):
            own_directory(folder)
        # SQLite gives its other files the mode of this one.
        for file in (self.database, self.cold_starts, self.samples, self.control_log):
            own_file(file)

    def clear(self) -> None:
        """Removes the folder of sockets if it lies outside the directory. Called when everything has ended."""
        if self.run.parent != self.root:
            with suppress(OSError):  # not empty: the next start uses it again
                self.run.rmdir()

    @property
    def token(self) -> str:
        """The API's token, created at first use."""
        return _secret(self.root / "token")

    @property
    def link_token(self) -> str:
        """The token between gateway and queue_proxies, created at first use."""
        return _secret(self.root / "link-token")

    def keep_link_token(self, token: str) -> None:
        """Takes over the token that the deployment has already."""
        path = self.link_token_file
        with usable(path):
            write_atomically(path, f"{token}\n".encode())

    @property
    def name(self) -> str:
        """Name of this deployment in a store that several deployments use, created at first use."""
        path = self.root / "name"
        with usable(path):
            if not path.exists():
                write_atomically(path, f"{secrets.token_hex(8)}\n".encode())
            return path.read_text(encoding="ascii").strip()

    @property
    def link_token_file(self) -> Path:
        return self.root / "link-token"

    def read_token(self) -> str | None:
        """Returns the API's token; None if there is none. Never creates one."""
        path = self.root / "token"
        with usable(path):
            return path.read_text(encoding="ascii").strip() if path.exists() else None

    def next_epoch(self, at_least: int = 0) -> int:
        """Returns an epoch higher than that of any earlier control process, once it is on disk."""
        epoch = max(self.last_epoch() + 1, at_least)
        with usable(self.epoch_file):
            write_atomically(self.epoch_file, f"{epoch}\n".encode())
        return epoch

    def last_epoch(self) -> int:
        """Returns the epoch of the last control process; 0 before the first."""
        if not self.epoch_file.exists():
            return 0
        text = self.epoch_file.read_text(encoding="ascii").strip()
        if not text.isascii() or not text.isdigit():
            raise StateError(f"{self.epoch_file} should hold a number, it holds {text[:40]!r}")
        return int(text)

    def lock(self) -> "DirectoryLock":
        """Locks the directory. Raises StateLockedError if a living process has locked it."""
        with usable(self.lock_file):
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StateLockedError(self.root, self._read_holder()) from error
        os.ftruncate(fd, 0)  # removes the description of a holder that was killed
        return DirectoryLock(fd, self.lock_file)

    def holder(self) -> Holder | None:
        """Returns the process that has locked the directory now; None if there is none. It has no addresses while it
        starts or ends."""
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
        """Returns the description in the lock file; None if it is missing or left by a process that has ended."""
        try:
            holder = Holder(**json.loads(self.lock_file.read_text(encoding="utf-8")))
            os.kill(holder.pid, 0)
        except (OSError, ValueError, TypeError):
            return None
        return holder

    def __repr__(self) -> str:
        return f"<StateDirectory {self.root}>"


class DirectoryLock:
    """The right to write in the directory, until :meth:`release` or the end of the process."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def describe(self, holder: Holder) -> None:
        """Writes the holder into the lock file, for processes that are refused and for the command line."""
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
    """Raises an OSError inside the state directory as a StateError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        why = f"the state directory cannot be used: {error.filename or path}: {error.strerror or error}"
        raise StateError(why if advice is None else f"{why}; {advice}") from error


def socket_directory(root: Path) -> Path:
    """Returns ``root/run``, or a folder below the system's temporary directory if that path is too long for a unix
    socket."""
    run = root / "run"
    if len(os.fsencode(run)) + 1 + SOCKET_NAME_ROOM <= SOCKET_PATH_LIMIT:
        return run
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}-{name}"


def own_directory(path: Path) -> None:
    """Creates ``path`` with mode 0700. An existing one must be a real directory of this user, and is closed to
    others."""
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
    """Creates an empty file with mode 0600; an existing one is closed to others."""
    with usable(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def private(path: str, flags: int) -> int:
    """Opens a file for ``open(..., opener=private)``: a new one is readable by this user alone, whatever the umask."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces the file at once, mode 0600: a reader sees the old content or the new.

    ``durable``: the new content survives a power cut, at the cost of waiting for the disk.
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
