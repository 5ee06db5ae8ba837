"""The messages of a slot channel and their text, one line each.

``worker -> proxy``: :class:`Hello` first, then :class:`~tidegate.flow.wants.Want` and :class:`Return`.
``proxy -> worker``: :class:`Welcome` first, then :class:`Grant`, :class:`Recall`, :class:`Void`, :class:`Short`,
:class:`State`, :class:`Limit`.

A line is a word and its arguments, separated by single spaces, in ASCII, ended by LF. A reader skips lines whose
word it does not know (an older one meets a newer one) and closes the channel on a known word with wrong arguments.
"""

from dataclasses import dataclass
from typing import Final

from tidegate.flow.wants import Want, WantError, decode_want, encode_want
from tidegate.records.replica_state import ColdStartPhases, ConcurrencyUnit, ReplicaState, read_phases, write_phases

LINE_LIMIT: Final = 64 * 1024
"""Maximum bytes of one line; a peer that sends more is cut off."""


class MessageError(ValueError):
    """The peer does not speak the protocol; the channel must be closed."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker's name, unique among the gateway workers of a deployment."""

    worker: str


@dataclass(frozen=True, slots=True)
class Return:
    """Credits that the worker gives back, recalled or not. Unknown numbers are ignored by the proxy."""

    credits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The proxy's process, its limit and the unit. Credits of another incarnation mean nothing."""

    incarnation: str
    limit: int
    """Slots; 0: no limit and no credits. Not final before the state is ready."""
    unit: ConcurrencyUnit


@dataclass(frozen=True, slots=True)
class Grant:
    """New credits: (number, units) each; one credit runs one request."""

    credits: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Recalls these credits. Idle ones come back now, busy ones at the end of their request."""

    credits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Void:
    """Invalidates these credits."""

    credits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Short:
    """The worker's head does not fit: only ``free`` units are. Sent once per want."""

    free: int


@dataclass(frozen=True, slots=True)
class State:
    """The replica's state, sent at once after the welcome and whenever it changes."""

    state: ReplicaState
    phases: ColdStartPhases | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A new limit; 0: none."""

    limit: int


WorkerMessage = Hello | Want | Return
ProxyMessage = Welcome | Grant | Recall | Void | Short | State | Limit


def encode_message(message: WorkerMessage | ProxyMessage) -> bytes:
    """Returns one line, LF included."""
    match message:
        case Want():
            return b"want " + encode_want(message) + b"\n"
        case Grant():
            return b"grant " + b" ".join(b"%d:%d" % pair for pair in message.credits) + b"\n"
        case Return():
            return b"return " + _numbers(message.credits)
        case Recall():
            return b"recall " + _numbers(message.credits)
        case Void():
            return b"void " + _numbers(message.credits)
        case Short():
            return b"short %d\n" % message.free
        case Limit():
            return b"limit %d\n" % message.limit
        case State():
            phases = b"" if message.phases is None else b" phases:" + write_phases(message.phases).encode()
            return b"state " + message.state.value.encode() + phases + b"\n"
        case Hello():
            return b"hello " + message.worker.encode("ascii") + b"\n"
        case Welcome():
            return b"welcome %s %d %s\n" % (
                message.incarnation.encode("ascii"),
                message.limit,
                message.unit.value.encode(),
            )


def decode_worker_line(line: bytes) -> WorkerMessage | None:
    """Returns a worker's message (``line`` without LF); None for a word of a newer version. Raises MessageError."""
    word, _, rest = line.partition(b" ")
    try:
        if word == b"want":
            return decode_want(rest)
        if word == b"return":
            return Return(_split(rest))
        if word == b"hello":
            return Hello(_name(rest))
    except (WantError, ValueError) as error:
        raise MessageError(f"bad line {line[:120]!r}: {error}") from error
    return None


def decode_proxy_line(line: bytes) -> ProxyMessage | None:
    """Returns a queue_proxy's message (``line`` without LF); None for a word of a newer version. Raises
    MessageError."""
    word, _, rest = line.partition(b" ")
    try:
        if word == b"grant":
            pairs = [pair.split(b":") for pair in rest.split(b" ")]
            return Grant(tuple((_number(number), _number(units)) for number, units in pairs))
        if word == b"recall":
            return Recall(_split(rest))
        if word == b"void":
            return Void(_split(rest))
        if word == b"short":
            return Short(_number(rest))
        if word == b"limit":
            return Limit(_number(rest))
        if word == b"state":
            state, marked, phases = rest.decode("ascii").partition(" phases:")
            return State(ReplicaState(state), read_phases(phases) if marked else None)
        if word == b"welcome":
            incarnation, limit, unit = rest.split(b" ")
            return Welcome(_name(incarnation), _number(limit), ConcurrencyUnit(unit.decode("ascii")))
    except ValueError as error:
        raise MessageError(f"bad line {line[:120]!r}: {error}") from error
    return None


def _numbers(credits: tuple[int, ...]) -> bytes:  # noqa: A002 - the domain's word
    return b" ".join(b"%d" % number for number in credits) + b"\n"


def _split(text: bytes) -> tuple[int, ...]:
    return tuple(_number(word) for word in text.split(b" "))


def _number(word: bytes) -> int:
    # int() alone takes signs, underscores and spaces.
    if not word.isdigit() or len(word) > 18:
        raise ValueError(f"not a number: {word[:20]!r}")
    return int(word)


def _name(word: bytes) -> str:
    text = word.decode("ascii")
    if not text or not text.isprintable() or " " in text or len(text) > 200:
        raise ValueError(f"not a name: {word[:40]!r}")
    return text
