"""One HTTP/2 stream: how far each side is, its two windows, and what waits for credit.

RFC 9113's states, from what an engine knows of both directions (:attr:`Stream.state`)::

    OPEN ──peer ended──> HALF_CLOSED_REMOTE ──we ended──> CLOSED
      │                                                     ▲
      └──we ended──> HALF_CLOSED_LOCAL ──peer ended─────────┘     a reset of either side closes from everywhere
"""

from collections import deque
from typing import Any, Final, final

from tidegate.wire.http2.limits import STREAM_WINDOW, Windows

HEAD_DUE, BODY_DUE, ENDED = range(3)
"""How far one direction of a stream is."""
OPEN, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, CLOSED = range(4)
_JOINED_BYTES: Final = 4096


@final
class Stream:
    """Of one connection; the engine changes it, the driver owns :attr:`owner`."""

    __slots__ = (
        "_at",
        "_pieces",
        "allowance",
        "closing",
        "ended",
        "granted",
        "left",
        "lender",
        "lingers",
        "number",
        "owed",
        "owner",
        "passed",
        "receiving",
        "sending",
        "since",
        "tail",
        "waiting",
        "window",
    )

    def __init__(self, number: int, window: int, allowance: int, owner: Any) -> None:
        self.number = number
        self.owner = owner
        """Of the driver: what this stream is part of."""
        self.receiving = BODY_DUE
        self.sending = BODY_DUE
        self.window = window
        """Bytes that the peer takes; negative after it has lowered its initial window."""
        self.allowance = allowance
        """Bytes that we take."""
        self.granted = allowance
        """The window that we keep open: what it may have on its way or wait here."""
        self.lender: Windows | None = None
        """Set while it has more than it began with."""
        self.passed = 0
        """Bytes that the peer has got credit for again."""
        self.owed = 0
        """Bytes passed on that the peer has no credit for yet."""
        self.left = -1
        """Bytes missing of the announced content-length; negative: none announced."""
        self.lingers = False
        """Of a server: answered early it is not reset at once, but read over until the peer ends it or its time is up.
        Clients of HTTP that upload (curl 7.88) take a reset behind a whole answer for a failure."""
        self.waiting = 0
        """Bytes that wait for credit."""
        self.closing = False
        """The end of the stream waits behind them."""
        self.tail: bytes | None = None
        """Trailers that wait behind them."""
        self.since = 0.0
        """When it was first seen waiting without progress; 0: it is not."""
        self.ended = 0.0
        """When it was first seen with all of our message here and some of it waiting; 0: it was not."""
        self._pieces: deque[bytes] | None = None
        self._at = 0

    @property
    def state(self) -> int:
        """As RFC 9113 section 5.1 calls it."""
        if self.receiving == ENDED:
            return CLOSED if self.sending == ENDED else HALF_CLOSED_REMOTE
        return HALF_CLOSED_LOCAL if self.sending == ENDED else OPEN

    def wait(self, data: bytes) -> None:
        """Keeps what has no credit, at least one byte. Small pieces are joined: each costs more than it carries."""
        self.waiting += len(data)
        pieces = self._pieces
        if pieces is None:
            self._pieces = deque((data,))
        elif pieces and len(pieces[-1]) + len(data) < _JOINED_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)

    def take(self, most: int) -> bytes:
        """The next bytes that waited, at least one and at most ``most``."""
        pieces = self._pieces
        if not pieces:
            raise RuntimeError(f"nothing waits on {self!r}")
        piece, at = pieces[0], self._at
        taken = piece[at : at + most]
        if at + len(taken) == len(piece):
            pieces.popleft()
            self._at = 0
        else:
            self._at = at + len(taken)
        self.waiting -= len(taken)
        return taken

    def widen(self, window: int, windows: Windows) -> int:
        """Makes the window wider, if enough is left for it; by how much."""
        more = window - self.granted
        if more > windows.left:
            return 0
        windows.left -= more
        self.lender = windows
        self.granted = window
        return more

    def drop(self) -> None:
        """The stream is over: nothing waits, nothing more is sent or heard."""
        if self.lender is not None:
            self.lender.left += self.granted - STREAM_WINDOW
            self.lender = None
        self.receiving = self.sending = ENDED
        self.waiting = 0
        self._pieces = None

    def __repr__(self) -> str:
        state = ("OPEN", "HALF_CLOSED_LOCAL", "HALF_CLOSED_REMOTE", "CLOSED")[self.state]
        return f"<Stream {self.number} {state}, {self.waiting} bytes wait for {self.window}>"
