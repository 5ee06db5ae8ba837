"""Time windows in which a function has a minimum scale: ``START | END or DURATION | ZONE | REPLICAS; ...``.

START and END are cron expressions of five fields (minute, hour, day of the month, month, day of the week) with ``*``,
numbers, ranges, lists and steps; months and days of the week also by their English names of three letters. As in cron,
if day of the month and day of the week are both restricted, one match suffices. A window with an END is open from the
last START to the next END, a window with a duration for that long after each START. Times are those of the zone's wall
clock: a time that the clock skips counts as the end of the gap, and a time that occurs twice counts the first time.

Pure: the wall clock's time is an argument.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.schema.units import UnreadableError, UnreadablePartsError, duration, whole

T = TypeVar("T")

MAX_WINDOWS: Final = 16
LOOK_BACK_DAYS: Final = 366
"""A START is searched this many days back. Without one in that time the window is closed."""
MAX_WINDOW_S: Final = 31 * 86_400.0
ALLOWED: Final = (
    "START | END or DURATION | ZONE | REPLICAS, several separated by `;` "
    "(0 8 * * mon-fri | 0 18 * * mon-fri | Europe/Berlin | 3)"
)

_MONTH_NAMES: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_DAY_NAMES)}
_PART: Final = re.compile(r"(\*|[0-9a-z]{1,3}(?:-[0-9a-z]{1,3})?)(?:/([0-9]{1,2}))?")
_FIELDS: Final[tuple[tuple[int, int, Mapping[str, int]], ...]] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression: moments of a wall clock."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    is_either: bool
    """True if day of the month and day of the week are both restricted: one match suffices."""

    def has(self, day: date) -> bool:
        """Returns whether the day contains moments."""
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (in_month or in_week if self.is_either else in_month and in_week)

    def last(self, now: float, zone: ZoneInfo, back_days: int) -> float | None:
        """Returns the latest moment up to ``now`` (Unix seconds), or None without one within ``back_days``."""
        today = datetime.fromtimestamp(now, zone).date()
        for back in range(back_days + 1):
            day = today - timedelta(days=back)
            if not self.has(day):
                continue
            for hour in reversed(self.hours):
                for minute in reversed(self.minutes):
                    moment = _moment(datetime.combine(day, time(hour, minute), zone))
                    if moment <= now:
                        return moment
        return None


def _moment(local: datetime) -> float:
    """Returns the Unix seconds of a wall-clock time; for a skipped time those of the end of the gap."""
    moment, other = local.timestamp(), local.replace(fold=1).timestamp()
    if moment <= other:
        return moment
    low, high = int(other), int(moment)  # The end of the gap lies between them.
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, local.tzinfo).utcoffset() == local.utcoffset():
            low = middle
        else:
            high = middle
    return float(high)


@dataclass(frozen=True, slots=True)
class ScaleWindow:
    start: Cron
    end: Cron | float
    """The end as a cron expression, or the duration in seconds."""
    zone: str
    replicas: int

    def is_open(self, now: float) -> bool:
        """Returns whether the window is open at ``now``, Unix seconds of the wall clock."""
        zone = ZoneInfo(self.zone)
        if isinstance(self.end, float):
            began = self.start.last(now, zone, int(self.end // 86_400) + 1)
            return began is not None and now < began + self.end
        began, ended = (each.last(now, zone, LOOK_BACK_DAYS) for each in (self.start, self.end))
        return began is not None and (ended is None or ended < began)


def min_scale_at(windows: Sequence[ScaleWindow], now: float) -> int:
    """Returns the largest minimum of the windows that are open at ``now``; 0 without an open one."""
    return _min_scale_at(tuple(windows), int(now // 60)) if windows else 0


@lru_cache(maxsize=8192)
def _min_scale_at(windows: tuple[ScaleWindow, ...], minute: int) -> int:
    """Cached per minute: nothing changes within a minute."""
    return max((window.replicas for window in windows if window.is_open(60.0 * minute)), default=0)


def cron(text: str) -> Cron:
    """Parses a cron expression. Raises UnreadableError, also for a day that no month has."""
    parts = text.lower().split()
    if len(parts) != len(_FIELDS):
        raise UnreadableError(text)
    minutes, hours, days, months, weekdays = (
        _values(part, low, high, names) for part, (low, high, names) in zip(parts, _FIELDS, strict=True)
    )
    is_either = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not is_either and min(days) > max(_MONTH_DAYS[month - 1] for month in months):
        raise UnreadableError(text)  # A date that no calendar has.
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(each % 7 for each in weekdays),
        is_either=is_either,
    )


def _values(text: str, low: int, high: int, names: Mapping[str, int]) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UnreadableError(text)
        span, step = match[1], 1 if match[2] is None else int(match[2])
        first, _, last = ("", "", "") if span == "*" else span.partition("-")
        begin = low if not first else _number(first, names)
        end = high if not first or (match[2] is not None and not last) else _number(last or first, names)
        if not (low <= begin <= end <= high) or step < 1:
            raise UnreadableError(text)
        found.update(range(begin, end + 1, step))
    return found


def _number(text: str, names: Mapping[str, int]) -> int:
    if text in names:
        return names[text]
    if not text.isdigit():
        raise UnreadableError(text)
    return int(text)


@lru_cache(maxsize=1024)
def scale_windows(text: str) -> tuple[ScaleWindow, ...]:
    """Parses the windows. Raises UnreadablePartsError with every unreadable part."""
    found, faults = _windows(text)
    if faults:
        raise UnreadablePartsError(faults)
    return found


def readable_windows(text: str) -> tuple[tuple[ScaleWindow, ...], str]:
    """Returns the readable windows, and a text on the unreadable ones (empty without any)."""
    try:
        return scale_windows(text), ""
    except UnreadablePartsError:
        return _windows(text)  # Not cached: a zone may be installed later.


def _windows(text: str) -> tuple[tuple[ScaleWindow, ...], str]:
    texts = [each for each in text.split(";") if each.strip()]
    faults: list[str] = []
    found = [_window(each, faults) for each in texts]
    if len(texts) > MAX_WINDOWS:
        faults.append(f"{len(texts)} windows, at most {MAX_WINDOWS}")
    return tuple(window for window in found if window is not None), "; ".join(faults)


def _window(text: str, faults: list[str]) -> ScaleWindow | None:
    parts = [each.strip() for each in text.split("|")]
    if len(parts) != 4:
        faults.append(f"`{text.strip()}`: not four parts separated by |")
        return None
    start_text, end_text, zone, replicas_text = parts
    before = len(faults)
    start = _read(lambda: cron(start_text), f"start `{start_text}`", faults)
    end = _read(lambda: _end(end_text), f"end `{end_text}`", faults)
    replicas = _read(lambda: whole(replicas_text), f"replicas `{replicas_text}`", faults)
    if _read(lambda: ZoneInfo(zone), f"zone `{zone}`", faults) is None or len(faults) > before:
        return None
    if start is None or end is None or replicas is None:
        return None
    if not 1 <= replicas < 2**31:
        faults.append(f"replicas `{replicas_text}`")
        return None
    if start == end:
        faults.append(f"end `{end_text}`: it is the start, so the window is never open")
        return None
    return ScaleWindow(start=start, end=end, zone=zone, replicas=replicas)


def _end(text: str) -> Cron | float:
    if len(text.split()) > 1:
        return cron(text)
    lasts_s = duration(text)
    if not 60.0 <= lasts_s <= MAX_WINDOW_S:
        raise UnreadableError(text)
    return lasts_s


def _read(read: Callable[[], T], what: str, faults: list[str]) -> T | None:
    try:
        return read()
    except (UnreadableError, ZoneInfoNotFoundError, ValueError, OSError):
        faults.append(what)
        return None
