"""Time windows: cron expressions in a time zone, an end or a duration, all faults at once."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tidegate.schema.time_windows import cron, min_scale_at, readable_windows, scale_windows
from tidegate.schema.units import UnreadableError

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("text", "when", "expect"),
    [
        ("0 8 * * mon-fri | 0 18 * * mon-fri | Europe/Berlin | 3", "2026-11-20 08:00", 3),
        ("0 8 * * mon-fri | 0 18 * * mon-fri | Europe/Berlin | 3", "2026-11-20 07:59", 0),
        ("0 8 * * mon-fri | 0 18 * * mon-fri | Europe/Berlin | 3", "2026-11-20 18:00", 0),
        ("0 8 * * mon-fri | 0 18 * * mon-fri | Europe/Berlin | 3", "2026-11-21 12:00", 0),
        ("0 22 * * fri | 36h | Europe/Berlin | 2", "2026-11-21 23:00", 2),
        ("0 22 * * fri | 36h | Europe/Berlin | 2", "2026-11-22 10:00", 0),
        ("0 0 1 */3 * | 1h | UTC | 4", "2026-10-01 02:30", 4),
        ("*/30 9-10 * * * | 10m | Europe/Berlin | 5", "2026-11-21 10:35", 5),
        ("*/30 9-10 * * * | 10m | Europe/Berlin | 5", "2026-11-21 10:45", 0),
        ("0 8 * * 0,7 | 1h | Europe/Berlin | 1", "2026-11-22 08:30", 1),
        ("0 8 13 * fri | 1h | Europe/Berlin | 1", "2026-11-20 08:30", 1),
        ("0 8 * * * | 2h | Europe/Berlin | 1; 0 9 * * * | 2h | Europe/Berlin | 6", "2026-11-20 09:30", 6),
        ("0 20 * * * | 0 6 * * * | Europe/Berlin | 7", "2026-11-21 02:00", 7),
    ],
)
def test_what_is_open(text: str, when: str, expect: int) -> None:
    assert min_scale_at(scale_windows(text), at(when)) == expect


def test_the_hour_that_the_clock_skips_and_the_one_that_comes_twice() -> None:
    (window,) = scale_windows("30 2 * * * | 30m | Europe/Berlin | 1")
    after = [at(f"2026-03-29 {text}") for text in ("01:59", "03:00", "03:29", "03:30")]
    assert [window.is_open(each) for each in after] == [False, True, True, False], "02:30 does not exist: 03:00 it is"
    (twice,) = scale_windows("30 2 * * * | 30m | Europe/Berlin | 1")
    first = datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN, fold=0).timestamp()
    assert (twice.is_open(first), twice.is_open(first + 3600.0)) == (True, False)


@pytest.mark.parametrize("end", ["0 3", "15 3", "50 2"])
def test_a_window_that_begins_in_the_gap_ends_with_its_own_end(end: str) -> None:
    (window,) = scale_windows(f"7 2 * * sun | {end} * * sun | Europe/Berlin | 1")
    assert window.is_open(at("2026-03-29 03:05")) == (end == "15 3")
    assert not any(window.is_open(at(f"2026-{day} 12:00")) for day in ("03-29", "03-30", "04-04")), "not for a week"


def test_gaps_of_half_an_hour_and_at_midnight() -> None:
    (window,) = scale_windows("15 2 * * * | 10m | Australia/Lord_Howe | 1")
    zone = ZoneInfo("Australia/Lord_Howe")
    open_at = [window.is_open(at(f"2026-10-04 {text}", zone)) for text in ("01:59", "02:30", "02:39", "02:40", "02:50")]
    assert open_at == [False, True, True, False, False]
    (window,) = scale_windows("0 0 * * * | 1 0 * * * | Africa/Cairo | 1")
    zone = ZoneInfo("Africa/Cairo")
    assert not window.is_open(at("2026-04-24 01:00", zone)), "00:00 and 00:01 are skipped: both are 01:00"


def test_nothing_states_nothing() -> None:
    assert min_scale_at((), 0.0) == 0
    assert scale_windows(" ; ") == ()


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *"],
)
def test_what_is_no_cron_expression(text: str) -> None:
    with pytest.raises(UnreadableError):
        cron(text)


@pytest.mark.parametrize("text", ["a * * * *", "1,,2 * * * *", "* * * foo *", "-1 * * * *", "1.5 * * * *"])
def test_what_is_no_part_of_one(text: str) -> None:
    with pytest.raises(UnreadableError):
        cron(text)


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 apr,jun *", "0 0 31 4 */2"])
def test_a_day_that_never_comes_is_no_start(text: str) -> None:
    with pytest.raises(UnreadableError):
        cron(text)


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 31 apr,may *", "0 0 31 4 mon"])
def test_a_day_that_comes_seldom_is_one(text: str) -> None:
    assert cron(text).days


def test_a_window_that_ends_where_it_begins_is_a_fault() -> None:
    with pytest.raises(UnreadableError, match=r"end `00 8 \* \* \*`: it is the start"):
        scale_windows("0 8 * * * | 00 8 * * * | UTC | 1")


def test_every_fault_of_every_window_is_reported_at_once() -> None:
    with pytest.raises(UnreadableError) as reported:
        scale_windows("x | 1h | UTC | 3; 0 8 * * * | 0s | Mars/Olympus | 0; 1 | 2")
    words = str(reported.value)
    assert all(part in words for part in ("start `x`", "end `0s`", "zone `Mars/Olympus`", "not four parts"))
    for bad in ("0 8 * * * | 1h | ../etc/passwd | 1", "0 8 * * * | 1h | UTC | 0", "0 8 * * * | 1h | UTC | x"):
        with pytest.raises(UnreadableError):
            scale_windows(bad)
    with pytest.raises(UnreadableError, match="at most 16"):
        scale_windows(";".join(["0 8 * * * | 1h | UTC | 1"] * 17))


def test_what_can_be_read_counts_without_the_rest() -> None:
    good, bad = "0 8 * * * | 1h | UTC | 1", "0 8 * * * | 1h | Mars/Olympus | 2"
    assert readable_windows(good) == (scale_windows(good), "")
    assert readable_windows(f"{bad}; {good}") == (scale_windows(good), "zone `Mars/Olympus`")
