"""Clients that do nothing but ask, each on its own thread, and forgive nothing: what is not a whole 200 is a failure.

No client library: those try again behind one's back.
"""

import http.client
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

TIMEOUT_S = 20.0


class Hammer:
    """``fresh`` threads that connect anew for every request, and ``kept`` ones that keep their connection for as long
    as the server does; a context manager. The same POST all along."""

    def __init__(
        self,
        url: str,
        body: bytes,
        *,
        path: str = "/",
        fresh: int = 4,
        kept: int = 4,
        tls: ssl.SSLContext | None = None,
        pause_s: float = 0.01,
    ) -> None:
        """``pause_s``: between the requests of one thread; without one the clients alone fill a processor."""
        self._address = url.partition("://")[2]
        self._body = body
        self._path = path
        self._tls = tls
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """``fresh 200``, ``kept RemoteDisconnected``, ..."""
        self.connections = 0
        """That kept threads had to make."""
        turns: list[Callable[[], None]] = [self._fresh] * fresh + [self._kept] * kept
        self._threads = [threading.Thread(target=turn) for turn in turns]

    @property
    def failures(self) -> dict[str, int]:
        return {what: count for what, count in self.counts.items() if not what.endswith(" 200")}

    @property
    def answered(self) -> int:
        return sum(count for what, count in self.counts.items() if what.endswith(" 200"))

    def __enter__(self) -> "Hammer":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(self._address, timeout=TIMEOUT_S, context=self._tls)

    def _fresh(self) -> None:
        while not self._stop.is_set():
            connection = self._connect()
            self._ask("fresh", connection)
            connection.close()

    def _kept(self) -> None:
        connection = None
        while not self._stop.is_set():
            if connection is None:
                connection = self._connect()
                self.connections += 1
            if not self._ask("kept", connection):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _ask(self, kind: str, connection: http.client.HTTPConnection) -> bool:
        """One request; whether the connection may be used again."""
        keeps = False
        try:
            headers = {"content-type": "application/json"}
            if kind == "fresh":
                headers["connection"] = "close"
            connection.request("POST", self._path, self._body, headers)
            answer = connection.getresponse()
            text = answer.read()
            keeps = not answer.will_close
            what = str(answer.status) if answer.status == 200 else f"{answer.status} {text[:120]!r}"
        except (OSError, http.client.HTTPException) as error:
            what = f"{type(error).__name__}: {error}"
        with self._lock:
            self.counts[f"{kind} {what}"] += 1
        if self._pause_s:
            time.sleep(self._pause_s)
        return keeps
