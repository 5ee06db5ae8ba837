"""The wish for a first replica, as a level: raised at once, repeated while it holds.

A revision wishes for activation while requests wait and no replica is ready. Nobody acknowledges: who hears the wish
twice does nothing the second time, and a control process that was away hears it within one interval.
"""

from typing import Final

REPEAT_S: Final = 0.2


class ActivationSignal:
    """One revision's signal."""

    __slots__ = ("next_at", "raised")

    def __init__(self) -> None:
        self.raised = False
        self.next_at = 0.0
        """When it has to be told again; meaningful while raised."""

    def __repr__(self) -> str:
        return f"<ActivationSignal {'raised' if self.raised else 'at rest'}>"

    def update(self, wished: bool, now: float) -> bool:
        """Takes the present level; True: tell it now (it rose, or it is time to repeat)."""
        if not wished:
            self.raised = False
            return False
        if self.raised and now < self.next_at:
            return False
        self.raised = True
        self.next_at = now + REPEAT_S
        return True
