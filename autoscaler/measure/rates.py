"""Service rates learnt from what was served (the paper's mu): no profiling step, no clock, no IO.

A replica's rate is its yield at its concurrency limit. Below the limit it yields less, so a lightly loaded replica only
gives a lower bound. What is learnt is therefore kept apart by occupancy, and by batch size, because a batch of 64 does
not take 64 times as long as a batch of one. One *cell* holds the seconds of work per inference at one batch size and
occupancy (both in half octaves), smoothed. The newest second weighs ``ALPHA``, unless it had few requests; then a cell
remembers about ``MEMORY_REQUESTS`` of them, so that chance does not rule it. A model that has become faster or slower
is followed at once all the same: when the last ``RECENT_S`` of work differ from the mean by more than chance explains,
they become the mean. Seconds in which next to nothing ended are a stall and no rate, unless they last (``STALL``). A
full cell is forgotten when a later yield below the limit disproves it (``DISPROVED``).

A replica that is never full has a known rate too where higher occupancy brings no more: twice the requests in flight,
and the same yield within ``GAIN`` (a plateau). So a server without a limit, or one that does one thing at a time behind
many slots, is known without being filled. Where higher occupancy still brings some, the gain of its last doubling is
extrapolated to the limit (``_OccupancyGain.at``): a further doubling never brings more than the one before.

The first requests of a replica do not count (``WARM_REQUESTS``): a cold model is slow.

A rate is for one replica with one share of its device. Shares do not change while a replica lives, and a group has one.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from struct import Struct
from typing import NamedTuple

import msgspec

from tidegate.records.profile_point import ProfilePoint

ALPHA = 0.3
"""Weight of the newest second (our choice, as in ``tidegate.traffic.weights``)."""
MEMORY_REQUESTS = 200
"""A cell's memory in requests, where a second brings fewer than this."""
FOLD_REQUESTS = 4
"""Requests that are gathered before they count: with fewer, the edges of the interval would dominate."""
FULL = 0.9
"""Share of its limit from which on a replica counts as full; it cannot always be filled to the last slot."""
CROWDED_FULL = 0.5
"""The same share while requests wait: the rest is credits on their way."""
WARM_REQUESTS = 8
WARM_S = 20.0
"""A replica is warm after ``WARM_REQUESTS`` requests, or this many seconds of work."""
MIN_WORK_S = 1e-9
"""Less work than this is rounding; a quotient of it may overflow."""
SUMMARY_S = 5
"""Interval at which what was learnt below the limit is summarised again."""
MAX_CELLS = 64
"""Cells kept per group, the latest used ones."""
RECENT_S = 8.0
RECENT_REQUESTS = 12
"""The recent work that is compared with the mean has at least ``RECENT_S`` seconds and this many requests."""
CHANGED = 0.05
"""A smaller relative difference is no change: the mean gets there by itself."""
CHANGE_SIGMAS = 4.0
"""Standard errors of the recent work that a difference must exceed to be no chance."""
OUTLIER, OUTLIER_FOLDS = 9.0, 5
"""No second scatters more than three times as much as the others (the square of that), once there are this many
seconds."""
STALL = 10.0
"""A second this many times as slow as the mean is a stall (our choice). It does not count until the last ``RECENT_S``
and ``RECENT_REQUESTS`` are as slow."""
DISPROVED = 1.25
"""A replica that is not full and yields this much more than full ones once did shows that those were disturbed."""
GAIN = 0.05
"""Twice the occupancy brings nothing if it brings less than this much more yield."""
HALF_FULL = 0.55
UNSLOWED = 0.8
"""Slots do not slow each other where a request of a replica with at most this part of its slots in use takes at least
this part of the time in a full one."""
FADES_S = 30.0
"""A cell counts half beside one whose requests ended this much later on average."""
TRUSTED_REQUESTS = 50
"""Requests behind a cell from which on it may show a plateau; also the weight of a cell of an earlier process."""
MAX_UNANSWERED = 0.1
"""Unanswered requests per answered one up to which no rate changes."""
_APART = 2
"""Half octaves between two occupancies that can show a plateau: twice the requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntCell:
    """A cell as it is kept over a restart."""

    size: int
    occupancy: int
    batch: float
    seconds_per_request: float
    execution_s: float
    requests: float


class Work(NamedTuple):
    """The work of one replica in one interval. Integrals over the interval, in seconds."""

    requests: float
    inferences: float
    busy_s: float
    """Time with at least one request in the model."""
    request_s: float
    """Integral of requests in flight."""
    inference_s: float
    """Integral of inferences in flight."""
    execution_s: float
    """Sum of the execution times of the requests that ended."""


WorkFigures = tuple[float, float, float, float, float, float]
"""The figures of :class:`Work`, in its order."""


_KNOWN = Struct("12d")
"""The knowledge of a cell. Means over requests, so that a mixture of sizes lies on the line between them: inferences of
a request, its seconds of work, its execution time. Then the number of requests behind these means, and the mean time of
their ends. Then the relative variance of the time of one request as neighbouring seconds scatter, seconds per inference
in the newest second, and the number of seconds compared. Then the recent work: its begin, requests, inferences, seconds
of work.

Packed: twelve numbers of ten thousand cells, each an object of its own in memory, take longer to fetch than to compute
with.
"""
_UNKNOWN = (0.0,) * 12
_MEANS = Struct("5d")
"""The means among them."""


class _Means(msgspec.Struct, frozen=True, gc=False):
    """What a cell knows at one moment, to be read many times."""

    batch: float
    seconds_per_request: float
    execution_s: float
    requests: float
    learnt_at: float
    used_at: float
    occupancy: float
    """Requests in a busy replica at a time, by Little's law."""
    mu_ips: float


class _Cell:
    """One batch size at one occupancy."""

    __slots__ = (
        "_known",
        "is_stalled",
        "pending_busy_s",
        "pending_execution_s",
        "pending_inferences",
        "pending_requests",
        "pending_work_s",
        "used_at",
    )

    def __init__(self, known: tuple[float, ...] = _UNKNOWN) -> None:
        self._known = array("d", known)
        self.pending_requests = self.pending_inferences = self.pending_busy_s = self.pending_execution_s = 0.0
        self.pending_work_s = 0.0
        """The replica's seconds behind the requests that ended: their execution times over the occupancy. Beside it,
        the busy seconds count what ran here and ended elsewhere."""
        self.used_at = 0.0
        self.is_stalled = False
        """True if the recent work is a stall's, and not in the mean."""

    @property
    def batch(self) -> float:
        return self._known[0]

    @property
    def seconds_per_request(self) -> float:
        return self._known[1]

    @property
    def execution_s(self) -> float:
        return self._known[2]

    @property
    def requests(self) -> float:
        """Weight of the means, in requests."""
        return self._known[3]

    @property
    def learnt_at(self) -> float:
        return self._known[4]

    def means(self) -> _Means | None:
        """Returns what is known; None before anything was learnt."""
        batch, seconds, execution_s, requests, learnt_at = _MEANS.unpack_from(self._known)
        if requests <= 0.0:
            return None
        occupancy = _occupancy(execution_s, seconds)
        return _Means(batch, seconds, execution_s, requests, learnt_at, self.used_at, occupancy, batch / seconds)

    def fold(self, now: float) -> bool:
        """Takes what was gathered into the mean, if it is enough. Returns whether there was no mean before."""
        fresh, inferences, busy_s = self.pending_requests, self.pending_inferences, self.pending_busy_s
        kept = self._known
        batch, seconds, execution_s, requests, learnt_at, noise, last, folds, since, count, items, work_s = (
            _KNOWN.unpack(kept)
        )
        if fresh < FOLD_REQUESTS and not (
            # This much work would have ended as many.
            requests > 0.0 and busy_s > STALL * FOLD_REQUESTS * seconds
        ):
            return False
        is_first: bool = requests <= 0.0
        is_stall = not is_first and busy_s > STALL * seconds * fresh
        took_s = busy_s if is_stall else self.pending_work_s
        if not is_stall and (inferences <= 0.0 or took_s <= 0.0):
            return is_first
        if is_stall is not self.is_stalled:
            self.is_stalled = is_stall
            count = items = work_s = 0.0
        share = 0.0
        if not is_stall:
            share = fresh / (requests + fresh)
            # How much a second differs from the one before it: a change is one large difference among many small ones.
            per_inference = took_s / inferences
            if last > 0.0:
                off = (per_inference - last) * (batch / seconds)
                folds += 1.0
                scatter = 0.5 * off * off * fresh
                if folds > OUTLIER_FOLDS and scatter > OUTLIER * noise:
                    scatter = OUTLIER * noise
                noise += (1.0 / folds if folds < 10.0 else 0.1) * (scatter - noise)
            last = per_inference
        if not count:
            since = now
        count, items, work_s = count + fresh, items + inferences, work_s + took_s
        if count >= RECENT_REQUESTS and now - since >= RECENT_S:
            # The mean may be of another model than the work of the last seconds.
            if requests > 0.0:
                off = abs(work_s / items * (batch / seconds) - 1.0)
                if off > CHANGED and off > CHANGE_SIGMAS * math.sqrt(noise / count):
                    batch, seconds, requests, learnt_at = items / count, work_s / count, count, now
            count = items = work_s = 0.0
        if not is_stall:
            batch += share * (inferences / fresh - batch)
            seconds += share * (took_s / fresh - seconds)
            execution_s += share * (self.pending_execution_s / fresh - execution_s)
            learnt_at += share * (now - learnt_at)
            requests += fresh
            if requests > MEMORY_REQUESTS:
                requests = min(requests, max(fresh * (1.0 / ALPHA - 1.0), MEMORY_REQUESTS))
        _KNOWN.pack_into(
            kept, 0, batch, seconds, execution_s, requests, learnt_at, noise, last, folds, since, count, items, work_s
        )
        self.pending_requests = self.pending_inferences = self.pending_busy_s = self.pending_execution_s = 0.0
        self.pending_work_s = 0.0
        return is_first

    def is_disproved_by(self, other: "_Cell") -> bool:
        """Returns whether ``other``, of the same size and below the limit, has since shown that more is possible. In
        requests too, because somewhat larger batches alone yield more."""
        return (
            other.requests >= TRUSTED_REQUESTS
            and other.learnt_at > self.used_at
            and other.mu_ips > DISPROVED * self.mu_ips
            and DISPROVED * other.seconds_per_request < self.seconds_per_request
        )

    @property
    def is_known(self) -> bool:
        return self.requests > 0.0

    @property
    def occupancy(self) -> float:
        """Requests in a busy replica at a time, by Little's law."""
        return _occupancy(self.execution_s, self.seconds_per_request)

    @property
    def mu_ips(self) -> float:
        known = self._known
        return known[0] / known[1]


class Rate(NamedTuple):
    """A known service rate of one replica."""

    mu_ips: float
    is_at_limit: bool
    """False: measured below the limit, so the rate may be higher."""


_Key = tuple[int, int]
_FULL_KEY = -1
"""The occupancy of full replicas, whatever their limit is in requests."""


def _half_octave(value: float) -> int:
    return round(2.0 * math.log2(value)) if value > 1.0 else 0


def measured_cells(point: ProfilePoint) -> tuple[LearntCell, ...]:
    """Returns a measured point as what was learnt: at the limit, and alone on a replica that takes several requests."""
    batch = float(point.cell.batch)

    def cell(occupancy: int, seconds_per_request: float, execution_s: float) -> LearntCell:
        return LearntCell(
            size=_half_octave(batch),
            occupancy=occupancy,
            batch=batch,
            seconds_per_request=seconds_per_request,
            execution_s=execution_s,
            requests=float(point.requests),
        )

    full = cell(_FULL_KEY, batch / point.rate_ips, point.full_execution_s)
    return (full,) if point.slots == 1 else (full, cell(0, point.execution_s, point.execution_s))


class _Below(NamedTuple):
    """A summary of one batch size from replicas that were not full."""

    mu_ips: float
    is_limit: bool
    """True if higher occupancy brings no more."""
    min_execution_s: float
    """The smallest execution time."""
    expected_ips: float | None
    """Expected rate at the limit; None if too few occupancies are known, or there is no limit."""
    min_execution_occupancy: float
    """Occupancy at which the smallest execution time was measured, from 1."""


class GroupRates:
    """Service rates of one group. What was learnt below the limit is summarised every ``SUMMARY_S``."""

    __slots__ = (
        "_cells",
        "_full",
        "_limit",
        "_occupancy",
        "_of_size",
        "_only",
        "_second",
        "_size",
        "_summed_at",
        "_unanswered",
        "kept_services",
    )

    def __init__(self) -> None:
        self._cells: dict[_Key, _Cell] = {}
        self._second = self._summed_at = -1
        self._only: _Cell | None = None
        """The cell of the last work while there is no other: no lookup is needed then. Its key follows."""
        self._size = self._occupancy = 0
        self._full: list[_Cell] | None = []
        """Known cells of full replicas in order of batch size; None if the list must be built again."""
        self._unanswered: dict[_Key, Sequence[float]] = {}
        """Gathered work with many unanswered requests, by known cell, as in :meth:`_with_unanswered`."""
        self._limit = 0.0
        """Slots of a replica, in requests, as last reported; 0: none."""
        self.kept_services: tuple[tuple[float, float], ...] | None = None
        """:meth:`services` as last computed; None if they must be computed again."""
        self._of_size: dict[int, _Below | None] = {}
        """Summaries by batch size in half octaves, as far as they were queried."""

    def served(
        self,
        now: float,
        work: Work | WorkFigures,
        limit: float,
        is_crowded: bool,
        unanswered: tuple[float, float] | None = None,
    ) -> bool:
        """Adds one interval of one warm replica, and returns whether a first rate has become known. ``limit``: its
        slots, in requests (0: none). ``is_crowded``: requests waited meanwhile, so every slot was taken.
        ``unanswered``: requests and inferences that ended without an answer and are not in ``work``; given only where
        they are many."""
        requests, inferences, busy_s, request_s, inference_s, execution_s = work
        if not (busy_s > MIN_WORK_S and request_s > MIN_WORK_S):
            return False
        if limit > 0.0:
            self._limit = limit
        occupancy, size = request_s / busy_s, inference_s / request_s
        is_full = limit > 0 and occupancy >= (CROWDED_FULL if is_crowded else FULL) * limit
        # As in ``_half_octave``, without two calls a replica.
        by_size = round(2.0 * log2(size)) if size > 1.0 else 0
        by_occupancy = _FULL_KEY if is_full else round(2.0 * log2(occupancy)) if occupancy > 1.0 else 0
        if unanswered is not None:
            judged = self._with_unanswered((by_size, by_occupancy), work, unanswered)
            if judged is None:
                return False
            requests, inferences, busy_s, execution_s = judged
        cell = self._only
        if cell is None or by_size != self._size or by_occupancy != self._occupancy:
            cell = self._cell((by_size, by_occupancy))
        cell.used_at = now
        cell.pending_requests += requests
        cell.pending_inferences += inferences
        cell.pending_busy_s += busy_s
        cell.pending_execution_s += execution_s
        if unanswered is not None or (requests and execution_s <= 0.0):
            cell.pending_work_s += busy_s
        else:
            # By Little's law. Busy seconds over the ends of the same interval say less: a request that outlasts the
            # interval is busy in one and ends in another, of another size or occupancy.
            cell.pending_work_s += execution_s * busy_s / request_s
        second = int(now)
        if second == self._second:
            return False
        self._second = second
        return self._fold(now, second)

    def _with_unanswered(
        self, key: _Key, work: Work | WorkFigures, unanswered: tuple[float, float]
    ) -> tuple[float, float, float, float] | None:
        """Returns requests, inferences, busy seconds and execution time to count where many requests were unanswered,
        or None.

        The possible yield of a replica lies between what was answered and all that ended. A rate in between stays; one
        that is outside by more than chance moves to the nearer end. As a first figure the answered requests alone
        suffice if they are the majority: a rate that is too low does no harm.
        """
        cell = self._cells.get(key)
        requests, inferences, busy_s, request_s, _, execution_s = work
        if cell is None or not cell.is_known:
            return (requests, inferences, busy_s, execution_s) if unanswered[0] <= requests else None
        seen: Sequence[float] = (requests, inferences, busy_s, request_s, *unanswered)
        before = self._unanswered.pop(key, None)
        if before is not None:
            seen = [one + other for one, other in zip(before, seen, strict=True)]
        requests, inferences, busy_s, request_s, left, left_inferences = seen
        if requests + left < MEMORY_REQUESTS:
            self._unanswered[key] = seen
            return None
        known, chance = cell.mu_ips * busy_s, 2.0 / math.sqrt(requests + left)
        if inferences + left_inferences < known * (1.0 - chance):
            return requests + left, inferences + left_inferences, busy_s, request_s
        if inferences > known * (1.0 + chance):
            return requests, inferences, busy_s, request_s * requests / (requests + left)
        return None

    def _cell(self, key: _Key) -> _Cell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
            if len(self._cells) > MAX_CELLS:
                self._forget_stalest()
        self._size, self._occupancy = key
        self._only = cell if len(self._cells) == 1 else None
        return cell

    def _fold(self, now: float, second: int) -> bool:
        """Folds all cells, once a second."""
        is_first = False
        if self._only is not None:
            is_first = self._only.fold(now)
        else:
            for cell in self._cells.values():
                is_first |= cell.fold(now)
        if is_first:
            self._full = None
        if second >= self._summed_at + SUMMARY_S or self._full is None:
            self._summed_at = second
            self._of_size.clear()
            self.kept_services = None
            if len(self._cells) > 1:
                self._forget_disproved()
        return is_first

    def rate(self, batch: float | None) -> Rate | None:
        """Returns the rate of one replica for requests of about ``batch`` inferences; without ``batch`` as they last
        were. Returns None before anything was learnt."""
        full_ips = self._full_ips(batch)
        if full_ips is not None:
            return Rate(full_ips, is_at_limit=True)
        known = self._at(batch)
        return None if known is None else Rate(known.mu_ips, is_at_limit=known.is_limit)

    def _full_ips(self, batch: float | None) -> float | None:
        """Returns the rate of a full replica; None if none was full."""
        full = self._full
        if full is None:
            full = [cell for (_, occupancy), cell in self._cells.items() if occupancy == _FULL_KEY and cell.is_known]
            full.sort(key=lambda cell: cell.batch)
            self._full = full
        if not full:
            return None
        if len(full) == 1:
            return full[0].mu_ips
        return max(full, key=lambda cell: cell.used_at).mu_ips if batch is None else _between(full, batch)

    def known(self, batch: float | None) -> tuple[float, bool, float, float | None, float] | None:
        """Returns the rate, whether it is the limit, :meth:`min_execution_s`, the expected rate at the limit where
        the rate is not it, and the occupancy of that execution time. Returns None before anything was learnt."""
        at = self._at(batch)
        if at is None:
            return None
        full_ips = self._full_ips(batch)
        return at if full_ips is None else (full_ips, True, *at[2:])

    def services(self) -> tuple[tuple[float, float], ...]:
        """Returns (inferences of a request, seconds that a replica at its limit needs for it), in rising order. Of
        replicas that were never full the limit is estimated: every slot serves as quickly as at the lowest occupancy,
        unless higher occupancy has shown otherwise."""
        if self.kept_services is None:
            known = self._means()
            full = [(key, each) for key, each in known if key[1] == _FULL_KEY]
            if full:
                found = {each.batch: self._full_s(key[0], each, known) for key, each in full}
            else:
                found = {each.batch: each.batch / self._estimated_ips(each) for _, each in known}
            self.kept_services = tuple(sorted(found.items()))
        return self.kept_services

    def _means(self) -> list[tuple[_Key, _Means]]:
        """Returns what each cell knows that knows something."""
        return [(key, known) for key, cell in self._cells.items() if (known := cell.means()) is not None]

    def _full_s(self, size: int, full: _Means, known: Sequence[tuple[_Key, _Means]]) -> float:
        """Returns the seconds of a full replica for a request. Where its slots do not slow each other, those of all
        occupancies count: a second in which a replica stays full is one of longer requests than others."""
        alike = [each for key, each in known if key[0] == size and each.requests >= TRUSTED_REQUESTS]
        half = [each for each in alike if each.occupancy <= HALF_FULL * self._limit]
        if not half or max(half, key=lambda each: each.occupancy).execution_s < UNSLOWED * full.execution_s:
            return full.seconds_per_request
        # What ended long ago may have been other requests.
        newest = max([each.learnt_at for each in alike])
        weights = [each.requests * math.exp2((each.learnt_at - newest) / FADES_S) for each in alike]
        mean_s = sum([weight * each.execution_s for weight, each in zip(weights, alike, strict=True)]) / sum(weights)
        return mean_s / self._limit

    def _estimated_ips(self, known: _Means) -> float:
        at = self._at(known.batch)
        if at is None or at.is_limit or not self._limit:
            return known.mu_ips if at is None else at.mu_ips
        if at.expected_ips is not None:
            return at.expected_ips
        return max(at.mu_ips, self._limit * known.batch / at.min_execution_s if at.min_execution_s > 0.0 else 0.0)

    @property
    def full_at(self) -> float | None:
        """When a replica was last full; None if none was."""
        return max(
            (cell.used_at for (_, occupancy), cell in self._cells.items() if occupancy == _FULL_KEY), default=None
        )

    def min_execution_s(self, batch: float | None) -> float | None:
        """Returns the mean execution time at the lowest occupancy known, for requests of about ``batch`` inferences."""
        known = self._at(batch)
        return None if known is None else known.min_execution_s

    def learnt(self) -> tuple[LearntCell, ...]:
        """Returns what is kept over a restart."""
        return tuple(
            LearntCell(
                size=size,
                occupancy=occupancy,
                batch=cell.batch,
                seconds_per_request=cell.seconds_per_request,
                execution_s=cell.execution_s,
                requests=min(cell.requests, TRUSTED_REQUESTS),
            )
            for (size, occupancy), cell in self._cells.items()
            if cell.is_known
        )

    def restore(self, cells: Iterable[LearntCell]) -> None:
        """Adds what an earlier process has learnt; what was learnt here counts more."""
        for cell in cells:
            numbers = (cell.batch, cell.seconds_per_request, cell.execution_s, cell.requests)
            if not all(math.isfinite(number) and number > 0.0 for number in numbers) or len(self._cells) >= MAX_CELLS:
                continue
            self._cells.setdefault(
                (cell.size, cell.occupancy),
                _Cell((*numbers[:3], min(cell.requests, TRUSTED_REQUESTS), *_UNKNOWN[4:])),
            )
        self._full, self._of_size, self._only, self.kept_services = None, {}, None, None

    def _at(self, batch: float | None) -> _Below | None:
        """Returns the summary of the nearest known batch size."""
        size = -1 if batch is None else _half_octave(batch)
        if size not in self._of_size:
            self._of_size[size] = self._summary(size)
        return self._of_size[size]

    def _summary(self, size: int) -> _Below | None:
        known = self._means()
        if not known:
            return None
        if len(self._cells) == 1:
            _, only = known[0]
            return _Below(only.mu_ips, False, only.execution_s, None, only.occupancy)
        if size < 0:
            size = max(known, key=lambda each: each[1].used_at)[0][0]
        nearest = min([abs(key[0] - size) for key, _ in known])
        near = {key: each for key, each in known if abs(key[0] - size) == nearest}
        cells = near.values()
        # Of cells with few requests one is quick by chance.
        trusted = [each for each in cells if each.requests >= TRUSTED_REQUESTS]
        quickest = min(trusted or cells, key=lambda each: (_half_octave(each.occupancy), each.execution_s))
        below = _Below(max([each.mu_ips for each in cells]), False, quickest.execution_s, None, quickest.occupancy)
        if self._full or len(cells) == 1:
            return below
        occupancy = _occupancy_gain(near)
        if occupancy is None:
            return below
        if occupancy.is_plateau:
            return below._replace(mu_ips=occupancy.mu_ips, is_limit=True)
        return below._replace(expected_ips=max(below.mu_ips, occupancy.at(self._limit)) if self._limit else None)

    def _forget_disproved(self) -> None:
        """Forgets full cells that a later yield has disproved; a replica must be full again to replace them."""
        for key, full in list(self._cells.items()):
            if key[1] == _FULL_KEY and full.is_known:
                rest = (cell for (size, occupancy), cell in self._cells.items() if size == key[0] and occupancy >= 0)
                if any(map(full.is_disproved_by, rest)):
                    del self._cells[key]
                    self._unanswered.pop(key, None)
                    self._full = self._only = None

    def _forget_stalest(self) -> None:
        stalest = min(self._cells, key=lambda key: (self._cells[key].used_at, key))
        del self._cells[stalest]
        self._unanswered.pop(stalest, None)
        self._full, self._of_size, self._only = None, {}, None

    def __repr__(self) -> str:
        known = {key: round(cell.mu_ips, 2) for key, cell in self._cells.items() if cell.is_known}
        return f"<GroupRates {known}>"


class _OccupancyGain(NamedTuple):
    """The gain of higher occupancy, from the highest one seen and one of half of it or less."""

    mu_ips: float
    """Yield at the highest occupancy; or, as that may have been long ago, the later yield at a lower one, if that is
    more."""
    occupancy: int
    gain: float
    """Ratio of the yields at an occupancy and at half of it."""

    @property
    def is_plateau(self) -> bool:
        return self.gain <= 1.0 + GAIN

    def at(self, limit: float) -> float:
        """Returns the yield at ``limit`` requests in flight, if further doublings go on bringing as much."""
        doublings = log2(limit) - self.occupancy / _APART
        return self.mu_ips * self.gain**doublings if doublings > 0.0 else self.mu_ips


def _occupancy(execution_s: float, seconds_per_request: float) -> float:
    """Returns the requests in a busy replica at a time, by Little's law."""
    occupancy = execution_s / seconds_per_request
    return occupancy if occupancy > 1.0 else 1.0


def _occupancy_gain(cells: Mapping[_Key, _Means]) -> _OccupancyGain | None:
    known = {occupancy: cell for (_, occupancy), cell in cells.items() if cell.requests >= TRUSTED_REQUESTS}
    if not known:
        return None
    top = max(known)
    least = [occupancy for occupancy in known if 0 <= occupancy <= top - _APART]
    if not least:
        return None
    low = max(least)
    gain = (known[top].mu_ips / known[low].mu_ips) ** (_APART / (top - low))
    latest = max(known.values(), key=lambda cell: cell.used_at)
    return _OccupancyGain(max(known[top].mu_ips, latest.mu_ips), top, gain)


def _between(cells: list[_Cell], batch: float) -> float:
    """Returns the rate at ``batch`` from cells in order of batch size. The time of one request is a line between two
    known sizes (that of SMIF's table 1 is one, within 3.2 %). Outside of them the rate of the nearest holds."""
    above = next((index for index, cell in enumerate(cells) if cell.batch >= batch), len(cells))
    if above == 0 or above == len(cells):
        return cells[min(above, len(cells) - 1)].mu_ips
    low, high = cells[above - 1], cells[above]
    if high.batch - low.batch <= 1e-9:
        return high.mu_ips
    low_s, high_s = low.seconds_per_request, high.seconds_per_request
    return batch / (low_s + (high_s - low_s) * (batch - low.batch) / (high.batch - low.batch))
