"""The messages between the control process and the predictor's process: a turn, and its answer.

Each is MessagePack after its length in four bytes. It carries NaN as NaN, so that a broken sample is refused by name
instead of failing the message.
"""

from typing import Final

import msgspec

from tidegate.autoscaler.oltunes.prediction.served import FirstPrediction, ServedDevice, ServedWork

MAX_BYTES: Final = 16 << 20
"""Bytes of one message; a longer one is a fault."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration whose time is to be predicted."""

    model: str
    device: ServedDevice
    share_pct: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A second of served work."""

    of: Question
    work: ServedWork


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """New facts, and the questions to answer after they were learnt."""

    graphs: dict[str, str] = {}
    """Paths of ONNX files by model."""
    seen: tuple[Seen, ...] = ()
    questions: tuple[Question, ...] = ()


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    predictions: tuple[FirstPrediction | None, ...] = ()
    """In the order of the questions; None where there is nothing to go by."""
    verdicts: dict[str, int] = {}
    """The turn's samples by verdict."""
    notes: dict[str, str] = {}
    """By model: why its last sample of this turn was not believed."""
    fault: str | None = None
    """Why samples cannot be kept; None if they are."""


def packed(message: Turn | TurnAnswer) -> bytes:
    """Returns a message with its length before it."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def unpacked_turn(body: bytes) -> Turn:
    return msgspec.msgpack.decode(body, type=Turn)


def unpacked_answer(body: bytes) -> TurnAnswer:
    return msgspec.msgpack.decode(body, type=TurnAnswer)
