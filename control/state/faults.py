"""What does not work just now, by who suffers it: shown in ``status`` until it works again."""

import logging

_log = logging.getLogger("tidegate.faults")


class Faults:
    """One text per subject. A new text is logged once, not at every repetition."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def set(self, subject: str, text: str) -> None:
        if self._texts.get(subject) != text:
            _log.error("%s: %s", subject, text)
        self._texts[subject] = text

    def clear(self, subject: str) -> None:
        if self._texts.pop(subject, None) is not None:
            _log.warning("%s: works again", subject)

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{subject}: {text}" for subject, text in sorted(self._texts.items()))

    def __repr__(self) -> str:
        return f"<Faults {len(self._texts)}>"
