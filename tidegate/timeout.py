"""A request's own deadline, as clients write it: ``tidegate-timeout-ms`` or ``grpc-timeout``.

Both say how long from now, never a time of day: no clock reading crosses a process.
"""

import re
from typing import Final, Protocol

from tidegate.headers import TIMEOUT_MS

_MILLISECONDS: Final = re.compile(rb"[0-9]{1,12}")
_GRPC: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
"""gRPC over HTTP/2: at most eight digits and a unit."""
_GRPC_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Fields(Protocol):
    """What is asked of a request's head."""

    def get(self, name: bytes, /) -> bytes | None:
        """Value of the field with this lower-case name."""
        ...


class TimeoutFieldError(ValueError):
    """The field has no meaning; the message says what is allowed."""


def read_timeout_s(milliseconds: bytes | None, grpc: bytes | None) -> float | None:
    """Seconds from the two fields; ours wins; None: neither is there. Raises TimeoutFieldError."""
    if milliseconds is not None:
        if not _MILLISECONDS.fullmatch(milliseconds):
            raise TimeoutFieldError("tidegate-timeout-ms must be a whole number of milliseconds, at most 12 digits")
        return int(milliseconds) / 1000
    if grpc is not None:
        found = _GRPC.fullmatch(grpc)
        if found is None:
            raise TimeoutFieldError("grpc-timeout must be at most 8 digits and one of H, M, S, m, u, n")
        return int(found[1]) * _GRPC_SECONDS[found[2]]
    return None


def request_timeout_s(head: Fields) -> float | None:
    """Seconds that a request allows; None: it does not say. Raises TimeoutFieldError."""
    ours = head.get(TIMEOUT_MS)
    return read_timeout_s(ours, head.get(b"grpc-timeout") if ours is None else None)
