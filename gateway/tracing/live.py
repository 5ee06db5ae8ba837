"""The thread that sends spans to a collector by OTLP over HTTP, in a process beside the worker (``main.py``).

The queue is bounded, spans that find it full are dropped and counted. A collector that is
away is asked again at growing intervals; one line is written when exporting stops working and one when it works again.
"""

import http.client
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from tidegate import __version__
from tidegate.gateway.tracing.otlp import Span, encode_request, encode_span

KEPT: Final = 4096
"""Spans that wait at most, besides one batch under way. Our choice."""
BATCH: Final = 512
"""Spans in one request at most, as the batch processor of OpenTelemetry's SDKs has it."""
EVERY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
LONGEST_PAUSE_S: Final = 30.0
END_S: Final = 2.0
"""Time at the end of the worker for the last spans."""
AGAIN: Final = frozenset((429, 502, 503, 504))
"""Answers after which OTLP sends the same spans again."""


class Exporter:
    """Sends the spans of one worker to ``endpoint``, an ``http`` or ``https`` URL; without a path: ``/v1/traces``.

    ``headers``: more fields of its requests, such as a collector's credentials.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None = None, *, every_s: float = EVERY_S) -> None:
        self.exported = 0
        self._crowded = self._refused = 0
        """Spans that found the queue full, and those that the collector refused: each is counted by one thread."""
        self._url = urlsplit(endpoint)
        self._headers = {"content-type": "application/x-protobuf", **(headers or {})}
        self._every_s = every_s
        self._queue: deque[Span] = deque()
        self._stopping = threading.Event()
        self._fault: str | None = None
        self._batch: list[Span] = []
        self._encoded = b""
        self._thread = threading.Thread(target=self._run, name="trace-exporter", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Takes the spans of one request, or drops them if too many wait."""
        if len(self._queue) + len(spans) > KEPT:
            self._crowded += len(spans)
        else:
            self._queue.extend(spans)

    @property
    def dropped(self) -> int:
        """Spans that are lost."""
        return self._crowded + self._refused

    @property
    def fault(self) -> str | None:
        """Why the collector does not take spans; None if it does."""
        return self._fault

    @property
    def is_busy(self) -> bool:
        """Whether spans wait."""
        return bool(self._queue or self._batch)

    def close(self) -> None:
        """Sends what waits, for at most ``END_S``."""
        self._stopping.set()
        self._thread.join(END_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._every_s
        while not self._stopping.wait(pause):
            pause = self._every_s if self._send_all() else min(LONGEST_PAUSE_S, 2.0 * pause)
        self._send_all()

    def _send_all(self) -> bool:
        """Sends batch after batch. Returns False once the collector did not take one; that one is kept."""
        while self._batch or self._queue:
            if not self._batch:
                self._take_batch()
            fault, is_final = self._post(self._encoded)
            if fault is not None and not is_final:
                self._report(fault)
                return False
            if fault is None:
                self.exported += len(self._batch)
            else:
                self._refused += len(self._batch)
            self._batch = []
            self._report(fault)
        return True

    def _take_batch(self) -> None:
        while self._queue and len(self._batch) < BATCH:
            self._batch.append(self._queue.popleft())
        self._encoded = encode_request([(span, encode_span(span)) for span in self._batch], __version__)

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Returns why the collector did not take it (None: it did), and whether asking again is of no use."""
        url = self._url
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", url.path or "/v1/traces", body, self._headers)
            answer = connection.getresponse()
            answer.read(65536)
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__, False
        finally:
            connection.close()
        if answer.status < 300:
            return None, False
        return f"it answers {answer.status}", answer.status not in AGAIN

    def _report(self, fault: str | None) -> None:
        """Writes a line when exporting stops working, and when it works again."""
        if fault is not None and self._fault is None:
            self._write(f"traces are not exported to {self._url.netloc}: {fault}; serving goes on, spans are dropped")
        elif fault is None and self._fault is not None:
            self._write(f"traces are exported to {self._url.netloc} again; {self.dropped} spans were dropped")
        self._fault = fault

    def _write(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except OSError:
            pass  # The disk is full: the metric counts the dropped spans.

    def __repr__(self) -> str:
        return f"<Exporter {self._url.netloc}, {len(self._queue)} spans wait>"


def read_headers(text: str) -> dict[str, str]:
    """Reads ``OTEL_EXPORTER_OTLP_HEADERS``: ``name=value,name=value``, percent-encoded. Skips what is not a pair."""
    found = {}
    for pair in text.split(","):
        name, is_pair, value = pair.partition("=")
        if is_pair and name.strip():
            found[name.strip().lower()] = unquote(value.strip())
    return found
