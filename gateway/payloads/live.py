"""The thread that formats sampled payloads and brings them to their sinks: URLs, or files in the state directory.

Serving never waits for it: what waits is bounded, and events that find no room are dropped and counted. A sink that
fails is asked again after 2, 4, 8 ... 30 s; one line is written when it fails first and one when it works again.
"""

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidegate import __version__
from tidegate.aio.log_stream import say
from tidegate.gateway.payloads.events import Payload, encode_event

KEPT_BYTES: Final = 16 << 20
"""Bytes of bodies that wait, for all sinks together."""
EACH_BYTES: Final = 1024
"""Bytes that an event takes beside its body."""
AT_ONCE: Final = 64
"""Events that one sink gets before the next one has its turn."""
EVERY_S: Final = 0.5
TIMEOUT_S: Final = 5.0
LONGEST_PAUSE_S: Final = 30.0
END_S: Final = 2.0
"""Time at the end of the worker for the last events."""
FILE_BYTES: Final = 64 << 20
"""A longer file becomes ``FILE.1``, in the place of the one before."""
_FIELDS: Final = {
    "content-type": "application/cloudevents+json; charset=UTF-8",
    "user-agent": f"tidegate/{__version__}",
}
AGAIN: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which the same event is sent again."""


class SinkError(Exception):
    """A sink that does not take an event. ``is_final``: True if it never will."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class _Sink:
    """One place that events go to."""

    def __init__(self, name: str) -> None:
        self.name = name
        """For people; without the path and the query of a URL."""
        self.waiting: deque[Payload] = deque()
        self.fault: str | None = None
        self.next_at = 0.0
        self._pause = 1.0

    def send(self, event: bytes) -> None:
        """Brings one event. Raises SinkError."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what is open."""

    def failed(self, reason: str, now: float) -> None:
        if self.fault is None:
            say(f"payload events do not reach {self.name}: {reason}; serving goes on, events wait or are dropped")
        self.fault = reason
        self._pause = min(LONGEST_PAUSE_S, 2.0 * self._pause)
        self.next_at = now + self._pause

    def worked(self) -> None:
        if self.fault is not None:
            say(f"payload events reach {self.name} again", level="info")
        self.fault, self._pause = None, 1.0


class _Url(_Sink):
    """A URL that takes one event by POST."""

    def __init__(self, url: str) -> None:
        import http.client  # Not in a worker without such a sink: it takes 2 MB.

        self._http = http.client
        self._url = urlsplit(url)
        super().__init__(self._url.netloc)
        self._connection: http.client.HTTPConnection | None = None

    def send(self, event: bytes) -> None:
        url = self._url
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if self._connection is None:
            kind = self._http.HTTPSConnection if url.scheme == "https" else self._http.HTTPConnection
            self._connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_S)
        try:
            self._connection.request("POST", target, event, _FIELDS)
            answer = self._connection.getresponse()
            answer.read(1 << 20)
        except (OSError, self._http.HTTPException) as error:
            self.close()
            raise SinkError(str(error) or type(error).__name__) from error
        if answer.status >= 300:
            raise SinkError(f"it answers {answer.status}", is_final=answer.status not in AGAIN)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _File(_Sink):
    """A file with one event on each line."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def send(self, event: bytes) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, event + b"\n") <= len(event):
                    raise SinkError("the disk is full")
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > FILE_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        except OSError as error:
            raise SinkError(error.strerror or str(error)) from error


class PayloadThread:
    """Brings the events of one worker to their sinks. The thread starts with the first event."""

    def __init__(self, folder: str | None, worker: str) -> None:
        """``folder``: where files are kept; None: the working folder."""
        self.delivered = 0
        self.dropped = 0
        self._folder = Path(folder or ".")
        self._worker = worker
        self._sinks: dict[str, _Sink] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, pair: tuple[Payload, Payload]) -> None:
        """Takes the events of one request, or drops them if too much waits."""
        size = sum(_size(each) for each in pair)
        rules, function = pair[0].rules, pair[0].function
        with self._lock:
            if self._bytes + size > KEPT_BYTES:
                self.dropped += 2
                return
            self._bytes += size
            key = rules.sink or function
            sink = self._sinks.get(key)
            if sink is None:
                path = self._folder / f"{function}.{self._worker}.jsonl"
                sink = self._sinks[key] = _File(path) if rules.sink is None else _Url(rules.sink)
            sink.waiting.extend(pair)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="payloads", daemon=True)
            self._thread.start()

    @property
    def fault(self) -> str | None:
        """The present fault, for ``tidegate status``; None if there is none."""
        faults = [f"{sink.name}: {sink.fault}" for sink in tuple(self._sinks.values()) if sink.fault is not None]
        return f"{'; '.join(faults)}; {self.dropped} events were dropped" if faults else None

    def close(self) -> None:
        """Sends what waits, for at most ``END_S``."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self._round(time.monotonic())
        for sink in self._sinks.values():
            sink.next_at = 0.0
        self._round(time.monotonic())
        for sink in self._sinks.values():
            sink.close()

    def _round(self, now: float) -> None:
        """Lets each sink that works have what waits for it."""
        busy = [sink for sink in tuple(self._sinks.values()) if sink.waiting and now >= sink.next_at]
        while busy:
            busy = [sink for sink in busy if self._some(sink) and sink.waiting]

    def _some(self, sink: _Sink) -> bool:
        """Sends some events. Returns whether the sink took them."""
        for _ in range(min(AT_ONCE, len(sink.waiting))):
            payload = sink.waiting[0]
            try:
                sink.send(encode_event(payload))
            except SinkError as error:
                sink.failed(str(error), time.monotonic())
                if error.is_final:
                    self.dropped += 1
                    self._done(sink, payload)
                return False
            self.delivered += 1
            sink.worked()
            self._done(sink, payload)
            time.sleep(0)  # The interpreter's lock goes back to the loop.
        return True

    def _done(self, sink: _Sink, payload: Payload) -> None:
        with self._lock:
            sink.waiting.popleft()
            self._bytes -= _size(payload)

    def __repr__(self) -> str:
        return f"<PayloadThread {len(self._sinks)} sinks, {self._bytes} bytes wait>"


def _size(payload: Payload) -> int:
    return len(payload.data) + EACH_BYTES
