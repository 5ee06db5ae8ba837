"""``python -P -m tidegate.runtime.fork.main FD MODULE...``: imports modules, then forks at each order.

Orders and answers are JSON messages on the socket ``FD`` (SOCK_SEQPACKET), with the descriptors of the new process. The
first answer is sent without an order, when everything is imported::

    -> {"ready": true}                                        or {"fault": "numpy starts threads .."}
    <- {"module": .., "env": {..}, "cwd": .., "fds": [1, 2]}  and two descriptors
    -> {"pid": 4711}                                          or {"fault": ".."}

A new process leads a session of its own, has the given environment, folder and descriptors, and runs ``main()`` of the
module as ``python -m`` would. It is a child of this process's parent. A module that is not there is left out:
the process that needs it reports that. This process ends with the socket.

A process with threads is never forked: the copy would have their locks and not them.
"""

import gc
import importlib
import json
import os
import socket
import sys
from typing import Any

from tidegate.runtime.fork import process

MESSAGE_BYTES = 1 << 17
MAX_DESCRIPTORS = 8
EXIT_THREADS = 4


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    fault = _import(sys.argv[2:])
    if fault is not None:
        _answer(control, {"fault": fault})
        return EXIT_THREADS
    gc.collect()
    gc.freeze()  # The collector of a new process touches no page of these objects, so both share them.
    _answer(control, {"ready": True})
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not text:
            return 0
        try:
            pid = process.fork_for_parent()
        except OSError as error:
            answer: dict[str, Any] = {"fault": str(error)}
        else:
            if pid == 0:
                control.close()
                return _become(json.loads(text), descriptors)
            answer = {"pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        _answer(control, answer)


def _import(modules: list[str]) -> str | None:
    """Returns the reason why this process cannot be forked afterwards; None if it can."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"{name} is not imported: {error}\n")
        running = process.threads()
        if running > 1:
            return f"{name} starts threads when it is imported ({running - 1})"
    return None


def _answer(control: socket.socket, answer: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(answer).encode())
    except OSError:
        sys.exit(0)  # The control process has ended.


def _become(order: dict[str, Any], descriptors: list[int]) -> int:
    """Makes this process the ordered one and runs it to its end. Returns its exit code."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order["env"])
    module = order["module"]
    process.show((sys.executable, "-P", "-m", module), order["env"])  # At once: it has the mark of its record.
    process.place(descriptors, order["fds"])
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    loaded = importlib.import_module(module)
    sys.argv = [str(loaded.__file__)]
    return int(loaded.main())


if __name__ == "__main__":
    sys.exit(main())
