"""One scrape: the control process's own figures, and those of all gateway workers and replicas, merged."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidegate import metrics
from tidegate.aio.loop.slices import in_slices
from tidegate.control.metrics.merged import MergedMetrics
from tidegate.control.metrics.own import OwnMetrics
from tidegate.control.state.directory import write_atomically
from tidegate.control.state.notices import Faults
from tidegate.metrics import Exposition

SUBJECT: Final = "metrics of ended processes"
PARTS_A_PIECE: Final = 8
ZEROS: Final = "zeros"
"""Takes the place of a process among those that are merged."""

Texts = Mapping[str, bytes | None]
"""Expositions by process, one name for each run of a program; None: it did not answer."""


class Scrape:
    """Answers ``GET /metrics``. ``others`` asks all other processes; ``functions`` returns the deployed ones.

    ``kept`` is the file of what ended processes had counted, for the next control process: it adopts the others, and
    the merged counters go on. A file that cannot be written is a fault and stops nothing.
    """

    def __init__(
        self,
        own: OwnMetrics,
        others: Callable[[], Awaitable[Texts]],
        *,
        functions: Callable[[], set[str]],
        kept: Path,
        goes_on: bool,
        faults: Faults,
    ) -> None:
        """``goes_on``: other processes were adopted; if not, counting begins again."""
        self._own = own
        self._others = others
        self._functions = functions
        self._kept = kept
        self._faults = faults
        self._merged = MergedMetrics(_read(kept) if goes_on else {})
        self._written = 0
        """Changes of what ended processes had counted that the file has."""
        self._scraping = asyncio.Lock()
        self._begun = self._done = 0
        """Texts that were begun, and the newest one that is made."""
        self._waiting = 0
        """Readers without a text."""
        self._latest: Sequence[bytes] = ()
        """The newest text, while readers wait."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the exposition of the whole deployment, with exemplars (``tidegate.open_metrics`` makes its forms).

        In pieces, with a turn of the loop after each: to join that of a thousand functions would hold it, and so would
        sending all to a reader that keeps up."""
        parts = await self._text()
        for start in range(0, len(parts), PARTS_A_PIECE):
            yield b"".join(parts[start : start + PARTS_A_PIECE])
            await asyncio.sleep(0)

    async def _text(self) -> Sequence[bytes]:
        """Returns a text that was begun after this call. Readers that come while one is made share the next: fifty at
        once cost two of them, in time and in memory."""
        known = self._begun
        self._waiting += 1
        try:
            async with self._scraping:
                if self._done <= known:
                    self._begun = number = self._begun + 1
                    self._latest = await self._made()
                    self._done = number
                return self._latest
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest = ()

    async def _made(self) -> Sequence[bytes]:
        zeros = Exposition()
        await in_slices(self._own.zeros(zeros))
        texts = {**await self._others(), ZEROS: b"".join(await in_slices(zeros.parts()))}
        merged = await in_slices(self._merged.steps(texts, self._functions()))
        exposition = Exposition()
        exposition.add(metrics.CONTROL_UNREADABLE, (), self._merged.unreadable)
        await in_slices(self._own.steps(exposition))
        parts = [*await in_slices(exposition.parts()), self._own.process_text(), *merged]
        await self._keep()
        return parts

    async def _keep(self) -> None:
        if self._merged.changes == self._written:
            return
        changes = self._merged.changes
        text = b"".join(await in_slices(self._merged.ended()))
        try:
            await asyncio.to_thread(write_atomically, self._kept, text)
        except OSError as error:
            self._faults.set(SUBJECT, f"{self._kept}: {error.strerror}")
            return
        self._written = changes
        self._faults.clear(SUBJECT)


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Returns what is kept; nothing where the file is missing or damaged."""
    try:
        found = json.loads(path.read_bytes())
        return {
            str(name): {str(series): float(value) for series, value in samples.items()}
            for name, samples in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
