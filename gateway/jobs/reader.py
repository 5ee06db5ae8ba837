"""JobReader: answers what clients ask about jobs of any worker: their state, their result, and their deletion."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.errors import BAD_REQUEST, JOB_LOST, JOB_NOT_FOUND, JOBS_UNAVAILABLE, Executed
from tidegate.gateway.access.control import AccessControl
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.effects import JobHost
from tidegate.gateway.jobs.recorder import JobRecorder
from tidegate.gateway.jobs.records import Job, JobStoreError, KeptAnswer, document, retry_after_s
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import JOBS, is_job_path
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

NO_JOB: Final = (
    "there is no such job: it never was, it was deleted, its time is over (`jobs.keep`), or it belongs to a tenant"
    " whose key was not sent"
)


class LiveJobs(Protocol):
    """The jobs that run at this worker (``jobs.py``)."""

    def find(self, job_id: str) -> Job | None:
        """Returns a job of this worker as it is now, if it is not over."""

    def cancel(self, job_id: str) -> None:
        """Ends the work of a job, if it runs here."""

    def open(self) -> None:
        """Begins to look after the jobs of earlier processes."""


class JobReader:
    """Reads the store in the background; each request is answered in a later loop turn."""

    __slots__ = ("_access_control", "_errors", "_host", "_live", "_recorder", "_routers", "_wall")

    def __init__(
        self,
        host: JobHost | None,
        live: LiveJobs,
        recorder: JobRecorder,
        errors: ErrorResponses,
        access_control: AccessControl,
        wall: Callable[[], float],
    ) -> None:
        """``host``: None if there are no jobs."""
        self._host = host
        self._live = live
        self._recorder = recorder
        self._errors = errors
        self._access_control = access_control
        self._wall = wall
        self._routers: Mapping[str, FunctionRouter] = {}

    def apply(self, routers: Mapping[str, FunctionRouter]) -> None:
        """Takes over the functions of a route table."""
        self._routers = routers

    def answer(self, ex: "Exchange", state: RequestState) -> None:
        """Answers ``GET /jobs/ID``, ``GET /jobs/ID/result`` and ``DELETE /jobs/ID``, about jobs of any worker."""
        host, path, method = self._host, ex.head.path, ex.head.method
        if host is None or ex.is_rpc or is_job_path(path) is None:
            self._errors.fail(ex, JOB_NOT_FOUND, NO_JOB)
            return
        is_result = path.endswith(b"/result")
        is_delete = method == b"DELETE" and not is_result
        if not is_delete and method not in (b"GET", b"HEAD"):
            self._errors.fail(ex, BAD_REQUEST, "a job is read with GET, and deleted with DELETE /jobs/ID")
            return
        job_id = path[len(JOBS) :].removesuffix(b"/result").decode()
        self._live.open()
        now = self._wall()

        def found(record: Job | JobStoreError | None) -> None:
            job = self._shown(ex, state, record)
            if job is None:
                return
            if is_delete:
                self._delete(ex, state, host, job)
            elif is_result and job.state.is_over:
                self._answer_result(ex, state, host, job)
            else:
                self._answer_document(ex, state, job, 202 if is_result else 200)

        host.run(lambda store: store.find(job_id, now), found)

    def _shown(self, ex: "Exchange", state: RequestState, record: Job | JobStoreError | None) -> Job | None:
        """Returns the job, if the caller may see it; else the request has got an error."""
        if ex.is_ended:
            return None
        if isinstance(record, JobStoreError):
            self._errors.fail(ex, JOBS_UNAVAILABLE, f"jobs cannot be read: {record}")
            return None
        if record is None or not self._may_see(ex, state, record):
            self._errors.fail(ex, JOB_NOT_FOUND, NO_JOB)
            return None
        return self._live.find(record.id) or self._recorder.as_ended(record)

    def _may_see(self, ex: "Exchange", state: RequestState, job: Job) -> bool:
        """Returns whether the caller is the tenant that made the job. Where none was asked for the id is enough."""
        if job.tenant is None:
            return True
        router = self._routers.get(job.function)
        if router is None or router.access is None:
            return False
        if self._access_control.check_caller(ex.head, state, router) is not None:
            return False
        return state.tenant is not None and state.tenant.name == job.tenant

    def _answer_document(self, ex: "Exchange", state: RequestState, job: Job, status: int) -> None:
        lines = b"x-request-id: %b\r\n" % state.request_id
        if not job.state.is_over:
            lines += b"retry-after: %d\r\n" % retry_after_s(job, self._wall())
        ex.respond(status if not job.state.is_over else 200, document(job), extra=lines)

    def _answer_result(self, ex: "Exchange", state: RequestState, host: JobHost, job: Job) -> None:
        if job.status is None:
            self._errors.fail(ex, JOB_LOST, job.reason or "it has no answer", executed=Executed.UNKNOWN)
            return

        def found(kept: KeptAnswer | JobStoreError | None) -> None:
            if ex.is_ended:
                return
            if isinstance(kept, JobStoreError):
                self._errors.fail(ex, JOBS_UNAVAILABLE, f"jobs cannot be read: {kept}")
            elif kept is None:
                self._errors.fail(ex, JOB_NOT_FOUND, NO_JOB)
            else:
                content_type = (kept.content_type or "application/octet-stream").encode("latin-1")
                ex.respond(kept.status, kept.body, content_type=content_type, extra=kept.fields.encode("latin-1"))

        host.run(lambda store: store.answer(job.id), found)

    def _delete(self, ex: "Exchange", state: RequestState, host: JobHost, job: Job) -> None:
        """Deletes a job; its work ends here at once, at another worker within ``DELETED_EVERY_S``."""
        self._live.cancel(job.id)
        self._recorder.deleted(job.id)

        def done(found: JobStoreError | None) -> None:
            if ex.is_ended:
                return
            if isinstance(found, JobStoreError):
                self._errors.fail(ex, JOBS_UNAVAILABLE, f"the job cannot be deleted: {found}")
                return
            what = b"deleted" if job.state.is_over else b"cancelled"
            body = b'{"id": "%b", "state": "%b"}\n' % (job.id.encode(), what)
            ex.respond(200, body, extra=b"x-request-id: %b\r\n" % state.request_id)

        host.run(lambda store: store.forget(job.id), done)

    def __repr__(self) -> str:
        return "<JobReader>"
