"""Lines of the slot channel: written, read, refused."""

import pytest

from tidegate.flow.messages import (
    Grant,
    Hello,
    Limit,
    MessageError,
    ProxyMessage,
    Recall,
    Return,
    Short,
    State,
    Void,
    Welcome,
    WorkerMessage,
    decode_proxy_line,
    decode_worker_line,
    encode_message,
)
from tidegate.flow.wants import Want
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ColdStartPhases, ReplicaState


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (Hello("g0"), b"hello g0\n"),
        (Want(3, 2, 1, 0, 40, 7, 8, True), b"want 3 2 1 0 40 7 8 1\n"),
        (Return((4, 5)), b"return 4 5\n"),
    ],
)
def test_what_workers_say(message: WorkerMessage, line: bytes) -> None:
    assert encode_message(message) == line
    assert decode_worker_line(line[:-1]) == message


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (Welcome("a1b2", 4, ConcurrencyUnit.INFERENCES), b"welcome a1b2 4 inferences\n"),
        (Grant(((1, 1), (2, 8))), b"grant 1:1 2:8\n"),
        (Recall((1,)), b"recall 1\n"),
        (Void((1, 2, 3)), b"void 1 2 3\n"),
        (Short(3), b"short 3\n"),
        (State(ReplicaState.DRAINING), b"state draining\n"),
        (Limit(0), b"limit 0\n"),
    ],
)
def test_what_proxies_say(message: ProxyMessage, line: bytes) -> None:
    assert encode_message(message) == line
    assert decode_proxy_line(line[:-1]) == message


def test_state_carries_the_phases_of_the_start() -> None:
    state = State(ReplicaState.READY, ColdStartPhases(load_s=1.5, warm_s=0.25))
    assert decode_proxy_line(encode_message(state)[:-1]) == state


def test_words_of_a_newer_version_are_skipped() -> None:
    assert decode_worker_line(b"ponder 1 2") is None
    assert decode_proxy_line(b"ponder 1 2") is None


@pytest.mark.parametrize(
    "line", [b"want 1", b"return", b"return 1 x", b"return 1,2", b"hello", b"hello a b", b"hello \xff"]
)
def test_wrong_arguments_of_workers(line: bytes) -> None:
    with pytest.raises(MessageError):
        decode_worker_line(line)


@pytest.mark.parametrize(
    "line",
    [
        b"grant 1",
        b"grant 1:2:3",
        b"grant",
        b"recall",
        b"void -1",
        b"short x",
        b"limit",
        b"state sleeping",
        b"state ready {",
        b"welcome a 1",
        b"welcome a 1 cats",
        b"welcome  1 requests",
        b"limit 1_0",
    ],
)
def test_wrong_arguments_of_proxies(line: bytes) -> None:
    with pytest.raises(MessageError):
        decode_proxy_line(line)


@pytest.mark.parametrize("near", [b"!", b"%bx", b"~"])
@pytest.mark.parametrize("word", [b"want", b"return", b"hello", b"welcome", b"grant", b"recall", b"void", b"short"])
def test_a_word_before_or_behind_a_known_one_is_not_taken_for_it(word: bytes, near: bytes) -> None:
    for line in (near.replace(b"%b", word) + b" 1", word[:-1] + b" 1"):
        assert decode_worker_line(line) is None
        assert decode_proxy_line(line) is None
