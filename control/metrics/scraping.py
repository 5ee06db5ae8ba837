"""One scrape: the control process's own figures, and those of all gateway workers and replicas, merged."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
        self._written = _read(kept) if goes_on else {}
        self._merged = MergedMetrics(self._written)
        self._scraping = asyncio.Lock()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the exposition of the whole deployment, with exemplars (``tidegate.open_metrics`` makes its forms).

        In pieces, with a turn of the loop after each: to join that of a thousand functions would hold it, and so would
        sending all to a reader that keeps up."""
        async with self._scraping:
            zeros = Exposition()
            await in_slices(self._own.zeros(zeros))
            texts = {**await self._others(), ZEROS: b"".join(await in_slices(zeros.parts()))}
            merged = await in_slices(self._merged.steps(texts, self._functions()))
            exposition = Exposition()
            exposition.add(metrics.CONTROL_UNREADABLE, (), self._merged.unreadable)
            await in_slices(self._own.steps(exposition))
            parts = [*await in_slices(exposition.parts()), self._own.process_text(), *merged]
            await self._keep()
        for start in range(0, len(parts), PARTS_A_PIECE):
            yield b"".join(parts[start : start + PARTS_A_PIECE])
            await asyncio.sleep(0)

    async def _keep(self) -> None:
        ended = self._merged.ended
        if ended == self._written:
            return
        try:
            await asyncio.to_thread(write_atomically, self._kept, json.dumps(ended).encode())
        except OSError as error:
            self._faults.set(SUBJECT, f"{self._kept}: {error.strerror}")
            return
        self._written = ended
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
