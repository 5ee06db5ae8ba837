"""Waits until what was deployed serves, and shows the way there on a terminal: the phase, and the server's lines."""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.control.cli.common import seconds
from tidegate.control.cli.develop.activity import Activity, activity
from tidegate.errors import TidegateError
from tidegate.records.replica_state import known_phases

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import FunctionView, RevisionView


def wait(tidegate: "Tidegate", name: str, revision: str, *, is_silent: bool) -> "FunctionView":
    """Returns the function's view once ``revision`` serves, or sleeps after a start. Raises StartFailedError."""
    with activity(f"{revision}: waits for its first replica", is_silent=is_silent) as shown:
        if shown.is_shown:
            _follow(tidegate, name, revision, shown)
        return tidegate.wait_ready(name, revision, on_view=lambda view: shown.show(phase_of(view, revision)))


def phase_of(view: "FunctionView", revision: str) -> str:
    """Returns what a revision is doing on its way to its first ready replica, in words."""
    found = next((each for each in view.revisions if each.id == revision), None)
    if found is None:
        return f"{revision}: is recorded"
    starting = [each for each in found.replicas if each.state == "starting"]
    if found.ready:
        return f"{revision}: is ready, takes over the traffic"
    if starting:
        places = ", ".join(dict.fromkeys(each.accelerator for each in starting))
        return f"{revision}: its model server loads on {places}"
    if found.unplaced:
        return f"{revision}: has no place yet: {found.unplaced[0]}"
    return f"{revision}: waits for its first replica"


def result(tidegate: "Tidegate", view: "FunctionView", revision: str) -> str:
    """Returns the end of the wait in words: the state, the time of the start by phase, and the part of the traffic."""
    starts = [each for each in tidegate.cold_starts(view.name) if each.revision == revision]
    took = ""
    if starts and starts[-1].total_s:
        phases = ", ".join(f"{phase} {seconds(spent)}" for phase, spent in known_phases(starts[-1].phases) if spent)
        took = f" after {seconds(starts[-1].total_s)} ({phases})"
    found = next((each for each in view.revisions if each.id == revision), None)
    return f"{view.name} is {view.state.value}{took}" + ("" if found is None else _share(view, found))


def displaced(functions: "Iterable[FunctionView]", name: str, since_s: float) -> list[str]:
    """Returns a line for each function that has given up an idle replica for the start of ``name`` within the last
    ``since_s`` seconds."""
    found = []
    for each in functions:
        for revision in each.revisions:
            why = next((reason.detail for reason in revision.reasons if reason.code == "place_given_up"), "")
            is_new = revision.asleep_s is None or revision.asleep_s <= since_s
            if why.startswith(f"to {name}: ") and is_new:
                used = why.rpartition("; ")[2]
                found.append(f"{each.name} gave up an idle replica for {name} ({used}); its next request starts it")
    return found


def _share(view: "FunctionView", revision: "RevisionView") -> str:
    """Returns what a ready revision without the whole traffic waits for; empty for one that serves."""
    if view.revision == revision.id:
        return ""
    if view.is_pinned:
        return f"; {revision.id} gets {revision.percent:g} % of the traffic, which is split by hand"
    return "" if view.rollout is None else f"; {revision.id} gets {revision.percent:g} % of it, `tidegate rollout`"


def _follow(tidegate: "Tidegate", name: str, revision: str, shown: Activity) -> None:
    """Prints what the model servers of a revision write from now on, from a thread that ends with the process."""

    def follow() -> None:
        try:
            for line in tidegate.logs(name, tail=0, follow=True):
                if line["replica"].startswith(revision):
                    shown.above(f"  {line['line']}")
        except (TidegateError, RuntimeError):
            return  # the deployment has ended, or the client was closed: the wait reports it

    threading.Thread(target=follow, name="server lines", daemon=True).start()
