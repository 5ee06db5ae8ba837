"""The predictor's process: turns come on standard input, answers go to standard output.

It ends when its input ends, so it does not outlive the control process that started it.

    python -P -m tidegate.control.predictor.main FILE
"""

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.control.predictor.messages import MAX_BYTES, packed, unpacked_turn
from tidegate.control.predictor.service import PredictionService, SampleHistory

NICE: Final = 10
"""Its work waits for that of gateways and model servers."""


def serve(service: PredictionService, source: BinaryIO, sink: BinaryIO) -> None:
    """Takes turns until the input ends."""
    while len(header := source.read(4)) == 4:
        size = int.from_bytes(header, "big")
        if size > MAX_BYTES or len(body := source.read(size)) < size:
            return
        sink.write(packed(service.take(unpacked_turn(body))))
        sink.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # An interrupt in a terminal is for the control process.
    os.nice(NICE)
    serve(PredictionService(SampleHistory(Path(sys.argv[1]))), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
