"""The line on a terminal that shows what a command is doing while that takes longer than a moment.

Without a terminal on standard error there is no such line: a log or a pipe gets results and faults only.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.control.cli.common import escaped

if TYPE_CHECKING:
    from rich.progress import Progress


class Activity:
    """The line of one activity: a spinner, a text and the time since it began. Without a terminal it shows nothing."""

    def __init__(self, shown: "Progress | None" = None) -> None:
        self._shown = shown

    @property
    def is_shown(self) -> bool:
        return self._shown is not None

    def show(self, text: str) -> None:
        """Replaces the text of the line."""
        if self._shown is not None:
            (task,) = self._shown.task_ids
            self._shown.update(task, description=escaped(text))

    def above(self, line: str) -> None:
        """Prints a line that stays, above the line of the activity."""
        if self._shown is not None:
            self._shown.console.print(escaped(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def activity(text: str, *, is_silent: bool = False) -> Iterator[Activity]:
    """Shows ``text`` with the time since it began on standard error, while the block runs, if that is a terminal.

    Nothing is left of the line afterwards. Nothing may be printed inside the block but by :meth:`Activity.above`.
    """
    if is_silent or not sys.stderr.isatty():
        yield Activity()
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as shown:
        shown.add_task(escaped(text), total=None)
        yield Activity(shown)
