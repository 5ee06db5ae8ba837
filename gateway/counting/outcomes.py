"""The endings of requests, as counters, metrics and the access log name them."""

from enum import StrEnum


class Ending(StrEnum):
    """The five ways in which a request ends; each request ends in exactly one of them."""

    ANSWERED = "answered"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
