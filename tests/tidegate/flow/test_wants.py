"""The want as a level: its classes and its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.flow.wants import Want, WantError, decode_want, encode_want, read_want, want_class, want_range

NUMBER = st.integers(0, 10**12)


def test_classes_are_0_1_and_then_powers_of_four() -> None:
    classes = [want_class(amount) for amount in range(66)]
    assert classes[0] == 0
    assert classes[1] == 1
    assert set(classes[2:5]) == {2}
    assert set(classes[5:17]) == {3}
    assert set(classes[17:65]) == {4}
    assert classes[65] == 5


@given(
    st.builds(Want, NUMBER, st.integers(1, 10**6), NUMBER, NUMBER, NUMBER, NUMBER, st.integers(1, 10**6), st.booleans())
)
def test_text_says_what_was_meant(want: Want) -> None:
    assert decode_want(encode_want(want)) == want


def test_a_class_has_its_range() -> None:
    for amount in range(300):
        smallest, largest = want_range(amount)
        assert smallest <= amount <= largest
        assert {want_class(other) for other in range(smallest, largest + 1)} == {want_class(amount)}
        assert want_class(largest + 1) == want_class(amount) + 1


def test_what_cannot_be_read_tells_nothing() -> None:
    assert read_want(b"") is None
    assert read_want(b"7 x") is None
    assert read_want(b"7 0") == Want(7, 0)


def test_nothing_wanted_is_short() -> None:
    assert encode_want(Want(7, 0)) == b"7 0"
    assert decode_want(b"7 0") == Want(7, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1",
        b"1 2",
        b"1 0 0",
        b"-1 0",
        b"1 +0",
        b"1  0",
        b" 1 0",
        b"1 1 0 0 0 0 0 0",
        b"1 1 0 0 0 0 1 2",
        b"1_0 0",
        b"\xb2 0",
        b"1 " + b"0" * 200,
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(WantError):
        decode_want(text)


def test_a_want_without_more_needs_one_slot() -> None:
    want = Want(7, 3)
    assert (want.priority, want.cost, want.age_ms, want.tail_ms, want.units, want.reserves) == (0, 0, 0, 0, 1, False)


@pytest.mark.parametrize(
    ("amount", "low", "high"), [(0, 0, 0), (1, 1, 1), (2, 2, 4), (4, 2, 4), (5, 5, 16), (16, 5, 16), (17, 17, 64)]
)
def test_the_ranges_of_classes(amount: int, low: int, high: int) -> None:
    assert want_range(amount) == (low, high)


def test_a_text_of_120_bytes_is_read_and_a_longer_one_is_not() -> None:
    tail = b" 1 2 3 4 5 6 1"
    want = decode_want(b"9" * (120 - len(tail)) + tail)
    assert (want.amount, want.priority, want.cost, want.age_ms, want.tail_ms, want.units, want.reserves) == (
        1, 2, 3, 4, 5, 6, True
    )  # fmt: skip
    with pytest.raises(WantError):
        decode_want(b"9" * (121 - len(tail)) + tail)
    assert read_want(b"1 1 0 0 0 0 1 0") == Want(1, 1)
