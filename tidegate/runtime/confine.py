"""Keeps a model server from the state directory and from the other processes of its user, where Linux allows it.

Two means, each used if the kernel grants it:

- a *mount namespace* in which empty folders lie over the given ones, with the few paths bound back that the server
  needs. Root makes one directly and gives up the right to change it; others need user namespaces.
- a *Landlock domain* (Linux 5.13; signals from 6.12): no tracing of processes outside it, hence no look at their
  memory, descriptors and environments, and no signals and abstract unix sockets to them.

Landlock's file rules are not used: they name what may be used and cannot except a folder from the rest.

The file runs alone, with the standard library, under any interpreter: ``python confine.py JSON PROGRAM ARGUMENT...``
confines itself and becomes the program. The shipped server calls :func:`from_environment` before it starts a thread.
``python confine.py`` alone prints what this system refuses, as JSON.
"""
# pathlib would cost each start of a command some milliseconds.
# ruff: noqa: PTH103, PTH110, PTH112, PTH120, PTH123

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, MutableMapping

VARIABLE = "TIDEGATE_CONFINE"
"""JSON with ``hide`` and ``show``: folders to hide, and paths below them to keep."""

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _SLAVE = 1, 32, 4096, 16384, 1 << 19
_KEPT_FLAGS = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))
"""No setuid, devices, programs, three kinds of access times: flags of a file system and of a mount. The kernel lets no
user namespace take them off."""
_SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 4, 24, 38
_GIVEN_UP = (19, 21, 38, 39)
"""Capabilities that root gives up: tracing others, mounts among much else, performance events, BPF programs."""
_CAPABILITIES_V3 = 0x20080522
_CREATE_RULESET, _RESTRICT_SELF, _VERSION_ONLY = 444, 446, 1
_MAKE_BLOCK_DEVICES, _ABSTRACT_SOCKETS, _SIGNALS = 1 << 11, 1, 2
_SCOPES_SINCE = 6


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


def from_environment(environment: MutableMapping[str, str]) -> None:
    """Confines this process as ``TIDEGATE_CONFINE`` says, and removes the variable. Without it nothing happens. The
    process must have one thread."""
    text = environment.pop(VARIABLE, None)
    if text is not None:
        _confine_as(text)


def _confine_as(text: str) -> None:
    wanted = json.loads(text)
    confine(wanted["hide"], wanted["show"])


def confine(hide: Iterable[str], show: Iterable[str]) -> tuple[str | None, str | None]:
    """Confines this process. Returns why folders could not be hidden, and why there is no Landlock domain; None for
    what was done."""
    if not sys.platform.startswith("linux"):
        return "only on Linux", "only on Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    return _attempt(lambda: _hide(libc, list(hide), list(show))), _attempt(lambda: _enter_domain(libc))


def _attempt(act: Callable[[], None]) -> str | None:
    try:
        act()
    except OSError as error:
        return f"{error.filename or 'system call'}: {error.strerror}"
    return None


# --- the mount namespace ---


def _hide(libc: ctypes.CDLL, hide: list[str], show: list[str]) -> None:
    there = [path for path in dict.fromkeys(map(os.path.realpath, hide)) if os.path.isdir(path)]
    folders = [path for path in there if not any(path.startswith(f"{each}/") for each in there)]
    kept = [
        path
        for path in dict.fromkeys(map(os.path.realpath, show))
        if os.path.exists(path) and any(path.startswith(f"{folder}/") for folder in folders)
    ]
    if not folders:
        return
    user, group, is_root = os.geteuid(), os.getegid(), os.geteuid() == 0
    _check(libc.unshare(_NEW_MOUNTS if is_root else _NEW_MOUNTS | _NEW_USER), "unshare")
    if not is_root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _mount(libc, "none", "/", _RECURSIVE | _SLAVE)  # What is mounted outside later is seen, nothing goes the other way.
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in kept]
    for folder in folders:
        _mount(libc, "tmpfs", folder, 2 | 4, "tmpfs", "mode=0700,size=1m")
    for path, fd in held:
        is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
        os.makedirs(path if is_folder else os.path.dirname(path), mode=0o700, exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _mount(libc, f"/proc/self/fd/{fd}", path, _BIND | _RECURSIVE)
        if not is_folder:
            flags = os.statvfs(path).f_flag
            locked = sum(mount for system, mount in _KEPT_FLAGS if flags & system)
            _mount(libc, "none", path, _REMOUNT | _BIND | _READ_ONLY | locked)
        os.close(fd)
    _give_up_capabilities(libc, is_root)


def _give_up_capabilities(libc: ctypes.CDLL, is_root: bool) -> None:
    """Makes the namespace final. Others than root have had capabilities in it only since it was made."""
    header, data = _Header(_CAPABILITIES_V3, 0), (_Capabilities * 2)()
    if is_root:
        _check(libc.capget(ctypes.byref(header), data), "capget")
        for capability in _GIVEN_UP:
            libc.prctl(_DROP_BOUND, capability, 0, 0, 0)  # An older kernel does not know all of them.
            word, bit = data[capability // 32], 1 << capability % 32
            for name in ("effective", "permitted", "inheritable"):
                setattr(word, name, getattr(word, name) & ~bit)
    _check(libc.capset(ctypes.byref(header), data), "capset")
    _check(libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl")  # The control process reads /proc of its own servers.


def _mount(libc: ctypes.CDLL, source: str, target: str, flags: int, kind: str = "none", data: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode() or None)
    _check(libc.mount(*words), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# --- the Landlock domain ---


def _enter_domain(libc: ctypes.CDLL) -> None:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_ONLY))
    _check(version, "landlock_create_ruleset")
    if version >= _SCOPES_SINCE:
        rules, size = _Ruleset(0, 0, _ABSTRACT_SOCKETS | _SIGNALS), ctypes.sizeof(_Ruleset)
    else:  # A domain needs something to rule: the making of block devices.
        rules, size = _Ruleset(_MAKE_BLOCK_DEVICES, 0, 0), 8
    fd = libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    _check(fd, "landlock_create_ruleset")
    try:
        _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
        _check(libc.syscall(_RESTRICT_SELF, ctypes.c_int(fd), ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(fd)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def main(arguments: list[str]) -> int:
    """Confines this process as the first argument says and becomes the others. Without any, prints what this system
    refuses."""
    if arguments:
        wanted, *program = arguments
        _confine_as(wanted)
        try:
            os.execvp(program[0], program)
        except OSError as error:
            sys.stderr.write(f"cannot start {program[0]}: {error.strerror}\n")
            return 127
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pid = os.fork()
        if pid == 0:
            hidden, domain = confine([folder], [])
            sys.stdout.write(json.dumps({"hide": hidden, "landlock": domain}))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
