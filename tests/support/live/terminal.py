"""Programs on a pseudo-terminal: what a person at a terminal sees of them."""

import codecs
import os
import pty
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.deadline import Patience
from tests.support.live.commands import is_readable

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program whose three streams are one terminal of 200 columns."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._screen, inner = pty.openpty()
        variables = {**(os.environ if environment is None else environment), "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, cwd=folder, env=variables, start_new_session=True
        )
        os.close(inner)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        """Everything that was written, without the sequences that move the cursor or set colours."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n").replace("\r", "\n")

    def until(self, words: str, limit_s: float = 40.0) -> None:
        """Reads until ``words`` were written."""
        patience = Patience(limit_s)
        while words not in self.text:
            assert not patience.is_over, f"waited {patience} for {words!r}:\n{self.text[-3000:]}"
            assert self._read(0.1), f"it ended without {words!r}:\n{self.text[-3000:]}"

    def end(self, limit_s: float = 40.0) -> int:
        """Reads until the program has ended, and returns its exit code."""
        patience = Patience(limit_s)
        while self._read(0.1):
            assert not patience.is_over, f"it has not ended after {patience}:\n{self.text[-3000:]}"
        return self.process.wait(limit_s)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._screen)

    def _read(self, wait_s: float) -> bool:
        """Takes what has been written; returns False once the other side is closed."""
        if not is_readable(self._screen, wait_s):
            return True
        try:
            data = os.read(self._screen, 65536)
        except OSError:
            return False
        self.raw += self._decoder.decode(data)
        return bool(data)
