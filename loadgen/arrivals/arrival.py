"""What a trace consists of."""

from typing import NamedTuple


class Arrival(NamedTuple):
    """One request."""

    at_s: float
    """Seconds after the trace's beginning; arrivals of a trace never fall."""
    inferences: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    function: str = ""
    """Whose request it is, where a trace tells several apart."""
