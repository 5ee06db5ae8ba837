"""The model server's own metrics in Tidegate's words: the scrapes, added up so that no counter runs backwards.

Each series of a counter is followed separately. One that falls was reset and counts from zero; one that vanishes keeps
its value. If series carry a model's name and one of them is the function's, only those count: a server may hold more
models, and Triton counts an ensemble's steps separately. A failed scrape changes nothing but the age.
"""

from collections.abc import Collection
from typing import Final

from tidegate import metrics
from tidegate.histogram import Histogram, bucket_index, bucket_upper_micros
from tidegate.queue_proxy.known_metrics import (
    COUNTED,
    COUNTERS,
    ENGINES,
    MEANS,
    MODEL_LABELS,
    WHERE,
    Figure,
    Row,
    spellings,
)
from tidegate.queue_proxy.metrics import ReplicaCounters
from tidegate.queue_proxy.prometheus_text import Sample, Scan
from tidegate.records.replica_sample import AppSample

STALE_S: Final = 3.0
PLAUSIBLE: Final = 1e15
"""Largest figure that is believed."""
MAX_KNOWN: Final = 4_000
"""Bound of the series that are followed. Further series are ignored, which bounds the memory for a server that makes up
names."""
MAX_NEWS: Final = 20
"""Lines that the self-check writes during the life of a process."""

LEVELS: Final = tuple(figure for figure in Figure if figure not in COUNTERS and figure is not Figure.MAX_BATCH)

_OURS, _ALL = 1, 0


class ModelServerMetrics:
    """The metrics of one model server. ``models`` are the names that the function serves."""

    __slots__ = (
        "_at",
        "_base",
        "_batch",
        "_counters",
        "_fill",
        "_highest",
        "_is_config_asked",
        "_last",
        "_last_news",
        "_levels",
        "_models",
        "_names",
        "_reported",
        "_totals",
        "engine",
        "failures",
        "fault",
        "max_batch",
        "model",
        "scrapes",
    )

    def __init__(self, models: Collection[str]) -> None:
        self._models = frozenset(models)
        self._at: float | None = None
        self._last: dict[tuple[str, bytes], float] = {}
        self._totals: dict[str, list[float | None]] = {}
        """Growth of a series by name: over all models, and over the function's own (None if there are none)."""
        self._levels: dict[str, list[float]] = {}
        self._names: set[str] = set()
        self._counters: dict[Figure, float] = {}
        """Counters as reported. A counter that the engine of the last text does not have is left out."""
        self._highest = dict.fromkeys(COUNTERS, 0.0)
        """The highest value ever reported. A counter that comes back continues from there."""
        self._base = dict.fromkeys(COUNTERS, 0.0)
        """The amount reported beyond the sum of the series. It is not zero after another name or model came to
        count."""
        self._batch, self._fill = Histogram(), Histogram()
        self._last_news: tuple[str, ...] = ()
        self._reported = 0
        self._is_config_asked = False
        self.engine = ""
        self.fault: str | None = None
        self.scrapes = self.failures = 0
        self.max_batch: int | None = None
        """Largest batch, from the series or from the server's configuration."""
        self.model: str | None = None
        """A model's name in the series; the function's own if it is among them."""

    # --- scrapes in

    def take(self, scan: Scan, now: float) -> None:
        """Takes in one text that was read."""
        self.scrapes += 1
        before = self._counters.get(Figure.INFERENCES), self._counters.get(Figure.EXECUTIONS)
        names, levels = set[str](), dict[str, dict[int, list[float]]]()
        for sample in scan.samples:
            if 0.0 <= sample.value <= PLAUSIBLE and (owner := self._owner(sample)) is not None:
                names.add(sample.name)
                if sample.name in COUNTED:
                    self._count(sample, owner)
                else:
                    levels.setdefault(sample.name, {}).setdefault(owner, []).append(sample.value)
        engine = engine_of(names)
        if engine is None:
            self.failures += 1
            self.fault = f"none of the known series in {scan.lines} lines ({scan.malformed} malformed)"
            return
        self.engine, self._names, self._at = engine, names, now
        self.fault = f"{scan.malformed} malformed lines" if scan.malformed else None
        self._levels = {name: found.get(_OURS, found.get(_ALL, [])) for name, found in levels.items()}
        if (largest := self._figure(Figure.MAX_BATCH)) is not None:
            self.max_batch = int(largest) or None
        self._update_counters()
        self._note_batches(*before)

    def failed(self, why: str) -> None:
        """Records a scrape that failed."""
        self.scrapes += 1
        self.failures += 1
        self.fault = why

    def _owner(self, sample: Sample) -> int | None:
        """Returns the models that a series belongs to. Returns None if it does not count."""
        part = WHERE.get(sample.name)
        if part is None and not sample.key:
            return _ALL
        labels = sample.labels()
        if part is not None and part[1] not in labels.get(part[0], ""):
            return None
        for label in MODEL_LABELS:
            if (model := labels.get(label)) is not None:
                is_own = model in self._models
                if is_own or self.model is None:
                    self.model = model
                return _OURS if is_own else _ALL
        return _ALL

    def _count(self, sample: Sample, owner: int) -> None:
        key = (sample.name, sample.key)
        last = self._last.get(key, 0.0)
        if key not in self._last and len(self._last) >= MAX_KNOWN:
            return
        self._last[key] = sample.value
        grown = sample.value - last if sample.value >= last else sample.value
        total = self._totals.setdefault(sample.name, [0.0, None])
        total[_ALL] = (total[_ALL] or 0.0) + grown
        if owner == _OURS:
            total[_OURS] = (total[_OURS] or 0.0) + grown

    def _update_counters(self) -> None:
        """Brings the reported counters up to date. None of them falls."""
        for figure in COUNTERS:
            total = self._figure(figure)
            if total is None:
                self._counters.pop(figure, None)
                continue
            highest = self._highest[figure]
            if self._base[figure] + total < highest:
                self._base[figure] = highest - total
            self._counters[figure] = self._highest[figure] = max(highest, self._base[figure] + total)

    def _note_batches(self, inferences: float | None, executions: float | None) -> None:
        """Records the mean batch since the last scrape, once for each execution."""
        after, runs = self._counters.get(Figure.INFERENCES), self._counters.get(Figure.EXECUTIONS)
        if after is None or runs is None or inferences is None or executions is None:
            return
        grown, count = after - inferences, int(runs - executions)
        if grown <= 0 or count <= 0:
            return
        batch = grown / count
        self._batch.counts[bucket_index(round(batch))] += count
        self._batch.sum_micros += int(grown)
        if self.max_batch is not None:
            record_fill(self._fill, batch, self.max_batch, count)

    # --- figures out

    def sample(self, now: float) -> AppSample:
        is_up = self._at is not None and now - self._at <= STALE_S
        reported: dict[str, float | None] = {figure.value: value for figure, value in self._counters.items()}
        if is_up:
            reported |= {figure.value: self._figure(figure) for figure in LEVELS}
        return AppSample(
            engine=self.engine,
            up=is_up,
            age_s=None if self._at is None else now - self._at,
            fault=self.fault,
            found=tuple(sorted(self._names)),
            missing=self._missing(),
            max_batch=self.max_batch,
            **reported,
        )

    def news(self) -> str | None:
        """Returns the self-check's line: engine, series found and missing. Returns None if nothing has changed."""
        if self.engine:
            state: tuple[str, ...] = (self.engine, *sorted(self._names), *self._missing())
        else:
            # Without numbers, which differ at every scrape of a text that is no exposition.
            state = tuple(word for word in (self.fault or "").split() if not word.strip("(").isdigit())
        if state == self._last_news or self._reported >= MAX_NEWS:
            return None
        self._last_news = state
        self._reported += 1
        if not self.engine:
            return f"application metrics: {self.fault}"
        found, missing = ", ".join(sorted(self._names)), ", ".join(self._missing()) or "none"
        return f"application metrics: engine {self.engine}, {len(self._names)} series ({found}); missing: {missing}"

    def _missing(self) -> tuple[str, ...]:
        rows = ENGINES.get(self.engine, ())
        return tuple(
            f"{row.figure.value} ({row.names[0]})"
            for row in rows
            if not row.optional and not is_present(row, self._names)
        )

    def _figure(self, figure: Figure) -> float | None:
        row = next((row for row in ENGINES.get(self.engine, ()) if row.figure is figure), None)
        if row is None:
            return None
        first = next((value for name in row.names if (value := self._value(name, figure)) is not None), None)
        if first is None:
            return None
        further = [self._value(name, figure) for name in row.plus]
        found = first + sum(value for value in further if value is not None)
        if row.minus is not None:
            less = self._value(row.minus, figure)
            if less is None:
                return None
            found = max(0.0, found - less)
        if row.over is not None:
            whole = self._value(row.over, figure)
            if not whole:
                return None
            found /= whole
        return found * row.scale

    def _value(self, name: str, figure: Figure) -> float | None:
        if figure not in COUNTERS:
            found = self._levels.get(name)
            if not found:
                return None
            return sum(found) / len(found) if figure in MEANS else sum(found)
        for spelling in spellings(name, figure):
            if (total := self._totals.get(spelling)) is not None:
                return total[_ALL] if total[_OURS] is None else total[_OURS]
        return None

    def expose(self, into: metrics.Exposition, counters: ReplicaCounters, now: float) -> None:
        """Adds all metrics to one scrape of the queue_proxy. ``counters`` are those of the queue_proxy itself."""
        app, labels = self.sample(now), counters.labels
        into.add(metrics.APP_UP, labels, int(app.up))
        into.add(metrics.APP_SERIES, (*labels, app.engine or "unknown"), len(app.found))
        into.add(metrics.APP_MISSING, (*labels, app.engine or "unknown"), len(app.missing))
        into.add(metrics.APP_SCRAPES, labels, self.scrapes)
        into.add(metrics.APP_FAILURES, labels, self.failures)
        for metric, value in _exposed(app):
            if value is not None:
                into.add(metric, labels, int(value) if value == int(value) else value)
        if app.executions is not None:
            into.add_histogram(metrics.APP_BATCH, labels, self._batch)
        if self.max_batch is not None:
            fill = self._fill if app.executions is not None else fill_of_requests(counters.batch, self.max_batch)
            into.add_histogram(metrics.PROXY_FILL, labels, fill)

    @property
    def needs_config(self) -> bool:
        """True once, for a server that reports its largest batch in its configuration only."""
        needs = self.engine == "triton" and self.model is not None and not self._is_config_asked
        self._is_config_asked = self._is_config_asked or needs
        return needs

    def __repr__(self) -> str:
        engine = self.engine or "unknown"
        return f"<ModelServerMetrics {engine}, {len(self._names)} series, {self.scrapes} scrapes, fault {self.fault}>"


def engine_of(names: Collection[str]) -> str | None:
    """Returns the engine with the most figures present; of equals the one with the fewest missing. Returns None if no
    engine has any."""

    def rank(engine: str) -> tuple[int, int]:
        reported = [is_present(row, names) for row in ENGINES[engine]]
        return sum(reported), -sum(
            not (is_there or row.optional) for is_there, row in zip(reported, ENGINES[engine], strict=True)
        )

    best = max(ENGINES, key=rank)
    return best if rank(best)[0] else None


def is_present(row: Row, names: Collection[str]) -> bool:
    return any(spelling in names for name in row.names for spelling in spellings(name, row.figure))


FULL: Final = 1024
"""Steps of a full batch in the fill histogram: its eighths are edges of ``tidegate.histogram``."""


def record_fill(into: Histogram, batch: float, largest: int, count: int) -> None:
    """Records ``count`` batches of one size. An edge belongs to the bucket below it."""
    steps = max(1, min(FULL, round(FULL * batch / largest)))
    into.counts[bucket_index(steps - 1)] += count
    into.sum_micros += steps * count


def fill_of_requests(batch: Histogram, largest: int) -> Histogram:
    """Returns the fill that single requests would have, for a server that reports no batches of its own."""
    fill = Histogram()
    for index, count in batch.sparse():
        record_fill(fill, bucket_upper_micros(index) - 1, largest, count)
    return fill


def _exposed(app: AppSample) -> tuple[tuple[metrics.Metric, float | None], ...]:
    def ratio(percent: float | None) -> float | None:
        return None if percent is None else percent / 100.0

    return (
        (metrics.APP_AGE, app.age_s),
        (metrics.APP_REQUESTS, app.requests),
        (metrics.APP_INFERENCES, app.inferences),
        (metrics.APP_EXECUTIONS, app.executions),
        (metrics.APP_REQUEST_SECONDS, app.request_s),
        (metrics.APP_QUEUE_SECONDS, app.queue_s),
        (metrics.APP_COMPUTE_SECONDS, app.compute_s),
        (metrics.APP_PENDING, app.pending),
        (metrics.APP_RUNNING, app.running),
        (metrics.APP_GPU_UTILIZATION, ratio(app.gpu_utilization)),
        (metrics.APP_GPU_MEMORY, ratio(app.gpu_memory)),
        (metrics.APP_KV_CACHE, ratio(app.kv_cache)),
        (metrics.APP_MAX_BATCH, app.max_batch),
    )
