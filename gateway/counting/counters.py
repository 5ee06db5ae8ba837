"""Counters of one gateway worker for the requests that passed through it, per revision and group.

Plain integers, cumulative since the start of the worker. A request is counted once on arrival and ends in exactly one
of five ways, so ``arrivals = answered + failed + refused + expired + cancelled + (still here)``:

- ``answered``: a replica's answer below 500 was sent;
- ``failed``: the client got a 5xx from a replica, or the replica broke;
- ``refused``: the room was full or the function cannot be served;
- ``expired``: its deadline passed before the first byte of an answer;
- ``cancelled``: the client went away.

Waiting is counted by the room itself and only copied from there.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tidegate import metrics
from tidegate.activator.room import RoomCounts
from tidegate.flow.outliers import Outliers
from tidegate.gateway.counting.http_durations import HttpDurations
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.counting.token_metrics import TokenCounters
from tidegate.histogram import BUCKETS, Histogram, bucket_index, fine_buckets
from tidegate.metrics import Exemplar
from tidegate.records.gateway_sample import ColdStartSeen, GatewaySample, GroupTraffic, RevisionDemand, ShadowSeen

KEPT_COLD_STARTS = 64
KEPT_LATENCIES = 4096
"""Latencies of one revision that are kept until the next sample, the newest ones."""
FRESH_LATENCIES = 256
"""Latencies of one group that wait for their histogram at most. Our choice: their turn takes some 30 microseconds."""

Waiting = Callable[[str], RoomCounts | None]
"""Returns the room's figures of a revision's waiting requests."""


class GroupCounters:
    """Requests that one group answered or failed."""

    __slots__ = ("_latency", "_recent", "failures", "fresh", "group", "inferences", "requests")

    def __init__(self, group: str, recent: deque[float]) -> None:
        """``recent``: takes the latencies as well, once they are in the histogram."""
        self.group = group
        self.requests = 0
        self.inferences = 0
        self.failures = 0
        self.fresh: list[float] = []
        """Latencies that the histogram does not have yet."""
        self._latency = Histogram()
        self._recent = recent

    def settle(self) -> None:
        """Records the fresh latencies: many at once cost half."""
        self._latency.record_all(self.fresh)
        self._recent.extend(self.fresh)
        self.fresh.clear()

    @property
    def latency(self) -> Histogram:
        """The latencies of all requests that it answered."""
        self.settle()
        return self._latency

    def traffic(self) -> GroupTraffic:
        """Returns the present values as a record."""
        return GroupTraffic(
            group=self.group,
            requests=self.requests,
            inferences=self.inferences,
            failures=self.failures,
            latency=self.latency.sparse(),
        )


class ShadowCounters:
    """Comparisons of answers with those of copies that this revision got (``ShadowSeen`` has the meanings)."""

    __slots__ = ("failed", "latency", "output_differs", "requests", "served_latency", "skipped", "status_differs")

    def __init__(self) -> None:
        self.requests = self.skipped = self.failed = self.status_differs = self.output_differs = 0
        self.latency = Histogram()
        self.served_latency = Histogram()

    def seen(self) -> ShadowSeen:
        """Returns the present values as a record."""
        return ShadowSeen(
            requests=self.requests,
            skipped=self.skipped,
            failed=self.failed,
            status_differs=self.status_differs,
            output_differs=self.output_differs,
            latency=self.latency.sparse(),
            served_latency=self.served_latency.sparse(),
        )


class RevisionCounters:
    """Counters of one revision; the chain holds a reference per request and adds to it."""

    __slots__ = (
        "_exemplars",
        "answered",
        "arrivals_inferences",
        "circuit_refusals",
        "dropped",
        "ended_by",
        "function",
        "groups",
        "hedges",
        "hedges_won",
        "http",
        "metadata",
        "missed",
        "names",
        "recent",
        "retries",
        "retries_denied",
        "revision",
        "sampled",
        "shadow",
        "sizes",
        "streaming",
        "switched",
        "tokens",
        "waited",
        "within_sla",
    )

    def __init__(self, function: str, revision: str, http: HttpDurations | None = None) -> None:
        self.function = function
        self.revision = revision
        self.names = f"{function} {revision}"
        """Both in one text, for the rows of the access log: no name has a blank."""
        self.http = http
        """None: they are not asked for."""
        self.sizes = [0] * BUCKETS
        """Arrivals by inferences per request, in the buckets of ``tidegate.histogram``."""
        self.arrivals_inferences = 0
        """Arrived inferences. The chain counts these and ``sizes``."""
        self.answered = 0
        self.ended_by: dict[Ending, int] = {ending: 0 for ending in Ending if ending is not Ending.ANSWERED}
        """Requests by all other endings."""
        self.within_sla = 0
        self.missed = 0
        """Requests without an answer that count as late."""
        self.groups: dict[str, GroupCounters] = {}
        self.recent: deque[float] = deque(maxlen=KEPT_LATENCIES)
        """Latencies of the requests answered since the last sample."""
        self.retries = 0
        """Requests that were sent once more although a replica may have run them."""
        self.retries_denied = 0
        """Requests that were not sent once more because the retry budget was empty."""
        self.hedges = 0
        self.hedges_won = 0
        self.metadata = 0
        """Metadata requests that a replica has answered."""
        self.circuit_refusals = 0
        """Requests refused because the circuit breaker was open; they count as refused as well."""
        self.dropped = 0
        """Requests that had waited for ``drop-after``; they count as refused as well."""
        self.switched = 0
        """Requests for it that another variant of the model served; they count as requests of that one."""
        self.streaming = 0
        """Event streams and tunnels that are open; the chain counts them."""
        self.waited = (0.0, 0.0)
        """The room's integrals of waiting requests and inferences when it last knew the revision. The room forgets a
        revision that has left the route table, and cumulative figures must not decrease while its last requests end."""
        self.shadow: ShadowCounters | None = None
        """Set once the revision was to get a copy of another revision's request."""
        self._exemplars: dict[str, Exemplar] = {}
        self.sampled: deque[tuple[bytes, float, float]] = deque(maxlen=KEPT_LATENCIES)
        """Sampled requests that were answered since the last sample: ``traceparent``, latency, Unix time."""
        self.tokens: TokenCounters | None = None
        """Set with the first request with counted tokens."""

    def shadowed(self) -> ShadowCounters:
        """Returns the counters of its copies, made with the first one."""
        if self.shadow is None:
            self.shadow = ShadowCounters()
        return self.shadow

    @property
    def arrivals(self) -> int:
        """Requests that arrived."""
        return sum(self.sizes)

    @property
    def open(self) -> int:
        """Requests that have arrived and not ended."""
        return self.arrivals - self.answered - sum(self.ended_by.values())

    @property
    def latency(self) -> Histogram:
        """The latencies of all answered requests, of all groups together."""
        whole = Histogram()
        for group in self.groups.values():
            latency = group.latency
            whole.counts = [one + other for one, other in zip(whole.counts, latency.counts, strict=True)]
            whole.sum_micros += latency.sum_micros
        return whole

    def arrived(self, inferences: int, method: bytes) -> None:
        """Counts an arrival; the chain does the same in line for requests of functions."""
        self.sizes[bucket_index(inferences)] += 1
        self.arrivals_inferences += inferences
        if self.http is not None:
            self.http.arrived(method)

    def ended_well(
        self, group: str, inferences: int, latency_s: float, target_s: float | None, is_slow: bool = False
    ) -> bool:
        """Counts a request that a replica of ``group`` answered; ``target_s``: the SLA's latency; ``is_slow``: its
        output tokens took longer than the SLA allows. Returns True once in ``FRESH_LATENCIES`` of a group."""
        self.answered += 1
        if not is_slow and (target_s is None or latency_s <= target_s):
            self.within_sla += 1
        counters = self.groups.get(group)
        if counters is None:
            counters = self.groups[group] = GroupCounters(group, self.recent)
        counters.requests += 1
        counters.inferences += inferences
        counters.fresh.append(latency_s)
        if len(counters.fresh) < FRESH_LATENCIES:
            return False
        counters.settle()
        return True

    def _settle_sampled(self) -> None:
        edges, unit = metrics.DURATION.edges, metrics.DURATION.unit
        newest = {bisect_right(edges, int(each[1] / unit)): each for each in self.sampled}
        for traceparent, latency_s, unix in newest.values():
            label = metrics.bucket_of(metrics.DURATION, latency_s)
            self._exemplars[label] = traceparent[3:35].decode(), latency_s, unix
        self.sampled.clear()

    @property
    def exemplars(self) -> dict[str, Exemplar]:
        """The newest sampled request of each bucket of its durations, by ``le``."""
        self._settle_sampled()
        return self._exemplars

    def ended(self, ending: Ending, group: str, inferences: int) -> None:
        """Counts a request that ended otherwise; ``group`` is empty if it reached no replica."""
        self.ended_by[ending] += 1
        if not group or ending is not Ending.FAILED:
            return
        counters = self.groups.get(group)
        if counters is None:
            counters = self.groups[group] = GroupCounters(group, self.recent)
        counters.requests += 1
        counters.inferences += inferences
        counters.failures += 1

    def demand(self, waiting: RoomCounts | None) -> RevisionDemand:
        """Returns the present values as a record, and empties ``recent``; ``waiting`` is None if no request
        waits or the room forgot the revision."""
        ended = self.ended_by
        if waiting is not None:
            self.waited = (waiting.waiting_request_s, waiting.waiting_inference_s)
        groups = tuple(group.traffic() for group in self.groups.values())
        recent = fine_buckets(self.recent) if self.recent else ()
        self.recent.clear()
        self._settle_sampled()
        return RevisionDemand(
            function=self.function,
            revision=self.revision,
            metadata=self.metadata,
            dropped=self.dropped,
            switched=self.switched,
            arrivals=self.arrivals,
            arrivals_inferences=self.arrivals_inferences,
            refused=ended[Ending.REFUSED],
            expired=ended[Ending.EXPIRED],
            cancelled=ended[Ending.CANCELLED],
            answered=self.answered,
            failed=ended[Ending.FAILED],
            within_sla=self.within_sla,
            missed=self.missed,
            waiting=waiting.waiting if waiting else 0,
            waiting_inferences=waiting.waiting_inferences if waiting else 0,
            oldest_waiting_s=waiting.oldest_waiting_s if waiting else 0.0,
            waiting_request_s=self.waited[0],
            waiting_inference_s=self.waited[1],
            latency=groups[0].latency if len(groups) == 1 else self.latency.sparse(),
            recent=recent,
            sizes=tuple((index, count) for index, count in enumerate(self.sizes) if count),
            groups=groups,
            shadow=None if self.shadow is None else self.shadow.seen(),
            streaming=self.streaming,
            tokens=None if self.tokens is None else self.tokens.seen(),
        )


class Report:
    """All counters of one worker."""

    __slots__ = ("_cold", "_incarnation", "_revisions", "_scheme", "_sequence", "_started", "_worker", "unmatched")

    def __init__(self, worker: str, incarnation: str, now: float, scheme: str | None = None) -> None:
        """``scheme`` (``http`` or ``https``): durations are counted by OpenTelemetry's convention too; None: they are
        not."""
        self._worker = worker
        self._scheme = scheme
        self._incarnation = incarnation
        self._started = now
        self._sequence = 0
        self._revisions: dict[str, RevisionCounters] = {}
        self._cold: deque[ColdStartSeen] = deque(maxlen=KEPT_COLD_STARTS)
        self.unmatched = 0

    def revision(self, function: str, revision: str) -> RevisionCounters:
        """Returns the counters of a revision, made at its first request."""
        counters = self._revisions.get(revision)
        if counters is None:
            http = None if self._scheme is None else HttpDurations()
            counters = self._revisions[revision] = RevisionCounters(function, revision, http)
        return counters

    def forget_except(self, revisions: frozenset[str]) -> None:
        """Drops the counters of revisions that left the route table and have no request here any more."""
        for name in [name for name, held in self._revisions.items() if name not in revisions and not held.open]:
            del self._revisions[name]

    def cold_start(self, seen: ColdStartSeen) -> None:
        """Records that the first answer of a replica was sent."""
        self._cold.append(seen)

    def demands(self, waiting: Waiting) -> Iterator[RevisionDemand]:
        """Yields the demand of each revision; the caller may pause in between."""
        for name, held in tuple(self._revisions.items()):
            yield held.demand(waiting(name))

    def sample(
        self, now: float, *, table: tuple[int, int], connections: int, demands: Iterable[RevisionDemand]
    ) -> GatewaySample:
        """Returns the next sample; each call increases its sequence number."""
        self._sequence += 1
        return GatewaySample(
            worker=self._worker,
            incarnation=self._incarnation,
            sequence=self._sequence,
            uptime_s=now - self._started,
            table_epoch=table[0],
            table_number=table[1],
            connections=connections,
            demands=tuple(demands),
            cold_starts=tuple(self._cold),
        )

    def expose(
        self,
        into: metrics.Exposition,
        now: float,
        *,
        table: tuple[int, int],
        connections: int,
        waiting: Waiting,
        outliers: Outliers,
        log_lines_dropped: int,
        body_bytes: int = 0,
    ) -> Iterator[None]:
        """Adds everything to one scrape, one revision with each step."""
        worker = (self._worker,)
        into.add(metrics.GATEWAY_CONNECTIONS, worker, connections)
        into.add(metrics.GATEWAY_TABLE_EPOCH, worker, table[0])
        into.add(metrics.GATEWAY_TABLE_NUMBER, worker, table[1])
        into.add(metrics.GATEWAY_UNMATCHED, worker, self.unmatched)
        into.add(metrics.GATEWAY_LOG_DROPPED, worker, log_lines_dropped)
        into.add(metrics.GATEWAY_BODY_BYTES, worker, body_bytes)
        into.add(metrics.PROCESS_UPTIME, (f"gateway-{self._worker}",), now - self._started)
        for name, held in tuple(self._revisions.items()):
            _expose_revision(into, held, waiting(name))
            _expose_resilience(into, held, outliers)
            if held.http is not None and self._scheme is not None:
                held.http.expose(into, (held.function, held.revision), self._scheme)
            if held.shadow is not None:
                _expose_shadow(into, (held.function, held.revision), held.shadow)
            if held.tokens is not None:
                held.tokens.expose(into, (held.function, held.revision))
            yield

    def __repr__(self) -> str:
        return f"<Report {self._worker}: {len(self._revisions)} revisions, sample {self._sequence}>"


def _expose_revision(into: metrics.Exposition, held: RevisionCounters, waiting: RoomCounts | None) -> None:
    labels = (held.function, held.revision)
    into.add(metrics.GATEWAY_ARRIVALS, labels, held.arrivals)
    into.add(metrics.GATEWAY_ARRIVED_INFERENCES, labels, held.arrivals_inferences)
    into.add(metrics.GATEWAY_ENDED, (*labels, Ending.ANSWERED.value), held.answered)
    for ending, count in held.ended_by.items():
        into.add(metrics.GATEWAY_ENDED, (*labels, ending.value), count)
    into.add(metrics.GATEWAY_DROPPED, labels, held.dropped)
    into.add(metrics.GATEWAY_SWITCHED, labels, held.switched)
    into.add(metrics.GATEWAY_WITHIN_SLA, labels, held.within_sla)
    into.add(metrics.GATEWAY_WAITING, labels, waiting.waiting if waiting else 0)
    into.add(metrics.GATEWAY_WAITING_INFERENCES, labels, waiting.waiting_inferences if waiting else 0)
    into.add(metrics.GATEWAY_OLDEST_WAITING, labels, waiting.oldest_waiting_s if waiting else 0.0)
    into.add_histogram(metrics.GATEWAY_LATENCY, labels, held.latency, held.exemplars)
    for group in held.groups.values():
        group_labels = (*labels, group.group)
        into.add(metrics.GATEWAY_GROUP_REQUESTS, group_labels, group.requests)
        into.add(metrics.GATEWAY_GROUP_INFERENCES, group_labels, group.inferences)
        into.add(metrics.GATEWAY_GROUP_FAILURES, group_labels, group.failures)


def _expose_resilience(into: metrics.Exposition, held: RevisionCounters, outliers: Outliers) -> None:
    labels = (held.function, held.revision)
    into.add(metrics.GATEWAY_RETRIES, labels, held.retries)
    into.add(metrics.GATEWAY_RETRIES_DENIED, labels, held.retries_denied)
    into.add(metrics.GATEWAY_HEDGES, labels, held.hedges)
    into.add(metrics.GATEWAY_HEDGES_WON, labels, held.hedges_won)
    into.add(metrics.GATEWAY_EJECTIONS, labels, outliers.ejections.get(held.revision, 0))
    into.add(metrics.GATEWAY_EJECTED, labels, outliers.ejected(held.revision))
    into.add(metrics.GATEWAY_CIRCUIT_OPEN, labels, int(held.revision in outliers.open_circuits))
    into.add(metrics.GATEWAY_CIRCUIT_REFUSED, labels, held.circuit_refusals)


def _expose_shadow(into: metrics.Exposition, labels: tuple[str, str], seen: ShadowCounters) -> None:
    into.add(metrics.GATEWAY_SHADOW_REQUESTS, labels, seen.requests)
    into.add(metrics.GATEWAY_SHADOW_SKIPPED, labels, seen.skipped)
    into.add(metrics.GATEWAY_SHADOW_FAILED, labels, seen.failed)
    into.add(metrics.GATEWAY_SHADOW_STATUS_DIFFERS, labels, seen.status_differs)
    into.add(metrics.GATEWAY_SHADOW_OUTPUT_DIFFERS, labels, seen.output_differs)
    into.add_histogram(metrics.GATEWAY_SHADOW_LATENCY, labels, seen.latency)
    into.add_histogram(metrics.GATEWAY_SHADOW_SERVED_LATENCY, labels, seen.served_latency)
