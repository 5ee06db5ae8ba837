"""Numbers with units: accepted texts, and texts that ``int()`` and ``float()`` would have accepted."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.schema import units
from tidegate.schema.units import UnreadableError

GENEROUS = (
    "",
    " ",
    "+3",
    "-3",
    "1_0",
    "٣",
    "²",
    "0x10",
    "1e3",
    "nan",
    "inf",
    "Infinity",
    "3 ",
    " 3",
    "3\n",
    "1,5",
    "٣s",
)


@pytest.mark.parametrize("text", GENEROUS)
@pytest.mark.parametrize(
    "read", [units.whole, units.number, units.duration, units.size, units.gigabytes, units.percent, units.yes_or_no]
)
def test_nothing_generous_is_read(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(UnreadableError):
        read(text)


def test_whole_numbers_have_no_leading_zeros_and_an_end() -> None:
    assert units.whole("0") == 0
    assert units.whole("999999999999999999") == 10**18 - 1
    for text in ("007", "1.0", "9" * 19):
        with pytest.raises(UnreadableError):
            units.whole(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("0.1s", 0.1), ("2m", 120.0), ("1h", 3600.0), ("1.5h", 5400.0), ("50us", 0.00005), ("0s", 0.0)],
)
def test_durations_are_exact(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize("text", ["60", "1m30s", "5sec", "5S", ".5s", "5.s", "5 s", "1d", "00s"])
def test_durations_carry_one_known_unit(text: str) -> None:
    with pytest.raises(UnreadableError):
        units.duration(text)


def test_a_bare_number_has_the_unit_that_its_key_gives_it() -> None:
    assert units.duration("100", bare="ms") == units.duration("100ms") == units.duration("0.1s")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256Mi", 2**28),
        ("2Gi", 2**31),
        ("4GB", 4 * 10**9),
        ("1.5Ki", 1536),
        ("100", 100),
        ("3kB", 3000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert units.size(text) == count


def test_a_size_is_a_whole_number_of_bytes() -> None:
    for text in ("0.5", "0.0001Ki", "5mi", "5m", "Mi"):
        with pytest.raises(UnreadableError):
            units.size(text)


def test_gigabytes_are_decimal_unless_written_otherwise() -> None:
    assert units.gigabytes("16") == units.gigabytes("16GB") == 16.0
    assert units.gigabytes("16Gi") == pytest.approx(17.179869184)
    assert units.gigabytes("500MB") == 0.5


def test_percent_and_boolean() -> None:
    assert units.percent("99.9%") == units.percent("99.9") == 99.9
    assert units.yes_or_no("true") and not units.yes_or_no("false")
    for text in ("True", "yes", "on", "1"):
        with pytest.raises(UnreadableError):
            units.yes_or_no(text)


@given(st.integers(min_value=0, max_value=10**9).map(lambda micros: micros / 10**6))
def test_a_duration_written_is_read_back_exactly(seconds: float) -> None:
    assert units.duration(units.show_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_written_is_read_back_exactly(count: int) -> None:
    assert units.size(units.show_size(count)) == count


@pytest.mark.parametrize(
    ("seconds", "text"), [(60.0, "1m"), (90.0, "90s"), (0.2, "200ms"), (86400.0, "24h"), (0.0, "0s")]
)
def test_durations_are_written_short(seconds: float, text: str) -> None:
    assert units.show_duration(seconds) == text


# --- Go and Kubernetes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1m5s", 65 * 10**9),
        ("1500ms", 1_500_000_000),
        ("0", 0),
        ("-1.5h", -5400 * 10**9),
        ("+.5s", 500_000_000),
        ("1.s", 10**9),
        ("2µs", 2000),
        ("2μs", 2000),
        ("0.3ns", 0),
    ],
)
def test_durations_of_go(text: str, nanoseconds: int) -> None:
    assert units.go_duration_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "60", "s", "1m ", "1 s", "1d", ".s", "--1s", "٣s", "9999999h"])
def test_what_is_no_duration_in_go(text: str) -> None:
    with pytest.raises(UnreadableError):
        units.go_duration_ns(text)


def test_numbers_of_go() -> None:
    assert units.go_float("1e3") == 1000.0
    assert units.go_float("-.5") == -0.5
    assert units.go_int("+007") == 7
    assert units.go_int("-2147483648") == -(2**31)
    for text in ("NaN", "Inf", "1_0", "٣", "", "1e999", "0x1p2"):
        with pytest.raises(UnreadableError):
            units.go_float(text)
    for text in ("3.0", "2147483648", "1_0", ""):
        with pytest.raises(UnreadableError):
            units.go_int(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", Fraction(1, 2)),
        ("2", 2),
        ("1.5Gi", 3 * 2**29),
        ("1e3", 1000),
        ("1E2", 100),
        ("64M", 64 * 10**6),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_quantities_of_kubernetes(text: str, amount: Fraction) -> None:
    assert units.quantity(text) == amount


@pytest.mark.parametrize("text", ["", "2 Gi", "-1", "1GiB", "Gi", "1e", "٣"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(UnreadableError):
        units.quantity(text)
