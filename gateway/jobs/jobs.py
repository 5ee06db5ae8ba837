"""The jobs of one gateway worker: requests with ``Prefer: respond-async`` (RFC 7240) on their way through the chain.

A request becomes a job once its caller is known, its size is counted and its body is whole, so before that its client
gets errors as every client does. Its record is kept first (:class:`~tidegate.gateway.jobs.records.JobStore`). Then it
goes on to quota and waiting room with a client side that passes everything on (``DeferredClient``). If it is refused
there, or answered within the ``wait`` that it states, its client gets that answer and there is no job. Otherwise the
client gets 202 and has left, and the answer is kept when it is whole.

What clients ask about jobs is answered by ``reader.py``; ends are written by ``recorder.py``.

A worker that ends before its jobs leaves records without an owner; the next reader of such a record finds it failed.
Every method returns at once: the store works on a thread of its own and its results arrive in a later loop turn.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidegate import metrics
from tidegate.errors import (
    JOBS_FULL,
    JOBS_UNAVAILABLE,
    QUEUE_FULL,
    TOO_LARGE,
)
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.effects import JobHost
from tidegate.gateway.jobs.preference import FIELD, read_preference
from tidegate.gateway.jobs.recorder import JobRecorder
from tidegate.gateway.jobs.records import (
    Job,
    JobState,
    JobStoreError,
    KeptAnswer,
    StoreFull,
    StoreUse,
    document,
    failure_message,
    kept_fields,
)
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.http1.events import Piece

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import DeferredClient
    from tidegate.aio.proxy.exchange import Exchange

DELETED_EVERY_S: Final = 1.0
"""Interval at which jobs are checked for a deletion by another worker, and failed writes are repeated."""
SWEEP_EVERY_S: Final = 5.0
"""Interval at which expired jobs are dropped."""
CROWDED: Final = "the bodies of waiting requests take all the memory that they may: retry later"


def _nothing() -> None:
    """The default of ``Jobs.on_empty``."""


GoOn = Callable[["Exchange"], None]


class LiveJob:
    """A job of this worker that is not over (an ``AnswerSink`` of ``tidegate.aio.proxy.detached``)."""

    __slots__ = (
        "_jobs", "accept_at", "block", "client", "exchange", "is_from_function", "is_noted", "job", "pieces", "size",
        "status", "too_large",
    )  # fmt: skip

    def __init__(self, job: Job, exchange: "Exchange", jobs: "Jobs", accept_at: float) -> None:
        self._jobs = jobs
        self.job = job
        self.exchange = exchange
        self.accept_at = accept_at
        """When its client gets a 202, if it has no answer by then."""
        self.client: DeferredClient | None = None
        """Set once its record is kept."""
        self.is_noted = False
        """Its record says that it runs."""
        self.status = 0
        self.block = b""
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_from_function = False
        """Its answer is the function's, not an error of the gateway."""
        self.too_large: str | None = None
        """Why its answer is not kept."""

    @property
    def is_accepted(self) -> bool:
        return self.client is not None and self.client.is_parted

    @property
    def now(self) -> Job:
        """The job with its present state."""
        state: RequestState | None = self.exchange.context
        is_bound = state is not None and state.bind is not None
        return replace(self.job, state=JobState.RUNNING) if is_bound else self.job

    def carried(self, exchange: "Exchange") -> None:
        self._jobs.carried(self, exchange)

    def begins(self, status: int, block: bytes) -> None:
        self.status, self.block = status, block
        state: RequestState | None = self.exchange.context
        self.is_from_function = state is not None and state.is_answered

    def body(self, data: Piece) -> None:
        if data and self.too_large is None:
            self._jobs.collect(self, data)

    def ended(self) -> None:
        self._jobs.answered(self)

    def broke_off(self) -> None:
        self._jobs.broke_off(self)

    def __repr__(self) -> str:
        return f"<LiveJob {self.job.id} {self.now.state.value}>"


class Jobs:
    """All jobs of one worker."""

    __slots__ = (
        "_clock", "_collected", "_errors", "_host", "_is_used", "_live", "_next_check", "_next_sweep", "_recorder",
        "_wall", "accepted", "on_empty", "refused", "use",
    )  # fmt: skip

    def __init__(
        self,
        host: JobHost | None,
        errors: ErrorResponses,
        recorder: JobRecorder,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``host``: None if there are no jobs; the preference is ignored then, as RFC 7240 allows."""
        self._host = host
        self._errors = errors
        self._recorder = recorder
        self._clock = clock
        self._wall = wall
        self._live: dict[Exchange, LiveJob] = {}
        self._collected = 0
        """Bytes of the answers that are not whole yet."""
        self.on_empty: Callable[[], None] = _nothing
        """Called when no job is live any more."""
        self._is_used = False
        self._next_check = self._next_sweep = 0.0
        self.use = StoreUse(0, 0, None)
        """What the machine kept at the last sweep."""
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Requests that could not become jobs, by error code."""

    @property
    def live(self) -> int:
        """Jobs of this worker that are not over."""
        return len(self._live)

    # --- a request becomes a job ------------------------------------------------------------------------------------

    def has(self, ex: "Exchange") -> bool:
        """Returns whether the request is a job, or on its way to be one."""
        return ex in self._live

    def holds(self, ex: "Exchange", state: RequestState, router: FunctionRouter, go_on: GoOn) -> bool:
        """Returns True if the request prefers to be a job and is held back for now: until its body is whole and its
        record is kept. ``go_on`` follows, unless it is answered with an error."""
        host = self._host
        if host is None or ex.head.get(FIELD) is None or ex in self._live or ex.head.upgrade is not None:
            return False
        preference = read_preference(ex.head.received_fields())
        if not preference.is_async:
            return False
        if not self._has_whole_body(ex, host, go_on):
            return True
        if len(self._live) >= host.bounds.jobs:  # The store would refuse it, and may be slow to.
            self._is_full(ex, StoreFull(f"{len(self._live)} jobs are not over (`jobs.limit`)", 1))
            return True
        job = Job(
            id=host.new_id(),
            owner=host.owner,
            function=router.name,
            tenant=None if state.tenant is None else state.tenant.name,
            request_id=state.request_id.decode("latin-1"),
            created=self._wall(),
        )
        self._live[ex] = live = LiveJob(job, ex, self, ex.received + preference.wait_s if preference.wait_s else 0.0)
        self._is_used = True
        host.run(lambda store: store.add(job, job.created), lambda found: self._added(live, found, go_on))
        return True

    def _has_whole_body(self, ex: "Exchange", host: JobHost, go_on: GoOn) -> bool:
        """Reads on until the body is whole. Returns False while it is not, or if the request was answered."""
        limit = host.bounds.body_bytes
        if max(ex.bytes_in, ex.head.content_length or 0) > limit:
            message = (
                f"the body of a request with `Prefer: respond-async` has at most {limit} bytes (`jobs.body-bytes`)"
            )
            self._refuse(ex, TOO_LARGE.code)
            self._errors.fail(ex, TOO_LARGE, message)
            return False
        if ex.body_complete:
            return True
        if ex.is_over_budget:
            self._refuse(ex, QUEUE_FULL.code)
            self._errors.fail(ex, QUEUE_FULL, CROWDED, extra=b"retry-after: 1\r\n")
            return False
        ex.proceed()
        ex.read_ahead(limit + 1)
        ex.on_body = go_on
        return False

    def _refuse(self, ex: "Exchange", code: str) -> None:
        self.refused[code] += 1
        self._live.pop(ex, None)

    def _added(self, live: LiveJob, found: StoreFull | JobStoreError | None, go_on: GoOn) -> None:
        """The store has kept the record, or has refused it."""
        host, ex = self._host, live.exchange
        if host is None:
            return
        if isinstance(found, JobStoreError):
            self._refuse(ex, JOBS_UNAVAILABLE.code)
            if not ex.is_ended:
                self._errors.fail(ex, JOBS_UNAVAILABLE, f"the job cannot be kept: {found}")
        elif found is not None:
            self._is_full(ex, found)
        elif ex.is_ended:
            self._drop(live)
        else:
            ex.head.drop(FIELD)  # The preference is met here: the model server must not meet it again.
            live.client = host.defer(ex, live)
            go_on(ex)
            self._accept_if_due(live, self._clock())

    def _is_full(self, ex: "Exchange", full: StoreFull) -> None:
        """Refuses a job: a bound is reached."""
        self._refuse(ex, JOBS_FULL.code)
        if not ex.is_ended:
            self._errors.fail(ex, JOBS_FULL, full.reason, extra=b"retry-after: %d\r\n" % full.retry_after_s)

    def _accept_if_due(self, live: LiveJob, now: float) -> None:
        """Sends the 202 once the request is past its quota and its client waits no longer."""
        ex, client = live.exchange, live.client
        if client is None or client.is_parted or ex.is_ended or ex.answered or now < live.accept_at:
            return
        state: RequestState = ex.context
        if state.counters is None:
            return  # The quota pool has not decided.
        self.accepted += 1
        state.is_excused = True  # Its client has an answer, and waits for nothing.
        job = live.now
        lines = f"location: /jobs/{job.id}\r\npreference-applied: respond-async\r\nretry-after: 1\r\n".encode()
        client.part(202, document(job), lines + b"x-request-id: %b\r\n" % state.request_id)

    # --- its answer -------------------------------------------------------------------------------------------------

    def carried(self, live: LiveJob, exchange: "Exchange") -> None:
        """Another exchange answers it now: the hedge of a late request has won."""
        self._live.pop(live.exchange, None)
        live.exchange = exchange
        self._live[exchange] = live

    def collect(self, live: LiveJob, data: Piece) -> None:
        """A piece of its answer's body."""
        if self._host is None:
            return
        bounds = self._host.bounds
        size = len(data)
        if live.size + size > bounds.body_bytes:
            live.too_large = f"its answer is larger than {bounds.body_bytes} bytes (`jobs.body-bytes`)"
        elif self._collected + size > bounds.total_bytes:
            live.too_large = f"the answers of running jobs take {bounds.total_bytes} bytes (`jobs.bytes`)"
        else:
            live.size += size
            self._collected += size
            live.pieces.append(bytes(data))
            return
        self._collected -= live.size
        live.size = 0
        live.pieces.clear()

    def answered(self, live: LiveJob) -> None:
        """Its answer is whole. Without a 202 before it, it has gone to the client and there is no job."""
        if self._host is None:
            return
        if not live.is_accepted:
            self._drop(live)
            return
        body = b"".join(live.pieces)
        now = self._wall()
        self._end(live)
        if live.too_large is not None:
            self._recorder.keep(live.job.lost(now, self._host.bounds, live.too_large), None)
            return
        reason = None
        if not live.is_from_function:
            reason = failure_message(body) or f"it was answered {live.status} before a replica had run it"
        content_type, fields = kept_fields(live.block)
        job = live.job.over(now, self._host.bounds, status=live.status, size=len(body), reason=reason)
        self._recorder.keep(job, KeptAnswer(live.status, content_type, fields, body))

    def broke_off(self, live: LiveJob) -> None:
        """Its answer will never be whole."""
        if live.is_accepted:
            self._fail(live, live.too_large or "the replica broke off amid its answer")
        else:
            self._drop(live)

    def _fail(self, live: LiveJob, reason: str) -> None:
        """It is over without an answer."""
        if self._host is not None:
            self._end(live)
            self._recorder.keep(live.job.lost(self._wall(), self._host.bounds, reason), None)

    def _end(self, live: LiveJob) -> None:
        """It is not live any more."""
        self._live.pop(live.exchange, None)
        self._collected -= live.size
        live.size = 0
        live.pieces = []
        if not self._live:
            self.on_empty()

    def _drop(self, live: LiveJob) -> None:
        """There is no job: its client got the answer, or has left before a 202."""
        self._end(live)
        self._recorder.forget(live.job.id)

    # --- time -------------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Periodic work, some times a second."""
        host = self._host
        if host is None or not self._is_used:
            return
        for live in tuple(self._live.values()):
            self._advance(live, host, now)
        if now >= self._next_check:
            self._next_check = now + DELETED_EVERY_S
            self._check(host)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_EVERY_S
            wall = self._wall()
            host.run(lambda store: store.sweep(wall), self._swept)

    def open(self) -> None:
        """There are jobs from before, perhaps of other workers: they are looked after from now on."""
        self._is_used = True

    def find(self, job_id: str) -> Job | None:
        """Returns a job of this worker as it is now, if it is not over."""
        live = self._find(job_id)
        return None if live is None else live.now

    def cancel(self, job_id: str) -> None:
        """Ends the work of a job that a client deletes, if it runs here."""
        live = self._find(job_id)
        if live is not None:
            self._cancel(live)

    def _find(self, job_id: str) -> LiveJob | None:
        return next((live for live in self._live.values() if live.job.id == job_id), None)

    def _swept(self, found: StoreUse | JobStoreError) -> None:
        if isinstance(found, StoreUse):
            self.use = found

    def _advance(self, live: LiveJob, host: JobHost, now: float) -> None:
        """Acts on the limits of one job, and notes that it runs."""
        ex = live.exchange
        if live.client is None:
            return
        if ex.is_ended:
            self._drop(live)  # Its client has left before a 202.
        elif not live.client.is_parted:
            self._accept_if_due(live, now)
        elif live.too_large is not None:
            self._fail(live, live.too_large)
            ex.client_gone()
        else:
            host.sweep(ex, now)
            job = live.now
            if job.state is JobState.RUNNING and not live.is_noted and not ex.is_ended:
                live.is_noted = True
                host.run(lambda store: store.running(job), lambda found: None)

    def _check(self, host: JobHost) -> None:
        """Cancels the jobs that were deleted at another worker, and repeats writes that failed."""
        accepted = tuple(live.job.id for live in self._live.values() if live.is_accepted)
        if accepted:
            host.run(lambda store: store.deleted(accepted), self._deleted)
        self._recorder.retry()

    def _deleted(self, found: tuple[str, ...] | JobStoreError) -> None:
        if isinstance(found, JobStoreError):
            return
        for live in [live for live in self._live.values() if live.job.id in found]:
            self._cancel(live)

    def _cancel(self, live: LiveJob) -> None:
        """Ends the work of a job that was deleted or cancelled."""
        self._recorder.ended["cancelled"] += 1
        self._end(live)
        live.exchange.client_gone()

    def stop(self, reason: str) -> None:
        """The worker ends: its jobs have failed."""
        for live in tuple(self._live.values()):
            ex = live.exchange
            if live.is_accepted:
                self._fail(live, reason)
                ex.client_gone()
            elif live.client is not None:
                self._drop(live)

    # --- reports ----------------------------------------------------------------------------------------------------

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape."""
        if self._host is None or not self._is_used:
            return
        into.add(metrics.GATEWAY_JOBS_ACCEPTED, (worker,), self.accepted)
        into.add(metrics.GATEWAY_JOBS_LIVE, (worker,), len(self._live))
        into.add(metrics.GATEWAY_JOBS_KEPT, (worker,), self.use.jobs)
        into.add(metrics.GATEWAY_JOBS_KEPT_BYTES, (worker,), self.use.bytes)
        into.add(metrics.GATEWAY_JOBS_UNWRITTEN, (worker,), self._recorder.unwritten)
        for outcome, count in self._recorder.ended.items():
            into.add(metrics.GATEWAY_JOBS_ENDED, (worker, outcome), count)
        for code, count in self.refused.items():
            into.add(metrics.GATEWAY_JOBS_REFUSED, (worker, code), count)

    def __repr__(self) -> str:
        return f"<Jobs {len(self._live)} live, {self.use.jobs} kept, {self._recorder.unwritten} unwritten>"
