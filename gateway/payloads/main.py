"""The process that brings the sampled payloads of one worker to their sinks (a side process:
``gateway/beside/main.py``). It parses and redacts them.

    python -P -m tidegate.gateway.payloads.main FOLDER FORMAT WORKER
"""

import os
import socket
import sys
from typing import Final

from tidegate.aio.log_stream import use_json
from tidegate.gateway.beside.main import begin, serve
from tidegate.gateway.payloads.batches import decode_batch
from tidegate.gateway.payloads.live import PayloadSinks

EXIT_USAGE: Final = 2


class PayloadTask:
    """Passes payloads on to the threads of their sinks (a ``Task``)."""

    def __init__(self, sinks: PayloadSinks) -> None:
        self._sinks = sinks

    @property
    def figures(self) -> tuple[int, int, str | None]:
        sinks = self._sinks
        return sinks.delivered + sinks.dropped, sinks.dropped, sinks.fault

    @property
    def is_busy(self) -> bool:
        return self._sinks.is_busy

    def take(self, batch: bytes) -> None:
        payloads, named = decode_batch(batch)
        for request, response in zip(payloads[::2], payloads[1::2], strict=True):
            self._sinks.put((request, response))
        self._sinks.keep(frozenset(named))

    def turn(self) -> None:
        """The threads go on by themselves."""

    def close(self) -> None:
        self._sinks.close()

    def __repr__(self) -> str:
        return f"<PayloadTask {self._sinks!r}>"


def main(arguments: list[str]) -> int:
    """Serves the sinks to the worker's end. Returns the exit code of the process."""
    if len(arguments) != 3:
        sys.stderr.write("usage: python -P -m tidegate.gateway.payloads.main FOLDER text|json WORKER\n")
        return EXIT_USAGE
    folder, form, worker = arguments
    begin()
    if form == "json":
        use_json({"logger": "gateway", "worker": worker})
    serve(socket.socket(fileno=os.dup(0)), PayloadTask(PayloadSinks(folder, worker)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
