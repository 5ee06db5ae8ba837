"""The record of one request in a trace."""

from typing import NamedTuple


class Arrival(NamedTuple):
    """One request."""

    at_s: float
    """Seconds after the trace's beginning; never decreasing within a trace."""
    inferences: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    function: str = ""
    """The function that is called, where a trace contains several."""
