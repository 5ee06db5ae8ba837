"""Access of a browser to the console: a code that works once, and the session that it is exchanged for.

``tidegate open`` gets a code for the API's token and puts it into the fragment of a link, which no browser sends to a
server. The page exchanges it for a session and sends that as ``Authorization: Bearer`` from then on. It is no cookie:
browsers send cookies to every port of a host, so to the functions behind the gateway too (docs/adr/0090).

A session is its end and a signature by the token. It therefore survives the control process, and ends with the token.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CODE_S: Final = 900.0
"""Time within which a code is to be used."""
SESSION_S: Final = 12 * 3600.0
MAX_CODES: Final = 64
"""Codes that wait for their use; the oldest one gives way."""
_MAY: Final = tuple(
    (method, re.compile(path).fullmatch)
    for method, path in (
        ("GET", r"/console/data/.*"),
        ("GET", r"/api/v1/functions/[^/]+/logs"),
        ("POST", r"/api/v1/functions/[^/]+/(rollout|rollback)"),
    )
)
"""All that a session may do: it deploys no code, reads no manifest and ends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A code or a session, with its end in Unix seconds."""

    secret: str
    expires_at: float


class Sessions:
    """Codes and sessions of one deployment. ``now`` returns Unix seconds."""

    def __init__(
        self, token: str, now: Callable[[], float], draw: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    ) -> None:
        self._token = token.encode()
        self._now = now
        self._draw = draw
        self._codes: dict[str, float] = {}

    def code(self) -> Pass:
        """Returns a new code."""
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        made = Pass(secret=self._draw(), expires_at=self._now() + CODE_S)
        self._codes[made.secret] = made.expires_at
        return made

    def redeem(self, code: str) -> Pass | None:
        """Returns a session for a code, which then is used up; None if the code is unknown, used or too old."""
        expires_at = self._codes.pop(code, None)
        return None if expires_at is None or expires_at < self._now() else self.begin()

    def begin(self) -> Pass:
        """Returns a new session."""
        ends = int(self._now() + SESSION_S)
        return Pass(secret=f"console.{ends}.{self._signature(ends)}", expires_at=float(ends))

    def is_valid(self, session: str) -> bool:
        """Returns whether a session was made with this token and has not ended."""
        kind, _, rest = session.partition(".")
        ends, _, signature = rest.partition(".")
        if kind != "console" or not (ends.isascii() and ends.isdigit() and len(ends) <= 12):
            return False
        return hmac.compare_digest(signature.encode(), self._signature(int(ends)).encode()) and int(ends) > self._now()

    def _signature(self, ends: int) -> str:
        return hmac.new(self._token, f"console session until {ends}".encode(), "sha256").hexdigest()

    def __repr__(self) -> str:
        return f"<Sessions {len(self._codes)} codes>"


def may(method: str, path: str) -> bool:
    """Returns whether a session is enough for this request."""
    return any(method == allowed and matches(path) for allowed, matches in _MAY)
