"""Notices to operators and watchers: the faults that last, and the signal that something changed."""

import asyncio
import logging

_log = logging.getLogger("tidegate.faults")


class Faults:
    """The faults that last, one text per subject; shown in ``status`` until the subject works again. A new text is
    logged once, not at every repetition."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def set(self, subject: str, text: str) -> None:
        if self._texts.get(subject) != text:
            _log.error("%s: %s", subject, text, extra={"subject": subject})
        self._texts[subject] = text

    def clear(self, subject: str) -> None:
        if self._texts.pop(subject, None) is not None:
            _log.warning("%s: works again", subject, extra={"subject": subject})

    def note(self, subject: str, text: str | None) -> None:
        """Sets the fault of a subject; None: it works."""
        if text is None:
            self.clear(subject)
        else:
            self.set(subject, text)

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{subject}: {text}" for subject, text in sorted(self._texts.items()))

    def __repr__(self) -> str:
        return f"<Faults {len(self._texts)}>"


class ChangeSignal:
    """Counts changes, for streams that send the newest state to a watcher as often as is useful.

    A watcher that has seen ``count`` changes waits for the next one, and misses none in between.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.count = 0
        self.has_ended = False

    def fire(self) -> None:
        self.count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    def end(self) -> None:
        """Reports that no change follows: all waits return, and so does every later one."""
        self.has_ended = True
        self.fire()

    async def after(self, count: int) -> None:
        """Returns when more than ``count`` changes have happened: at once if they have already."""
        if self.count <= count and not self.has_ended:
            await self._event.wait()

    def __repr__(self) -> str:
        return f"<ChangeSignal {self.count}{' ended' if self.has_ended else ''}>"
