"""Objects of Pods that have ended and stay, because finalizers of others keep them: said, and held against no place."""

from typing import Final

from tidegate.deploy.kubernetes.pods.states import PodFacts
from tidegate.deploy.kubernetes.process.retries import Note

SUBJECT: Final = "Pods that have ended"
NAMED: Final = 3


class Lingering:
    """The Pods of this deployment that stay, by name."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._pods: dict[str, tuple[str, ...]] = {}

    def seen(self, name: str, found: PodFacts) -> None:
        """Takes a Pod as it is now."""
        if found.lingers and self._pods.get(name) != found.finalizers:
            self._pods[name] = found.finalizers
            self._say()

    def gone(self, name: str) -> None:
        """Takes the end of a Pod's object."""
        if self._pods.pop(name, None) is not None:
            self._say()

    def _say(self) -> None:
        if not self._pods:
            self._note(SUBJECT, None)
            return
        finalizers = sorted({each for all_of in self._pods.values() for each in all_of})
        names = sorted(self._pods)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        objects = "their objects stay" if len(names) > 1 else "its object stays"
        what = f"{', '.join(names[:NAMED])}{more}: {objects} until others take away {', '.join(finalizers)}"
        self._note(SUBJECT, f"{what}; no place is held for it")

    def __repr__(self) -> str:
        return f"<Lingering {len(self._pods)}>"
