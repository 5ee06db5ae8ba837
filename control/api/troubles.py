"""What keeps revisions from serving, in words: a decision that cannot be carried out explains nothing by itself."""

from collections.abc import Iterator

from tidegate.control.views.views import FunctionView, RevisionView


def troubles(view: FunctionView) -> list[str]:
    """Lines for each revision of which the last start failed, or that has no place; none where nothing is wrong."""
    return [line for each in view.revisions for line in _of_revision(each)]


def _of_revision(revision: RevisionView) -> Iterator[str]:
    failure = revision.failure
    if failure is not None:
        count = "its last start failed" if failure.failures == 1 else f"{failure.failures} starts in a row failed"
        wait_s = failure.next_try_in_s
        again = "" if wait_s is None else ", the next try is due" if wait_s <= 0.0 else f", next try in {wait_s:.0f} s"
        yield f"{revision.id} does not start: {count}{again}"
        yield from (f"    {line}" for line in failure.reason.splitlines())
    elif revision.stuck is not None:
        yield f"{revision.id} has no place: {revision.stuck}"
    else:
        yield from (f"{revision.id} has no place yet: {text}" for text in revision.unplaced)
