"""Counters of the work in one model server, kept by its queue_proxy: execution only, since waiting is counted by the
gateway.

They exist for every model server, whatever it speaks: requests, requests in flight, execution time, content length,
inferences, batch sizes, time in the replica's own queue, and the average in flight over each finished second. They are
plain integers and two integrals, advanced at every change and read by samples and scrapes.
"""

from dataclasses import dataclass

from tidegate import metrics
from tidegate.histogram import FAR, FAR_BUCKETS, INDEX, KNOWN, SUB_BUCKETS, Histogram, bucket_index
from tidegate.records.replica_sample import AppSample, ReplicaSample
from tidegate.records.replica_state import ColdStartPhases, ReplicaState, known_phases

CLIENT_GONE = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Labels of the replica that is measured."""

    function: str
    revision: str
    group: str
    replica: str
    incarnation: str

    @property
    def labels(self) -> tuple[str, str, str, str]:
        return (self.function, self.revision, self.group, self.replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLevels:
    """Figures of a sample that are not counters; they are known elsewhere."""

    state: ReplicaState
    limit: int
    """Slots, without those that borrowed cores bring."""
    queued: int
    phases: ColdStartPhases
    held: int = 0
    """Calls without a client that hold their slots."""
    held_s: float = 0.0
    """Time since the client of the oldest one was gone."""
    app: AppSample | None = None
    boost: int = 1
    """Times ``limit`` that the replica may work with."""


class ReplicaCounters:
    """Counters of one replica. Times in seconds on one monotonic clock.

    The integrals over time need no step for the time between events: a request that begins at ``a`` takes ``a`` from
    a sum and one that ends at ``b`` adds ``b``, so that ``sum + in flight * now`` is the integral.
    """

    __slots__ = (
        "_busy_since",
        "_identity",
        "_idle_busy_s",
        "_inference_moments",
        "_request_moments",
        "_second_integral",
        "_second_started",
        "_sequence",
        "_started",
        "average_in_flight",
        "batch",
        "by_class",
        "cancelled",
        "execution",
        "failures",
        "in_flight",
        "in_flight_inferences",
        "queue",
        "request_bytes",
        "unanswered",
    )

    def __init__(self, identity: Identity, now: float) -> None:
        self._identity = identity
        self._started = self._second_started = self._busy_since = now
        self._second_integral = self._idle_busy_s = 0.0
        self._request_moments = self._inference_moments = 0.0
        self._sequence = 0
        self.average_in_flight = 0.0
        """Requests in flight over the last finished second."""
        self.in_flight = self.in_flight_inferences = 0
        self.failures = self.cancelled = self.unanswered = 0
        self.by_class = [0, 0, 0, 0, 0, 0]
        """Ended requests by the first digit of their status."""
        self.execution = Histogram()
        self.queue = Histogram()
        self.request_bytes = Histogram()
        self.batch = Histogram()

    @property
    def requests(self) -> int:
        """Returns the ended requests."""
        return sum(self.by_class)

    @property
    def inferences(self) -> int:
        """Returns the inferences of ended, answered requests."""
        return self.batch.sum_micros

    def began(self, now: float, inferences: int) -> None:
        """Counts a request that is sent to the model server."""
        if not self.in_flight:
            self._busy_since = now
        now -= self._started
        self.in_flight += 1
        self.in_flight_inferences += inferences
        self._request_moments -= now
        self._inference_moments -= now * inferences

    def ended(
        self,
        now: float,
        sent_at: float,
        inferences: int,
        queue_s: float,
        content_length: int | None,
        status: int,
        broke: bool,
        unanswered: bool = False,
    ) -> None:
        """Counts the end of a request.

        ``status`` is the one that the client got (499: the client left). ``broke`` means that the answer is incomplete.
        ``unanswered`` means that the client left or the deadline passed before an answer began; such a request says
        nothing about the speed of the model server.
        """
        self.in_flight = in_flight = self.in_flight - 1
        if not in_flight:
            self._idle_busy_s += now - self._busy_since
        moment = now - self._started
        self._request_moments += moment
        self._inference_moments += moment * inferences
        self.in_flight_inferences -= inferences
        if unanswered:
            self.unanswered += 1
            self.refused(status, broke)
            return
        # Histogram.record, written out: two calls less for every request.
        micros = int((now - sent_at) * 1e6)
        execution = self.execution
        if micros < KNOWN:
            execution.counts[INDEX[micros]] += 1
        elif micros < FAR:
            execution.counts[INDEX[micros >> 10] + FAR_BUCKETS] += 1
        else:
            execution.counts[bucket_index(micros)] += 1
        execution.sum_micros += micros
        if queue_s > 0.0:
            self.queue.record(queue_s)
        else:  # Most requests find a free slot.
            self.queue.counts[0] += 1
        batch = self.batch
        if inferences < SUB_BUCKETS:  # Such a number is its own bucket.
            batch.counts[inferences] += 1
            batch.sum_micros += inferences
        else:
            batch.record_whole(inferences)
        if content_length is not None:
            sizes = self.request_bytes
            sizes.counts[INDEX[content_length] if content_length < KNOWN else bucket_index(content_length)] += 1
            sizes.sum_micros += content_length
        if status == 200 and not broke:
            self.by_class[2] += 1
        else:
            self.refused(status, broke)

    def refused(self, status: int, broke: bool = False) -> None:
        """Counts a request's status. Called directly for a request that never reached the model server."""
        self.by_class[status // 100 if 100 <= status < 600 else 5] += 1
        if status == CLIENT_GONE:
            self.cancelled += 1
        elif broke or status >= 500:
            self.failures += 1

    def in_flight_request_s(self, now: float) -> float:
        """Returns the integral of requests in flight over time."""
        return self._request_moments + self.in_flight * (now - self._started)

    def in_flight_inference_s(self, now: float) -> float:
        """Returns the integral of inferences in flight over time."""
        return self._inference_moments + self.in_flight_inferences * (now - self._started)

    def busy_s(self, now: float) -> float:
        """Returns the time with at least one request in the model server."""
        return self._idle_busy_s + (now - self._busy_since if self.in_flight else 0.0)

    def second(self, now: float) -> None:
        """Closes one second. Its average in flight is the growth of the integral over the elapsed time."""
        integral = self.in_flight_request_s(now)
        elapsed = now - self._second_started
        if elapsed > 0.0:
            self.average_in_flight = max(0.0, integral - self._second_integral) / elapsed
        self._second_started, self._second_integral = now, integral

    def sample(self, now: float, levels: ReplicaLevels) -> ReplicaSample:
        """Returns the next sample. Each call increases the sequence number."""
        self._sequence += 1
        return ReplicaSample(
            replica=self._identity.replica,
            revision=self._identity.revision,
            group=self._identity.group,
            incarnation=self._identity.incarnation,
            sequence=self._sequence,
            uptime_s=now - self._started,
            state=levels.state,
            limit=levels.limit,
            in_flight=self.in_flight,
            in_flight_inferences=self.in_flight_inferences,
            queued=levels.queued,
            requests=self.requests - self.unanswered,
            inferences=self.inferences,
            failures=self.failures,
            cancelled=self.cancelled,
            busy_s=self.busy_s(now),
            in_flight_request_s=self.in_flight_request_s(now),
            in_flight_inference_s=self.in_flight_inference_s(now),
            execution_s=self.execution.sum_micros / 1e6,
            queue_s=self.queue.sum_micros / 1e6,
            execution=self.execution.sparse(),
            batch=self.batch.sparse(),
            phases=levels.phases,
            app=levels.app,
            unanswered=self.unanswered,
            boost=levels.boost,
            held=levels.held,
            held_s=levels.held_s,
        )

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """The labels of all metrics of this replica."""
        return self._identity.labels

    def expose(self, into: metrics.Exposition, now: float, levels: ReplicaLevels) -> None:
        """Adds all metrics to one scrape."""
        labels = self._identity.labels
        for state in ReplicaState:
            into.add(metrics.PROXY_STATE, (*labels, state.value), int(state is levels.state))
        into.add(metrics.PROXY_LIMIT, labels, levels.limit * levels.boost)
        for digit in range(1, 6):
            into.add(metrics.PROXY_REQUESTS, (*labels, f"{digit}xx"), self.by_class[digit])
        into.add(metrics.PROXY_CANCELLED, labels, self.cancelled)
        into.add(metrics.PROXY_FAILURES, labels, self.failures)
        into.add(metrics.PROXY_IN_FLIGHT, labels, self.in_flight)
        into.add(metrics.PROXY_IN_FLIGHT_INFERENCES, labels, self.in_flight_inferences)
        into.add(metrics.PROXY_HELD, labels, levels.held)
        into.add(metrics.PROXY_AVERAGE_IN_FLIGHT, labels, self.average_in_flight)
        into.add(metrics.PROXY_QUEUED, labels, levels.queued)
        into.add(metrics.PROXY_INFERENCES, labels, self.inferences)
        into.add(metrics.PROXY_BUSY, labels, self.busy_s(now))
        into.add(metrics.PROXY_IN_FLIGHT_SECONDS, labels, self.in_flight_request_s(now))
        into.add_histogram(metrics.PROXY_EXECUTION, labels, self.execution)
        into.add_histogram(metrics.PROXY_QUEUE, labels, self.queue)
        into.add_histogram(metrics.PROXY_REQUEST_BYTES, labels, self.request_bytes)
        into.add_histogram(metrics.PROXY_BATCH, labels, self.batch)
        for name, seconds in known_phases(levels.phases):
            into.add(metrics.PROXY_COLD_START, (*labels, name), seconds)
        into.add(metrics.PROCESS_UPTIME, (self._identity.replica,), now - self._started)

    def __repr__(self) -> str:
        return f"<ReplicaCounters {self.in_flight} in flight, {self.requests} ended, {self.failures} failed>"
