"""The sinks that sampled payloads go to: URLs, and files in the state directory. Each has a thread of its own, in a
process beside the worker (``main.py``).

Serving never waits for a sink, nor does one sink for another: what waits for each is bounded, and events that find no
room are dropped and counted. A sink that fails is asked again after 2, 4, 8 ... 30 s; one line is written when it fails
first and one when it works again. A sink that no function names any more ends.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidegate import __version__
from tidegate.aio.log_stream import say
from tidegate.gateway.payloads.events import Payload, encode_event

KEPT_BYTES: Final = 32 << 20
"""Bytes of bodies that wait for all sinks. Each has an even part of it, at most half."""
EACH_BYTES: Final = 1024
"""Bytes that an event takes beside its body."""
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
    """One place that events go to, with its thread, which starts with the first event."""

    def __init__(self, name: str) -> None:
        self.name = name
        """For people; without the path and the query of a URL."""
        self.delivered = self.dropped = 0
        self._waiting: deque[Payload] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._fault: str | None = None
        self._refusal: str | None = None
        self._has_refused = False
        self._pause_s = 1.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="payloads", daemon=True)

    @property
    def fault(self) -> str | None:
        """Why events do not reach it, or why it has refused the last one; None if it takes them."""
        return self._fault or self._refusal

    def put(self, pair: tuple[Payload, Payload], room: int) -> None:
        """Takes the events of one request, or drops them if they and those that wait are more than ``room`` bytes."""
        size = sum(_size(each) for each in pair)
        with self._lock:
            if self._bytes + size > room:
                self.dropped += len(pair)
                return
            self._bytes += size
            self._waiting.extend(pair)
        if self._thread.ident is None:
            self._thread.start()

    def leave(self) -> None:
        """Lets it end, once it has had what waits for it, or does not take it now."""
        self._stopping.set()

    @property
    def is_busy(self) -> bool:
        """Whether events wait, or something keeps it from its task."""
        return bool(self._waiting) or self.fault is not None

    @property
    def has_ended(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def join(self, until: float) -> None:
        """Waits for its end until this time at most."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))

    def send(self, event: bytes, payload: Payload) -> None:
        """Brings one event. Raises SinkError."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what is open."""

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = EVERY_S
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S if self._send_all() else self._pause_s
        self._send_all()
        self.close()
        with self._lock:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._bytes = 0

    def _send_all(self) -> bool:
        """Sends what waits. Returns False once the sink did not take an event; that one is kept."""
        while self._waiting:
            payload = self._waiting[0]
            try:
                self.send(encode_event(payload), payload)
            except SinkError as error:
                if not error.is_final:
                    self._failed(str(error))
                    return False
                self.dropped += 1
                self._refused(str(error))
            else:
                self.delivered += 1
                self._refusal = None
                self._worked()
            with self._lock:
                self._waiting.popleft()
                self._bytes -= _size(payload)
        return True

    def _failed(self, reason: str) -> None:
        if self._fault is None:
            say(f"payload events do not reach {self.name}: {reason}; serving goes on, events wait or are dropped")
        self._fault = reason
        self._pause_s = min(LONGEST_PAUSE_S, 2.0 * self._pause_s)

    def _refused(self, reason: str) -> None:
        """It never takes this event, and perhaps takes the next one: says so once."""
        if not self._has_refused:
            say(f"{self.name} refuses payload events: {reason}; those that it refuses are dropped")
        self._has_refused = True
        self._refusal = reason
        self._worked()

    def _worked(self) -> None:
        if self._fault is not None:
            say(f"payload events reach {self.name} again", level="info")
        self._fault, self._pause_s = None, 1.0


class _Url(_Sink):
    """A URL that takes one event by POST."""

    def __init__(self, url: str) -> None:
        import http.client  # Not in a worker without such a sink: it takes 2 MB.

        self._http = http.client
        self._url = urlsplit(url)
        super().__init__(self._url.netloc)
        self._connection: http.client.HTTPConnection | None = None

    def send(self, event: bytes, payload: Payload) -> None:
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


class _Files(_Sink):
    """A file for each function, with one event on each line."""

    def __init__(self, folder: Path, worker: str) -> None:
        super().__init__(str(folder))
        self._folder = folder
        self._worker = worker

    def send(self, event: bytes, payload: Payload) -> None:
        path = self._folder / f"{payload.function}.{self._worker}.jsonl"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, event + b"\n") <= len(event):
                    raise SinkError("the disk is full")
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > FILE_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        except OSError as error:
            raise SinkError(error.strerror or str(error)) from error


class PayloadSinks:
    """The sinks of one worker. Each is made with its first event."""

    def __init__(self, folder: str | None, worker: str) -> None:
        """``folder``: where files are kept; None: the working folder."""
        self._folder = Path(folder or ".")
        self._worker = worker
        self._sinks: dict[str | None, _Sink] = {}
        """By URL; None: that of all files."""
        self._left: list[_Sink] = []
        """Sinks that no function names any more, and that may not have ended yet."""
        self._delivered = self._dropped = 0
        """Events of sinks that have ended."""

    def put(self, pair: tuple[Payload, Payload]) -> None:
        """Takes the events of one request, or drops them if too much waits."""
        url = pair[0].rules.sink
        sink = self._sinks.get(url)
        if sink is None:
            sink = self._sinks[url] = _Files(self._folder, self._worker) if url is None else _Url(url)
        sink.put(pair, KEPT_BYTES // max(2, len(self._sinks)))

    def keep(self, named: AbstractSet[str | None]) -> None:
        """Lets the sinks end that are not among these."""
        for url in self._sinks.keys() - named:
            sink = self._sinks.pop(url)
            sink.leave()
            self._left.append(sink)
        for sink in [sink for sink in self._left if sink.has_ended]:
            self._left.remove(sink)
            self._delivered += sink.delivered
            self._dropped += sink.dropped

    @property
    def delivered(self) -> int:
        """Events that a sink has taken."""
        return self._delivered + sum(sink.delivered for sink in (*self._sinks.values(), *self._left))

    @property
    def dropped(self) -> int:
        """Events that found no room, were refused, or still waited for a sink that ended."""
        return self._dropped + sum(sink.dropped for sink in (*self._sinks.values(), *self._left))

    @property
    def is_busy(self) -> bool:
        """Whether any sink has something to do, or has not ended although no function names it any more."""
        return bool(self._left) or any(sink.is_busy for sink in self._sinks.values())

    @property
    def fault(self) -> str | None:
        """What keeps sinks from taking events now; None: nothing does."""
        faults = [f"{sink.name}: {sink.fault}" for sink in self._sinks.values() if sink.fault is not None]
        return "; ".join(faults) if faults else None

    def close(self) -> None:
        """Sends what waits, for at most ``END_S``."""
        until = time.monotonic() + END_S
        for sink in self._sinks.values():
            sink.leave()
        for sink in self._sinks.values():
            sink.join(until)

    def __repr__(self) -> str:
        return f"<PayloadSinks {len(self._sinks)}>"


def _size(payload: Payload) -> int:
    return len(payload.data) + EACH_BYTES
