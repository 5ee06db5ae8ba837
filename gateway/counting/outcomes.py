"""The endings of requests, as counters, metrics and the access log name them."""

from enum import StrEnum


class Ending(StrEnum):
    """The five ways in which a request ends; each request ends in exactly one of them."""

    ANSWERED = "answered"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


def ending_of(ending: Ending | None, status: int, *, is_truncated: bool) -> Ending:
    """Returns how a request has ended. ``ending``: that of its state, set if the status alone does not show it."""
    if ending is not None:
        return ending
    return Ending.FAILED if is_truncated or status >= 500 else Ending.ANSWERED
