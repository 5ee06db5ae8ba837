"""The process that converts large bodies of pipelines for one gateway worker.

    python -P -m tidegate.gateway.pipelines.main

Its standard input is a socket: pickled functions with their arguments come in, results go out, each behind its length.
It ends once its worker has gone.
"""

import os
import pickle
import signal
import socket
import sys
from io import BufferedRWPair

from tidegate.gateway.pipelines.conversions import LENGTH, converted


def serve(link: BufferedRWPair) -> None:
    """Converts until the other side has gone."""
    while True:
        head = link.read(LENGTH)
        if len(head) < LENGTH:
            return
        size = int.from_bytes(head, "big")
        request = link.read(size)
        if len(request) < size:
            return
        function, arguments = pickle.loads(request)
        del request
        result = pickle.dumps(converted(function, arguments), pickle.HIGHEST_PROTOCOL)
        link.write(len(result).to_bytes(LENGTH, "big"))
        link.write(result)
        link.flush()


def main() -> int:
    """Runs to its end. Returns the exit code of the process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # It ends with its worker.
    try:
        with socket.socket(fileno=os.dup(0)) as sock, sock.makefile("rwb") as link:
            serve(link)
    except ConnectionError:
        pass  # The worker has gone.
    return 0


if __name__ == "__main__":
    sys.exit(main())
