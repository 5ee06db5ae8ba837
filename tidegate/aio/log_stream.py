"""Log lines of a process: as text, or each as a JSON object.

A process writes its lines with :func:`say` and :func:`say_error`, and user code in it prints. With :func:`use_json`
standard output and error are replaced by streams that make one JSON object of what is written up to a line's end: by
the process, by libraries, or by a model that prints. Bytes that are written to ``buffer`` stay as they are.
"""

import contextlib
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from time import gmtime, strftime
from typing import BinaryIO, Final, TextIO

from tidegate.clock import wall

VARIABLE: Final = "TIDEGATE_LOG_JSON"
"""Set for a process whose lines are JSON: an object with the fields that all of them have, ``logger`` among them."""
LONGEST: Final = 64 * 1024
"""Characters of one line; more are a line of their own."""


def json_line(unix: float, level: str, fields: Mapping[str, str], message: str, request_id: str | None = None) -> str:
    """Returns one line without its end. ``fields``: ``logger``, and what is known of function, revision, replica."""
    second = strftime("%Y-%m-%dT%H:%M:%S", gmtime(unix))  # A queue_proxy does not import datetime.
    found = {"time": f"{second}.{int(unix % 1.0 * 1000):03d}Z", "level": level, **fields}
    if request_id is not None:
        found["request_id"] = request_id
    return json.dumps({**found, "message": message})


class JsonStream(io.TextIOBase):
    """A text stream whose lines are JSON objects in the file of another stream."""

    def __init__(self, under: TextIO, level: str, fields: Mapping[str, str]) -> None:
        """``level``: of what is written without one."""
        self._under = under
        self._level = level
        self._fields = dict(fields)
        self._rest = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property here, an attribute in the type stub
        return "utf-8"

    def fileno(self) -> int:
        return self._under.fileno()

    @property
    def buffer(self) -> BinaryIO:
        """The stream for code that writes bytes, which stay as they are."""
        return self._under.buffer

    def reconfigure(self, **_options: object) -> None:
        """Does nothing: a line is written at its end, in UTF-8."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Writes a line once its end has come: several lines that are written at once, as of a traceback, are one."""
        rest = getattr(self._rest, "text", "") + text
        if rest.endswith("\n") or len(rest) > LONGEST:
            self._rest.text = ""
            if rest.strip():
                self.say(rest.rstrip("\n"), self._level)
        else:
            self._rest.text = rest
        return len(text)

    def say(self, message: str, level: str, request_id: str | None = None) -> None:
        """Writes one line. A disk that is full loses it."""
        line = json_line(wall(), level, self._fields, message, request_id)
        with contextlib.suppress(OSError):
            os.write(self._under.fileno(), line.encode() + b"\n")  # In one call: other threads write too.

    def __repr__(self) -> str:
        return f"<JsonStream {self._fields}>"


def use_json(fields: Mapping[str, str]) -> None:
    """Makes each line of this process a JSON object from now on."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout = JsonStream(sys.stdout, "info", fields)
    sys.stderr = JsonStream(sys.stderr, "warning", fields)
    sys.excepthook = lambda _kind, error, _trace: say_error(error)
    threading.excepthook = lambda found: None if found.exc_value is None else say_error(found.exc_value)


def from_environment(environment: Mapping[str, str]) -> None:
    """Makes each line a JSON object if the environment has ``VARIABLE``."""
    wanted = environment.get(VARIABLE)
    if wanted:
        use_json(json.loads(wanted))


def say(message: str, *, level: str = "warning", request_id: str | None = None) -> None:
    """Writes a line about this process to standard error."""
    stream = sys.stderr
    if isinstance(stream, JsonStream):
        stream.say(message, level, request_id)
    else:
        stream.write(f"{message}\n")
        stream.flush()


def say_error(error: BaseException) -> None:
    """Writes an error with its traceback to standard error."""
    say("".join(traceback.format_exception(error)).rstrip("\n"), level="error")


def say_request_failed(reason: str, request_id: str | None) -> None:
    """Writes that a request has failed here, where lines are JSON: by its id the lines of all processes are found."""
    if isinstance(sys.stderr, JsonStream):
        say(f"the request has failed: {reason}", level="error", request_id=request_id)
