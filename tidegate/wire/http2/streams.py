"""One HTTP/2 stream: the progress of each side, its two windows, and the bytes that wait for credit.

RFC 9113's states, derived from both directions (:attr:`Stream.state`)::

    OPEN ──peer ended──> HALF_CLOSED_REMOTE ──we ended──> CLOSED
      │                                                     ▲
      └──we ended──> HALF_CLOSED_LOCAL ──peer ended─────────┘     a reset of either side closes from everywhere
"""

from collections import deque
from typing import Any, Final, final

from tidegate.wire.http2.limits import STREAM_WINDOW, WIDER_WINDOWS, Windows

HEAD_DUE, BODY_DUE, ENDED = range(3)
"""Progress of one direction of a stream."""
OPEN, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, CLOSED = range(4)
_JOINED_BYTES: Final = 4096


@final
class Stream:
    """A stream of one connection; the engine changes it, the driver owns :attr:`owner`."""

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
        """Belongs to the driver: the object that this stream is part of."""
        self.receiving = BODY_DUE
        self.sending = BODY_DUE
        self.window = window
        """Bytes that the peer accepts; negative after it has lowered its initial window."""
        self.allowance = allowance
        """Bytes that we accept."""
        self.granted = allowance
        """The window that we keep open: the maximum of bytes in flight or waiting here."""
        self.lender: Windows | None = None
        """The budget of wider windows, while it has more than its initial window."""
        self.passed = 0
        """Bytes for which the peer has got credit again."""
        self.owed = 0
        """Consumed bytes for which the peer has no credit yet."""
        self.left = -1
        """Missing bytes of the announced content-length; negative without one."""
        self.lingers = False
        """For a server: a stream that is answered early is not reset at once; its data is skipped until the peer ends
        it or its time is up. Clients of HTTP that upload (curl 7.88) take a reset behind a whole response for a
        failure."""
        self.waiting = 0
        """Bytes that wait for credit."""
        self.closing = False
        """True if the end of the stream waits behind them."""
        self.tail: bytes | None = None
        """Trailers that wait behind them."""
        self.since = 0.0
        """Time when it was first seen waiting without progress; 0 otherwise."""
        self.ended = 0.0
        """Time when it was first seen with all of our message here and some of it waiting; 0 otherwise."""
        self._pieces: deque[bytes] | None = None
        self._at = 0

    @property
    def state(self) -> int:
        """State in the words of RFC 9113 section 5.1."""
        if self.receiving == ENDED:
            return CLOSED if self.sending == ENDED else HALF_CLOSED_REMOTE
        return HALF_CLOSED_LOCAL if self.sending == ENDED else OPEN

    def wait(self, data: bytes) -> None:
        """Keeps bytes without credit, at least one. Small pieces are joined: each costs more than its content."""
        self.waiting += len(data)
        pieces = self._pieces
        if pieces is None:
            self._pieces = deque((data,))
        elif pieces and len(pieces[-1]) + len(data) < _JOINED_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)

    def take(self, limit: int) -> bytes:
        """Returns the next waiting bytes, at least one and at most ``limit``."""
        pieces = self._pieces
        if not pieces:
            raise RuntimeError(f"nothing waits on {self!r}")
        piece, at = pieces[0], self._at
        taken = piece[at : at + limit]
        if at + len(taken) == len(piece):
            pieces.popleft()
            self._at = 0
        else:
            self._at = at + len(taken)
        self.waiting -= len(taken)
        return taken

    def renew(self, windows: Windows) -> int:
        """The peer gets credit for all consumed bytes, and a wider window if it has sent much and the budget allows it.
        Returns the credit."""
        more = self.owed
        self.passed += more
        for least, window in WIDER_WINDOWS:
            if self.passed >= least and self.granted < window:
                more += self.widen(window, windows)
        self.allowance += more
        self.owed = 0
        return more

    def widen(self, window: int, windows: Windows) -> int:
        """Widens the window if the budget allows it; returns by how much."""
        more = window - self.granted
        if more > windows.left:
            return 0
        windows.left -= more
        self.lender = windows
        self.granted = window
        return more

    def drop(self) -> None:
        """Ends the stream: no bytes wait, and nothing more is sent or received."""
        if self.lender is not None:
            self.lender.left += self.granted - STREAM_WINDOW
            self.lender = None
        self.receiving = self.sending = ENDED
        self.waiting = 0
        self._pieces = None

    def __repr__(self) -> str:
        state = ("OPEN", "HALF_CLOSED_LOCAL", "HALF_CLOSED_REMOTE", "CLOSED")[self.state]
        return f"<Stream {self.number} {state}, {self.waiting} bytes wait for {self.window}>"
