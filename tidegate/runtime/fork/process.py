"""Forks of a process without threads: new processes of the caller's parent, with an identity of their own.

A process that is forked and not executed keeps what the system shows of its origin. :func:`show` writes its own command
and environment there, so that ``ps`` names it rightly and ``/proc/PID/environ`` has its mark.
"""

import ctypes
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_FIRST_FIELD = 3
"""Number of the field of ``/proc/PID/stat`` that follows the program's name (proc_pid_stat(5))."""
_COMMAND, _ENVIRONMENT = 48, 50
"""Fields with the address of the command's words and of the environment. The field after each has the end."""


def threads() -> int:
    """Returns the number of threads of this process, those of native libraries included."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names, not paths


def fork_for_parent() -> int:
    """Forks twice, so that the system gives the second child to the nearest process above that is a child subreaper
    (prctl(2)): the caller's parent. Returns its pid in the caller, and 0 in it. Raises OSError."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(read)
        try:
            child = os.fork()
        except OSError:
            os._exit(1)
        if child:
            os.write(write, b"%d" % child)
            os._exit(0)
        os.close(write)
        return 0
    os.close(write)
    try:
        os.waitpid(between, 0)  # Its child has the other parent from here on.
        answer = os.read(read, 32)
    finally:
        os.close(read)
    if not answer:
        raise OSError("the system allows no further process")
    return int(answer)


def place(given: Sequence[int], wanted: Sequence[int]) -> None:
    """Makes each given descriptor the wanted one, which replaces what had its number. The given ones are closed."""
    above = max(wanted, default=0) + 1  # and no higher: a process may be allowed few descriptors
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in given]
    for fd in given:
        os.close(fd)
    for fd, number in zip(high, wanted, strict=True):
        os.dup2(fd, number, inheritable=number <= 2)
    for fd in high:
        os.close(fd)


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Writes command and environment to where the system reads those of this process, as far as they fit there: the
    first variables win. The program's own environment must have been set before."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    for field, words in ((_COMMAND, command), (_ENVIRONMENT, [f"{key}={value}" for key, value in environment.items()])):
        first, last = int(fields[field - _FIRST_FIELD]), int(fields[field + 1 - _FIRST_FIELD])
        if not 0 < first < last:
            continue  # The system does not tell a process its addresses.
        text = bytearray()
        for word in words:
            encoded = os.fsencode(word) + b"\0"
            if len(text) + len(encoded) > last - first:
                break
            text += encoded
        ctypes.memmove(first, bytes(text).ljust(last - first, b"\0"), last - first)
