"""The process that exports the spans of one worker (a side process: ``gateway/beside/main.py``).

    python -P -m tidegate.gateway.tracing.main ENDPOINT FORMAT OFFSET WORKER SCHEME

Fields for the collector come in the environment (``OTEL_EXPORTER_OTLP_HEADERS``), which no list of processes shows.
"""

import os
import random
import socket
import sys
from collections.abc import Mapping
from typing import Final

from tidegate.aio.log_stream import use_json
from tidegate.gateway.beside.main import begin, serve
from tidegate.gateway.tracing.batches import decode_batch
from tidegate.gateway.tracing.live import Exporter, read_headers
from tidegate.gateway.tracing.spans import Spans

EXIT_USAGE: Final = 2


class SpanTask:
    """Makes spans, and passes them on to the thread that exports them (a ``Task``)."""

    def __init__(self, exporter: Exporter, spans: Spans) -> None:
        self._exporter = exporter
        self._spans = spans

    @property
    def figures(self) -> tuple[int, int, str | None]:
        exporter = self._exporter
        dropped = exporter.dropped  # Its thread may drop more meanwhile.
        return exporter.exported + dropped, dropped, exporter.fault

    @property
    def is_busy(self) -> bool:
        return self._exporter.is_busy

    def take(self, batch: bytes) -> None:
        for traced in decode_batch(batch):
            self._exporter.put(self._spans.made(traced))

    def turn(self) -> None:
        """The thread goes on by itself."""

    def close(self) -> None:
        self._exporter.close()

    def __repr__(self) -> str:
        return f"<SpanTask {self._exporter!r}>"


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Runs the exporter to its end. Returns the exit code of the process."""
    try:
        endpoint, form, offset, worker, scheme = arguments
        spans = Spans(rng=random.Random(), offset=float(offset), worker=worker, scheme=scheme)
    except ValueError:
        sys.stderr.write(
            "usage: python -P -m tidegate.gateway.tracing.main ENDPOINT text|json OFFSET WORKER http|https\n"
        )
        return EXIT_USAGE
    begin()
    if form == "json":
        use_json({"logger": "gateway", "worker": worker})
    headers = read_headers(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    serve(socket.socket(fileno=os.dup(0)), SpanTask(Exporter(endpoint, headers), spans))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
